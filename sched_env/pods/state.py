"""What the kernels of ``pods`` work on: arrays for all environments, grouped by who changes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.pods.counting import INSTANT_S, demand, grained
from sched_env.pods.foresight import AHEAD, STAKES
from sched_env.pods.scenario import DeployScenario
from sched_env.pods.tables import Offsets, PodTrace, offsets
from sched_env.tables import Floats, NodeTable

CPU, MEM, CPU_INVERSE, MEM_INVERSE, PRICE = range(5)
"""Columns of ``Cluster.nodes``; CPU and MEM are also those of ``Cluster.served``."""
PREVIOUS, NODE, DOMAIN, HELD, FOLLOWING = range(5)
"""Columns of ``Cluster.pods``: the pod's row in the window before (-1: it was not there), its node by the trace, its
cluster, whether it is never moved, and its node by the trace in the window after (-1: it is gone)."""
CPU_REQUEST, MEM_REQUEST, CPU_DEMAND, MEM_DEMAND = range(4)
"""Columns of ``Cluster.asks``."""
CPU_MEAN, CPU_P95, CPU_MAX, CPU_CHANGE, MEM_MEAN, MEM_P95, MEM_MAX, MEM_CHANGE = range(8)
"""Columns of ``Cluster.use`` and first of ``State.nodes``: how use went in the window."""
CPU_SHARES, MEM_DEPLOYED, PODS = range(8, 11)
"""Further columns of ``State.nodes``."""
HEAT, OVER, UNDER, POSITIONS, UNMET, CROWDED, UNOFFERED, ALL_CPU, ALL_MEM = range(9)
"""Columns of ``State.books``: the highest share of cpu or memory in use, what is counted, pods not offered yet, what
all requests together demand of the window."""
NEXT, OFFERED = range(2)
"""Columns of ``State.links``: the pods of a node, from the window's last row to its first; -1 ends the list."""
WINDOW, ROW, HOT, MOVES_LEFT, STEPS, WINDOWS, OUTSIDE = range(7)
"""Columns of ``State.cursor``: the present window, the offered pod's row in it, the node whose pods are offered, the
budget, decisions and counted windows of the episode, pods of the window that fit nowhere."""
RETURN, ALL_OVER, ALL_UNDER, ALL_POSITIONS, ALL_UNMET, ALL_CROWDED, REQUESTS, MOVES, COST, DISPLACED, UNPLACED = range(
    11
)
"""Columns of ``State.totals``, sums over the episode."""


class Cluster(NamedTuple):
    """What no decision changes; the same for every environment."""

    nodes: Floats
    """[N, 5]"""
    window_s: Floats
    window_rows: Offsets
    pods: NDArray[np.int32]
    """[rows, 5]"""
    domain: NDArray[np.int32]
    """[N]"""
    up: NDArray[np.bool_]
    """[windows, N]"""
    asks: Floats
    """[rows, 4]: what is needed of every pod in every window, apart from what is needed of the offered one."""
    use: Floats
    """[rows, 8]: of the pod alone."""
    ahead: Floats
    """[rows, 8]: what is expected of the pod, as ``foresight.AHEAD``; [rows, 0] without foresight."""
    row_requests: Offsets
    demands: Floats
    """[requests x 2]: cores and GiB while a request runs, in turn."""
    served: Floats
    """[requests, 2]: what a request demands of the window as a whole."""
    size_rank: NDArray[np.int32]
    """[requests]: place of a request among those of its window, smallest first."""
    by_size: NDArray[np.int64]
    """[requests]: the requests of each window, smallest first."""
    instant: NDArray[np.int32]
    """[requests]: the first of the window's arrival instants at which the request is there."""
    until: NDArray[np.int32]
    """[requests]: the first at which it is no longer."""
    next_stress: NDArray[np.int64]
    """[windows]: the first window from each on that begins with a decision; -1: none does."""


class Rules(NamedTuple):
    """The scenario, as numbers."""

    horizon: int
    episode_windows: int
    start_min: int
    start_max: int
    parallel: bool
    threshold: float
    under_threshold: float
    pod_limit: float
    budget: float
    price_per_move: float
    weight_over: float
    weight_under: float
    weight_unmet: float
    weight_moved: float
    calm: bool
    """Whether pods of nodes that are not stressed are offered too."""
    foresight: bool


