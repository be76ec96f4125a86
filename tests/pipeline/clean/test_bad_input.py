"""A corpus of bad input: each kind is repaired and flagged, put aside with its rule, or a clear error; none is silent.

Every kind soils a healthy cluster of its own, named after it; all are cleaned in one run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd
import pytest

GIB = float(2**30)
Rows = dict[str, list[dict[str, Any]]]


class Kind(NamedTuple):
    """One kind of bad input and what must come of it."""

    soil: Callable[[Rows, Any], None]
    aside: Mapping[str, int] = MappingProxyType({})
    """Rules and how many rows each puts aside; nothing else may be put aside."""
    check: Callable[[Any, str], None] | None = None


def picked(rows: Rows, metric: str, **labels: str) -> list[dict[str, Any]]:
    return [
        row for row in rows["samples"] if row["metric"] == metric and all(row.get(k) == v for k, v in labels.items())
    ]


def set_value(
    metric: str, value: float | None, *, positions: tuple[int, ...] = (20,), **labels: str
) -> Callable[[Rows, Any], None]:
    def soil(rows: Rows, _: Any) -> None:
        series = picked(rows, metric, **labels)
        for position in positions:
            series[position]["value"] = value

    return soil


def change(
    metric: str, change: Callable[[float], float], low: float = 0, high: float = 1e9, **labels: str
) -> Callable[[Rows, Any], None]:
    def soil(rows: Rows, make: Any) -> None:
        for row in picked(rows, metric, **labels):
            if make.at(low) <= row["time"] < make.at(high):
                row["value"] = change(row["value"])

    return soil


def set_label(metric: str, label: str, value: str | None, position: int = 20) -> Callable[[Rows, Any], None]:
    def soil(rows: Rows, _: Any) -> None:
        picked(rows, metric)[position][label] = value

    return soil


def add(**row: Any) -> Callable[[Rows, Any], None]:
    def soil(rows: Rows, make: Any) -> None:
        rows["samples"].append({"time": make.at(1200.5), **row})

    return soil


def shift_row(metric: str, delta: timedelta) -> Callable[[Rows, Any], None]:
    def soil(rows: Rows, _: Any) -> None:
        picked(rows, metric)[20]["time"] += delta

    return soil


def drop(low: float, high: float, **labels: str) -> Callable[[Rows, Any], None]:
    def soil(rows: Rows, make: Any) -> None:
        rows["samples"] = [
            row
            for row in rows["samples"]
            if not (make.at(low) <= row["time"] < make.at(high) and all(row.get(k) == v for k, v in labels.items()))
        ]

    return soil


def all_of(*steps: Callable[[Rows, Any], None]) -> Callable[[Rows, Any], None]:
    def soil(rows: Rows, make: Any) -> None:
        for step in steps:
            step(rows, make)

    return soil


def longer(hours: float, then: Callable[[Rows, Any], None]) -> Callable[[Rows, Any], None]:
    def soil(rows: Rows, make: Any) -> None:
        rows.update(make.rows(hours=hours))
        then(rows, make)

    return soil


def scraped(times: list[float]) -> Callable[[Rows, Any], None]:
    def soil(rows: Rows, make: Any) -> None:
        rows["samples"] = make.rows(times=times)["samples"]

    return soil


def edit(table: str, position: int = 10, **values: Any) -> Callable[[Rows, Any], None]:
    def soil(rows: Rows, _: Any) -> None:
        rows[table][position].update(values)

    return soil


def unharmed(result: Any, cluster: str) -> None:
    """The pod's use comes out as it is in the healthy cluster."""
    pods = result.table("pods", cluster)
    used = pods[pods["pod"] == "p1"]["cpu_used_mean_cores"].dropna()
    assert len(used) >= 11
    assert used.to_numpy() == pytest.approx(0.5, rel=1e-6)


def reset_survived(result: Any, cluster: str) -> None:
    """What was counted between the last sample and a reset is lost, and nothing else."""
    pods = result.table("pods", cluster)
    used = sorted(pods[pods["pod"] == "p1"]["cpu_used_mean_cores"])
    assert used[1:] == pytest.approx([0.5] * 11)
    assert 0.39 < used[0] < 0.5


def mean_memory(result: Any, cluster: str) -> None:
    unharmed(result, cluster)
    assert result.table("nodes", cluster)["mem_used_mean_gib"].to_numpy() == pytest.approx(10.0)


def repaired(table: str, column: str, value: float) -> Callable[[Any, str], None]:
    def check(result: Any, cluster: str) -> None:
        rows = result.table(table, cluster)
        assert rows[column].to_numpy() == pytest.approx(value, rel=1e-6)
        assert rows["repaired"].sum() > 0

    return check


