"""What the kernels of ``functions`` work on: arrays for all environments, grouped by who changes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.functions.contention import cold_ratio, power, shares_of
from sched_env.functions.scenario import ServerlessScenario
from sched_env.functions.tables import FunctionTrace
from sched_env.tables import Floats, NodeTable
from wire.errors import TraceError

CPU, MEM, NET, DISK = range(4)
"""First columns of ``Cluster.nodes`` (capacities), ``Cluster.tasks`` (demands) and ``State.nodes`` (in use)."""
CPU_INVERSE, MEM_INVERSE, NET_INVERSE, DISK_INVERSE, PRICE, DOMAIN, POWER = range(4, 11)
"""Further columns of ``Cluster.nodes``; inverses are 1 / capacity, a domain is a cluster of its own, the power is that
of ``contention.waiting``."""
HOME, OWN_DOMAIN, HELD = range(3)
"""Columns of ``Cluster.homes``: recorded node, domain, and whether the instance goes there by itself."""
ARRIVAL, REQUESTS, DURATION, RESPONSE, SLO_RATIO, CPU_SHARE, NET_SHARE, DISK_SHARE, COLD, FUNCTION = range(4, 14)
"""Further columns of ``Cluster.tasks``."""
PACED, IDLE_USE, WORK, MEM_USE = range(14, 18)
"""Further columns of ``Cluster.tasks``: seconds of its life at the pace of its function, cores it uses without calls,
core-seconds of a call, GiB it uses."""
INSTANCES, BILLED_UNTIL = range(4, 6)
"""Further columns of ``State.nodes``: running instances; time to which the node is billed if nothing more comes."""
SETTLED, HEAD, RATE, CPU_RATE, NET_RATE, DISK_RATE, CPU_USE, USED_MEM = range(8)
"""Columns of ``State.books``: time to which the node's calls are accounted for; first slot of its instances, -1 for
none; calls a second of all its instances, and the same weighted with the time share of each resource; cores and GiB
that they use."""
NEXT, PREVIOUS, TASK, NODE = range(4)
"""Columns of ``State.links``; NEXT of a free slot is the next free one."""
ROW, FREE, LEAVING, START, FOUND, WINDOW = range(6)
"""Columns of ``State.cursor``: trace row of the instance to be placed, first free slot, size of the departure heap,
first row of the episode, instances it found on the nodes that are still there, and the row of ``Cluster.pace`` that
holds."""
CHECKPOINT_ROWS = 256
"""So many rows lie between two lists of the instances that are alive: what an episode starts with is found by reading
the list before its first row and the rows since."""
IDLE, IDLE_UNTIL = range(2)
"""Columns of ``State.warm``: idle containers, valid until a time at which they all go."""
RUNNING_REQUESTS, RART = range(2)
"""Columns of ``State.functions``: calls that the running instances answer; R1 of the last placement."""
RETURN, PLACED, CALLS, LATE, RATIO, COST, COLD_STARTS, REJECTED, CORE_SECONDS = range(9)
"""Columns of ``State.totals``, sums over the episode."""
R1, R2, LATE_SHARE, LAST_REJECTED = range(4)
"""Columns of ``State.last``: of the last placement, and the arrivals that fitted nowhere since."""

HISTOGRAM_BINS = 256
HISTOGRAM_WIDTH = 0.05
"""Bins of the relative response time, from 1; the last one takes everything above."""

LATENCY_COST, SLO_COST, USER = range(3)
LIFETIME, INSTANT, NODE_PRICE = range(3)


class Cluster(NamedTuple):
    """What no decision changes; the same for every environment."""

    nodes: Floats
    """[N, 11]"""
    tasks: Floats
    """[rows, 24]: the trace, and what can be worked out from it before any decision. A row is three cache lines."""
    homes: NDArray[np.int32]
    """[rows, 3]"""
    alive: NDArray[np.int32]
    """Rows that are alive when row 0, ``CHECKPOINT_ROWS``, 2 x … arrives, of those whose node is recorded."""
    alive_from: NDArray[np.int64]
    """Where each list begins in ``alive``; one entry more than lists."""
    up: NDArray[np.bool_]
    """[windows, N]"""
    up_rate: float
    """Windows a second."""
    pace: Floats
    """[windows, K]: how fast calls come in each window, function by function; no rows: evenly."""
    paced: Floats
    """[windows, K]: seconds at that pace up to each window's start."""
    tails: Floats
    """[K, G]: share of calls that take longer than so many times their mean (``TAIL_AT``); no rows: calls of one
    kind are alike."""


