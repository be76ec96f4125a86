"""Importing this registers our environments with Gymnasium: ``sched_env/Fading-v0``, ``sched_env/Serverless-v0``.

``gymnasium.make("sched_env.envs:sched_env/Fading-v0")`` imports it by itself. Gymnasium 1.0 gave up entry points, and
the package itself must not import Gymnasium, which the live service does without (docs/decisions/0014).
"""

from __future__ import annotations

from gymnasium.envs.registration import register

from sched_env import problems

NAMESPACE = "sched_env"

for _name in problems.names():
    for _short, (_entry_point, _scenario) in problems.get(_name).environments.items():
        register(f"{NAMESPACE}/{_short}", entry_point=_entry_point, kwargs={"scenario": _scenario})
