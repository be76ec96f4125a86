"""``functions`` from windows: every pod of a function that was created is an instance to place."""

from __future__ import annotations

import dataclasses
import heapq
import importlib
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline import windows
from pipeline.contracts.calibration import Calibration, FunctionValue
from pipeline.contracts.evaluation import Backtest, Origin
from pipeline.datasets.calls import Dealt, deal
from pipeline.datasets.copies import Copies, copied, mean_over
from pipeline.datasets.dataset import Dataset, Rows
from pipeline.datasets.lives import COMPLETING_KINDS, is_held, lives, overlaps
from pipeline.datasets.origins import Tally, read
from pipeline.datasets.responses import late_and_slow, log_normal_tail, share_above
from pipeline.errors import DataError
from pipeline.prices import DEFAULT_USD_PER_HOUR
from sched_env import scenarios
from sched_env.functions import synthetic
from sched_env.functions.azure import DISK_IOPS, NET_MB_S
from sched_env.functions.features import FIT_TOLERANCE
from sched_env.functions.scenario import ServerlessScenario
from sched_env.functions.tables import SLO_FACTOR, FunctionTrace
from sched_env.scenarios import Scenario
from sched_env.tables import Floats, NodeTable
from wire.contracts.window import WINDOW_SECONDS

DELETION_S = 180.0
"""How much later than it was a deletion may be told: kube-state-metrics is asked every minute, and misses one."""
LEAST = 1e-6
"""Cores or GiB of something held fixed that asks for nothing: tables hold no zeros."""

Trace = tuple[FunctionTrace, NodeTable]

ABOUT: dict[str, tuple[str, str]] = {
    "size": ("sla_violation_rate, cost_usd", "kube_pod_container_resource_requests (kube-state-metrics)"),
    "calls": ("sla_violation_rate", "requests by function (Knative, Istio or NGINX metrics) or a request log"),
    "standard response": ("sla_violation_rate", "response times by function: histogram or request log"),
    "life": ("cost_usd", "pod events, or kube_pod_created and kube_pod_completion_time"),
    "recorded node": ("", "kube_pod_info with its node label"),
    "node size": ("sla_violation_rate, cost_usd", "kube_node_status_capacity or node-exporter"),
    "network use": ("", "container_network_*_bytes_total (cAdvisor)"),
    "disk use": ("", "container_fs_*_total (cAdvisor)"),
    "node network": ("", "node_network_speed_bytes (node-exporter)"),
    "node disk": ("", "a capacity in IOPS for each instance type"),
    "price": ("", "ingest.prices: a CSV of instance_type and usd_per_hour"),
}
"""Feature -> what it decides and what would measure it. Prices decide what a node hour costs, not how many are used:
where they are assumed the bill is in node hours, which the report says."""


def load(folder: Path, start: datetime, end: datetime) -> Trace:
    """Load function instances to place, and the nodes of the clusters in which functions run.

    Every pod created in ``[start, end)`` is one request: its size from the event (else from its metrics), its network
    and disk use from its windows, the calls it answers from the exact counts (``pipeline.datasets.calls``), its SLO
    from its function's standard response. Pods that were there before are its first rows, on their nodes, and pods
    without a function are held fixed. A life that goes on beyond ``end`` is cut there: nothing of a later split is
    seen. Clusters are separate domains; names are spelled ``cluster/name`` when there are several.
    """
    arrays = _arrays(folder, start, end)
    names = tuple(str(name) for name in arrays["function_names"])
    clusters = [str(name) for name in arrays["clusters"]]
    columns = {name: values for name, values in arrays.items() if name in FunctionTrace.__dataclass_fields__}
    columns["function_names"] = names  # type: ignore[assignment]
    return FunctionTrace(**columns), _nodes(folder, start, end, clusters)  # type: ignore[arg-type]


def origins(folder: Path, start: datetime, end: datetime) -> list[Origin]:
    """Say where the numbers of a span come from."""
    arrays = _arrays(folder, start, end)
    return read(arrays["origin_features"], arrays["origin_counts"], ABOUT)


def _arrays(folder: Path, start: datetime, end: datetime) -> windows.Arrays:
    whole = windows.span(folder)
    files = windows.files_of(folder, "nodes", start, end)
    files += windows.files_of(folder, "functions", whole.start, end)
    files += [file for table in ("events", "pods") for file in windows.files_of(folder, table, whole.start, whole.end)]
    return windows.mapped(__name__, files, [start, end], lambda: _build(folder, start, end))


