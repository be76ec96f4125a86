"""What the kernels of ``jobs`` work on: the network, the queue and run times as arrays, and the state.

Figures that are read together lie together, as columns of one array; the constants below name the columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.jobs.runtime import MOST_ON_A_CARD
from sched_env.jobs.scenario import CpnScenario, Order, Reservation
from sched_env.jobs.tables import Bools, Floats, Indices, JobTrace, RuntimeTable, Topology
from sched_env.tables import listed
from wire.errors import TraceError

ORDERS: tuple[Order, ...] = ("fifo", "shortest", "least_attained")
FIFO, SHORTEST, LEAST_ATTAINED = range(3)
RESERVATIONS: tuple[Reservation, ...] = ("none", "big", "easy")
NO_RESERVATION, BIG, EASY = range(3)
NONE = -1

# Queue.rows, Queue.links, Queue.shapes
ARRIVAL, EPOCHS, DATA, BEST, DEADLINE, CANCEL, CAUTION = range(7)
MODEL, SHAPE, ORIGIN = range(3)
NEED_GPU, NEED_MEM, NEED_CPU, POSSIBLE = range(4)
# State.card; State.kind holds the models (0: none, k + 1: model k) of the three slots, then their number
GPU_FREE, BUSY, FINISH, _, _, SINCE, HELD_FROM, NEXT_SLOT = range(8)
JOBS = 3
# State.slot
LEFT, CUT, START, PACE, RUNS, ROW = range(6)
# State.node, State.hold
CORES, MEM, NODE_JOBS, PROMISE = range(4)
HELD_CARD, HELD_JOB = range(2)
# State.line: one queue for each shape of job
HEAD, TAIL, CURSOR, BLOCKED, HOLDS, LOOK = range(6)
OPEN, FULL_UP, REFUSED = range(3)
# State.job
FOLLOWING, ATTEMPTS, OUTCOME = range(3)
UNDECIDED, DONE, LOST, WITHDRAWN, OUTSIDE = range(5)
# State.tally
FIRST, SIZE, ARRIVED, OFFERED, WAITING, FINISHED, FAILED, STEPS, HELD, LAST_CARD, RETRIES, OOM = range(12)
CANCELLED, EXPECTED, STARTED, UNCOUNTED = range(12, 16)
# State.total
NOW, RETURN, JOB_SECONDS, PAID, WAITED, LONGEST_WAIT, LATE, CARD_SECONDS, USD, MOVED_GB, PLACED, LAST_END = range(12)
NEXT_CANCEL = 12
# Queue.record
CARD, BEGAN, ENDED = range(3)
# State.way
ORDER, RESERVATION, MOST_JOBS = range(3)


class Cards(NamedTuple):
    """The network, the same in every environment. C cards, N nodes, D data centres."""

    type: Indices
    """[C]"""
    node: Indices
    mem: Floats
    usd_per_hour: Floats
    first: Indices
    """[N + 1]: first card of each node."""
    node_mem: Floats
    """[N]"""
    node_cpu_used: Floats
    share_per_core: Floats
    seconds_per_gb: Floats
    """[D, N]"""
    usd_per_gb: Floats
    up: Bools
    """[windows, N]"""
    up_rate: float
    """Windows a second."""


class Queue(NamedTuple):
    """The jobs, in order of submission. Jobs with the same model and needs have the same shape and fit alike."""

    rows: Floats
    """[R, 7]: arrival, epochs, GB, seconds on the best card (from the decision on), deadline (from arrival), time at
    which its user withdraws it, how much longer than predicted it may take (a factor)."""
    links: Indices
    """[R, 3]: model, shape, data centre of the data."""
    shapes: Floats
    """[Q, 4]: GPU memory, memory, cores, and whether an empty network can hold it."""
    shape_model: Indices
    """[Q]"""
    record: Floats
    """[R, 3]: card that a job was recorded on (-1: not known), when it began there, and when it ended."""
    running: Indices
    """Rows of the jobs that were on their recorded card when each row was submitted, row by row."""
    running_from: NDArray[np.int64]
    """[R + 1]: where each row's list begins in ``running``."""
    backlog: Indices
    """[R]: first row that was still waiting when a row was submitted; the row itself: none was."""