class State(NamedTuple):
    """What changes. B environments, N nodes, L rows in the largest window."""

    cursor: NDArray[np.int64]
    """[B, 7]"""
    place: NDArray[np.int32]
    """[B, 2, L]: the node (-1: none) of each pod of the present window and of the one before, even windows first."""
    head: NDArray[np.int32]
    """[B, N]: a node's first pod."""
    links: NDArray[np.int32]
    """[B, L, 2]"""
    nodes: Floats
    """[B, N, 11]: what observations need."""
    books: Floats
    """[B, N, 9]: what is counted."""
    ahead: Floats
    """[B, N, 8]: what is expected of the pods of a node, added up; [B, N, 0] without foresight, as the next."""
    stakes: Floats
    """[B, N, 4]: what is at stake on a node with its pods as they are, as ``foresight.STAKES``."""
    loads: Floats
    """[B, N, K x 2]: cpu and memory by position, in turn (with ``serial``); K is the most requests of a pod."""
    counts: NDArray[np.int16]
    """[B, N, K + 1]: pods of a node by their number of requests (with ``serial``)."""
    totals: Floats
    """[B, 11]"""


class Scratch(NamedTuple):
    """Room for one node at a time; nothing in it outlives a call."""

    load: Floats
    """[M x 2]: cpu and memory by position, in turn (with ``parallel``); M is the most requests of a window."""
    ordered: Floats
    """[M]"""
    numbers: NDArray[np.int32]
    """[M]"""
    node: Floats
    """[11]: a node of ``State.nodes`` as it would be."""
    book: Floats
    """[9]: the same of ``State.books``."""


def prepared(trace: PodTrace, table: NodeTable) -> tuple[PodTrace, NDArray[np.int64]]:
    """Return the trace as the kernels want it, and which of the given rows each of its rows is.

    Amounts are in whole grains, pods of a window in the order of their largest request. The largest is last: lists
    grow at their heads, and the largest pod of a node is offered first.
    """
    rows, windows = trace.pod.size, np.repeat(np.arange(len(trace)), np.diff(trace.window_rows))
    amounts = {name: grained(getattr(trace, name)) for name in ("cpu_request", "mem_request", "cpu", "mem")}
    counts = np.diff(trace.row_requests)
    peak = np.zeros(rows)
    size = amounts["cpu"] / table.cpu.sum() + amounts["mem"] / table.mem.sum()
    np.maximum.at(peak, np.repeat(np.arange(rows), counts), size)
    order = np.lexsort((peak, windows))
    first = offsets(counts[order])
    requests = np.repeat(trace.row_requests[:-1][order] - first[:-1], counts[order]) + np.arange(trace.cpu.size)
    ready = PodTrace(
        window_s=trace.window_s,
        window_rows=trace.window_rows,
        pod=trace.pod[order],
        node=trace.node[order],
        cpu_request=amounts["cpu_request"][order],
        mem_request=amounts["mem_request"][order],
        cpu_used=trace.cpu_used[order],
        mem_used=trace.mem_used[order],
        row_requests=first,
        arrival_offset_s=trace.arrival_offset_s[requests],
        duration_s=trace.duration_s[requests],
        cpu=amounts["cpu"][requests],
        mem=amounts["mem"][requests],
        pod_names=trace.pod_names,
        held=trace.held[order],
        domain=trace.domain[order],
        up=trace.up,
        forecast=trace.forecast[order] if trace.forecast.size else trace.forecast,
    )
    return ready, order


def cluster_of(trace: PodTrace, table: NodeTable, *, foresight: bool) -> Cluster:
    """Prepare a trace and a node table for the kernels."""
    nodes = np.stack([table.cpu, table.mem, 1.0 / table.cpu, 1.0 / table.mem, table.price_usd_per_hour], axis=1)
    served = np.stack([demand(trace.cpu, trace.duration_s), demand(trace.mem, trace.duration_s)], axis=1)
    size = served[:, CPU] / table.cpu.sum() + served[:, MEM] / table.mem.sum()
    requests = trace.cpu.size
    rank, by_size = np.zeros(requests, np.int32), np.zeros(requests, np.int64)
    instant, until = np.zeros(requests, np.int32), np.zeros(requests, np.int32)
    for first, stop in _request_spans(trace):
        order = np.argsort(size[first:stop], kind="stable")
        by_size[first:stop] = first + order
        rank[by_size[first:stop]] = np.arange(stop - first)
        begin = trace.arrival_offset_s[first:stop]
        instants, instant[first:stop] = np.unique(begin, return_inverse=True)
        gone = np.searchsorted(instants + INSTANT_S, begin + trace.duration_s[first:stop], side="left")
        until[first:stop] = np.maximum(gone, instant[first:stop] + 1)
    previous = _previous(trace)
    following = np.full(trace.pod.size, -1)
    stayed = np.flatnonzero(previous >= 0)
    window = np.repeat(np.arange(len(trace)), np.diff(trace.window_rows))
    following[trace.window_rows[window[stayed] - 1] + previous[stayed]] = trace.node[stayed]
    return Cluster(
        nodes=nodes,
        window_s=np.array(trace.window_s),
        window_rows=np.array(trace.window_rows),
        pods=np.stack([previous, trace.node, trace.domain, trace.held, following], axis=1).astype(np.int32),
        domain=table.domain,
        up=np.ascontiguousarray(trace.up) if trace.up.size else np.ones((len(trace), len(table)), np.bool_),
        asks=_asks_of(trace, served),
        use=np.zeros((trace.pod.size, 8)),  # by ``kernels.describe``
        ahead=grained(trace.ahead()) if foresight else np.empty((trace.pod.size, 0)),
        row_requests=np.array(trace.row_requests),
        demands=np.stack([trace.cpu, trace.mem], axis=1).ravel(),
        served=served,
        size_rank=rank,
        by_size=by_size,
        instant=instant,
        until=until,
        next_stress=np.full(len(trace), -1, np.int64),
    )


