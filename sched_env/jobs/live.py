"""A network as it is at this moment, put into the kernels' state: what a live controller decides with.

The simulator's own kernels choose the job (queue discipline, reservations, what-ifs), say which cards may take it and
book the placement. What differs is time: it stands still while decisions are made, and what happens is told by the
clusters. So there is no step to the next event here; instead the state is written anew for every round of decisions,
from what is known to be on the cards and in line, and nothing that a round assumed outlives it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.jit import lean_kernel
from sched_env.jobs.execution import foresee, place
from sched_env.jobs.observing import observe, show
from sched_env.jobs.queueing import join, offer
from sched_env.jobs.runtime import MOST_ON_A_CARD
from sched_env.jobs.state import (
    ARRIVAL,
    ARRIVED,
    ATTEMPTS,
    BLOCKED,
    CORES,
    FINISH,
    GPU_FREE,
    HEAD,
    HELD,
    HELD_CARD,
    HELD_FROM,
    HELD_JOB,
    HOLDS,
    JOBS,
    LAST_CARD,
    LEFT,
    MEM,
    MODEL,
    NEED_CPU,
    NEED_GPU,
    NEED_MEM,
    NODE_JOBS,
    NONE,
    NOW,
    OFFERED,
    OPEN,
    POSSIBLE,
    PROMISE,
    ROW,
    RUNS,
    SHAPE,
    SINCE,
    SIZE,
    START,
    WAITING,
    Discipline,
    empty_state,
    queue_of,
)
from sched_env.jobs.tables import Bools, Floats, Indices, JobTrace
from sched_env.jobs.vector import CpnVectorEnv
from sched_env.jobs.whatif import completion_s
from sched_env.occupancy import Choice
from sched_env.vector import Buffers

DOWN_GIB = -1e9
"""Free memory of a node that takes nobody."""


class Placed(NamedTuple):
    """Jobs that are on cards; row i of each array is a job."""

    row: Indices
    """In the queue."""
    card: Indices
    left: Floats
    """Epochs still to do."""
    start_s: Floats
    """When it is expected to begin to compute; of one that runs, when it did."""
    runs: Bools


class Held(NamedTuple):
    """Reservations."""

    row: Indices
    card: Indices
    promise_s: Floats


class Offer(NamedTuple):
    """The job that the queue offers, and how many cards can take it."""

    row: int
    feasible: int


@lean_kernel
def _occupy(arguments: Any, b: int, rows: Indices, at: Indices, left: Floats, start_s: Floats, runs: Bools) -> None:
    """Put jobs on their cards, as they are; what the books allowed once is not asked again."""
    cards, queue, runtimes, _, state = arguments
    now = state.total[b, NOW]
    for k in range(rows.size):
        c, row = at[k], rows[k]
        kind, card, node = state.kind[b, c], state.card[b, c], cards.node[c]
        shape = queue.shapes[queue.links[row, SHAPE]]
        i = kind[JOBS]
        if i == MOST_ON_A_CARD:  # a cluster's own scheduler may send more; the card is full, and that is all to know
            continue
        kind[i], kind[JOBS] = queue.links[row, MODEL] + 1, i + 1
        slot = state.slot[b, c, i]
        slot[LEFT], slot[START], slot[RUNS], slot[ROW] = left[k], start_s[k], 1.0 if runs[k] else 0.0, row
        card[SINCE] = card[HELD_FROM] = now
        card[GPU_FREE] -= shape[NEED_GPU]
        state.node[b, node, NODE_JOBS] += 1.0
        state.node[b, node, CORES] += shape[NEED_CPU]
        state.node[b, node, MEM] -= shape[NEED_MEM]
    for c in range(cards.type.size):
        if state.kind[b, c, JOBS] > 0:
            foresee(cards, runtimes, state, b, c)


@lean_kernel
def _line_up(arguments: Any, b: int, rows: Indices, since_s: Floats, attempts: Indices) -> None:
    """Put jobs in line."""
    _, queue, _, _, state = arguments
    for k in range(rows.size):
        if queue.shapes[queue.links[rows[k], SHAPE], POSSIBLE] > 0.0:
            join(queue, state, b, rows[k])
        state.queued_s[b, rows[k]] = since_s[k]
        state.job[b, rows[k], ATTEMPTS] = attempts[k]


@lean_kernel
def _hold(arguments: Any, b: int, rows: Indices, at: Indices, promise_s: Floats) -> None:
    """Put reservations back."""
    cards, queue, _, _, state = arguments
    for k in range(rows.size):
        node, q = cards.node[at[k]], queue.links[rows[k], SHAPE]
        if state.hold[b, node, HELD_CARD] != NONE or state.line[b, q, HOLDS] != NONE:
            continue
        state.hold[b, node, HELD_CARD], state.hold[b, node, HELD_JOB] = at[k], rows[k]
        state.node[b, node, PROMISE] = promise_s[k]
        state.line[b, q, HOLDS] = node
        state.tally[b, HELD] += 1


@lean_kernel
def _offer(arguments: Any, out: Buffers, b: int) -> int:
    """Find the next job, write its mask and observe it; return how many cards can take it."""
    cards, queue, runtimes, rules, state = arguments
    feasible = offer(cards, queue, runtimes, rules, state, out.mask, b)
    if feasible > 0:
        observe(cards, queue, runtimes, rules, state, out.candidates, out.request, b)
    out.feasible[b] = feasible
    return int(feasible)


@lean_kernel
def _show(arguments: Any, out: Buffers, b: int) -> int:
    """Find the next job and those that are shown beside it, on every card; return how many candidates there are."""
    cards, queue, runtimes, rules, state = arguments
    feasible = offer(cards, queue, runtimes, rules, state, out.mask, b)
    if feasible > 0:
        feasible += show(arguments, out, b)
    out.feasible[b] = feasible
    return int(feasible)


@lean_kernel
def _take(arguments: Any, out: Buffers, b: int, row: int, c: int) -> float:
    """Place a job that is shown; return when it is predicted to end, in seconds from now."""
    cards, queue, runtimes, rules, state = arguments
    state.tally[b, OFFERED] = row
    end = completion_s(cards, queue, runtimes, rules, state, b, c, state.tally[b, OFFERED])
    place(cards, queue, runtimes, rules, state, out.wait_s, b, c, 0)
    return float(end)


class LiveEnv(CpnVectorEnv):
    """One network, whose state is written from outside before every round (:meth:`begin`).

    Where pairs are chosen, a question has as many slots as jobs wait, at most ``shown_jobs``: what a policy says of the
    others hangs on no empty slot, and a thousand cards times 64 of them would be most of what a round costs.
    """

    _widest: Buffers | None = None
    """The buffers with all slots, where pairs are chosen."""

    def _slots(self, count: int) -> None:
        """Show at most so many jobs from now on."""
        if self._widest is None:
            self._widest = self.buffers
        width, fixed = count * len(self.topology), self._widest.candidates[0, :, :2]
        fixed[self.buffers.mask.shape[1] - 1] = self.cards.mem[0], self.cards.usd_per_hour[0]
        fixed[width] = 0.0  # to wait has neither memory nor price
        candidates, mask = self._widest.candidates[:, : width + 1], self._widest.mask[:, : width + 1]
        self.buffers = self._widest._replace(candidates=candidates, mask=mask)
        self.rules = self.rules._replace(pairs=count)

    def _check_offered(self) -> None:
        """Take any queue: what fits no empty card of the moment simply waits."""

    def begin(
        self,
        now_s: float,
        jobs: JobTrace,
        arrival_s: Floats,
        placed: Placed,
        *,
        discipline: Discipline,
        others_gpu_gib: Floats,
        others_cpu: Floats,
        others_mem_gib: Floats,
        up: Bools,
        service: Floats,
        last_card: int,
        dispatch_s: float,
        startup_s: float,
    ) -> None:
        """Write the state of the moment; nobody is in line yet.

        Args:
            now_s: The clock.
            jobs: Jobs on cards and in line; the order of the rows is that of a ``fifo`` queue.
            arrival_s: When each was submitted.
            placed: Those on cards.
            discipline: How the queue is run.
            others_gpu_gib: [C] GPU memory that is not our jobs'.
            others_cpu: [N] share of the cores that others keep busy.
            others_mem_gib: [N] memory that others use.
            up: [N] which nodes can take jobs.
            service: [K] card seconds each model has had.
            last_card: Where the last job went; -1: nowhere.
            dispatch_s: Measured, from a decision until the transfer begins.
            startup_s: Measured, from the end of the transfer until the job computes.
        """
        self.trace = jobs
        self.cards = self.cards._replace(node_cpu_used=np.ascontiguousarray(np.clip(others_cpu, 0.0, 1.0)))
        self.rules = self.rules._replace(dispatch_s=float(dispatch_s), startup_s=float(startup_s))
        queue = queue_of(jobs, self.cards, self.runtimes.belief, self.scenario)
        queue.rows[:, ARRIVAL] = arrival_s
        self.queue = queue
        slots = self.scenario.shown_jobs if self.rules.pairs > 0 else 0
        self.state = state = empty_state(1, self.cards, queue, len(jobs.model_names), len(jobs), slots)
        state.way[:] = discipline.numbers()
        state.card[0, :, GPU_FREE] = self.cards.mem - others_gpu_gib
        state.next_s[:] = np.inf
        state.node[0, :, MEM] = self.topology.node_mem - others_mem_gib
        state.hold[:] = NONE
        state.line[0, :, HEAD] = state.line[0, :, HOLDS] = NONE
        state.service[0] = service
        state.tally[0, SIZE] = state.tally[0, ARRIVED] = len(jobs)
        state.tally[0, LAST_CARD] = last_card
        state.total[0, NOW] = now_s
        self.buffers.active[:] = True
        self.buffers.mask[:] = False
        _occupy(self.arguments, 0, placed.row, placed.card, placed.left, placed.start_s, placed.runs)
        # No departure may make a node that is down look as if it had room.
        state.node[0, ~up, MEM] = DOWN_GIB

    def line_up(self, rows: Indices, since_s: Floats, attempts: Indices) -> None:
        """Put jobs in line behind those that are there; by rank within their line."""
        _line_up(self.arguments, 0, rows, since_s, attempts)

    def hold(self, held: Held) -> None:
        """Put reservations back; one that a node or a line cannot have any more is left out."""
        _hold(self.arguments, 0, held.row, held.card, held.promise_s)

    def run_by(self, discipline: Discipline) -> None:
        """Go on with another discipline; lines and reservations stay as they are."""
        self.state.way[:] = discipline.numbers()
        for q in np.flatnonzero(self.state.line[0, :, HEAD] != NONE):
            self.state.line[0, q, BLOCKED] = OPEN

    def offer(self) -> Offer | None:
        """Return the job to be placed now, with its mask in ``buffers``; None: nothing fits.

        Where pairs are chosen, the mask is that of ``pairs``, and others may be placed instead.
        """
        if self.rules.pairs > 0:
            self._slots(min(max(int(self.state.tally[0, WAITING]), 1), self.scenario.shown_jobs))
        feasible = (_show if self.rules.pairs > 0 else _offer)(self.arguments, self.buffers, 0)
        return Offer(int(self.state.tally[0, OFFERED]), feasible) if feasible else None

    def take(self, action: int) -> tuple[Choice, float]:
        """Place by an action of the mask, which is not to wait; return row and card, and the predicted end from now."""
        chosen = self.choice(0, action)
        return chosen, float(_take(self.arguments, self.buffers, 0, chosen.key, chosen.place))

    def held(self) -> Held:
        """Return the reservations there are."""
        nodes = np.flatnonzero(self.state.hold[0, :, HELD_CARD] != NONE)
        hold = self.state.hold[0, nodes]
        return Held(hold[:, HELD_JOB].copy(), hold[:, HELD_CARD].copy(), self.state.node[0, nodes, PROMISE].copy())

    def open_rows(self) -> NDArray[np.int64]:
        """Return the first job of each line: of those who wait, one of a shape."""
        heads = self.state.line[0, :, HEAD]
        rows: NDArray[np.int64] = heads[heads != NONE].astype(np.int64)
        return rows

    def predicted_ends(self) -> dict[int, float]:
        """Return row -> predicted end of each job on a card."""
        ends: dict[int, float] = {}
        for c in np.flatnonzero(self.state.kind[0, :, JOBS] > 0):
            for i in range(self.state.kind[0, c, JOBS]):
                ends[int(self.state.slot[0, c, i, ROW])] = float(self.state.card[0, c, FINISH + i])
        return ends
