"""A small healthy cluster as raw rows, and the way from rows to cleaned windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.clean.account import CleanMetrics
from pipeline.clean.command import clean
from pipeline.clean.config import CleanConfig
from pipeline.contracts.raw import TABLES

DAY = date(2026, 3, 2)
START = datetime(2026, 3, 2, tzinfo=UTC)
GIB = float(2**30)
Row = dict[str, object]
Rows = dict[str, list[Row]]


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def sample(metric: str, seconds: float, value: float | None, **labels: object) -> Row:
    return {"time": at(seconds), "metric": metric, "value": value, **labels}


def cluster_rows(step: float = 60.0, hours: float = 1.0, times: Iterable[float] | None = None) -> Rows:
    """One node of 8 cores and 32 GiB with two pods of one function; 0.5 and 1 core used, one request a minute."""
    samples: list[Row] = []
    scrapes = list(times) if times is not None else [step * n for n in range(round(hours * 3600 / step))]
    for t in scrapes:
        node = {"node": "n1"}
        samples += [
            sample("node_cpu_seconds", t, 1.5 * t + 1000, **node),
            sample("node_mem_used_bytes", t, 10 * GIB, **node),
            sample("node_cpu_capacity_cores", t, 8.0, **node),
            sample("node_mem_capacity_bytes", t, 32 * GIB, **node),
            sample("node_info", t, 1.0, detail="m5.2xlarge", **node),
        ]
        for pod, use in (("p1", 0.5), ("p2", 1.0)):
            who = {"pod": pod, "node": "n1"}
            samples += [
                sample("pod_cpu_seconds", t, use * t + 1000, **who),
                sample("pod_mem_used_bytes", t, 2 * GIB, **who),
                sample("pod_cpu_request_cores", t, 1.0, **who),
                sample("pod_mem_request_bytes", t, 4 * GIB, **who),
                sample("pod_info", t, 1.0, function="f", **who),
            ]
    requests: list[Row] = [
        {
            "time": at(60 * n + 7.5),
            "function": "f",
            "pod": None,
            "cpu_cores": 0.4,
            "mem_bytes": GIB,
            "duration_s": 2.0 + n / 100,
        }
        for n in range(round(hours * 60))
    ]
    events: list[Row] = [
        {"time": at(1), "entity": pod, "kind": "pod", "action": "create", "node": "n1", "function": "f",
         "cpu_cores": 1.0, "mem_bytes": 4 * GIB, "gpus": 0.0}
        for pod in ("p1", "p2")
    ]  # fmt: skip
    return {"samples": samples, "requests": requests, "events": events, "tasks": diamond("flow-1") + diamond("flow-2")}


def diamond(workflow: str) -> list[Row]:
    """One execution: a, then b and c side by side, then d."""
    parents = {"a": None, "b": "a", "c": "a", "d": "b c"}
    return [
        {"time": at(600), "workflow": workflow, "task": task, "runtime_s": 10.0, "cpu_cores": 1.0, "mem_bytes": GIB,
         "parents": parent, "parent_mb": None if parent is None else " ".join(["5.5"] * len(parent.split())),
         "input_mb": 3.0, "node": "n1", "function": f"step-{task}"}
        for task, parent in parents.items()
    ]  # fmt: skip


def write_raw(folder: Path, rows: dict[str, Rows], day: date = DAY) -> Path:
    """Write raw rows by cluster into one day's partition, whatever their times say."""
    for cluster, tables in rows.items():
        for table, entries in tables.items():
            schema = TABLES[table]
            columns = {
                field.name: pa.array(
                    [row.get(field.name) if field.name != "cluster" else cluster for row in entries], field.type
                )
                for field in schema
            }
            path = folder / table / f"date={day.isoformat()}" / f"cluster={cluster}"
            path.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(columns), path / "part-0.parquet")
    return folder


class Cleaned(SimpleNamespace):
    """Window tables of a run as data frames, its metrics, and pictures of one cluster."""

    metrics: CleanMetrics
    out: Path

    def table(self, name: str, cluster: str | None = None) -> pd.DataFrame:
        files = sorted((self.out / name).glob("date=*/*.parquet"))
        frame = pd.concat([pq.ParquetFile(file).read().to_pandas() for file in files], ignore_index=True)
        return frame if cluster is None else frame[frame["cluster"] == cluster].reset_index(drop=True)

    def rules(self, cluster: str) -> dict[str, int]:
        return self.table("quarantine", cluster)["rule"].value_counts().to_dict()


@pytest.fixture(scope="session")
def run_clean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Cleaned]]:
    """Clean raw rows by cluster; keyword arguments are settings."""

    def run(rows: dict[str, Rows] | Path, **settings: object) -> Cleaned:
        work = tmp_path_factory.mktemp("clean")
        raw = rows if isinstance(rows, Path) else write_raw(work / "raw", rows)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOADMASTER_VAR", str(work / "var"))
            metrics = clean(raw, work / "windows", CleanConfig(**settings))  # type: ignore[arg-type]
        return Cleaned(metrics=metrics, out=work / "windows", raw=raw)

    return run


@pytest.fixture(scope="session")
def healthy() -> SimpleNamespace:
    """The makers of rows, for tests that need them."""
    return SimpleNamespace(rows=cluster_rows, sample=sample, at=at, write=write_raw, day=DAY, gib=GIB)
