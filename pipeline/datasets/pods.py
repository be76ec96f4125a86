"""Pods of every window and the requests dealt to them, as flat arrays that the ``pods`` environment can replay."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline import windows
from pipeline.contracts.calibration import Calibration, Value
from pipeline.contracts.evaluation import Origin
from pipeline.datasets import pod_use
from pipeline.datasets.copies import Copies, copied
from pipeline.datasets.dataset import Dataset, Rows, later
from pipeline.datasets.lives import is_held
from pipeline.datasets.origins import Tally, read
from pipeline.errors import DataError
from sched_env.pods import forecast
from sched_env.pods.foresight import times
from sched_env.pods.scenario import DeployScenario
from sched_env.pods.tables import PodTrace, offsets
from sched_env.scenarios import Scenario
from sched_env.tables import NodeTable
from wire.contracts.window import WINDOW_SECONDS

_SIZES = ["cpu_request_cores", "mem_request_gib"]
_ROW_AMOUNTS = ("cpu_request", "mem_request", "cpu_used", "mem_used")
AVERAGED = "averaged_over_s"
PARTS = 5
"""Of a window, in each of which a pod asks once where use is averaged: what a scrape a minute tells."""
MOST_FACTOR = 50.0
"""A pod that used so many times what its requests are said to take did something else."""
GAINS = {"cpu": "used_share_of_demanded_cores", "mem": "used_share_of_demanded_gib"}

ABOUT: dict[str, tuple[str, str]] = {
    "pod size": ("", "kube_pod_container_resource_requests (kube-state-metrics)"),
    "node of the pod": ("resource_violations", "kube_pod_info with its node label"),
    "requests": ("resource_violations", "requests by function (Knative, Istio or NGINX metrics) or a request log"),
    "node size": ("resource_violations", "kube_node_status_capacity or node-exporter"),
    "held fixed": ("", "the owners of pods (kube_pod_info, kube_replicaset_owner, kube_job_owner)"),
    "price": ("", "ingest.prices: a CSV of instance_type and usd_per_hour"),
    "cost of a move": ("", "workload.pods.overrides: price_per_move_usd"),
}
"""Feature -> what it decides and what would measure it."""

Trace = tuple[PodTrace, NodeTable]


def load(folder: Path, start: datetime, end: datetime) -> Trace:
    """Load the pods of ``[start, end)`` with their requests, and the nodes of their clusters.

    A window is the state of its clusters: pods are where they were. Those that cannot be moved stay; a node that is
    down or cordoned takes nobody; clusters are separate domains.
    """
    arrays, nodes = _arrays(folder, start, end)
    names = tuple(str(name) for name in arrays["pod_names"])
    columns = {name: values for name, values in arrays.items() if name in PodTrace.__dataclass_fields__}
    return PodTrace(**columns | {"pod_names": names}), nodes  # type: ignore[arg-type]


def origins(folder: Path, start: datetime, end: datetime) -> list[Origin]:
    """Say where the numbers of a span come from."""
    arrays, _ = _arrays(folder, start, end)
    return read(arrays["origin_features"], arrays["origin_counts"], ABOUT)


def _arrays(folder: Path, start: datetime, end: datetime) -> tuple[windows.Arrays, NodeTable]:
    clusters = sorted(set(windows.frame_of(folder, "pods", start, end, [])["cluster"]))
    nodes = windows.node_table(folder, start, end, clusters)
    files = [file for table in ("nodes", "pods", "demands") for file in windows.files_of(folder, table, start, end)]
    # A name alone must not put a pod of one cluster on the node of another.
    return windows.mapped(
        __name__, files, [start, end], lambda: _build(folder, start, end, nodes.names, clusters)
    ), nodes


def _build(folder: Path, start: datetime, end: datetime, nodes: tuple[str, ...], clusters: list[str]) -> windows.Arrays:
    several = len(clusters) > 1
    pods = windows.frame_of(
        folder, "pods", start, end, ["pod", "node", "function", "owner_kind", "present_ratio", *_SIZES, *pod_use.USED]
    )
    # A pod that asks for nothing known cannot be placed.
    pods = pods.dropna(subset=_SIZES)
    if pods.empty:
        raise DataError(
            f"{folder} has no pod with a size between {start} and {end}",
            "requests of cpu and memory",
            "check the range",
        )
    pods = pods.assign(name=windows.spelled(pods, "pod", several), host=windows.spelled(pods, "node", several))
    pods = pods.sort_values(["window_start", "name"], ignore_index=True)
    names, numbers = np.unique(pods["name"].to_numpy(str), return_inverse=True)
    elapsed = (pods["window_start"] - pd.Timestamp(start)).dt.total_seconds().to_numpy(np.float64)
    moments, first = np.unique(elapsed, return_index=True)
    hosts = pd.Index(nodes).get_indexer(pd.Index(pods["host"]))

    columns = ["pod", "position", "arrival_offset_s", "duration_s", "cpu_cores", "mem_gib", "estimated"]
    demands = windows.frame_of(folder, "demands", start, end, columns)
    rows = pods[["window_start", "cluster", "pod"]].reset_index(names="row")
    demands = demands.merge(rows, on=["window_start", "cluster", "pod"]).sort_values(["row", "position"])
    counts = np.bincount(demands["row"].to_numpy(np.int64), minlength=len(pods))
    up = windows.up(folder, start, end, clusters, nodes)
    return {
        "window_s": moments,
        "window_rows": np.append(first, len(pods)).astype(np.int64),
        "pod": numbers.astype(np.int32),
        "node": hosts.astype(np.int32),
        "cpu_request": pods["cpu_request_cores"].to_numpy(np.float64),
        "mem_request": pods["mem_request_gib"].to_numpy(np.float64),
        **dict(zip(("cpu_used", "mem_used"), pod_use.of_windows(pods).T, strict=True)),
        "row_requests": offsets(counts),
        "arrival_offset_s": np.clip(demands["arrival_offset_s"].to_numpy(np.float64), 0.0, float(WINDOW_SECONDS)),
        "duration_s": demands["duration_s"].to_numpy(np.float64),
        "cpu": demands["cpu_cores"].to_numpy(np.float64),
        "mem": demands["mem_gib"].to_numpy(np.float64),
        "pod_names": names,
        "held": is_held(pods).to_numpy(),
        "domain": np.searchsorted(clusters, pods["cluster"].to_numpy(str)).astype(np.int32),
        "up": up[(moments // WINDOW_SECONDS).astype(np.int64)],
        **_tally(folder, start, end, clusters, pods, hosts, demands).arrays(),
    }


def _tally(
    folder: Path,
    start: datetime,
    end: datetime,
    clusters: list[str],
    pods: pd.DataFrame,
    hosts: NDArray[np.int64],
    demands: pd.DataFrame,
) -> Tally:
    """Count where the numbers of pods, their requests and their nodes come from."""
    tally = Tally()
    tally.add("pod size", np.ones(len(pods), bool))
    tally.add("node of the pod", hosts >= 0)
    spread = demands["estimated"].to_numpy(bool)
    tally.add("requests", ~spread if spread.size else np.zeros(1, bool), spread if spread.size else None)
    tally.add("held fixed", pods["owner_kind"].notna().to_numpy(), pods["function"].notna().to_numpy())
    known = windows.frame_of(folder, "nodes", start, end, ["node", "price_usd_per_hour"])
    prices = known[known["cluster"].isin(clusters)].groupby(["cluster", "node"])["price_usd_per_hour"].last()
    tally.add("node size", np.ones(len(prices), bool))
    tally.add("price", prices.notna().to_numpy())
    tally.add("cost of a move", np.zeros(1, bool))
    return tally


def starts(trace: Trace, scenario: Scenario) -> Rows:
    """Windows with something to decide (a node above the threshold) soon after them, and a whole episode after that.

    An episode begins with its first decision: quiet windows that lead to the same one are starts of the same episode.
    """
    from sched_env.pods.vector import make

    env = make(scenario, 1, trace=trace)
    first = np.arange(max(len(trace[0]) - env.scenario.episode_windows, 0))
    begins = env.cluster.next_stress[first]
    soon: Rows = first[(begins >= 0) & (begins < first + env.scenario.episode_windows) & (begins < first.size)]
    return soon


def times_s(trace: Trace, rows: Rows) -> NDArray[np.float64]:
    """When windows begin."""
    return trace[0].window_s[rows]


def scaled(trace: Trace, load: float) -> Trace:
    """Let every request take ``load`` times as much: requests are dealt to pods, so there is no arrival to speed up."""
    pods, nodes = trace
    more = {name: getattr(pods, name) * load for name in ("cpu", "mem", "cpu_used", "mem_used")}
    more["forecast"] = times(pods.forecast, load, load)
    return dataclasses.replace(pods, **more), nodes


def resized(trace: Trace, scenario: Scenario, factor: float) -> tuple[Trace, Scenario]:
    """Let the cluster be ``factor`` times as large: every pod, with its requests, as many times."""
    pods, nodes = trace
    copies = Copies.of(factor, nodes.domain, nodes.cpu, nodes.mem)
    first = pods.node[np.unique(pods.pod, return_index=True)[1]]
    home = np.zeros(len(pods.pod_names), np.int64)
    home[np.unique(pods.pod)] = first
    # A pod is there or not by its number where nobody says on which node it is.
    spare = np.arange(home.size) % round(max(1.0 / factor, 1.0)) == 0
    stays = np.where(home >= 0, copies.kept[np.maximum(home, 0)], spare)[pods.pod]
    times = copies.twins.shape[1]
    rows = np.repeat(np.flatnonzero(stays), times)
    copy = np.tile(np.arange(times), int(stays.sum()))
    window = np.repeat(np.arange(len(pods)), np.diff(pods.window_rows))[rows]
    present, window = np.unique(window, return_inverse=True)  # windows that have none left are left out
    counts = np.diff(pods.row_requests)[rows]
    ends = np.cumsum(counts)
    requests = np.arange(int(counts.sum())) + np.repeat(pods.row_requests[rows] - (ends - counts), counts)
    cut = {name: getattr(pods, name)[rows] for name in ("held", "domain", *_ROW_AMOUNTS)}
    cut |= {name: getattr(pods, name)[requests] for name in ("arrival_offset_s", "duration_s", "cpu", "mem")}
    grown = dataclasses.replace(
        pods,
        window_s=pods.window_s[present],
        window_rows=offsets(np.bincount(window, minlength=present.size)),
        pod=pods.pod[rows] + len(pods.pod_names) * copy,
        node=copies.dealt(pods.node[rows], copy).astype(np.int32),
        row_requests=offsets(counts),
        pod_names=tuple(f"{name}~{number}" if number else name for number in range(times) for name in pods.pod_names),
        up=pods.up[present][:, copies.source] if pods.up.size else pods.up,
        forecast=pods.forecast[rows] if pods.forecast.size else pods.forecast,
        **cut,
    )
    return (grown, copied(nodes, copies)), scenario


def asked(trace: Trace, scenario: Scenario, rows: Rows) -> NDArray[np.float64]:
    """Mean of the cores that the pods of an episode request."""
    pods = trace[0]
    total = np.concatenate([[0.0], np.cumsum(pods.cpu_request)])
    end = np.minimum(rows + cast(DeployScenario, scenario).episode_windows, len(pods))
    first, stop = pods.window_rows[rows], pods.window_rows[end]
    return np.asarray((total[stop] - total[first]) / np.maximum(stop - first, 1))


def believed(trace: Trace, models: Path, folder: Path, span: windows.Span) -> Trace:
    """Let schedulers expect what the forecast says, by the use of the day before each window and nothing after it."""
    model = pod_use.opened(models / forecast.NAME)
    if model is None:
        return trace
    pods, nodes = trace
    start = span.start - timedelta(seconds=forecast.DAY * WINDOW_SECONDS)
    # Spelled as the trace's own names are, however many clusters the day before had.
    clusters = set(windows.frame_of(folder, "pods", span.start, span.end, [])["cluster"])
    use = pod_use.measured(folder, start, span.end, several=len(clusters) > 1)
    window = np.repeat(pods.window_s // WINDOW_SECONDS, np.diff(pods.window_rows)).astype(np.int64) + forecast.DAY
    at = np.searchsorted(np.array(use.names), np.array(pods.pod_names))[pods.pod]
    said = pod_use.expected(use, model, at, window)
    # Calibration may have scaled what pods use; what they are expected to use goes with it.
    measured, used = use.at(at, window), np.stack([pods.cpu_used, pods.mem_used], axis=1)
    factor = np.divide(used, measured, out=np.ones_like(used), where=measured > 0.0)
    return dataclasses.replace(pods, forecast=times(said, *factor.T)), nodes


def calibrated(trace: Trace, found: Calibration) -> Trace:
    """Let requests take what was found to be used, averaged over the time that use is averaged over."""
    told = {value.name: value.value for value in found.values if value.origin != "assumed"}
    return scaled_demands(as_exported(trace, told[AVERAGED]), found.values) if AVERAGED in told else trace


def as_exported(trace: Trace, seconds: float) -> Trace:
    """Let pods ask as an exporter sees them: means over so many seconds, all over a window what the pod used in it.

    Zero leaves requests as they are, each scaled to what its pod used. Otherwise a pod asks once in each of
    :data:`PARTS`, and the shape of its window is that of the requests in it, those that began earlier and last
    included; a pod that used something without any used it evenly.
    """
    if seconds <= 0.0:
        return by_own_use(trace)
    pods, nodes = trace
    rows, length = pods.pod.size, WINDOW_SECONDS / PARTS
    amounts = {}
    for name in GAINS:
        shape, used = _averaged(pods, getattr(pods, name), seconds), getattr(pods, f"{name}_used")
        mean = shape.mean(axis=1)
        factor = np.divide(used, mean, out=np.ones(rows), where=(mean > 0.0) & (used > 0.0))
        shape *= np.clip(factor, 1.0 / MOST_FACTOR, MOST_FACTOR)[:, None]
        amounts[name] = np.where((mean > 0.0)[:, None], shape, used[:, None]).ravel()
    return dataclasses.replace(
        pods,
        row_requests=np.arange(rows + 1, dtype=np.int64) * PARTS,
        arrival_offset_s=np.tile(np.arange(PARTS) * length, rows),
        duration_s=np.full(rows * PARTS, length),
        cpu=amounts["cpu"],
        mem=amounts["mem"],
    ), nodes


def _averaged(pods: PodTrace, amount: NDArray[np.float64], seconds: float) -> NDArray[np.float64]:
    """Return means over so many seconds, around the middle of each part, of what the requests of each row take."""
    middle = (np.arange(PARTS) + 0.5) * (WINDOW_SECONDS / PARTS)
    first = np.clip(middle - seconds / 2.0, 0.0, WINDOW_SECONDS - seconds)
    row = np.repeat(np.arange(pods.pod.size), np.diff(pods.row_requests))
    begins, ends = pods.arrival_offset_s, pods.arrival_offset_s + pods.duration_s
    shape = np.zeros((pods.pod.size, PARTS))
    following = _following(pods)
    while row.size:
        for part in range(PARTS):
            inside = np.minimum(ends, first[part] + seconds) - np.maximum(begins, first[part])
            shape[:, part] += np.bincount(row, amount * np.maximum(inside, 0.0), pods.pod.size)
        lasting = (ends > WINDOW_SECONDS) & (following[row] >= 0)  # what is left of it falls into the next window
        row, amount = following[row[lasting]], amount[lasting]
        begins, ends = begins[lasting] - WINDOW_SECONDS, ends[lasting] - WINDOW_SECONDS
    return shape / seconds


def _following(pods: PodTrace) -> NDArray[np.int64]:
    """Return the row of the same pod in the window right after, or -1."""
    window = np.repeat(pods.window_s, np.diff(pods.window_rows))
    order = np.lexsort((window, pods.pod))
    same = (pods.pod[order[1:]] == pods.pod[order[:-1]]) & (np.diff(window[order]) == WINDOW_SECONDS)
    found = np.full(pods.pod.size, -1)
    found[order[:-1][same]] = order[1:][same]
    return found


def by_own_use(trace: Trace) -> Trace:
    """Let the requests of a pod take, over a window, what the pod was measured to use in it, where it was."""
    pods, nodes = trace
    of_row = np.repeat(np.arange(pods.pod.size), np.diff(pods.row_requests))
    inside = np.minimum(pods.duration_s, WINDOW_SECONDS - pods.arrival_offset_s) / WINDOW_SECONDS
    amounts = {}
    for name in GAINS:
        asked, used = getattr(pods, name), getattr(pods, f"{name}_used")
        taken = np.bincount(of_row, asked * inside, pods.pod.size)
        known = (taken > 0.0) & (used > 0.0)
        factor = np.divide(used, taken, out=np.ones(pods.pod.size), where=known)
        amounts[name] = asked * np.clip(factor, 1.0 / MOST_FACTOR, MOST_FACTOR)[of_row]
    return dataclasses.replace(pods, **amounts), nodes


def scaled_demands(trace: Trace, values: list[Value]) -> Trace:
    """Let requests take so much of what they are said to take."""
    pods, nodes = trace
    gains = {value.name: value.value for value in values}
    factor = {name: gains.get(gain, 1.0) for name, gain in GAINS.items()}
    amounts = {column: getattr(pods, column) * factor[name] for name in GAINS for column in (name, f"{name}_used")}
    return dataclasses.replace(pods, **amounts, forecast=times(pods.forecast, **factor)), nodes


DATASET = Dataset(
    load,
    starts,
    times_s,
    scaled,
    origins=origins,
    calibrated=calibrated,
    believed=believed,
    fit=later("pipeline.calibrate.pods", "fit"),
    check=later("pipeline.calibrate.pods", "check"),
    decisive=dict.fromkeys([*GAINS.values(), AVERAGED], "resource_violations"),
    resized=resized,
    asked=asked,
    asked_in="cores",
)