def one_window(table: str, column: str, value: float) -> Callable[[Any, str], None]:
    """The third window holds the value, flagged as repaired."""

    def check(result: Any, cluster: str) -> None:
        rows = result.table(table, cluster)
        row = rows[rows["repaired"] > 0]
        assert len(row) == 1
        assert row[column].iloc[0] == pytest.approx(value)

    return check


def merged(result: Any, cluster: str) -> None:
    """Copies do not count twice: the windows have as many samples as without them."""
    assert set(result.table("nodes", cluster)["samples"]) == {25}
    unharmed(result, cluster)


def filled(result: Any, cluster: str) -> None:
    nodes = result.table("nodes", cluster)
    assert len(nodes) == 12
    gap = nodes[nodes["samples"] == 0]
    assert len(gap) == 2
    assert gap["filled"].all()
    assert (gap["completeness"] == 0).all()
    assert gap["mem_used_mean_gib"].to_numpy() == pytest.approx(10.0)


def left_missing(result: Any, cluster: str) -> None:
    nodes = result.table("nodes", cluster)
    gap = nodes[nodes["samples"] == 0]
    assert len(nodes) == 24
    assert len(gap) == 6
    assert not gap["filled"].any()
    assert not gap["active"].any()
    assert gap["mem_used_mean_gib"].isna().all()
    assert (gap["completeness"] == 0).all()


def gone(result: Any, cluster: str) -> None:
    nodes = result.table("nodes", cluster)
    assert len(nodes) == 72 - 24
    assert (nodes["samples"] > 0).all()


def without_node(result: Any, cluster: str) -> None:
    pods = result.table("pods", cluster)
    assert pods[pods["pod"] == "p1"]["node"].isna().all()
    assert (pods[pods["pod"] == "p2"]["node"] == "n1").all()


def carried(result: Any, cluster: str) -> None:
    assert (result.table("pods", cluster)["node"] == "n1").all()


def moved(result: Any, cluster: str) -> None:
    pods = result.table("pods", cluster)
    mine = pods[pods["pod"] == "p1"].sort_values("window_start")
    assert list(mine["moved"]) == [window == 6 for window in range(12)]
    assert list(mine["node"]) == ["n1"] * 6 + ["n2"] * 6


def half_there(result: Any, cluster: str) -> None:
    rows = result.table("pods", cluster)
    mine = rows[rows["pod"] == "p1"]
    assert len(mine) == 6
    assert sorted(mine["completeness"])[0] == pytest.approx(0.8)


def incomplete(result: Any, cluster: str) -> None:
    unharmed(result, cluster)
    nodes = result.table("nodes", cluster).sort_values("window_start")
    assert nodes["completeness"].iloc[2] == pytest.approx(0.6)
    assert nodes["completeness"].iloc[3] == 1.0


def one_sample(result: Any, cluster: str) -> None:
    rows = result.table("pods", cluster)
    mine = rows[rows["pod"] == "brief"]
    assert len(mine) == 1
    assert mine["cpu_used_mean_cores"].isna().all()
    assert mine["completeness"].iloc[0] < 1


def every_other_filled(result: Any, cluster: str) -> None:
    unharmed(result, cluster)
    nodes = result.table("nodes", cluster)
    assert nodes["filled"].sum() >= 5


def dealt(count: int) -> Callable[[Any, str], None]:
    def check(result: Any, cluster: str) -> None:
        assert len(result.table("demands", cluster)) == count
        assert result.table("functions", cluster)["requests"].sum() == count

    return check


def dealt_nowhere(result: Any, cluster: str) -> None:
    assert result.table("functions", cluster)["requests"].sum() == 60
    assert result.table("demands", cluster).empty


def estimated(result: Any, cluster: str) -> None:
    rows = result.table("demands", cluster)
    assert rows["estimated"].sum() == 1
    assert rows["cpu_cores"].to_numpy() == pytest.approx(0.4)


def by_pod(result: Any, cluster: str) -> None:
    dealt(60)(result, cluster)


def kept_pod(result: Any, cluster: str) -> None:
    assert (result.table("demands", cluster)["pod"] == "stranger").sum() == 1


def two_events(result: Any, cluster: str) -> None:
    assert len(result.table("events", cluster)) == 2


def twice(rows: Rows, _: Any) -> None:
    rows["samples"] += [dict(row) for row in rows["samples"]]


def shuffled(rows: Rows, _: Any) -> None:
    rows["samples"] = rows["samples"][::-1]


def ahead(rows: Rows, make: Any) -> None:
    for row in rows["samples"]:
        if make.at(1200) <= row["time"] < make.at(1800):
            row["time"] += timedelta(seconds=97)