def _nodes(folder: Path, start: datetime, end: datetime, clusters: list[str]) -> NodeTable:
    """The nodes of the clusters; where windows have none at all (a trace of calls alone), those of the scenario."""
    if windows.frame_of(folder, "nodes", start, end, ["node"]).empty:
        scenario = cast(ServerlessScenario, scenarios.load("functions/serverless"))
        return synthetic.nodes(scenario.nodes, scenario.net_mb_s, scenario.disk_iops)
    return windows.node_table(folder, start, end, clusters)


def _build(folder: Path, start: datetime, end: datetime) -> windows.Arrays:
    # Numbered over all days there are, so that a function has one number in train, validation and test.
    whole = windows.span(folder)
    everywhere = windows.frame_of(folder, "events", whole.start, whole.end, ["function", "kind"]).dropna()
    everywhere = everywhere[everywhere["kind"] == "pod"]  # a job's function is its model
    clusters = np.unique(everywhere["cluster"].to_numpy(str))
    # What was there before the first event (daemons, databases) is told by windows alone.
    seen = windows.frame_of(folder, "pods", whole.start, whole.end, ["function"]).dropna()
    everywhere = pd.concat([everywhere, seen[seen["cluster"].isin(clusters)].drop_duplicates(["cluster", "function"])])
    several = clusters.size > 1
    names = np.unique(windows.spelled(everywhere, "function", several).to_numpy(str))

    rows = lives(folder, start, end)
    rows = rows[rows["cluster"].isin(clusters)].reset_index(drop=True)
    dealt = deal(folder, start, end, rows)
    nodes = _nodes(folder, start, end, clusters.tolist())
    rows["calls"] = dealt.calls
    rows["home"] = pd.Index(nodes.names).get_indexer(pd.Index(windows.spelled(rows, "node", several)))
    columns, who = {"net_mb_per_request": "net_call", "disk_io_per_request": "disk_call"}, ["cluster", "function"]
    functions = windows.frame_of(folder, "functions", start, end, ["function", *columns]).rename(columns=columns)
    rows = rows.join(functions.groupby(who)[[*columns.values()]].mean(), on=who)
    rows = rows.join(windows.standards(folder, end).rename("standard"), on=who)
    rows["held"] = is_held(rows)
    for name in ("cpu", "mem"):  # what cannot be moved takes what it uses, be it nothing
        rows.loc[rows["held"], name] = rows.loc[rows["held"], name].fillna(0.0).clip(lower=LEAST)
    sized = (rows["cpu"] > 0) & (rows["mem"] > 0)
    rows = rows[sized & ~(rows["held"] & (rows["home"] < 0)) & ~(rows["before"] & (rows["home"] < 0))]
    rows = _made_room(rows.sort_values(["begin_s", "cluster", "entity"], kind="stable"), nodes)
    if not (~rows["held"] & ~rows["before"]).any():
        raise DataError(
            f"{folder} has no pod created between {start} and {end}",
            "events of pods with their function",
            "check the range, and that the source names the function of a pod",
        )
    # A function that nobody counts answers one call a pod: an assumption, and counted as one.
    counted = rows["standard"].notna() | rows["held"]
    requests = rows["calls"].where(counted | (rows["calls"] > 0), 1).clip(upper=np.iinfo(np.int32).max)
    duration = rows["end_s"] - rows["begin_s"]
    response = rows["standard"].where(rows["standard"] > 0).fillna(duration / requests.clip(lower=1))
    io = {name: _io(rows, name, default) for name, default in (("net", NET_MB_S), ("disk", DISK_IOPS))}
    spelled = windows.spelled(rows.assign(function=rows["function"].fillna("")), "function", several)
    codes = np.where(rows["function"].isna(), 0, np.searchsorted(names, spelled.to_numpy(str)))
    return {
        "arrival_s": rows["begin_s"].to_numpy(np.float64),
        "function": codes.astype(np.int32),
        "cpu": rows["cpu"].to_numpy(np.float64),
        "mem": rows["mem"].to_numpy(np.float64),
        "net": io["net"].to_numpy(np.float64),
        "disk": io["disk"].to_numpy(np.float64),
        "requests": requests.to_numpy(np.int32),
        "duration_s": duration.to_numpy(np.float64),
        "slo_s": (SLO_FACTOR * response).to_numpy(np.float64),
        "response_s": response.to_numpy(np.float64),
        "node": rows["home"].to_numpy(np.int32),
        "held": rows["held"].to_numpy(bool),
        "domain": np.searchsorted(clusters, rows["cluster"].to_numpy(str)).astype(np.int32),
        "pace": _pace(folder, start, end, rows.assign(name=spelled), names, several),
        "up": windows.up(folder, start, end, clusters.tolist(), nodes.names),
        "function_names": names,
        "clusters": clusters,
        **_tally(folder, start, end, clusters.tolist(), rows, dealt).arrays(),
    }


