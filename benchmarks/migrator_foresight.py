"""What a night with foresight would push before a load of ``migrator_paper`` is played, made of the days before it.

The forecast is fitted by the stage's own code on the first two of three days and its methods are chosen on the third;
the weights of a move and of what it does to expected violations are searched on the first two and chosen on the third,
as the section ``pods`` of ``quality.py`` does. Nothing of the windows that are played is looked at. Pods stood where
they stand now: who ran where on those days is not part of the load model.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from migrator_paper import BEFORE, BUDGET, DAY, THRESHOLD, Crowds, Trace, Where, trace_of
from numpy.typing import NDArray
from quality_pods import Episodes, fitted, foreseen, searched, used

from pipeline.forecast import methods, store
from pipeline.policies.evolution import of_terms
from pipeline.policies.onnx_graph import to_onnx
from placement.kube.past import Foresee
from sched_env import scenarios
from sched_env.pods import features
from sched_env.pods.forecast import NAME, SPEC
from sched_env.pods.foresight import STAKES
from wire.contracts.bundle import ModelSpec, model_file, model_golden_file

EPISODE = 48
"""Windows."""
EPISODES, GENERATIONS = (12, 8), 8
"""That train and that validate; generations of the search."""


class Night(NamedTuple):
    """What would be pushed."""

    policy: bytes
    model: tuple[ModelSpec, bytes, bytes]
    """Spec, graph and golden vectors of the forecast."""
    fitted: methods.Fitted
    weights: list[float]
    promised: float
    """Share of the best rule's violations that it saves on the third day; 0: validation kept the rule there."""


def scenario() -> scenarios.Scenario:
    """Return the rules that the migrator keeps, as the simulator knows them."""
    return scenarios.load(
        "pods/deploy",
        {"threshold": THRESHOLD, "migration_budget": BUDGET, "pod_limit": 110, "episode_windows": EPISODE},
    )


def night(first: Where, crowds: Crowds, nodes: int, folder: Path, seed: int = 0) -> Night:
    """Make a policy with a forecast of the days before a load."""
    pods, table = trace_of(first, crowds, nodes)
    spans = ((0, BEFORE - DAY), (BEFORE - DAY, BEFORE))
    train, held = (pods.windows(*span) for span in spans)
    said = fitted([(train, table)], [(held, table)])
    store.write(folder / NAME, said, methods.asked(used(held)[0]), {})
    graph, golden = ((folder / NAME / name).read_bytes() for name in (model_file(NAME), model_golden_file(NAME)))
    whole = foreseen((pods.windows(0, BEFORE), table), said)
    learning, choosing = (
        [Episodes(scenario(), whole, np.linspace(begin, end - EPISODE - 1, count).astype(np.int64))]
        for (begin, end), count in zip(spans, EPISODES, strict=True)
    )
    found = searched(learning, choosing, seed, GENERATIONS)
    move, *stakes = found["chosen on validation"] or found["no choice"]
    terms = [{"here": 1.0}, *({name: 1.0} for name in STAKES)]
    scorer = of_terms(features.SPEC, terms, np.array([move, *(-each for each in stakes)]), hidden=8)
    policy = to_onnx(scorer, features.SPEC)
    return Night(policy, (SPEC, graph, golden), said, [move, *stakes], 1.0 - min(found["curve"]))


def ahead(first: Where, crowds: Crowds, nodes: int, said: methods.Fitted) -> Trace:
    """Return the load that is played, with what the forecast says of it, for the simulator."""
    pods, table = foreseen(trace_of(first, crowds, nodes), said)
    return pods.windows(crowds.before, len(pods)), table


def foreseeing(made: Night) -> Foresee:
    """Return the forecast as the service would answer."""

    def foresee(rows: NDArray[np.float32]) -> NDArray[np.float64]:
        return methods.predicted(made.fitted, rows.reshape(len(rows), 2, -1).astype(np.float64))

    return foresee
