"""Windows as datasets: splits that do not touch, and arrays that are right, stable and shared."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import windows
from pipeline.contracts.windows import SCHEMA_VERSION, TABLES, VERSION_KEY, WINDOW_SECONDS
from pipeline.datasets.pods import pod_windows
from pipeline.errors import DataError
from pipeline.windows import SplitConfig, splits
from sched_env.pods.tables import PodTrace
from sched_env.vector import make_vec
from wire.errors import ConfigError, ContractError

START = datetime(2026, 3, 2, tzinfo=UTC)
STEP = timedelta(seconds=WINDOW_SECONDS)


@given(
    count=st.integers(3, 4000),
    gap=st.integers(0, 40),
    train=st.floats(0.1, 0.8),
    validation=st.floats(0.05, 0.15),
)
def test_no_window_is_in_two_splits(count: int, gap: int, train: float, validation: float) -> None:
    end = START + count * STEP
    try:
        found = splits(START, end, SplitConfig(train, validation, gap))
    except DataError:
        assert (count - 2 * gap) * min(train, validation, 1 - train - validation) < 2
        return
    parts = [found.train, found.validation, found.test]
    assert parts[0].start == START
    assert parts[-1].end == end
    for part in parts:
        assert part.end - part.start >= STEP
        assert (part.start - START) % STEP == timedelta(0)
    for before, after in itertools.pairwise(parts):
        assert after.start - before.end == gap * STEP


def test_too_few_windows_are_a_clear_error() -> None:
    with pytest.raises(DataError, match="ask for more days"):
        splits(START, START + 20 * STEP)


@pytest.mark.parametrize("settings", [{"train": 0.9, "validation": 0.1}, {"train": 0.0}, {"gap_windows": -1}])
def test_shares_that_leave_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"splits\."):
        SplitConfig(**settings)


@pytest.fixture(autouse=True)
def _var(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))


def write(folder: Path, table: str, rows: list[dict[str, Any]], day: datetime = START) -> None:
    frame = pd.DataFrame(rows).reindex(columns=TABLES[table].names)
    quality = {"samples": 5, "completeness": 1.0, "filled": False, "repaired": 0, "active": True}
    quality |= {"moved": False, "present_ratio": 1.0}
    for name, value in {**quality, "requests": 0}.items():
        if name in frame and frame[name].isna().all():
            frame[name] = value
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
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


class TestFunctionTrace:
    end = at(1500)

    def test_each_created_pod_is_one_request_in_order_of_arrival(self, folder: Path) -> None:
        trace, _ = windows.function_trace(folder, START, self.end)
        assert trace.arrival_s.tolist() == [30.0, 60.0, 400.0]
        assert [trace.function_names[index] for index in trace.function] == ["f", "g", "f"]
        assert trace.duration_s.tolist() == [900.0, 1440.0, 1100.0]
        assert trace.cpu.tolist() == [1.0, 1.0, 0.5]
        assert trace.mem.tolist() == [2.0, 2.0, 1.5]
        assert trace.net.tolist() == [10.0, 20.0, 15.0]
        assert trace.requests.tolist() == [6, 5, 6]
        assert trace.slo_s.tolist() == [1.0, 4.0, 1.0]

    def test_nothing_after_the_end_is_seen(self, folder: Path) -> None:
        trace, _ = windows.function_trace(folder, START, at(600))
        assert (trace.arrival_s + trace.duration_s).max() <= 600
        assert trace.requests.tolist() == [4, 2, 3]

    def test_functions_have_one_number_in_every_split(self, folder: Path) -> None:
        early, _ = windows.function_trace(folder, START, at(300))
        late, _ = windows.function_trace(folder, at(300), at(1500))
        assert early.function_names == late.function_names == ("f", "g")

    def test_nodes_are_as_they_were_last(self, folder: Path) -> None:
        _, nodes = windows.function_trace(folder, START, self.end)
        assert nodes.names == ("n1", "n2")
        assert nodes.cpu.tolist() == [16.0, 8.0]
        assert nodes.net.tolist() == [500.0, windows.DEFAULT_NET_MB_S]
        assert nodes.price_usd_per_hour.tolist() == [0.8, 1.0]

    def test_arrays_are_mapped_once_and_shared(self, folder: Path, tmp_path: Path) -> None:
        first, _ = windows.function_trace(folder, START, self.end)
        cached = list((tmp_path / "var" / "cache" / "windows").iterdir())
        second, _ = windows.function_trace(folder, START, self.end)
        assert list((tmp_path / "var" / "cache" / "windows").iterdir()) == cached
        for trace in (first, second):
            assert isinstance(trace.cpu.base, np.memmap)
            assert not trace.cpu.flags.writeable

    def test_other_windows_are_other_arrays(self, folder: Path) -> None:
        before, _ = windows.function_trace(folder, START, self.end)
        write(folder, "events", [event("z", 5.0, "create", "f", cpu_cores=3.0, mem_gib=3.0)])
        after, _ = windows.function_trace(folder, START, self.end)
        assert len(before) == 3
        assert after.cpu.tolist() == [3.0]

    def test_a_span_without_pods_is_a_clear_error(self, folder: Path) -> None:
        with pytest.raises(DataError, match="no pod created"):
            windows.function_trace(folder, at(3000), at(6000))


def test_vm_events_in_order_with_the_size_of_their_vm(folder: Path) -> None:
    trace = windows.vm_trace(folder, START, at(300))
    assert trace.kind.tolist() == [0, 0, 1]
    assert trace.vmid.tolist() == [0, 1, 0]
    assert trace.cpu.tolist() == [4.0, 2.0, 4.0]
    assert trace.time.tolist() == [10.0, 20.0, 50.0]


def test_only_windows_of_the_span_are_read(folder: Path) -> None:
    rows = windows.read(folder, "pods", at(300), at(600), ["pod"])
    assert rows.column_names == ["window_start", "pod"]
    assert rows["pod"].to_pylist() == ["a", "b", "c"]


def test_the_span_of_a_folder_is_whole_days(folder: Path) -> None:
    assert windows.span(folder) == windows.Span(START, START + timedelta(days=1))


def test_a_file_of_somebody_elses_and_a_failed_build_leave_nothing_behind(folder: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"window_start": [START]}), folder / "pods" / f"date={START.date()}" / "part-0.parquet")
    with pytest.raises(ContractError, match="not of window schema"):
        windows.function_trace(folder, START, at(600))
    assert not list((tmp_path / "var" / "cache" / "windows").iterdir())


def test_windows_of_another_version_are_refused(folder: Path) -> None:
    path = folder / "pods" / "date=2026-03-02" / "part-0.parquet"
    pq.write_table(pq.ParquetFile(path).read().replace_schema_metadata({VERSION_KEY: b"0"}), path)
    with pytest.raises(ContractError, match="not of window schema"):
        windows.read(folder, "pods", START, at(600))


class TestPodWindows:
    @pytest.fixture
    def loaded(self, folder: Path) -> PodTrace:
        demand = {"cluster": "c", "duration_s": 2.0, "cpu_cores": 0.5, "mem_gib": 0.25, "estimated": False}
        write(
            folder,
            "demands",
            [
                {"window_start": at(300), "pod": "b", "position": 1, "arrival_offset_s": 9.0, **demand},
                {"window_start": at(300), "pod": "b", "position": 0, "arrival_offset_s": 3.0, **demand},
                {"window_start": at(0), "pod": "a", "position": 0, "arrival_offset_s": 1.0, **demand},
                {"window_start": at(0), "pod": "stranger", "position": 0, "arrival_offset_s": 1.0, **demand},
            ],
        )
        return pod_windows(folder, START, at(1500))[0]

    def test_windows_index_pods_and_pods_index_requests(self, loaded: PodTrace) -> None:
        assert loaded.window_s.tolist() == [0.0, 300.0, 600.0, 900.0, 1200.0]
        assert loaded.window_rows.tolist() == [0, 2, 5, 8, 9, 10]
        assert [loaded.pod_names[pod] for pod in loaded.pod[2:5]] == ["a", "b", "c"]
        assert np.diff(loaded.row_requests).tolist() == [1, 0, 0, 2, 0, 0, 0, 0, 0, 0]
        assert loaded.arrival_offset_s.tolist() == [1.0, 3.0, 9.0]

    def test_pods_without_a_known_node_have_none(self, loaded: PodTrace) -> None:
        assert set(loaded.node.tolist()) == {-1}

    def test_pods_of_a_cluster_without_nodes_are_not_put_on_those_of_another(self, folder: Path) -> None:
        size = {"window_start": START, "pod": "p", "node": "n1", "cpu_request_cores": 1.0, "mem_request_gib": 1.0}
        write(folder, "pods", [{**size, "cluster": name, "requests_handled": 0} for name in "cd"])
        demand = {"duration_s": 2.0, "cpu_cores": 0.5, "mem_gib": 0.25, "estimated": False, "position": 0}
        write(
            folder, "demands", [{"window_start": START, "pod": "p", "cluster": "d", "arrival_offset_s": 1.0, **demand}]
        )
        loaded, nodes = pod_windows(folder, START, at(1500))
        assert loaded.pod_names == ("c/p", "d/p")
        assert [nodes.names[node] if node >= 0 else None for node in loaded.node] == ["c/n1", None]
        assert np.diff(loaded.row_requests).tolist() == [0, 1]

    def test_arrays_are_mapped(self, loaded: PodTrace) -> None:
        assert isinstance(loaded.cpu_request, np.memmap)

    def test_the_environment_replays_them(self, loaded: PodTrace, folder: Path) -> None:
        found = pod_windows(folder, START, at(1500))
        env = make_vec("pods/deploy", 1, trace=found, threshold=0.01, under_threshold=0.0)
        env.reset(options={"starts": [0], "park": True})
        while env.buffers.active[0]:
            env.step(env.buffers.mask.argmax(axis=1))
        counted = dict(zip(env.METRICS, env.buffers.metrics[0].tolist(), strict=True))
        assert (counted["windows"], counted["dealt_requests"], counted["unplaced"]) == (4, 2, 0)
