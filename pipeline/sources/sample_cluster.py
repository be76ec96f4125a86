"""Ground truth of the sample: a small serverless cluster, minute by minute, in which usage follows requests.

Requests arrive by function (a daily wave, quiet weekends, bursts); an autoscaler keeps pods for them; a scheduler
spreads the pods; pods use cpu, memory, network and disk for the requests dealt to them; crowded nodes answer slower.
All is seeded and in flat arrays: ``pair`` arrays have one entry for each (pod, minute of its life).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F8 = NDArray[np.float64]
I8 = NDArray[np.int64]

GIB = float(2**30)
MB = 1e6
MINUTE = 60.0
MINUTES_PER_DAY = 1440
DELETE_WITHIN_S = 5.0
CREATE_AFTER_S = 40.0


class NodeType(NamedTuple):
    """A kind of machine: public on-demand list prices, baseline (not burst) network and disk."""

    name: str
    cpu: float
    mem_gib: float
    net_mb_s: float
    disk_iops: float
    cards: int
    usd_per_hour: float


NODE_TYPES = (
    NodeType("m5.xlarge", 4, 16, 156, 3_000, 0, 0.192),
    NodeType("c5.2xlarge", 8, 16, 312, 6_000, 0, 0.340),
    NodeType("m5.2xlarge", 8, 32, 312, 6_000, 0, 0.384),
    NodeType("g5.2xlarge", 8, 32, 625, 9_000, 1, 1.212),
)
NODE_MIX = (0, 1, 2, 0, 1, 3, 0, 1, 2, 3)
"""Types of ten nodes; more nodes repeat it."""
CARD_MODEL, CARD_GIB = "NVIDIA-A10G", 24.0
PRICES = {kind.name: kind.usd_per_hour for kind in NODE_TYPES}


class Function(NamedTuple):
    """One function: size of an instance, what a request takes, and how its load moves."""

    name: str
    cpu: float
    """Cores an instance asks for."""
    mem_gib: float
    standard_s: float
    """Response time of a median request without contention."""
    cpu_cores: float
    """Cores busy while a request runs."""
    net_mb: float
    disk_ops: float
    share: float
    """Share of the cluster's cpu that its instances ask for at its peak."""
    peak_hour: float
    depth: float
    """How far the load falls at night, 0..1."""
    bursts_per_day: float


FUNCTIONS = (
    Function("thumbnail", 0.5, 0.5, 8.0, 0.62, 60, 900, 0.07, 14, 0.85, 3),
    Function("transcode", 2.0, 2.0, 40.0, 2.40, 900, 9_000, 0.15, 18, 0.80, 2),
    Function("checkout", 0.5, 1.0, 9.0, 0.45, 6, 900, 0.06, 12, 0.90, 1),
    Function("search", 1.0, 3.0, 10.0, 1.20, 20, 4_000, 0.12, 13, 0.85, 2),
    Function("recommend", 1.0, 4.0, 14.0, 1.25, 30, 600, 0.12, 17, 0.80, 1),
    Function("invoice-pdf", 0.5, 1.0, 18.0, 0.60, 20, 3_000, 0.05, 10, 0.90, 4),
    Function("log-digest", 1.0, 1.5, 30.0, 1.00, 800, 14_000, 0.07, 3, 0.60, 1),
    Function("etl-join", 2.0, 6.0, 60.0, 2.20, 1_200, 30_000, 0.11, 2, 0.75, 1),
    Function("fraud-score", 1.0, 2.0, 9.0, 1.35, 10, 300, 0.10, 15, 0.75, 3),
    Function("image-caption", 2.0, 5.0, 24.0, 1.70, 90, 1_500, 0.12, 16, 0.80, 2),
    Function("web-hook", 0.25, 0.25, 12.0, 0.20, 6, 200, 0.03, 11, 0.60, 6),
    Function("backup", 0.5, 1.0, 50.0, 0.45, 2_500, 20_000, 0.04, 1, 0.95, 0),
)
GPU_FUNCTION = "image-caption"
"""The function whose requests keep the cards busy, where its instances land on a node that has one."""
BUSY_TARGET = 0.65
"""Share of an instance's time the autoscaler wants busy at the peak."""
PEAK_REQUESTED = 0.75
"""Share of the cluster's cpu asked for at the top of the day, bursts apart."""


