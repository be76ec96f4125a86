"""``functions`` from windows: every pod of a function that was created is an instance to place."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr

from pipeline import windows
from pipeline.contracts.windows import WINDOW_SECONDS
from pipeline.datasets.dataset import Dataset, Rows
from pipeline.errors import DataError
from pipeline.prices import DEFAULT_USD_PER_HOUR
from pipeline.statistics.estimators import Floats
from sched_env.functions.scenario import ServerlessScenario
from sched_env.functions.tables import SLO_FACTOR, FunctionTrace
from sched_env.scenarios import Scenario
from sched_env.tables import NodeTable

_P95_DEVIATIONS = 1.6448536269514722

Trace = tuple[FunctionTrace, NodeTable]


def load(folder: Path, start: datetime, end: datetime) -> tuple[FunctionTrace, NodeTable]:
    """Load function instances to place, and the nodes of the clusters in which functions run.

    Every pod created in ``[start, end)`` is one request: its size from the event (else from its metrics), its network
    and disk use and the requests it answered from its windows, its SLO from its function's standard response. A life
    that goes on beyond ``end`` is cut there: nothing of a later split is seen.

    Names are spelled ``cluster/name`` when there are several clusters.
    """
    whole = windows.span(folder)
    files = [file for table in ("pods", "functions") for file in windows.files_of(folder, table, start, end)]
    files += windows.files_of(folder, "events", whole.start, whole.end)
    arrays = windows.mapped(__name__, files, [start, end], lambda: _build(folder, start, end))
    names, clusters = (tuple(str(name) for name in arrays.pop(key)) for key in ("function_names", "clusters"))
    trace = FunctionTrace(**arrays, function_names=names)  # type: ignore[arg-type]
    return trace, windows.node_table(folder, start, end, clusters)


def _build(folder: Path, start: datetime, end: datetime) -> windows.Arrays:
    columns = ["entity", "time", "kind", "action", "function", "cpu_cores", "mem_gib"]
    events = windows.frame_of(folder, "events", start, end, columns)
    events = events[events["kind"] == "pod"]
    created = events[(events["action"] == "create") & events["function"].notna()]
    created = created.sort_values(["time", "cluster", "entity"]).drop_duplicates(["cluster", "entity"])
    if created.empty:
        raise DataError(
            f"{folder} has no pod created between {start} and {end}",
            "events of pods with their function",
            "check the range, and that the source names the function of a pod",
        )
    deleted = events[events["action"] == "delete"].groupby(["cluster", "entity"])["time"].max().rename("deleted")
    used = ["cpu_request_cores", "mem_request_gib", "net_used_mean_mb_s", "disk_used_mean_iops", "requests_handled"]
    seen = windows.frame_of(folder, "pods", start, end, ["pod", *used]).rename(columns={"pod": "entity"})
    pods = seen.groupby(["cluster", "entity"]).agg(
        cpu=("cpu_request_cores", "max"),
        mem=("mem_request_gib", "max"),
        net=("net_used_mean_mb_s", "mean"),
        disk=("disk_used_mean_iops", "mean"),
        requests=("requests_handled", "sum"),
    )
    functions = windows.frame_of(folder, "functions", start, end, ["function", "standard_response_s"])
    standard = functions.groupby(["cluster", "function"])["standard_response_s"].min().rename("standard")
    rows = created.join(deleted, on=["cluster", "entity"]).join(pods, on=["cluster", "entity"])
    rows = rows.join(standard, on=["cluster", "function"])
    rows["cpu"] = rows["cpu_cores"].fillna(rows["cpu"])
    rows["mem"] = rows["mem_gib"].fillna(rows["mem"])
    cut = pd.Timestamp(end)
    rows["duration"] = (rows["deleted"].where(rows["deleted"] < cut, cut) - rows["time"]).dt.total_seconds()
    rows = rows[(rows["cpu"] > 0) & (rows["mem"] > 0) & (rows["duration"] > 0)]
    requests = rows["requests"].fillna(0).clip(lower=1, upper=np.iinfo(np.int32).max)
    response = rows["standard"].where(rows["standard"] > 0).fillna(rows["duration"] / requests)
    # Numbered over all days there are, so that a function has one number in train, validation and test.
    whole = windows.span(folder)
    everywhere = windows.frame_of(folder, "events", whole.start, whole.end, ["function", "kind"]).dropna()
    everywhere = everywhere[everywhere["kind"] == "pod"]  # a job's function is its model
    clusters = np.unique(everywhere["cluster"].to_numpy(str))
    several = clusters.size > 1
    names = np.unique(windows.spelled(everywhere, "function", several).to_numpy(str))
    codes = np.searchsorted(names, windows.spelled(rows, "function", several).to_numpy(str))
    return {
        "arrival_s": (rows["time"] - pd.Timestamp(start)).dt.total_seconds().to_numpy(np.float64),
        "function": codes.astype(np.int32),
        "cpu": rows["cpu"].to_numpy(np.float64),
        "mem": rows["mem"].to_numpy(np.float64),
        "net": rows["net"].fillna(0.0).to_numpy(np.float64),
        "disk": rows["disk"].fillna(0.0).to_numpy(np.float64),
        "requests": requests.to_numpy(np.int32),
        "duration_s": rows["duration"].to_numpy(np.float64),
        "slo_s": (SLO_FACTOR * response).to_numpy(np.float64),
        "response_s": response.to_numpy(np.float64),
        "function_names": names,
        "clusters": clusters,
    }


def starts(trace: Trace, scenario: Scenario) -> Rows:
    """Every instance that has a whole episode after it."""
    return np.arange(max(len(trace[0]) - max(scenario.horizon, 1), 0))


def times_s(trace: Trace, rows: Rows) -> NDArray[np.float64]:
    """When instances arrived."""
    return trace[0].arrival_s[rows]


def scaled(trace: Trace, load: float) -> Trace:
    """Let instances arrive ``load`` times as densely; they live as long as before."""
    instances, nodes = trace
    return dataclasses.replace(instances, arrival_s=instances.arrival_s / load), nodes


def measured(folder: Path, start: datetime, end: datetime, scenario: Scenario) -> dict[str, float]:
    """What the cluster did in ``[start, end)``: SLA violations and cost, from the window tables.

    A figure is left out when the windows do not hold what it needs.
    """
    cooldown_s = cast(ServerlessScenario, scenario).cooldown_s
    functions = windows.read(folder, "functions", start, end).to_pandas()
    measured = {"cost_usd": _cost_usd(folder, start, end, cooldown_s)}
    known = functions.dropna(subset=["response_mean_s", "response_p95_s", "standard_response_s"])
    known = known[(known["requests"] > 0) & (known["standard_response_s"] > 0.0) & (known["response_mean_s"] > 0.0)]
    if len(known):
        late = share_above(
            known["response_mean_s"].to_numpy(np.float64),
            known["response_p95_s"].to_numpy(np.float64),
            SLO_FACTOR * known["standard_response_s"].to_numpy(np.float64),
        )
        measured["sla_violation_rate"] = float(np.average(late, weights=known["requests"].to_numpy(np.float64)))
    return measured


def share_above(mean: Floats, p95: Floats, limit: Floats) -> Floats:
    """Estimate the share of response times above a limit from their mean and 95th percentile.

    Windows keep these two, not the times themselves; a log-normal distribution is fitted to them. From
    ``ln(p95 / mean) = 1.645 s - s^2 / 2`` the smaller root for ``s`` is taken; a p95 too far above the mean for any
    log-normal gives the widest one.
    """
    distance = np.log(np.maximum(p95, 1e-12) / mean)
    root = np.sqrt(np.maximum(_P95_DEVIATIONS**2 - 2.0 * np.maximum(distance, 0.0), 0.0))
    spread = np.maximum(_P95_DEVIATIONS - root, 1e-9)
    centre = np.log(mean) - spread**2 / 2.0
    return np.asarray(1.0 - ndtr((np.log(limit) - centre) / spread))


def _cost_usd(folder: Path, start: datetime, end: datetime, cooldown_s: float) -> float:
    """Hours in which each node held a pod, cool-down included, times its price."""
    pods = windows.read(folder, "pods", start, end, ["cluster", "pod", "node"]).to_pandas()
    if pods["node"].isna().all():
        raise DataError(
            f"{folder} has no pod on a node between {start} and {end}",
            "pods with their nodes",
            "check that the source says where pods run, or set backtest.enabled: false",
        )
    key = ["cluster", "pod"]
    lives = pods.dropna(subset=["node"]).groupby([*key, "node"], as_index=False)["window_start"].agg(["min", "max"])
    events = windows.read(folder, "events", start, end, ["cluster", "entity", "time", "kind", "action"]).to_pandas()
    events = events[events["kind"] == "pod"].rename(columns={"entity": "pod"})
    for action in ("create", "delete"):
        times = events[events["action"] == action].groupby(key)["time"].agg("min" if action == "create" else "max")
        lives = lives.join(times.rename(action), on=key)
    # Windows say when a pod was on a node to five minutes; the event, where there is one, to the moment.
    window = timedelta(seconds=WINDOW_SECONDS)
    lives["begin"] = lives["create"].where(lives["create"] >= lives["min"], lives["min"])
    lives["finish"] = lives["delete"].where(lives["delete"] <= lives["max"] + window, lives["max"] + window)
    lives["finish"] = (lives["finish"] + timedelta(seconds=cooldown_s)).clip(upper=end)
    nodes = windows.read(folder, "nodes", start, end, ["cluster", "node", "price_usd_per_hour"]).to_pandas()
    prices = nodes.groupby(["cluster", "node"])["price_usd_per_hour"].last().fillna(DEFAULT_USD_PER_HOUR)
    total = 0.0
    for name, group in lives.groupby(["cluster", "node"]):
        total += _covered_hours(group) * float(prices.get(name, DEFAULT_USD_PER_HOUR))
    return total


def _covered_hours(lives: pd.DataFrame) -> float:
    """Length of the union of intervals: overlapping pods do not bill a node twice."""
    ordered = lives.sort_values("begin")
    begin = ordered["begin"].to_numpy("datetime64[us]").astype(np.int64)
    reached = np.maximum.accumulate(ordered["finish"].to_numpy("datetime64[us]").astype(np.int64))
    before = np.concatenate((begin[:1], reached[:-1]))
    return float(np.sum(np.maximum(reached - np.maximum(begin, before), 0))) / 3.6e9


DATASET = Dataset(load, starts, times_s, scaled, measured)