def renamed_midway(rows: Rows, make: Any) -> None:
    for row in picked(rows, "pod_cpu_seconds"):
        if row["time"] >= make.at(1800):
            row["metric"] = "container_cpu_usage_seconds_total"


def reset(*seconds: float) -> Callable[[Rows, Any], None]:
    """Counters of p1 start again at zero at the given times."""

    def soil(rows: Rows, make: Any) -> None:
        for row in picked(rows, "pod_cpu_seconds", pod="p1"):
            t = (row["time"] - make.at(0)).total_seconds()
            since = max([moment for moment in seconds if moment <= t], default=None)
            if since is not None:
                row["value"] = 0.5 * (t - since)

    return soil


def move(rows: Rows, make: Any) -> None:
    for row in rows["samples"]:
        if row.get("pod") == "p1" and row["time"] >= make.at(1920):
            row["node"] = "n2"
    extra = [dict(row, node="n2") for row in rows["samples"] if row["metric"].startswith("node_")]
    rows["samples"] += extra


def lose_node(rows: Rows, _: Any) -> None:
    for row in rows["samples"]:
        if row.get("pod") == "p1":
            row["node"] = None
    for row in rows["events"]:  # which would say it too
        if row["entity"] == "p1":
            row["node"] = None


def lose_label_once(rows: Rows, make: Any) -> None:
    for row in picked(rows, "pod_info", pod="p1"):
        if make.at(1500) <= row["time"] < make.at(1800):
            row["node"] = ""


def no_pods_of_function(rows: Rows, _: Any) -> None:
    for row in (*picked(rows, "pod_info"), *rows["events"]):
        row["function"] = None


def cards(ratio: float, **labels: Any) -> Callable[[Rows, Any], None]:
    def soil(rows: Rows, make: Any) -> None:
        for n in range(60):
            who = {"node": "n1", "card": "gpu-0", **labels}
            rows["samples"].append(make.sample("card_gpu_used_ratio", 60 * n, ratio, **who))

    return soil


def gauge_cores(used: float, spike: float | None = None) -> Callable[[Rows, Any], None]:
    """Use of the node as a gauge instead of a counter."""

    def soil(rows: Rows, make: Any) -> None:
        rows["samples"] = [row for row in rows["samples"] if row["metric"] != "node_cpu_seconds"]
        rows["samples"] += [make.sample("node_cpu_used_cores", 60 * n, used, node="n1") for n in range(60)]
        if spike is not None:
            rows["samples"][-30]["value"] = spike

    return soil


JOB = {"kind": "job", "gpus": 1.0, "gpu_mem_bytes": 12 * GIB, "data_gb": 4.0, "epochs": 30.0, "runtime_s": 60.0}
THREE = {"broken_workflow": 3}


def job_kept(result: Any, cluster: str) -> None:
    [job] = result.table("events", cluster).query("kind == 'job'").to_dict("records")
    assert [job[name] for name in ("gpus", "gpu_mem_gib", "data_gb", "epochs", "runtime_s")] == [1, 12, 4, 30, 60]


def one_flow(result: Any, cluster: str) -> None:
    tasks = result.table("tasks", cluster)
    assert tasks["workflow"].unique().tolist() == ["flow-2"]
    assert tasks["task"].tolist() == ["a", "b", "c", "d"]


def both_flows(result: Any, cluster: str) -> None:
    tasks = result.table("tasks", cluster).astype(object).replace({float("nan"): None})
    assert tasks["workflow"].tolist() == ["flow-1"] * 4 + ["flow-2"] * 4
    assert tasks["parents"].tolist() == [None, "a", "a", "b c"] * 2
    assert tasks["parent_mb"].tolist()[4:] == [None, "5.5", "5.5", "5.5 5.5"]
    assert tasks["mem_gib"].eq(1.0).all()
    assert tasks["window_start"].eq(pd.Timestamp("2026-03-02 00:10", tz="UTC")).all()


def one_task_less(result: Any, cluster: str) -> None:
    assert result.table("tasks", cluster)["task"].tolist() == ["a", "b", "c", "a", "b", "c", "d"]


def with_ids(rows: Rows, _: Any) -> None:
    for number, row in enumerate(rows["requests"]):
        row["id"] = str(number)


def to_the_microsecond(rows: Rows, _: Any) -> None:
    for row in rows["requests"]:
        row["time"] += timedelta(microseconds=123)


def copied(table: str) -> Callable[[Rows, Any], None]:
    def soil(rows: Rows, _: Any) -> None:
        rows[table] += [dict(row) for row in rows[table]]

    return soil


def whole_seconds(rows: Rows, make: Any) -> None:
    """A hundred and twenty requests of which only twelve differ."""
    first = {**rows["requests"][0], "duration_s": 0.25}
    rows["requests"] = [{**first, "time": make.at(300.0 * n + 1)} for n in range(12) for _ in range(10)]