@dataclass(frozen=True)
class ClusterTruth:
    """Everything that really happened in one cluster; times in seconds from its start."""

    node_type: I8
    capacity: F8
    """[nodes, 4]: cores, bytes, bytes/s, operations/s."""
    minutes: int
    pod_function: I8
    pod_node: I8
    """-1: never placed."""
    pod_created_s: F8
    pod_deleted_s: F8
    pod_first: I8
    """First minute in which the pod serves; it has served ``pod_minutes`` of them when it stops."""
    pod_minutes: I8
    pair_start: I8
    """Where each pod's run of pairs starts; one entry more than pods."""
    pair_pod: I8
    pair_minute: I8
    pair_use: F8
    """[pairs, 4]: cores, bytes held, bytes/s, operations/s."""
    pair_requests: I8
    pair_card: F8
    """Share of a card kept busy, 0 where there is none."""
    node_use: F8
    """[nodes, minutes, 4], the system's own share included."""
    request_s: F8
    request_function: I8
    request_pod: I8
    request_cpu: F8
    request_mem: F8
    request_duration_s: F8


def simulate(seed: int, days: int, nodes: int, functions: int, weekday: int = 0) -> ClusterTruth:
    """Simulate one cluster; ``weekday`` (Monday = 0) is that of the first day."""
    rng = np.random.default_rng(seed)
    minutes = days * MINUTES_PER_DAY
    node_type = np.array([NODE_MIX[i % len(NODE_MIX)] for i in range(nodes)])
    kinds = np.array([[t.cpu, t.mem_gib * GIB, t.net_mb_s * MB, t.disk_iops] for t in NODE_TYPES])
    capacity = kinds[node_type]
    specs = function_specs(functions)
    load = np.stack([_load(rng, spec, minutes, weekday) for spec in specs])
    asked = capacity[:, 0].sum() * np.array([spec.share for spec in specs])[:, None] * load
    scale = PEAK_REQUESTED * capacity[:, 0].sum() / np.quantile(asked.sum(axis=0), 0.98)
    replicas = np.maximum(1.0, scale * asked / np.array([spec.cpu for spec in specs])[:, None])
    rate = replicas * BUSY_TARGET / np.array([spec.standard_s for spec in specs])[:, None]  # requests/s
    pods = _live(rng, specs, np.ceil(_held(replicas)).astype(np.int64), capacity)
    return _serve(rng, specs, pods, rate, node_type, capacity, minutes)


def function_specs(count: int) -> list[Function]:
    """List the first functions; beyond those listed they repeat under numbered names."""
    specs = []
    for index in range(count):
        again, which = divmod(index, len(FUNCTIONS))
        spec = FUNCTIONS[which]
        specs.append(spec._replace(name=f"{spec.name}-{again + 1}") if again else spec)
    return specs


def _load(rng: np.random.Generator, spec: Function, minutes: int, weekday: int) -> F8:
    """Load of a function in each minute as a share of its peak."""
    minute = np.arange(minutes)
    hour = minute / 60.0 % 24.0
    wave = 1.0 - spec.depth * (0.5 - 0.5 * np.cos((hour - spec.peak_hour) * np.pi / 12.0))
    day = minute // MINUTES_PER_DAY
    wave *= rng.normal(1.0, 0.04, day[-1] + 1)[day] * np.where((day + weekday) % 7 >= 5, 0.75, 1.0)
    # A slow random walk around the wave, so that no two days are alike.
    drift = np.convolve(rng.normal(0.0, 1.0, minutes + 59), np.ones(60) / np.sqrt(60.0), mode="valid")
    wave *= np.exp(0.10 * drift)
    for start in rng.integers(0, minutes, rng.poisson(spec.bursts_per_day * minutes / MINUTES_PER_DAY)):
        length = int(rng.integers(8, 40))
        wave[start : start + length] *= rng.uniform(1.5, 3.0)
    return np.asarray(wave, dtype=np.float64)


