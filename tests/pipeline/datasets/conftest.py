"""A folder of windows with three pods, their functions, two VMs and the nodes; and how to write one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

START = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _var(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))


@pytest.fixture
def folder(tmp_path: Path, write: Callable[..., None], at: Callable[..., Any], event: Callable[..., Any]) -> Path:
    """Three pods: a answers 7 requests and is deleted, b lives on, c has its size from its metrics only."""
    out = tmp_path / "windows"
    size = {"cpu_cores": 1.0, "mem_gib": 2.0}
    write(
        out,
        "events",
        [
            event("b", 60.0, "create", "g", **size),
            event("a", 30.0, "create", "f", **size),
            event("a", 930.0, "delete", "f"),
            event("c", 400.0, "create", "f"),
            event("vm-1", 10.0, "create", None, "vm", cpu_cores=4.0, mem_gib=8.0),
            event("vm-2", 20.0, "create", None, "vm", cpu_cores=2.0, mem_gib=4.0),
            event("vm-1", 50.0, "delete", None, "vm"),
            event("vm-0", 55.0, "delete", None, "vm"),
        ],
    )
    pods = [
        {"window_start": at(300 * n), "cluster": "c", "pod": pod, "cpu_request_cores": 0.5, "mem_request_gib": 1.5,
         "net_used_mean_mb_s": 10.0 * n, "disk_used_mean_iops": 100.0, "requests_handled": requests}
        for pod, requests, windows_seen in (("a", 2, range(3)), ("b", 1, range(5)), ("c", 3, range(1, 3)))
        for n in windows_seen
    ]  # fmt: skip
    write(out, "pods", pods)
    standard = {"f": 0.5, "g": 2.0}
    write(
        out,
        "functions",
        [
            {"window_start": START, "cluster": "c", "function": name, "requests": 5, "standard_response_s": seconds}
            for name, seconds in standard.items()
        ],
    )
    capacity = {"cpu_capacity_cores": 8.0, "mem_capacity_gib": 32.0}
    grown = {"cpu_capacity_cores": 16.0, "net_capacity_mb_s": 500.0, "price_usd_per_hour": 0.8}
    write(
        out,
        "nodes",
        [
            {"window_start": START, "cluster": "c", "node": "n2", **capacity},
            {"window_start": START, "cluster": "c", "node": "n1", **capacity, "price_usd_per_hour": 0.4},
            {"window_start": at(300), "cluster": "c", "node": "n1", **capacity, **grown},
            {"window_start": START, "cluster": "c", "node": "broken"},
        ],
    )  # fmt: skip
    return out


@pytest.fixture(scope="session")
def sample_windows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days of the embedded sample, cleaned; of functions as little as possible."""
    from pipeline.clean.command import clean
    from pipeline.clean.config import CleanConfig
    from pipeline.ingest import IngestConfig, Range, ingest
    from pipeline.sources.sample import SampleConfig

    work = tmp_path_factory.mktemp("sample")
    sample = SampleConfig(days=2, nodes=1, functions=1, scrape_seconds=300.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOADMASTER_VAR", str(work / "var"))
        ingest(IngestConfig(sample=sample), Range(), work / "raw")
        clean(work / "raw", work / "windows", CleanConfig())
    return work / "windows"