def dealt_or_lost(count: int) -> Callable[[Any, str], None]:
    """All are counted, though one came when there was no pod any more."""

    def check(result: Any, cluster: str) -> None:
        assert result.table("functions", cluster)["requests"].sum() == count

    return check


def resized(before: float, after: float, used: float) -> Callable[[Rows, Any], None]:
    """A machine of one size has another after half an hour; it uses as much as the larger one can, throughout."""

    def soil(rows: Rows, make: Any) -> None:
        gauge_cores(used)(rows, make)
        for row in picked(rows, "node_cpu_capacity_cores"):
            row["value"] = before if row["time"] < make.at(1800) else after
        if after > before:
            for row in picked(rows, "node_cpu_used_cores"):
                row["value"] = 1.5 if row["time"] < make.at(1800) else used

    return soil


def used_cores(most: float) -> Callable[[Any, str], None]:
    def check(result: Any, cluster: str) -> None:
        nodes = result.table("nodes", cluster)
        assert nodes["cpu_used_max_cores"].max() == pytest.approx(most)
        known = nodes.dropna(subset=["cpu_used_max_cores"])
        assert (known["cpu_used_max_cores"] <= known["cpu_capacity_cores"] * (1 + 1e-9)).all()

    return check


def one_size_in_each_window(result: Any, cluster: str) -> None:
    unharmed(result, cluster)
    assert sorted(result.table("nodes", cluster)["cpu_capacity_cores"]) == [8.0] * 11 + [16.0]


def drop_metric(metric: str, since: float) -> Callable[[Rows, Any], None]:
    def soil(rows: Rows, make: Any) -> None:
        rows["samples"] = [r for r in rows["samples"] if r["metric"] != metric or r["time"] < make.at(since)]

    return soil


def no_cores(result: Any, cluster: str) -> None:
    assert result.table("nodes", cluster)["cpu_used_mean_cores"].isna().all()


def all_active(result: Any, cluster: str) -> None:
    assert result.table("nodes", cluster)["active"].all()


def no_owner(result: Any, cluster: str) -> None:
    assert result.table("pods", cluster)["owner_kind"].isna().all()
    assert result.table("events", cluster)["owner_kind"].isna().all()


def shift_to(metric: str, seconds: float) -> Callable[[Rows, Any], None]:
    def soil(rows: Rows, make: Any) -> None:
        picked(rows, metric)[20]["time"] = make.at(seconds)

    return soil


def resets_survived(result: Any, cluster: str) -> None:
    """Each reset costs what was counted since the last sample before it."""
    pods = result.table("pods", cluster)
    used = sorted(pods[pods["pod"] == "p1"]["cpu_used_mean_cores"])
    assert used[1:] == pytest.approx([0.5] * 11)
    assert 0.2 < used[0] < 0.5


