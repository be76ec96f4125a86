"""Synthetic evaluations with a known truth, and the integrity of a healthy bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pytest

from pipeline.contracts.evaluation import EPISODES, Integrity
from pipeline.gating.episodes import Episodes

METRICS = ("return", "sla_violation_rate", "cost_usd", "p99_wait_s", "migrations", "bound")
LEVELS = {"sla_violation_rate": 0.04, "cost_usd": 10.0, "p99_wait_s": 8.0, "migrations": 40.0}


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
    time block. ``worse`` raises the challenger's guardrail metrics by that share of their mean.
    """
    random = np.random.default_rng(seed)
    n = blocks * traces_per_block
    block = np.repeat(np.arange(blocks), traces_per_block)

    def noise() -> np.ndarray:
        heavy = random.standard_t(5, size=n) / np.sqrt(5.0 / 3.0)
        return np.sqrt(shared) * random.standard_normal(blocks)[block] + np.sqrt(1.0 - shared) * heavy

    parts: dict[str, dict[str, list[np.ndarray]]] = {policy: {name: [] for name in METRICS} for policy in better}
    for load in range(len(scenarios)):
        level = (1.0 + load) * base * random.lognormal(0.0, 0.3, n)
        guards = {name: mean * random.lognormal(0.0, 0.3, n) for name, mean in LEVELS.items()}
        for policy, gain in better.items():
            values = parts[policy]
            values["return"].append(level + abs(level.mean()) * (gain + deviation * noise()))
            values["bound"].append(0.5 * level)
            for name, guard in guards.items():
                harm = (worse or {}).get(name, 0.0) if policy == "challenger" else 0.0
                values[name].append(np.maximum(guard + guard.mean() * (harm + guard_deviation * noise()), 0.0))
    whole = {policy: {name: np.concatenate(column) for name, column in parts[policy].items()} for policy in better}
    for columns in whole.values():
        columns |= {name: np.zeros(n * len(scenarios)) for name in ("infeasible", "oom")}
        columns["placed"] = np.full(n * len(scenarios), 100.0)
    return Episodes(
        scenarios=scenarios,
        scenario=np.repeat(np.arange(len(scenarios)), n),
        block=np.tile(block, len(scenarios)),
        traces=tuple(f"start-{index:04d}" for index in range(n)) * len(scenarios),
        values=whole,
        heuristics=tuple(sorted(set(better) - {"challenger", "champion"})),
        champion="champion" in better,
    )


def tabulate(episodes: Episodes) -> pa.Table:
    """The Parquet table that ``evaluate`` would have written for these episodes."""
    tables = []
    for policy, metrics in episodes.values.items():
        kind = "heuristic" if policy in episodes.heuristics else policy
        columns = {
            "policy": pa.array([policy] * len(episodes)),
            "kind": pa.array([kind] * len(episodes)),
            "scenario": pa.array([episodes.scenarios[index] for index in episodes.scenario]),
            "trace": pa.array(episodes.traces),
            "block": pa.array(episodes.block),
        } | {name: pa.array(values) for name, values in metrics.items()}
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(len(episodes), field.type)
            for field in EPISODES
        ]
        tables.append(pa.table(arrays, schema=EPISODES))
    return pa.concat_tables(tables)


@pytest.fixture(name="simulate")
def _simulate() -> Callable[..., Episodes]:
    return simulate


@pytest.fixture(name="tabulate")
def _tabulate() -> Callable[[Episodes], pa.Table]:
    return tabulate


@pytest.fixture
def healthy() -> Integrity:
    return Integrity(
        parity_max_error=2e-6,
        parity_argmax_equal=True,
        permutation_invariant=True,
        mask_violations=0,
        golden_max_error=0.0,
        decision_p99_us=120.0,
        bundle_errors=[],
        sizes=[1, 2, 3, 5, 20, 100, 1000],
        digest="sha256:" + "c" * 64,
        champion_digest="sha256:" + "a" * 64,
    )