class Rules(NamedTuple):
    """The scenario, as numbers."""

    horizon: int
    episode_s: float
    start_min: int
    start_max: int
    cold_start_s: float
    keep_alive_s: float
    cooldown_s: float
    reward: int
    tutorial_r1: bool
    r2: int
    beta: float
    r1_low: float
    r1_high: float
    r2_low: float
    r2_high: float
    rejection_penalty: float
    initial_rart: float
    slo_floor: float
    """The strictest SLO of the trace, as a ratio: a node below it has no late calls, whatever runs there. 0 where calls
    of one kind differ: then some are late anywhere."""
    calibrated: bool
    cpu_gain: float
    net_gain: float
    disk_gain: float
    by_use: bool
    busy_gain: float
    system_cores: float
    exceeded_rests: bool
    """Whether a node of which more is asked than it has takes nothing new."""


class State(NamedTuple):
    """What changes. B environments, N nodes, K functions, M slots for running instances.

    Few arrays of whole cache lines: kernels that touch one node and a few instances must not touch thirty arrays.
    """

    cursor: NDArray[np.int64]
    """[B, 6]"""
    nodes: Floats
    """[B, N, 6]: what observations need."""
    books: Floats
    """[B, N, 8]: what accounts need."""
    rates: Floats
    """[B, M, 2]: calls a second, at pace 1, of a running instance (without those that waited for the container): those
    that the episode accounts for, and those that take cpu."""
    links: NDArray[np.int32]
    """[B, M, 4]: the running instances of a node, a doubly linked list."""
    leaving: Floats
    """[B, M, 2]: departures, a heap in which each entry has four children: half as many cache lines as with two."""
    warm: Floats
    """[B, K, N, 2]"""
    functions: Floats
    """[B, K, 2]"""
    totals: Floats
    """[B, 9]"""
    histogram: Floats
    """[B, H]: calls by relative response time."""
    last: Floats
    """[B, 4]"""


def most_alive(arrival_s: Floats, duration_s: Floats) -> int:
    """Return how many of these instances can be alive at once."""
    times = np.concatenate([arrival_s, arrival_s + duration_s])
    change = np.repeat([1, -1], arrival_s.size)
    # An instance leaves before another arrives at the same instant, as in the kernel.
    order = np.lexsort((change, times))
    return int(np.cumsum(change[order]).max(initial=1))


def checkpoints(trace: FunctionTrace) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """List what is alive, on a recorded node, when every ``CHECKPOINT_ROWS``-th row arrives."""
    known = np.flatnonzero(trace.node >= 0)
    times = trace.arrival_s[::CHECKPOINT_ROWS]
    # A life is in the lists of the rows that arrive after it did and before it ends.
    first = known // CHECKPOINT_ROWS + 1
    last = np.maximum(np.searchsorted(times, trace.arrival_s[known] + trace.duration_s[known]), first)
    count = last - first
    lists = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    order = np.argsort(lists, kind="stable")
    sizes = np.bincount(lists, minlength=times.size)
    return np.repeat(known, count)[order].astype(np.int32), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def cluster_of(trace: FunctionTrace, table: NodeTable, cold_start_s: float, by_use: bool = False) -> Cluster:
    """Prepare a trace and a node table for the kernels; ``by_use``: calls compute as long as was measured."""
    nodes = np.empty((len(table), 11))
    for column, capacity in enumerate((table.cpu, table.mem, table.net, table.disk)):
        nodes[:, column], nodes[:, CPU_INVERSE + column] = capacity, 1.0 / capacity
    nodes[:, PRICE], nodes[:, DOMAIN], nodes[:, POWER] = table.price_usd_per_hour, table.domain, power(table.cpu)
    tasks = np.zeros((len(trace), 24))
    requests = trace.requests.astype(np.float64)
    values = {
        CPU: trace.cpu,
        MEM: trace.mem,
        NET: trace.net,
        DISK: trace.disk,
        ARRIVAL: trace.arrival_s,
        REQUESTS: requests,
        DURATION: trace.duration_s,
        RESPONSE: trace.response_s,
        SLO_RATIO: trace.slo_s / trace.response_s,
        COLD: cold_ratio(cold_start_s, trace.duration_s, requests, trace.response_s),
        FUNCTION: trace.function,
        IDLE_USE: trace.idle_use,
        WORK: trace.work_s,
        MEM_USE: trace.mem_use,
    }
    for column, value in values.items():
        tasks[:, column] = value
    tasks[:, CPU_SHARE], tasks[:, NET_SHARE], tasks[:, DISK_SHARE] = shares_of(
        trace.cpu, trace.net, trace.disk, trace.work_s * by_use, trace.response_s
    )
    if trace.node.max(initial=-1) >= len(table):
        raise TraceError(f"FunctionTrace.node reaches {trace.node.max()}", f"indices of {len(table)} nodes")
    up = trace.up if trace.up.size else np.ones((1, len(table)), np.bool_)
    if up.ndim != 2 or up.shape[1] != len(table):
        raise TraceError(f"FunctionTrace.up has shape {up.shape}", f"(windows, {len(table)}), a column a node")
    homes = np.stack([trace.node, trace.domain, trace.held], axis=1).astype(np.int32)
    alive, alive_from = checkpoints(trace)
    pace = np.ascontiguousarray(trace.pace)
    paced = np.zeros_like(pace)
    if pace.size:
        paced[1:] = np.cumsum(pace[:-1], axis=0) * trace.up_s
    cluster = Cluster(
        nodes, tasks, homes, alive, alive_from, np.ascontiguousarray(up), 1.0 / trace.up_s, pace, paced, trace.tails
    )
    set_paced(cluster, tasks)
    return cluster