KINDS: dict[str, Kind] = {
    # values
    "nan": Kind(set_value("node_mem_used_bytes", math.nan), {"no_value": 1}, mean_memory),
    "null": Kind(set_value("node_mem_used_bytes", None), {"no_value": 1}, mean_memory),
    "infinite": Kind(set_value("node_mem_used_bytes", math.inf), {"infinite_value": 1}, mean_memory),
    "minus-infinite": Kind(set_value("node_mem_used_bytes", -math.inf), {"infinite_value": 1}, mean_memory),
    "overflow": Kind(set_value("pod_cpu_seconds", 1e300, pod="p1"), {"infinite_value": 1}, unharmed),
    "negative-gauge": Kind(set_value("node_mem_used_bytes", -5.0), {"negative_value": 1}, mean_memory),
    "negative-counter": Kind(set_value("pod_cpu_seconds", -5.0, pod="p1"), {"negative_value": 1}, unharmed),
    "zero-cpu-capacity": Kind(set_value("node_cpu_capacity_cores", 0.0), {"zero_capacity": 1}, unharmed),
    "zero-memory-capacity": Kind(set_value("node_mem_capacity_bytes", 0.0), {"zero_capacity": 1}, unharmed),
    "absurd-cores": Kind(set_value("node_cpu_capacity_cores", 1e9), {"implausible_value": 1}, unharmed),
    "share-of-250": Kind(cards(250.0), {"implausible_value": 60}, unharmed),
    # labels
    "unknown-metric": Kind(add(metric="node_weather", node="n1", value=1.0), {"unknown_metric": 1}, unharmed),
    "empty-metric": Kind(add(metric="", node="n1", value=1.0), {"unknown_metric": 1}, unharmed),
    "pod-missing": Kind(set_label("pod_mem_used_bytes", "pod", None), {"no_entity": 1}, unharmed),
    "node-empty": Kind(set_label("node_mem_used_bytes", "node", ""), {"no_entity": 1}, mean_memory),
    "function-missing": Kind(add(metric="function_requests", value=1.0), {"no_entity": 1}, unharmed),
    "card-missing": Kind(cards(0.5, card=None), {"no_entity": 60}, unharmed),
    "card-without-node": Kind(cards(0.5, node=None), {"no_entity": 60}, unharmed),
    "bucket-without-bound": Kind(
        add(metric="function_response_seconds_bucket", function="f", value=1.0), {"no_bucket_bound": 1}, unharmed
    ),
    "metric-in-capitals": Kind(add(metric="Node_Ready", node="n1", value=1.0), {"unknown_metric": 1}, unharmed),
    "names-of-all-alphabets": Kind(add(metric="node_ready", node="ñ1 / 機", value=1.0), {}, unharmed),
    "cordon-without-a-value": Kind(
        add(metric="node_unschedulable", node="n1", value=math.nan), {"no_value": 1}, all_active
    ),
    "taint-below-nothing": Kind(add(metric="node_tainted", node="n1", value=-1.0), {"negative_value": 1}, all_active),
    "cards-without-end": Kind(
        add(metric="pod_gpu_request_cards", pod="p1", node="n1", value=math.inf), {"infinite_value": 1}, unharmed
    ),
    "owner-without-a-name": Kind(
        lambda rows, _: [row.update(detail="") for row in picked(rows, "pod_info")] and None, {}, no_owner
    ),
    # times
    "time-midnight-after": Kind(shift_to("node_mem_used_bytes", 86_400), {"time_outside_day": 1}, mean_memory),
    "time-1970": Kind(shift_row("node_mem_used_bytes", timedelta(days=-20_000)), {"time_outside_day": 1}, mean_memory),
    "time-2090": Kind(shift_row("node_mem_used_bytes", timedelta(days=24_000)), {"time_outside_day": 1}, mean_memory),
    "time-tomorrow": Kind(shift_row("node_mem_used_bytes", timedelta(days=1)), {"time_outside_day": 1}, mean_memory),
    "clock-back": Kind(shift_row("node_cpu_seconds", timedelta(seconds=-330)), {"clock_jump": 1}, unharmed),
    "clock-forward": Kind(shift_row("node_cpu_seconds", timedelta(seconds=330)), {"clock_jump": 1}, unharmed),
    "clock-ahead-for-a-while": Kind(ahead, {"clock_jump": 3}),
    "out-of-order": Kind(shuffled, {}, mean_memory),
    # copies
    "copies": Kind(lambda rows, _: rows["samples"].extend(map(dict, rows["samples"][:50])), {}, merged),
    "scraped-twice": Kind(twice, {}, merged),
    "copy-with-other-value": Kind(add(metric="node_mem_used_bytes", node="n1", value=10 * GIB), {}, mean_memory),
    # counters
    "reset": Kind(reset(1530), {}, reset_survived),
    "reset-twice-in-a-window": Kind(reset(1530, 1650), {}, reset_survived),
    "reset-three-times-in-a-window": Kind(reset(1510, 1580, 1660), {}, resets_survived),
    "copy-without-a-value": Kind(
        add(metric="node_mem_used_bytes", node="n1", value=math.nan), {"no_value": 1}, mean_memory
    ),
    "counter-dip": Kind(
        change("pod_cpu_seconds", lambda v: v - 300, 1200, 1260, pod="p1"), {"clock_jump": 1}, unharmed
    ),
    "counter-spike": Kind(
        change("pod_cpu_seconds", lambda v: v + 400, 1200, 1260, pod="p1"), {"clock_jump": 1}, unharmed
    ),
    "counter-leap": Kind(change("pod_cpu_seconds", lambda v: v + 1e6, 1200, pod="p1"), {"over_capacity": 1}, unharmed),
    # capacity and units
    "memory-thousandfold": Kind(set_value("node_mem_used_bytes", 1e4 * GIB), {"over_capacity": 1}, mean_memory),
    "memory-slightly-over": Kind(
        change("node_mem_used_bytes", lambda _: 33 * GIB, 600, 900), {}, one_window("nodes", "mem_used_max_gib", 32.0)
    ),
    "cores-slightly-over": Kind(gauge_cores(1.5, 8.4), {}, one_window("nodes", "cpu_used_max_cores", 8.0)),
    "cores-far-over": Kind(gauge_cores(1.5, 80.0), {"over_capacity": 1}, unharmed),
    "use-in-millicores": Kind(gauge_cores(1500.0), {}, repaired("nodes", "cpu_used_mean_cores", 1.5)),
    "sample-in-millicores": Kind(gauge_cores(1.5, 1600.0), {}, one_window("nodes", "cpu_used_max_cores", 1.6)),
    "request-in-millicores": Kind(
        change("pod_cpu_request_cores", lambda v: v * 1000), {}, repaired("pods", "cpu_request_cores", 1.0)
    ),
    "capacity-in-millicores": Kind(
        change("node_cpu_capacity_cores", lambda v: v * 1000), {}, repaired("nodes", "cpu_capacity_cores", 8.0)
    ),
    "memory-in-kib-for-a-while": Kind(
        change("node_mem_used_bytes", lambda v: v / 1024, 700, 1300), {}, repaired("nodes", "mem_used_mean_gib", 10.0)
    ),
    "memory-in-mib-for-a-while": Kind(
        change("node_mem_used_bytes", lambda v: v / 1024**2, 700, 1300),
        {},
        repaired("nodes", "mem_used_mean_gib", 10.0),
    ),
    "capacity-in-kib": Kind(
        change("node_mem_capacity_bytes", lambda v: v / 1024), {}, repaired("nodes", "mem_capacity_gib", 32.0)
    ),
    "capacity-in-mib": Kind(
        change("node_mem_capacity_bytes", lambda v: v / 1024**2), {}, repaired("nodes", "mem_capacity_gib", 32.0)
    ),
    "machine-grows": Kind(resized(8, 16, 14.0), {}, used_cores(14.0)),
    "machine-shrinks": Kind(resized(16, 8, 12.0), {"over_capacity": 30}, used_cores(12.0)),
    "machine-shrinks-a-little": Kind(resized(16, 14, 15.0), {}, used_cores(15.0)),
    "capacity-flaps": Kind(change("node_cpu_capacity_cores", lambda v: v * 2, 1200, 1500), {}, one_size_in_each_window),
    "capacity-known-for-a-while": Kind(drop_metric("node_cpu_capacity_cores", 1800), {}, unharmed),
    "percent-given-as-cores": Kind(gauge_cores(45.0), {"doubtful_unit": 60}, no_cores),
    "percent-of-cores-given-as-cores": Kind(gauge_cores(450.0), {"doubtful_unit": 60}, no_cores),
    "percent-with-quiet-minutes": Kind(gauge_cores(45.0, 3.0), {"doubtful_unit": 60}, no_cores),
    "memory-in-mib-all-day": Kind(
        change("node_mem_used_bytes", lambda v: v / 1024**2), {"doubtful_unit": 60}, unharmed
    ),
    "request-in-mib-beside-bytes": Kind(
        change("pod_mem_request_bytes", lambda v: v / 1024**2, pod="p1"), {"doubtful_unit": 60}, unharmed
    ),
    "request-of-nothing": Kind(change("pod_mem_request_bytes", lambda _: 0.0, pod="p1"), {}, unharmed),
    "card-wholly-busy": Kind(cards(1.0), {}, unharmed),
    "share-in-percent": Kind(cards(45.0), {}, repaired("cards", "gpu_used_mean_ratio", 0.45)),
    # names
    "old-name": Kind(
        lambda rows, _: [row.update(metric="kube_pod_info") for row in picked(rows, "pod_info")] and None,
        {},
        repaired("pods", "cpu_request_cores", 1.0),
    ),
    "renamed-midway": Kind(renamed_midway, {}, repaired("pods", "mem_used_mean_gib", 2.0)),
    # gaps and lives
    "short-gap": Kind(drop(1200, 1800), {}, filled),
    "long-gap": Kind(longer(2, drop(1800, 3600)), {}, left_missing),
    "gone-for-hours": Kind(longer(6, drop(3600, 10_800)), {}, gone),
    "lost-scrapes": Kind(all_of(drop(660, 661), drop(720, 721)), {}, incomplete),
    "pod-comes-and-goes": Kind(all_of(drop(0, 960, pod="p1"), drop(2700, 1e6, pod="p1")), {}, half_there),
    "pod-without-node": Kind(lose_node, {}, without_node),
    "label-lost-once": Kind(lose_label_once, {}, carried),
    "pod-moves": Kind(move, {}, moved),
    "one-sample-pod": Kind(add(metric="pod_cpu_seconds", pod="brief", node="n1", value=5.0), {}, one_sample),
    # intervals that do not divide 300 s
    "every-57-s": Kind(scraped([57.0 * n for n in range(64)]), {}, unharmed),
    "every-91-then-209-s": Kind(
        scraped(sorted([300.0 * n for n in range(13)] + [300.0 * n + 91 for n in range(12)])), {}, unharmed
    ),
    "every-600-s": Kind(scraped([600.0 * n for n in range(8)]), {}, every_other_filled),
    # the request log
    "request-of-nobody": Kind(edit("requests", function=None), {"no_function": 1}, dealt(59)),
    "request-of-empty": Kind(edit("requests", function="", pod=""), {"no_function": 1}, dealt(59)),
    "request-nan-duration": Kind(edit("requests", duration_s=math.nan), {"no_duration": 1}, dealt(59)),
    "request-negative-duration": Kind(edit("requests", duration_s=-1.0), {"no_duration": 1}, dealt(59)),
    "request-infinite-duration": Kind(edit("requests", duration_s=math.inf), {"no_duration": 1}, dealt(59)),
    "request-without-duration": Kind(edit("requests", duration_s=None), {"no_duration": 1}, dealt(59)),
    "request-negative-size": Kind(edit("requests", cpu_cores=-1.0), {"bad_size": 1}, dealt(59)),
    "request-nan-size": Kind(edit("requests", mem_bytes=math.nan), {"bad_size": 1}, dealt(59)),
    "request-absurd-size": Kind(edit("requests", cpu_cores=1e7), {"bad_size": 1}, dealt(59)),
    "request-another-day": Kind(
        lambda rows, _: rows["requests"][5].update(time=rows["requests"][5]["time"] + timedelta(days=2)) and None,
        {"time_outside_day": 1},
        dealt(59),
    ),
    "request-alike-without-proof": Kind(
        lambda rows, _: rows["requests"].append(dict(rows["requests"][3])), {}, dealt(61)
    ),
    "request-copied-with-its-id": Kind(all_of(with_ids, copied("requests")), {}, dealt(60)),
    "request-copied-to-the-microsecond": Kind(all_of(to_the_microsecond, copied("requests")), {}, dealt(60)),
    "requests-of-whole-seconds": Kind(whole_seconds, {}, dealt(120)),
    "request-with-an-empty-id": Kind(all_of(edit("requests", id=""), copied("requests")), {}, dealt(120)),
    "request-id-of-another": Kind(all_of(with_ids, edit("requests", 3, id="4")), {}, dealt(60)),
    "request-lasts-1e26-s": Kind(edit("requests", duration_s=1e26), {"endless_duration": 1}, dealt(59)),
    "request-duration-is-a-time": Kind(edit("requests", duration_s=1.7e9), {"endless_duration": 1}, dealt(59)),
    "request-lasts-a-week": Kind(edit("requests", duration_s=604_800.0), {}, dealt(60)),
    "request-at-the-last-microsecond": Kind(
        lambda rows, make: rows["requests"][0].update(time=make.at(86_399.999999)) and None, {}, dealt_or_lost(60)
    ),
    "request-names-only-a-pod": Kind(edit("requests", function=None, pod="p2"), {}, by_pod),
    "request-of-unknown-pod": Kind(edit("requests", pod="stranger"), {}, kept_pod),
    "request-without-size": Kind(edit("requests", cpu_cores=None, mem_bytes=None), {}, estimated),
    "requests-without-pods": Kind(no_pods_of_function, {}, dealt_nowhere),
    # events
    "event-without-id": Kind(edit("events", 0, entity=""), {"no_entity": 1}),
    "event-unknown-kind": Kind(edit("events", 0, kind="cow"), {"unknown_kind": 1}),
    "event-unknown-action": Kind(edit("events", 0, action="explode"), {"unknown_action": 1}),
    "event-processing": Kind(edit("events", 0, action="PROCESSING"), {"unknown_action": 1}),
    "event-in-capitals": Kind(edit("events", 0, kind="POD"), {"unknown_kind": 1}),
    "event-without-owner": Kind(edit("events", 0, owner_kind=""), {}, no_owner),
    "event-negative-size": Kind(edit("events", 0, cpu_cores=-2.0), {"bad_size": 1}),
    "event-copied": Kind(lambda rows, _: rows["events"].append(dict(rows["events"][0])), {}, two_events),
    "event-another-day": Kind(
        lambda rows, _: rows["events"][0].update(time=rows["events"][0]["time"] - timedelta(days=2)) and None,
        {"time_outside_day": 1},
    ),
    "event-nan-gpu-memory": Kind(edit("events", 0, gpu_mem_bytes=math.nan), {"bad_size": 1}),
    "event-negative-epochs": Kind(edit("events", 0, epochs=-1.0), {"bad_size": 1}),
    "event-of-a-job": Kind(edit("events", 0, **JOB), {}, job_kept),
    # workflows: the other three tasks of the execution go with the bad one, the other execution stays
    "task-negative-run-time": Kind(edit("tasks", 1, runtime_s=-1.0), {"no_runtime": 1, **THREE}, one_flow),
    "task-nan-run-time": Kind(edit("tasks", 1, runtime_s=math.nan), {"no_runtime": 1, **THREE}, one_flow),
    "task-without-run-time": Kind(edit("tasks", 1, runtime_s=None), {"no_runtime": 1, **THREE}, one_flow),
    "task-runs-for-ever": Kind(edit("tasks", 1, runtime_s=1e26), {"endless_runtime": 1, **THREE}, one_flow),
    "task-infinite-memory": Kind(edit("tasks", 1, mem_bytes=math.inf), {"bad_size": 1, **THREE}, one_flow),
    "task-without-id": Kind(edit("tasks", 3, task=""), {"bad_id": 1, **THREE}, one_flow),
    "task-with-a-space": Kind(edit("tasks", 3, task="d d"), {"bad_id": 1, **THREE}, one_flow),
    "task-its-own-parent": Kind(edit("tasks", 3, parents="d c"), {"own_parent": 1, **THREE}, one_flow),
    "task-unknown-parent": Kind(edit("tasks", 3, parents="b z"), {"unknown_parent": 1, **THREE}, one_flow),
    "task-parent-twice": Kind(edit("tasks", 3, parents="b b"), {"parent_twice": 1, **THREE}, one_flow),
    "task-two-spaces": Kind(edit("tasks", 3, parents="b  c"), {"bad_parents": 1, **THREE}, one_flow),
    "task-an-amount-too-few": Kind(edit("tasks", 3, parent_mb="5"), {"bad_parents": 1, **THREE}, one_flow),
    "task-negative-amount": Kind(edit("tasks", 3, parent_mb="5 -1"), {"bad_parents": 1, **THREE}, one_flow),
    "task-doubled": Kind(
        lambda rows, _: rows["tasks"].append({**rows["tasks"][3], "runtime_s": 11.0}),
        {"doubled_task": 2, **THREE},
        one_flow,
    ),
    "task-copied": Kind(lambda rows, _: rows["tasks"].append(dict(rows["tasks"][3])), {}, both_flows),
    "task-amounts-not-known": Kind(edit("tasks", 3, parent_mb=""), {}, both_flows),
    "task-at-another-time": Kind(
        # It is an execution of its own then, whose parents are not there.
        lambda rows, make: rows["tasks"][3].update(time=make.at(900)) and None,
        {"unknown_parent": 1},
        one_task_less,
    ),
}


