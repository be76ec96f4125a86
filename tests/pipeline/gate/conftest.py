"""Synthetic evaluations with a known truth, and the integrity of a healthy bundle."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from pipeline.contracts.evaluation import EPISODES, Integrity
from pipeline.gate.episodes import Episodes
from pipeline.gate.simulated import HEALTHY, simulate


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
    return HEALTHY