def _previous(trace: PodTrace) -> NDArray[np.int32]:
    """Find every pod's row in the window before, counted from that window's first."""
    window = np.repeat(np.arange(len(trace)), np.diff(trace.window_rows))
    key = window * len(trace.pod_names) + trace.pod
    order = np.argsort(key)
    wanted = key - len(trace.pod_names)
    found = order[np.minimum(np.searchsorted(key[order], wanted), key.size - 1)]
    before = found - trace.window_rows[np.maximum(window - 1, 0)]
    return np.where(key[found] == wanted, before, -1).astype(np.int32)


def _request_spans(trace: PodTrace) -> list[tuple[int, int]]:
    at = trace.row_requests[trace.window_rows]
    return list(zip(at[:-1].tolist(), at[1:].tolist(), strict=True))


def _asks_of(trace: PodTrace, served: Floats) -> Floats:
    count = trace.pod.size
    asks = np.zeros((count, 4))
    asks[:, CPU_REQUEST], asks[:, MEM_REQUEST] = trace.cpu_request, trace.mem_request
    of_row = np.repeat(np.arange(count), np.diff(trace.row_requests))
    asks[:, CPU_DEMAND] = np.bincount(of_row, served[:, CPU], count)
    asks[:, MEM_DEMAND] = np.bincount(of_row, served[:, MEM], count)
    return asks


def rules_of(scenario: DeployScenario) -> Rules:
    """Turn a scenario into numbers."""
    return Rules(
        horizon=scenario.horizon,
        episode_windows=scenario.episode_windows,
        start_min=scenario.start_min,
        start_max=scenario.start_max,
        parallel=scenario.arrival == "parallel",
        threshold=float(scenario.threshold),
        under_threshold=float(scenario.under_threshold),
        pod_limit=float(scenario.pod_limit),
        budget=float(scenario.migration_budget),
        price_per_move=float(scenario.price_per_move_usd),
        weight_over=float(scenario.weight_over),
        weight_under=float(scenario.weight_under),
        weight_unmet=float(scenario.weight_unmet),
        weight_moved=float(scenario.weight_moved),
        calm=scenario.offers == "all",
        foresight=scenario.foresight,
    )


def empty_state(B: int, N: int, trace: PodTrace, *, parallel: bool, foresight: bool) -> State:
    """Allocate the state; the reset kernel fills it."""
    rows = int(np.diff(trace.window_rows).max())
    most = 0 if parallel else int(np.diff(trace.row_requests).max())
    return State(
        cursor=np.zeros((B, 7), np.int64),
        place=np.zeros((B, 2, rows), np.int32),
        head=np.zeros((B, N), np.int32),
        links=np.zeros((B, rows, 2), np.int32),
        nodes=np.zeros((B, N, 11)),
        books=np.zeros((B, N, 9)),
        ahead=np.zeros((B, N, len(AHEAD) if foresight else 0)),
        stakes=np.zeros((B, N, len(STAKES) if foresight else 0)),
        loads=np.zeros((B, N, 2 * most)),
        counts=np.zeros((B, N, most + 1), np.int16),
        totals=np.zeros((B, 11)),
    )


def scratch_of(trace: PodTrace) -> Scratch:
    """Allocate room for the largest node that a window can have: one that holds all of its pods."""
    most = max((stop - first for first, stop in _request_spans(trace)), default=0)
    return Scratch(
        load=np.zeros(2 * most),
        ordered=np.zeros(most),
        numbers=np.zeros(most, np.int32),
        node=np.zeros(11),
        book=np.zeros(9),
    )