@pytest.fixture(scope="module")
def corpus(run_clean: Any, healthy: Any) -> Any:
    soiled = {}
    for name, kind in KINDS.items():
        rows = healthy.rows()
        kind.soil(rows, healthy)
        soiled[name] = rows
    return run_clean(soiled)


def test_there_are_more_than_fifty_kinds() -> None:
    assert len(KINDS) > 50


@pytest.mark.parametrize("name", KINDS)
def test_bad_input_is_put_aside_or_put_right(corpus: Any, name: str) -> None:
    kind = KINDS[name]
    assert corpus.rules(name) == kind.aside
    if kind.check is not None:
        kind.check(corpus, name)


def test_every_row_is_accounted_for(corpus: Any) -> None:
    for table, account in corpus.metrics.rows.items():
        account.check(table)
        assert account.rows_in > 0
        in_quarantine = corpus.table("quarantine")
        assert (in_quarantine["table"] == table).sum() == sum(account.quarantined.values())


def test_quarantine_keeps_the_row_as_it_was(corpus: Any) -> None:
    import json

    row = json.loads(corpus.table("quarantine", "time-1970")["raw"].iloc[0])
    assert row["metric"] == "node_mem_used_bytes"
    assert row["node"] == "n1"
    assert row["value"] == 10 * GIB
    assert row["time"].startswith("1971")
    assert json.loads(corpus.table("quarantine", "nan")["raw"].iloc[0])["value"] == "nan"


def test_no_table_holds_nan_or_infinity(corpus: Any) -> None:
    for name in ("nodes", "pods", "functions", "demands", "events", "cards", "tasks"):
        files = sorted((corpus.out / name).glob("date=*/*.parquet"))
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        for file in files:
            table = pq.ParquetFile(file).read()
            for column in table.column_names:
                if str(table.schema.field(column).type) == "double":
                    values = table[column].drop_null()
                    assert pc.all(pc.is_finite(values)).as_py() is not False, f"{name}.{column}"


def test_windows_are_aligned_and_within_the_day(corpus: Any) -> None:
    for name in ("nodes", "pods", "functions", "demands", "events", "cards", "tasks"):
        starts = pd.DatetimeIndex(corpus.table(name)["window_start"])
        assert (starts.as_unit("s").asi8 % 300 == 0).all()
        assert starts.min() >= pd.Timestamp("2026-03-02", tz="UTC")
        assert starts.max() < pd.Timestamp("2026-03-03", tz="UTC")
