"""Bounds: what no policy can beat, on the metric a problem is judged by; and optima of small instances.

``sched_env.bounds.<family>`` (``Scenario.family``) holds ``of_starts(env, starts)``, the bound of an episode from each
trace row (None where none is known), and ``PRIMARY``, the metric it is stated in with +1 when more of it is better and
-1 when less; where that depends on the scenario, ``primary(scenario)`` instead. Statements and proofs: docs/bounds.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from sched_env.scenarios import Scenario

if TYPE_CHECKING:
    from sched_env.vector import PlacementVectorEnv


def primary(scenario: Scenario) -> tuple[str, float]:
    """Return the metric that bounds of a scenario are stated in, and +1 when more of it is better, -1 when less."""
    module = _module(scenario)
    stated: tuple[str, float] = module.PRIMARY if hasattr(module, "PRIMARY") else module.primary(scenario)
    return stated


def of_starts(env: PlacementVectorEnv, starts: Sequence[int]) -> list[float | None]:
    """Return the bound of an episode from each start, valid for every policy; None: none is known."""
    bounds: list[float | None] = _module(env.scenario).of_starts(env, starts)
    return bounds


def _module(scenario: Scenario) -> ModuleType:
    return importlib.import_module(f"sched_env.bounds.{scenario.family}")