def _made_room(rows: pd.DataFrame, nodes: NodeTable) -> pd.DataFrame:
    """End lives a little earlier where a pod came to a node that seems full.

    When a pod was deleted is known to a minute or two; that another one was put into its place says it was gone. A pod
    that completed is not meant: cut to nothing, a job's one call would be late by any measure.
    """
    free = np.stack([nodes.cpu, nodes.mem], axis=1)
    asked = rows[["cpu", "mem"]].to_numpy(np.float64)
    begin, end = rows["begin_s"].to_numpy(np.float64), rows["end_s"].to_numpy(np.float64).copy()
    home, held = rows["home"].to_numpy(np.int64), rows["held"].to_numpy(bool)
    certain = held | rows["owner_kind"].isin(COMPLETING_KINDS).to_numpy(bool)
    there: list[list[tuple[float, int]]] = [[] for _ in range(len(nodes))]
    for row in np.flatnonzero(home >= 0):
        node, now = home[row], begin[row]
        waiting = there[node]
        while waiting and waiting[0][0] <= now:
            free[node] += asked[heapq.heappop(waiting)[1]]
        while not held[row] and (free[node] < asked[row] - FIT_TOLERANCE).any():
            going = min((one for one in waiting if not certain[one[1]]), default=(np.inf, -1))
            if going[0] > now + DELETION_S:
                break
            waiting.remove(going)
            heapq.heapify(waiting)
            free[node] += asked[going[1]]
            end[going[1]] = max(now, begin[going[1]] + LEAST)
        free[node] -= asked[row]
        heapq.heappush(waiting, (end[row], int(row)))
    return rows.assign(end_s=end)