class Runtimes(NamedTuple):
    """Seconds an iteration takes, as ``RuntimeTable.seconds``: [K, T, K + 1, K + 1] each."""

    truth: Floats
    """What happens."""
    belief: Floats
    """What the predictor says, and schedulers reckon with."""
    harm: Floats
    """[new model, type, model there, the other there]: relative slow-down of the one there."""


class Rules(NamedTuple):
    """A scenario as kernels read it."""

    cpu_threshold: float
    gpu_mem_margin: float
    mem_margin: float
    big_gpu_mem: float
    total_memory: bool
    failure_rate: float
    dispatch_s: float
    startup_s: float
    max_attempts: int
    episode_jobs: int
    horizon: int
    start_min: int
    start_max: int
    by_makespan: bool
    inverse_scale: float
    pairs: int
    """Most jobs shown where a job and a card are chosen together; 0: a card is chosen for the offered job."""


class State(NamedTuple):
    """What changes. B environments, J jobs an episode, Q shapes, K models."""

    card: Floats
    """[B, C, 8]: free GPU memory, predicted last end, predicted end of each slot, time of the last settlement, time
    since when a job holds the card, slot of the next event. One line of the cache: observations read all of it."""
    next_s: Floats
    """[B, C]: time of the card's next event."""
    kind: Indices
    """[B, C, 4]"""
    slot: Floats
    """[B, C, 3, 6]: epochs left; those an attempt that will fail never gets to; when it starts to compute; seconds
    an epoch now takes; whether it runs; trace row."""
    node: Floats
    """[B, N, 4]: cores kept busy by jobs, free memory, jobs, when the reserved job was promised to start."""
    hold: Indices
    """[B, N, 2]: the reserved card and the job it is for (number in the episode); -1: none."""
    line: Indices
    """[B, Q, 6]: first, last, next to be tried; whether trying is of use; node of its reservation; next to be shown."""
    shown: Indices
    """[B, W]: trace rows of the jobs to choose from, the offered one first (-1: none); W is 0 where a card is chosen
    for the offered job."""
    job: Indices
    """[B, J, 3]: who is next in line; failed attempts; whether it has finished, failed for good, been withdrawn, or is
    no job of the episode: it was submitted after one that is, and placed before the episode begins."""
    queued_s: Floats
    """[B, J]: since when a waiting job waits; of one that has ended, when it did."""
    service: Floats
    """[B, K]: card seconds each model has had."""
    expected: Floats
    """[B, J, 2]: jobs whose users will withdraw them, a heap by time; J is 0 where nobody does."""
    way: Indices
    """[B, 3]: how the queue is run: order, reservation, jobs a card; an episode's end does not change it."""
    tally: NDArray[np.int64]
    """[B, 16]"""
    total: Floats
    """[B, 13]"""
    draft: Floats
    """[6, 3]: slots of a card in a what-if, never part of the state."""
    ends: Floats
    """[E, 3]: ends of jobs on a node in a what-if: time, shape, whether on the card in question."""


class Discipline(NamedTuple):
    """How the queue is run: the part of a scheduler that is not the choice of a card."""

    order: Order
    reservation: Reservation
    max_jobs_per_card: int

    def numbers(self) -> tuple[int, int, int]:
        """Return it as a row of ``State.way``."""
        return ORDERS.index(self.order), RESERVATIONS.index(self.reservation), self.max_jobs_per_card

    @classmethod
    def of(cls, way: Indices) -> Discipline:
        """Return what a row of ``State.way`` says."""
        return cls(ORDERS[way[ORDER]], RESERVATIONS[way[RESERVATION]], int(way[MOST_JOBS]))