def _held(replicas: F8) -> F8:
    """Scale down late: the most that was wanted in the last ten minutes."""
    padded = np.concatenate([np.repeat(replicas[:, :1], 9, axis=1), replicas], axis=1)
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, 10, axis=1).max(axis=2))


class _Pods(NamedTuple):
    function: I8
    node: I8
    created_s: F8
    deleted_s: F8
    first: I8
    minutes: I8


def _live(rng: np.random.Generator, specs: list[Function], wanted: I8, capacity: F8) -> _Pods:
    """Start and stop pods minute by minute; a pod goes to the node that is left emptiest, as Kubernetes would."""
    functions, minutes = wanted.shape
    free = np.delete(capacity, (2, 3), axis=1).copy()
    free[:, 1] *= 0.94  # what the system keeps for itself
    total = free.copy()
    rows: list[list[float]] = []  # function, node, created, first, lifetime; closed by `ended`
    ended: dict[int, float] = {}
    running: list[list[int]] = [[] for _ in range(functions)]
    expiry: list[list[int]] = [[] for _ in range(minutes + 1)]
    need = np.array([[spec.cpu, spec.mem_gib * GIB] for spec in specs])

    def stop(pod: int, function: int, minute: int) -> None:
        running[function].remove(pod)
        free[int(rows[pod][1])] += need[function]
        ended[pod] = minute * MINUTE + rng.uniform(0.0, DELETE_WITHIN_S)

    for minute in range(minutes):
        for pod in expiry[minute]:
            if pod not in ended:
                stop(pod, int(rows[pod][0]), minute)
        for function in range(functions):
            while len(running[function]) > wanted[function, minute]:
                stop(running[function][0], function, minute)
        order = rng.permutation(functions)
        for function in order:
            missing = int(wanted[function, minute]) - len(running[function])
            for _ in range(missing):
                created = minute * MINUTE + rng.uniform(CREATE_AFTER_S, MINUTE)
                fits = (free >= need[function]).all(axis=1)
                if not fits.any():
                    # Never placed: asked for, and given up a minute later. At most one a minute, like a back-off.
                    pod = len(rows)
                    rows.append([function, -1, created, minute + 1])
                    ended[pod] = (minute + 1) * MINUTE + rng.uniform(CREATE_AFTER_S, MINUTE)
                    break
                room = ((free - need[function]) / total).mean(axis=1) + rng.normal(0.0, 0.05, len(free))
                best = int(np.argmax(np.where(fits, room, -np.inf)))
                free[best] -= need[function]
                pod = len(rows)
                rows.append([function, best, created, minute + 1])
                running[function].append(pod)
                lifetime = 4 + int(rng.exponential(12.0))  # instances of functions come and go
                if minute + 1 + lifetime <= minutes - 1:
                    expiry[minute + 1 + lifetime].append(pod)
    columns = np.array(rows)
    end = np.array([ended.get(pod, np.inf) for pod in range(len(rows))])
    first = columns[:, 3].astype(np.int64)
    last = (np.minimum(end, minutes * MINUTE) // MINUTE).astype(np.int64)
    node = columns[:, 1].astype(np.int64)
    served = np.where(node >= 0, np.maximum(last - first, 0), 0)
    return _Pods(columns[:, 0].astype(np.int64), node, columns[:, 2], end, first, served)


def _serve(
    rng: np.random.Generator,
    specs: list[Function],
    pods: _Pods,
    rate: F8,
    node_type: I8,
    capacity: F8,
    minutes: int,
) -> ClusterTruth:
    """Deal the requests to the pods and work out usage, contention and response times."""
    functions = len(specs)
    pair_start = np.concatenate([[0], np.cumsum(pods.minutes)])
    pair_pod = np.repeat(np.arange(len(pods.minutes)), pods.minutes)
    pair_minute = np.arange(pair_start[-1]) - pair_start[pair_pod] + pods.first[pair_pod]
    # Pairs of one function and minute lie together in `grouped`; `slot` finds them.
    slot = pods.function[pair_pod] * minutes + pair_minute
    grouped = np.argsort(slot, kind="stable")
    width = np.bincount(slot, minlength=functions * minutes)
    start = np.concatenate([[0], np.cumsum(width)])[:-1]

    counts = np.where(width > 0, rng.poisson(rate * MINUTE).ravel(), 0)
    cell = np.repeat(np.arange(functions * minutes), counts)
    position = np.arange(len(cell)) - np.repeat(np.cumsum(counts) - counts, counts)
    pair = grouped[start[cell] + position % width[cell]]
    function, pod = cell // minutes, pair_pod[pair]
    time = (cell % minutes) * MINUTE + rng.uniform(0.0, MINUTE, len(cell))

    column = {name: np.array([getattr(spec, name) for spec in specs]) for name in Function._fields if name != "name"}
    work = column["standard_s"][function] * np.exp(rng.normal(0.0, 0.35, len(cell)))
    cpu = column["cpu_cores"][function] * rng.uniform(0.8, 1.1, len(cell))
    mem = column["mem_gib"][function] * GIB * rng.uniform(0.25, 0.55, len(cell))

    pairs = len(pair_pod)
    owner = pods.function[pair_pod]
    pair_requests = np.bincount(pair, minlength=pairs)
    busy = np.bincount(pair, work * cpu, minlength=pairs) / MINUTE
    held = np.bincount(pair, work * mem, minlength=pairs) / MINUTE
    size = column["mem_gib"][owner] * GIB
    use = np.stack(
        [
            0.01 + np.minimum(busy, 2.0 * column["cpu"][owner]),
            np.minimum(0.30 * size + held, 0.95 * size),
            column["net_mb"][owner] * MB * pair_requests / MINUTE + 2_000.0,
            column["disk_ops"][owner] * pair_requests / MINUTE + 0.2,
        ],
        axis=1,
    )
    place = pods.node[pair_pod]
    cards = np.array([kind.cards for kind in NODE_TYPES])[node_type]
    on_card = np.array([spec.name == GPU_FUNCTION for spec in specs])[owner] & (cards[place] > 0)
    pair_card = np.where(on_card, np.minimum(1.0, busy / 2.0), 0.0)

    node_slot = place * minutes + pair_minute
    sums = [np.bincount(node_slot, use[:, i], len(capacity) * minutes) for i in range(4)]
    wanted: F8 = np.stack(sums, axis=1).reshape(len(capacity), minutes, 4).astype(np.float64)
    own = np.stack([0.10 + 0.02 * capacity[:, 0], 0.6 * GIB + 0.02 * capacity[:, 1]], axis=1)
    wanted[:, :, :2] += own[:, None, :]
    pressure = wanted / capacity[:, None, :]
    # Nobody gets more than the machine has; memory is held to requests by the scheduler and never over.
    given = np.minimum(1.0, 0.995 / np.maximum(pressure, 1e-9))
    for i in (0, 2, 3):
        use[:, i] *= given.reshape(-1, 4)[node_slot, i]
    slow = 1.0 + np.where(pressure > 0.5, 4.0 * (pressure - 0.5) ** 2, 0.0)[:, :, (0, 2, 3)].sum(axis=2)
    cold = np.where(pair_minute == pods.first[pair_pod], 0.15 * column["standard_s"][owner] + 0.4, 0.0)
    duration = work * slow.ravel()[node_slot[pair]] + np.where(position < width[cell], cold[pair], 0.0)

    order = np.argsort(time, kind="stable")
    return ClusterTruth(
        node_type=node_type,
        capacity=capacity,
        minutes=minutes,
        pod_function=pods.function,
        pod_node=pods.node,
        pod_created_s=pods.created_s,
        pod_deleted_s=pods.deleted_s,
        pod_first=pods.first,
        pod_minutes=pods.minutes,
        pair_start=pair_start,
        pair_pod=pair_pod,
        pair_minute=pair_minute,
        pair_use=use,
        pair_requests=pair_requests,
        pair_card=pair_card,
        node_use=wanted * given,
        request_s=time[order],
        request_function=function[order],
        request_pod=pod[order],
        request_cpu=cpu[order],
        request_mem=mem[order],
        request_duration_s=duration[order],
    )
