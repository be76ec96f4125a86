"""A workload and a training small enough for any test; imported when asked for, because torch is heavy.

And how to write window tables by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.contracts.windows import SCHEMA_VERSION, TABLES, VERSION_KEY

START = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture(scope="session")
def tiny_workload():
    """A few hundred placements on six nodes, generated."""
    from pipeline.datasets import Workload
    from sched_env import scenarios
    from sched_env.functions import synthetic

    nodes = synthetic.nodes(6, 1000.0, 5000.0)
    trace = synthetic.serverless(400, 5, float(nodes.cpu.sum()), 0.6, 0)
    scenario = scenarios.load("functions/serverless", {"horizon": 32})
    return Workload("functions", scenario, (trace, nodes), "2026-01-01", "2026-01-02")


@pytest.fixture(scope="session")
def tiny_ppo():
    from pipeline.policies import algorithms

    return algorithms.settings(
        "maskable_ppo", envs=4, rollout_steps=16, segments=4, rollouts_per_segment=1, epochs=1, batch=32, hidden=8,
        teacher_steps=8, teacher_epochs=1,
    )  # fmt: skip


def write(folder: Path, table: str, rows: list[dict[str, Any]], day: datetime = START) -> None:
    frame = pd.DataFrame(rows).reindex(columns=TABLES[table].names)
    quality = {"samples": 5, "completeness": 1.0, "filled": False, "repaired": 0, "active": True}
    quality |= {"moved": False, "present_ratio": 1.0}
    for name, value in {**quality, "requests": 0}.items():
        if name in frame and frame[name].isna().all():
            frame[name] = value
    content = TABLES[table].empty_table()
    if rows:
        content = pa.Table.from_pandas(frame, schema=TABLES[table], preserve_index=False)
    path = folder / table / f"date={day.date()}" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(content.replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION).encode()}), path)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def event(
    entity: str, seconds: float, action: str, function: str | None = "f", kind: str = "pod", **size: float
) -> dict[str, Any]:
    start = at(seconds - seconds % 300)
    return {"window_start": start, "cluster": "c", "entity": entity, "time": at(seconds), "kind": kind,
            "action": action, "function": function, **size}  # fmt: skip


@pytest.fixture(name="write")
def _write() -> Callable[..., None]:
    return write


@pytest.fixture(name="at")
def _at() -> Callable[[float], datetime]:
    return at


@pytest.fixture(name="event")
def _event() -> Callable[..., dict[str, Any]]:
    return event
