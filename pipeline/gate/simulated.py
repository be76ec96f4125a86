"""Simulated evaluations with a known truth: what the gate is tried on before it judges anybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.contracts.evaluation import Integrity, Terms
from pipeline.gate.config import IntegrityLimits
from pipeline.gate.episodes import CHALLENGER, CHAMPION, Episodes
from pipeline.statistics.estimators import Floats

LEVELS = {"sla_violation_rate": 0.04, "cost_usd": 10.0, "p99_wait_s": 8.0, "migrations": 40.0}
"""Mean of each guardrail metric under every policy; at 4 % violations the relative limit of the rate is the smaller."""

HEALTHY = Integrity(
    parity_max_error=2e-6,
    parity_argmax_equal=True,
    permutation_invariant=True,
    mask_violations=0,
    golden_max_error=0.0,
    decision_p99_us=120.0,
    bundle_errors=[],
    sizes=list(IntegrityLimits().sizes),
    digest="sha256:" + "c" * 64,
    champion_digest="sha256:" + "a" * 64,
)
"""Of a bundle with nothing wrong."""


TERMS = Terms(
    problem="functions",
    scenario="functions/serverless",
    primary_metric="return",
    higher_is_better=True,
    bound_metric="return",
    fallback="least_allocated",
    guardrails=[],
)
"""What simulated episodes are judged by."""


def simulate(
    better: Mapping[str, float],
    *,
    seed: int | list[int] = 0,
    scenarios: tuple[str, ...] = ("load-0.7", "load-1.0", "load-1.3"),
    blocks: int = 20,
    traces_per_block: int = 10,
    deviation: float = 0.05,
    shared: float = 0.1,
    worse: Mapping[str, float] | None = None,
    guard_deviation: float = 0.02,
    base: float = -100.0,
) -> Episodes:
    """Episodes of policies that are ``better`` than a common base by a known relative amount on ``return``.

    The level of a trace is common to all policies, as with replayed traces: pairing takes it out. The difference of
    each policy has ``deviation``, with the tails of Student's t, and a ``shared`` part of its variance is common to a
    time block.

    Args:
        better: Policy -> true relative improvement over the base; challenger, champion (or none), heuristics.
        seed: Of everything drawn.
        scenarios: Names; each has the same traces at a level of its own.
        blocks: Time blocks.
        traces_per_block: Traces in each.
        deviation: Of one policy's return on a trace, relative; a paired difference has the root of two times as much.
        shared: Part of that variance that is common to a block.
        worse: Guardrail metric -> how much higher the challenger's is, relative to its mean.
        guard_deviation: Of one policy's guardrail metrics on a trace, relative.
        base: Mean return.
    """
    random = np.random.default_rng(seed)
    n = blocks * traces_per_block
    block = np.repeat(np.arange(blocks), traces_per_block)

    def noise() -> Floats:
        heavy = random.standard_t(5, size=n) / np.sqrt(5.0 / 3.0)
        return np.asarray(np.sqrt(shared) * random.standard_normal(blocks)[block] + np.sqrt(1.0 - shared) * heavy)

    parts: list[dict[str, dict[str, Floats]]] = []
    for load in range(len(scenarios)):
        level = (1.0 + load) * base * random.lognormal(0.0, 0.3, n)
        guards = {name: mean * random.lognormal(0.0, 0.3, n) for name, mean in LEVELS.items()}
        columns: dict[str, dict[str, Floats]] = {}
        for policy, gain in better.items():
            mine = {"return": level + abs(level.mean()) * (gain + deviation * noise())}
            for name, guard in guards.items():
                harm = (worse or {}).get(name, 0.0) if policy == CHALLENGER else 0.0
                mine[name] = np.maximum(guard + guard.mean() * (harm + guard_deviation * noise()), 0.0)
            mine |= {"bound": 0.5 * level, "placed": np.full(n, 100.0)}
            columns[policy] = mine | {name: np.zeros(n) for name in ("infeasible", "oom")}
        parts.append(columns)
    return Episodes(
        scenarios=scenarios,
        scenario=np.repeat(np.arange(len(scenarios)), n),
        block=np.tile(block, len(scenarios)),
        traces=tuple(f"start-{index:04d}" for index in range(n)) * len(scenarios),
        values={policy: _joined([part[policy] for part in parts]) for policy in better},
        heuristics=tuple(sorted(set(better) - {CHALLENGER, CHAMPION})),
        champion=CHAMPION in better,
    )


def _joined(parts: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
