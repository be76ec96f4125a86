"""Synthetic evaluations with a known truth, and the integrity of a healthy bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pytest

from pipeline.contracts.evaluation import EPISODES, Integrity

SIZES = [1, 2, 3, 5, 20, 100, 1000]


def build_table(
    better: Mapping[str, float],
    *,
    seed: int = 0,
    scenarios: tuple[str, ...] = ("load-0.7", "load-1.0", "load-1.3"),
    blocks: int = 20,
    traces_per_block: int = 10,
    deviation: float = 0.04,
    block_deviation: float = 0.01,
    worse: Mapping[str, float] | None = None,
    base: float = -100.0,
) -> pa.Table:
    """Episodes whose policies are ``better`` than a common base by a known relative amount on ``return``.

    ``worse`` raises the challenger's guardrail metrics by that share. The level of a trace is shared by all policies
    (pairing takes it out); a part of the noise is shared within a time block.
    """
    random = np.random.default_rng(seed)
    n = blocks * traces_per_block
    block = np.repeat(np.arange(blocks), traces_per_block)
    columns: dict[str, list[object]] = {field.name: [] for field in EPISODES}
    for load, scenario in enumerate(scenarios):
        level = (1.0 + load) * base * random.lognormal(0.0, 0.3, n)
        sla, cost = 0.04 * random.lognormal(0.0, 0.3, n), 10.0 * random.lognormal(0.0, 0.2, n)
        for policy, gain in better.items():
            shared = block_deviation * random.standard_normal(blocks)[block]
            noise = shared + deviation * random.standard_normal(n)
            harm = worse or {} if policy == "challenger" else {}

            def guarded(metric: str, values: np.ndarray, harm: Mapping[str, float] = harm) -> np.ndarray:
                spread = values * (1.0 + 0.02 * random.standard_normal(n))
                return spread * (1.0 + harm.get(metric, 0.0))

            kind = policy if policy in {"challenger", "champion"} else "heuristic"
            rows = {
                "policy": [policy] * n,
                "kind": [kind] * n,
                "scenario": [scenario] * n,
                "trace": [f"start-{index:04d}" for index in range(n)],
                "block": block,
                "return": level + np.abs(np.mean(level)) * (gain + noise),
                "sla_violation_rate": guarded("sla_violation_rate", sla),
                "cost_usd": guarded("cost_usd", cost),
                "p99_wait_s": guarded("p99_wait_s", np.full(n, 5.0)),
                "migrations": [None] * n,
                "infeasible": [0] * n,
                "oom": [0] * n,
                "placed": [100] * n,
                "bound": 0.5 * level,
                "response_ratio": [None] * n,
                "wait_s": [None] * n,
                "makespan_s": [None] * n,
            }
            for name, values in rows.items():
                columns[name].extend(values.tolist() if isinstance(values, np.ndarray) else values)
    return pa.table(columns, schema=EPISODES)


@pytest.fixture
def table() -> Callable[..., pa.Table]:
    return build_table


@pytest.fixture
def healthy() -> Integrity:
    return Integrity(
        parity_max_abs_error=2e-6,
        parity_argmax_equal=True,
        permutation_invariant=True,
        mask_violations=0,
        golden_max_abs_error=0.0,
        decision_p99_us=120.0,
        bundle_errors=[],
        sizes=SIZES,
        digest="sha256:" + "c" * 64,
        champion_digest="sha256:" + "a" * 64,
    )