def set_paced(cluster: Cluster, tasks: Floats) -> None:
    """Work out how many seconds at its function's pace each life has."""
    tasks[:, PACED] = tasks[:, DURATION]
    if not cluster.pace.size:
        return
    function = tasks[:, FUNCTION].astype(np.int64)

    def upto(time_s: Floats) -> Floats:
        window = np.clip((time_s * cluster.up_rate).astype(np.int64), 0, len(cluster.pace) - 1)
        return np.asarray(
            cluster.paced[window, function] + cluster.pace[window, function] * (time_s - window / cluster.up_rate)
        )

    tasks[:, PACED] = upto(tasks[:, ARRIVAL] + tasks[:, DURATION]) - upto(tasks[:, ARRIVAL])


def rules_of(scenario: ServerlessScenario, trace: FunctionTrace, table: NodeTable) -> Rules:
    """Turn a scenario into numbers; without calibrated R2 bounds those of the price list are used."""
    prices = table.price_usd_per_hour
    low = float(prices.min()) if scenario.r2 == "price" else 0.0
    r2_low, r2_high = scenario.r2_range or (low, float(prices.max()))
    return Rules(
        horizon=scenario.horizon,
        episode_s=float(scenario.episode_s),
        start_min=scenario.start_min,
        start_max=scenario.start_max,
        cold_start_s=float(scenario.cold_start_s),
        keep_alive_s=float(scenario.keep_alive_s),
        cooldown_s=float(scenario.cooldown_s),
        reward={"latency_cost": LATENCY_COST, "slo_cost": SLO_COST}.get(scenario.reward, USER),
        tutorial_r1=scenario.r1 == "utilization",
        r2={"lifetime": LIFETIME, "instant": INSTANT, "price": NODE_PRICE}[scenario.r2],
        beta=float(scenario.beta),
        r1_low=float(scenario.r1_range[0]),
        r1_high=float(scenario.r1_range[1]),
        r2_low=float(r2_low),
        r2_high=float(r2_high),
        rejection_penalty=float(scenario.rejection_penalty),
        exceeded_rests=scenario.exceeded == "inactive",
        initial_rart=float(scenario.initial_rart),
        slo_floor=0.0 if trace.tails.size else float((trace.slo_s / trace.response_s).min()),
        calibrated=scenario.contention == "used"
        or (scenario.cpu_gain, scenario.net_gain, scenario.disk_gain) != (1.0, 1.0, 1.0),
        cpu_gain=float(scenario.cpu_gain),
        net_gain=float(scenario.net_gain),
        disk_gain=float(scenario.disk_gain),
        by_use=scenario.contention == "used",
        busy_gain=float(scenario.busy_gain),
        system_cores=float(scenario.system_cores),
    )


def empty_state(B: int, N: int, K: int, M: int) -> State:
    """Allocate the state; the reset kernel fills it."""
    return State(
        cursor=np.zeros((B, 6), np.int64),
        nodes=np.zeros((B, N, 6)),
        books=np.zeros((B, N, 8)),
        rates=np.zeros((B, M, 2)),
        links=np.zeros((B, M, 4), np.int32),
        leaving=np.zeros((B, M, 2)),
        warm=np.zeros((B, K, N, 2)),
        functions=np.zeros((B, K, 2)),
        totals=np.zeros((B, 9)),
        histogram=np.zeros((B, HISTOGRAM_BINS)),
        last=np.zeros((B, 4)),
    )
