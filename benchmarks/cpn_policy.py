"""A trained ``jobs`` policy for ``cpn_live.py``: trained as in ``quality.py``, exported and signed as for a service.

The training is seed 0 of the case ``jobs``: queues drawn from the public one, pairs of a waiting job and a card, with a
predictor's errors; the queues that are run live are not among them. It takes half a minute and is remembered.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from place_latency import push, signed
from quality_cases import jobs
from quality_parts import judged
from quality_students import limits_of, student

from pipeline.export import compare, golden
from pipeline.policies.onnx_graph import to_onnx
from sched_env import problems
from wire import bundle, graph, sample_bundle
from wire.contracts.bundle import Verdict
from wire.policy import GraphPolicy

SEED, BEST_RULE = 0, "min_min"
"""The rule is the best of all on this case's validation (``docs/results/quality.md``): it sets the limits."""
SHOWN = ("choice", "shown_jobs", "queue_order", "reservation")
"""Of the training's scenario: what the controller needs to ask the same questions, and the simulator."""


@cache
def trained(data: Path) -> dict[str, bytes]:
    """Train and export; return the files of the bundle, its signature excepted."""
    case = jobs(data)
    limits = limits_of(case, judged(case.validation, BEST_RULE, [case.primary, *case.shown]))
    found, _ = student(case, SEED, limits)
    spec = problems.get("jobs").seen(case.train[0]).spec
    policy = to_onnx(found.scorer, spec)
    session = graph.open_session(policy)
    parity = compare(found.scorer, session, spec)
    if not (parity.argmax_equal and parity.mask_violations == 0):
        raise SystemExit(f"the exported graph does not decide like the network: {parity}")
    shown = {name: getattr(case.train[0], name) for name in SHOWN}
    return sample_bundle.assemble(
        spec, policy, golden=golden(session, spec), algorithm=case.algorithm, gate=Verdict("pass", "for a benchmark"),
        params={"seed": SEED, "workload": {"overrides": shown}},
    )  # fmt: skip


def loaded(files: dict[str, bytes]) -> tuple[GraphPolicy, dict[str, Any]]:
    """Return the policy for the simulator, and the keys of the scenario in which it is shown what it was taught on."""
    checked = bundle.check(files)
    policy = GraphPolicy(checked.policy, "policy", checked)
    workload = policy.manifest.params["workload"]
    if not isinstance(workload, dict):
        raise SystemExit("the bundle does not say under which scenario it was trained")
    return policy, workload["overrides"]


class Delivery:
    """Brings a bundle into a service's store, over HTTP.

    Args:
        files: The bundle.
        folder: The service's ``LOADMASTER_VAR``, before it is started: a key of our own is trusted there.
    """

    def __init__(self, files: dict[str, bytes], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._archive = folder, signed(folder, files)

    def push(self, port: int) -> None:
        """Make it live."""
        push(port, self._folder, self._archive, "jobs")