def cards_of(topology: Topology) -> Cards:
    """Prepare a topology for the kernels.

    In arrays of its own: those of a night's windows are read-only, which numba takes for another type and compiles for.
    """
    N = len(topology.nodes)
    return Cards(
        type=topology.card_type.copy(),
        node=topology.card_node.copy(),
        mem=topology.card_mem.copy(),
        usd_per_hour=topology.card_usd_per_hour.copy(),
        first=np.searchsorted(topology.card_node, np.arange(N + 1)).astype(np.int32),
        node_mem=topology.node_mem.copy(),
        node_cpu_used=topology.node_cpu_used.copy(),
        share_per_core=1.0 / topology.node_cpu,
        seconds_per_gb=np.ascontiguousarray(topology.seconds_per_gb()),
        usd_per_gb=np.ascontiguousarray(topology.usd_per_gb()),
        up=topology.node_up.copy(),
        up_rate=1.0 / topology.up_s,
    )


def queue_of(trace: JobTrace, cards: Cards, belief: Floats, scenario: CpnScenario) -> Queue:
    """Prepare a queue for the kernels: shapes, and what each job would take on its best card."""
    if trace.origin.max(initial=0) >= len(cards.seconds_per_gb):
        raise TraceError(
            f"JobTrace.origin reaches {trace.origin.max()}",
            f"an index from 0 to {len(cards.seconds_per_gb) - 1} into the topology's datacenters",
        )
    needs = np.stack([trace.model, trace.gpu_mem, trace.mem, trace.cpu], axis=1)
    shapes, shape = np.unique(needs, axis=0, return_inverse=True)
    model = shapes[:, 0].astype(np.int32)
    alone = belief[:, :, 0, 0][:, cards.type]  # [K, C]
    holds = (
        (cards.mem - scenario.gpu_mem_margin_gib >= shapes[:, 1:2])
        & ((cards.node_mem - scenario.mem_margin_gib)[cards.node] >= shapes[:, 2:3])
        & (cards.node_cpu_used <= scenario.cpu_threshold)[cards.node]
        & np.isfinite(alone)[model]
    )
    best = np.full(len(trace), np.inf)
    link = cards.seconds_per_gb[:, cards.node]  # [D, C]
    for q, d in np.unique(np.stack([shape.ravel(), trace.origin], axis=1), axis=0):
        jobs = np.flatnonzero((shape.ravel() == q) & (trace.origin == d))
        where = np.flatnonzero(holds[q])
        if where.size:
            times = trace.data_gb[jobs, None] * link[d, where] + trace.epochs[jobs, None] * alone[model[q], where]
            best[jobs] = times.min(axis=1) + (scenario.dispatch_s + scenario.startup_s)
    running, running_from, backlog = _at_submissions(trace)
    deadline = trace.deadline_s if trace.deadline_s.size else scenario.deadline_factor * best
    return Queue(
        rows=np.stack(
            [trace.arrival_s, trace.epochs, trace.data_gb, best, deadline, trace.cancelled_at(), trace.caution], axis=1
        ),
        links=np.stack([trace.model, shape.ravel().astype(np.int32), trace.origin], axis=1),
        shapes=np.column_stack([shapes[:, 1:], holds.any(axis=1)]),
        shape_model=model,
        record=np.stack([trace.card, trace.began_s, trace.ended_s], axis=1).astype(np.float64),
        running=running,
        running_from=running_from,
        backlog=backlog,
    )