def _pace(
    folder: Path, start: datetime, end: datetime, rows: pd.DataFrame, names: NDArray[np.str_], several: bool
) -> Floats:
    """Calls a second that an instance of each function got in each window; where nobody says, one as in any other."""
    count = int((end - start).total_seconds()) // WINDOW_SECONDS
    counts = windows.frame_of(folder, "functions", start, end, ["function", "requests"])
    counts = counts[counts["requests"] > 0]
    called = windows.spelled(counts, "function", several).to_numpy(str)
    place = np.searchsorted(names, called).clip(max=names.size - 1)
    mine = names[place] == called
    window = ((counts["window_start"] - pd.Timestamp(start)).dt.total_seconds() // WINDOW_SECONDS).to_numpy(np.int64)
    calls, there = np.zeros((count, names.size)), np.zeros((count, names.size))
    np.add.at(calls, (window[mine], place[mine]), counts["requests"].to_numpy(np.float64)[mine])
    known = rows[rows["function"].notna()]
    life, at, seconds = overlaps(known["begin_s"].to_numpy(), known["end_s"].to_numpy())
    inside = at < count
    codes = np.searchsorted(names, known["name"].to_numpy(str))
    np.add.at(there, (at[inside], codes[life[inside]]), seconds[inside])
    usual = np.where(calls.sum(axis=0) > 0.0, calls.sum(axis=0) / np.maximum(there.sum(axis=0), 1.0), 1.0)
    pace = np.where((calls.sum(axis=0) > 0.0) & (there > 0.0), calls / np.maximum(there, 1.0), usual)
    return np.asarray(np.maximum(pace, LEAST * usual))


def _io(rows: pd.DataFrame, name: str, default: float) -> pd.Series[float]:
    """Network or disk use: the pod's own, else that of its function's pods, else its calls' x what a call takes."""
    alike = rows.groupby(["cluster", "function"])[name].transform("mean")
    by_calls = rows[f"{name}_call"] * rows["calls"] / (rows["end_s"] - rows["begin_s"])
    used: pd.Series[float] = rows[name].fillna(alike).fillna(by_calls).fillna(default).where(~rows["held"], 0.0)
    return used


def _tally(
    folder: Path, start: datetime, end: datetime, clusters: list[str], rows: pd.DataFrame, dealt: Dealt
) -> Tally:
    """Count where the numbers of the rows to place, and of their nodes, come from."""
    tally, asked = Tally(), rows[~rows["held"]]
    tally.add("size", asked["asked"].to_numpy(), np.ones(len(asked), bool))
    for feature, name in (("network use", "net"), ("disk use", "disk")):
        tally.add(feature, asked[name].notna().to_numpy(), _io(asked, name, np.nan).notna().to_numpy())
    tally.add("life", asked["ended"].to_numpy(), np.ones(len(asked), bool))
    tally.counts["calls"] = (dealt.measured, dealt.dealt, int(asked["standard"].isna().sum()) + dealt.homeless)
    # By calls: a job that answers none is late for nobody, however many pods it has.
    known, answered = asked["standard"] > 0, asked["calls"].clip(lower=1)
    tally.counts["standard response"] = (0, int(answered[known].sum()), int(answered[~known].sum()))
    tally.add("recorded node", (asked["home"] >= 0).to_numpy())
    columns = ["cpu_capacity_cores", "net_capacity_mb_s", "disk_capacity_iops", "price_usd_per_hour"]
    nodes = windows.frame_of(folder, "nodes", start, end, ["node", *columns])
    nodes = (
        nodes[nodes["cluster"].isin(clusters)].dropna(subset=columns[:1]).groupby(["cluster", "node"])[columns].last()
    )
    for feature, name in zip(("node size", "node network", "node disk", "price"), columns, strict=True):
        tally.add(feature, nodes[name].notna().to_numpy() if len(nodes) else np.zeros(1, bool))
    return tally


def starts(trace: Trace, scenario: Scenario) -> Rows:
    """Every instance to place that has a whole episode after it."""
    rows = np.arange(max(len(trace[0]) - max(scenario.horizon, 1), 0))
    # What was there before the span begins with it, at second 0.
    chosen: Rows = rows[~(there_before(trace[0]) | trace[0].held)[rows]]
    return chosen


def longest_s(trace: Trace, scenario: Scenario) -> float:
    """Time from the first to the last arrival of the longest episode."""
    instances = trace[0]
    came = instances.arrival_s[~there_before(instances) & ~instances.held]
    return float((came[scenario.horizon - 1 :] - came[: came.size - scenario.horizon + 1]).max(initial=0.0))


def times_s(trace: Trace, rows: Rows) -> NDArray[np.float64]:
    """When instances arrived."""
    return trace[0].arrival_s[rows]


def scaled(trace: Trace, load: float) -> Trace:
    """Let instances arrive ``load`` times as densely; they live as long as before."""
    instances, nodes = trace
    return dataclasses.replace(instances, arrival_s=instances.arrival_s / load, up_s=instances.up_s / load), nodes


def resized(trace: Trace, scenario: Scenario, factor: float) -> tuple[Trace, Scenario]:
    """Let the cluster be ``factor`` times as large, under as many times the load.

    Where nobody says where instances ran episodes begin on empty nodes, and last longer by as much: else a large
    cluster would never fill.
    """
    instances, nodes = scaled(trace, factor)
    copies = Copies.of(factor, nodes.domain, nodes.price_usd_per_hour, nodes.cpu, nodes.mem)
    rows, home = copies.spread(instances.node, there_before(instances))
    columns = {name: getattr(instances, name) for name in FunctionTrace.__dataclass_fields__}
    whole = {"tails", "pace", "up"}
    cut = {
        name: values[rows] for name, values in columns.items() if isinstance(values, np.ndarray) and name not in whole
    }
    up = instances.up[:, copies.source] if instances.up.size else instances.up
    if not (home >= 0).any() and scenario.horizon:
        scenario = scenarios.load(scenario, {"horizon": max(round(scenario.horizon * factor), 1)})
    return (dataclasses.replace(instances, **cut | {"node": home, "up": up}), copied(nodes, copies)), scenario


def asked(trace: Trace, scenario: Scenario, rows: Rows) -> Floats:
    """Mean of the cores that the instances of an episode ask for."""
    instances = trace[0]
    ours = ~instances.held & ~there_before(instances)
    return mean_over(instances.cpu, ours, rows, scenario.horizon)


def there_before(instances: FunctionTrace) -> NDArray[np.bool_]:
    """Which instances were on their nodes before the span began."""
    found: NDArray[np.bool_] = (instances.arrival_s <= 0.0) & (instances.node >= 0)
    return found


def calibrated(trace: Trace, calibration: Calibration) -> Trace:
    """Give every instance what calibration found of its function: standard response, spread of calls, use."""
    instances, nodes = trace
    names = instances.function_names
    changes: dict[str, Any] = {}
    functions = [calibration.functions.get(name) for name in names]
    if any(functions):
        standard = np.array([np.nan if found is None else found.standard_s for found in functions])
        response = standard[instances.function]
        told = ~np.isnan(response)
        response = np.where(told, response, instances.response_s)
        changes |= {"response_s": response, "slo_s": np.where(told, SLO_FACTOR * response, instances.slo_s)}
        changes["tails"] = np.array([_tail(found) for found in functions])
    uses = [calibration.uses.get(name) for name in names]
    if any(uses):
        known = np.array([found is not None for found in uses])[instances.function]
        for column, field, other in (
            ("idle_use", "idle_cores", instances.cpu),
            ("work_s", "work_s", np.zeros(len(instances))),
            ("mem_use", "mem_gib", instances.mem),
        ):
            values = np.array([0.0 if found is None else getattr(found, field) for found in uses])
            changes[column] = np.where(known, values[instances.function], other)
    return dataclasses.replace(instances, **changes), nodes


def _tail(found: FunctionValue | None) -> Floats:
    return np.array(found.tail) if found is not None and found.tail else log_normal_tail(found.spread if found else 0.0)


def measured(folder: Path, start: datetime, end: datetime, scenario: Scenario) -> dict[str, float]:
    """What the cluster did in ``[start, end)``: SLA violations and cost, from the window tables.

    A figure is left out when the windows do not hold what it needs.
    """
    from pipeline.datasets import calibration

    cooldown_s = cast(ServerlessScenario, scenario).cooldown_s
    functions = windows.read(folder, "functions", start, end).to_pandas()
    measured = {"cost_usd": cost_usd(folder, start, end, cooldown_s)}
    found = calibration("functions")
    if found is not None and found.functions:  # by the SLOs that the simulator is calibrated to
        standards = {name: value.standard_s for name, value in found.functions.items()}
        rows = late_and_slow(folder, start, end, standards, SLO_FACTOR).dropna(subset=["late"])
        calls = float(rows["calls"].sum())
        return measured | ({"sla_violation_rate": float(rows["late"].sum()) / calls} if calls else {})
    known = functions.drop(columns="standard_response_s").join(
        windows.standards(folder, end), on=["cluster", "function"]
    )
    known = known.dropna(subset=["response_mean_s", "response_p95_s", "standard_response_s"])
    known = known[(known["requests"] > 0) & (known["standard_response_s"] > 0.0) & (known["response_mean_s"] > 0.0)]
    if len(known):
        late = share_above(
            known["response_mean_s"].to_numpy(np.float64),
            known["response_p95_s"].to_numpy(np.float64),
            SLO_FACTOR * known["standard_response_s"].to_numpy(np.float64),
        )
        measured["sla_violation_rate"] = float(np.average(late, weights=known["requests"].to_numpy(np.float64)))
    return measured


def cost_usd(folder: Path, start: datetime, end: datetime, cooldown_s: float) -> float:
    """Hours in which each node held a pod, cool-down included, times its price."""
    pods = windows.read(folder, "pods", start, end, ["cluster", "pod", "node", "function", "owner_kind"]).to_pandas()
    pods = pods[~is_held(pods)]  # a node is not kept on by its daemons
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


def fit(folder: Path, span: windows.Span, scenario: Callable[[Mapping[str, Any] | None], Scenario]) -> Calibration:
    """Calibrate the simulator."""
    found: Calibration = importlib.import_module("pipeline.calibrate.functions").calibrate(folder, span, scenario)
    return found


def check(data: Any, folder: Path, policy: Any, name: str) -> tuple[Backtest, pd.DataFrame]:
    """Replay a workload under a policy, beside what was measured."""
    found: tuple[Backtest, pd.DataFrame] = importlib.import_module("pipeline.fidelity").check(
        data, folder, policy, name
    )
    return found


DATASET = Dataset(
    load,
    starts,
    times_s,
    scaled,
    measured,
    origins,
    calibrated,
    fit,
    check,
    decisive={"cpu_gain": "sla_violation_rate", "cold_start_s": "sla_violation_rate"},
    longest_s=longest_s,
    resized=resized,
    asked=asked,
    asked_in="cores",
)