def _at_submissions(trace: JobTrace) -> tuple[Indices, NDArray[np.int64], Indices]:
    """Find what was running, and who waited first, when each job was submitted; what has no record does neither."""
    known = np.flatnonzero((trace.card >= 0) & (trace.ended_s > trace.began_s))
    begin, end = (np.searchsorted(trace.arrival_s, times[known]) for times in (trace.began_s, trace.ended_s))
    begin = np.maximum(begin, known + 1)
    running, running_from = listed(known, begin, np.maximum(end, begin), len(trace))
    backlog = np.arange(len(trace), dtype=np.int32)
    for row, until in zip(known[::-1].tolist(), begin[::-1].tolist(), strict=True):
        backlog[row:until] = row
    return running, running_from, backlog


def runtimes_of(truth: RuntimeTable, belief: RuntimeTable, topology: Topology, trace: JobTrace) -> Runtimes:
    """Prepare run times for the kernels, in the topology's order of card types and the queue's of models."""
    tables = [table.select(topology.card_types, trace.model_names).seconds for table in (truth, belief)]
    finite = np.isfinite(tables[0])
    if not np.array_equal(finite, np.isfinite(tables[1])):
        raise TraceError("predicted run times are finite for other sets than the true ones", "the same sets")
    believed = tables[1]
    # belief[there, type, new, other] / belief[there, type, none, other] - 1, as [new, type, there, other]
    with np.errstate(invalid="ignore"):
        slower = believed[:, :, 1:, :] / believed[:, :, :1, :] - 1.0
    K, T = believed.shape[:2]
    harm = np.zeros((K, T, K + 1, K + 1))
    harm[:, :, 1:, :] = np.where(np.isfinite(slower), slower, 0.0).transpose(2, 1, 0, 3)
    return Runtimes(tables[0], believed, harm)


def rules_of(scenario: CpnScenario, rows: int) -> Rules:
    """Turn a scenario into numbers; how the queue is run is in ``State.way``."""
    stop = max(rows - scenario.episode_jobs + 1, 1)
    stop = min(scenario.start_max or stop, rows)
    return Rules(
        cpu_threshold=float(scenario.cpu_threshold),
        gpu_mem_margin=float(scenario.gpu_mem_margin_gib),
        mem_margin=float(scenario.mem_margin_gib),
        big_gpu_mem=float(scenario.big_job_gib),
        total_memory=scenario.memory_check == "total",
        failure_rate=float(scenario.failure_rate),
        dispatch_s=float(scenario.dispatch_s),
        startup_s=float(scenario.startup_s),
        max_attempts=scenario.max_attempts,
        episode_jobs=scenario.episode_jobs,
        horizon=scenario.horizon,
        start_min=min(scenario.start_min, stop - 1),
        start_max=stop,
        by_makespan=scenario.reward == "makespan",
        inverse_scale=1.0 / scenario.reward_scale_s,
        pairs=scenario.shown_jobs if scenario.choice == "pair" else 0,
    )


def empty_state(B: int, cards: Cards, queue: Queue, models: int, episode_jobs: int, pairs: int) -> State:
    """Allocate the state; the reset kernel fills it."""
    C, N, Q, S = cards.type.size, cards.node_mem.size, len(queue.shapes), MOST_ON_A_CARD
    widest = int(np.diff(cards.first).max())

    def floats(*shape: int) -> Floats:
        return np.zeros(shape)

    def indices(*shape: int) -> Indices:
        return np.zeros(shape, np.int32)

    return State(
        card=floats(B, C, 8),
        next_s=floats(B, C),
        kind=indices(B, C, S + 1),
        slot=floats(B, C, S, 6),
        node=floats(B, N, 4),
        hold=indices(B, N, 2),
        line=indices(B, Q, 6),
        shown=indices(B, pairs),
        job=indices(B, episode_jobs, 3),
        queued_s=floats(B, episode_jobs),
        service=floats(B, models),
        expected=np.zeros((B, episode_jobs if np.isfinite(queue.rows[:, CANCEL]).any() else 0, 2)),
        way=indices(B, 3),
        tally=np.zeros((B, 16), np.int64),
        total=floats(B, 13),
        draft=floats(6, S),
        ends=floats(S * widest + 1, 3),
    )
