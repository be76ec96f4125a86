"""Many computing power networks at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sched_env import planning, rewards
from sched_env.futures import Future, Record
from sched_env.jobs import kernels, topology
from sched_env.jobs import synthetic as synthetic_jobs
from sched_env.jobs.raw_state import raw_fields
from sched_env.jobs.runtime import RuntimeModel
from sched_env.jobs.scenario import CpnScenario
from sched_env.jobs.state import (
    ARRIVED,
    CARD,
    CORES,
    FINISH,
    FIRST,
    GPU_FREE,
    MODEL,
    NONE,
    OFFERED,
    OUTCOME,
    OUTSIDE,
    POSSIBLE,
    RETURN,
    ROW,
    SHAPE,
    SIZE,
    START,
    STEPS,
    UNDECIDED,
    Cards,
    Discipline,
    Queue,
    Rules,
    Runtimes,
    State,
    cards_of,
    empty_state,
    queue_of,
    rules_of,
    runtimes_of,
)
from sched_env.jobs.tables import Floats, JobTrace, RuntimeTable
from sched_env.jobs.trace import beside
from sched_env.jobs.workload import Workload
from sched_env.occupancy import Choice, Layout, Present, present
from sched_env.scenarios import SYNTHETIC, Scenario, within_split
from sched_env.stepping import NO_ROWS, PARK, RESTART, SKIP
from sched_env.tables import first_rows
from sched_env.vector import Outcome, PlacementVectorEnv
from wire.errors import ConfigError


class CpnVectorEnv(PlacementVectorEnv):
    """B networks that replay one queue from different rows.

    Args:
        scenario: The settings.
        num_envs: B.
        workload: Queue, network and run times.
        seed: Names the start points and the failures.
        copy: Return fresh arrays from every call.
    """

    METRICS: ClassVar[tuple[str, ...]] = kernels.METRICS
    DRAFTS: ClassVar[frozenset[str]] = frozenset({"draft", "ends"})
    DYNAMICS = kernels.DYNAMICS
    scenario: CpnScenario

    def __init__(
        self, scenario: CpnScenario, num_envs: int, workload: Workload, *, seed: int = 0, copy: bool = False
    ) -> None:
        cards, slots = len(workload.topology), scenario.shown_jobs
        candidates = slots * cards + 1 if scenario.choice == "pair" else cards
        super().__init__(scenario, num_envs, candidates, seed=seed, copy=copy)
        self.workload, self.trace, self.topology = workload, workload.jobs, workload.topology
        self.cards = cards_of(workload.topology)
        truth = self._table(workload.runtime)
        belief = truth if workload.predicted is None else self._table(workload.predicted)
        self.runtimes = runtimes_of(truth, belief, workload.topology, workload.jobs)
        self.queue = queue_of(workload.jobs, self.cards, self.runtimes.belief, scenario)
        self.rules = rules_of(scenario, len(workload.jobs))
        if self.rules.pairs > 0:
            self.DYNAMICS = kernels.PAIR_DYNAMICS  # type: ignore[misc]
        self._check_offered()
        self.state = empty_state(
            num_envs,
            self.cards,
            self.queue,
            len(workload.jobs.model_names),
            scenario.episode_jobs + int((np.arange(len(workload.jobs)) - self.queue.backlog).max()),
            self.rules.pairs,
        )
        self.state.way[:] = own_discipline(scenario).numbers()
        fixed = np.stack([self.cards.mem, workload.topology.card_usd_per_hour])
        if self.rules.pairs > 0:  # the last candidate, to wait, has neither memory nor price
            fixed = np.append(np.tile(fixed, self.rules.pairs), np.zeros((2, 1)), axis=1)
        self._fix_columns(*fixed)

    def _check_offered(self) -> None:
        offered = self.queue.shapes[self.queue.links[:, SHAPE], POSSIBLE] > 0.0
        offered &= self.workload.jobs.cancelled_at() > self.workload.jobs.arrival_s
        if not offered.any():
            raise ConfigError(
                "no job of the queue fits an empty card and outlives its submission", "at least one that does"
            )

    def _table(self, runtime: RuntimeTable | RuntimeModel) -> RuntimeTable:
        if isinstance(runtime, RuntimeModel):
            return runtime.table(self.topology.card_types, self.trace.model_names)
        return runtime

    @property
    def arguments(self) -> tuple[Cards, Queue, Runtimes, Rules, State]:
        """What every kernel of the problem takes first."""
        return self.cards, self.queue, self.runtimes, self.rules, self.state

    @property
    def discipline(self) -> Discipline | None:
        """How the queues are run; None: not all alike."""
        way = self.state.way
        return Discipline.of(way[0]) if (way == way[0]).all() else None

    def use(self, discipline: Discipline) -> None:
        """Run the queue by another discipline than the scenario's, as a heuristic that is a whole scheduler does.

        Rows that have been given disciplines of their own (:meth:`switch`) keep them.

        Raises:
            ConfigError: When an episode is under way; episodes at their first decision begin anew.
        """
        present = self.discipline
        if present is None or discipline == present:
            return
        self._check_first_decision(self.state.tally[:, STEPS], f"the queue is run as {present}")
        self.state.way[:] = discipline.numbers()
        self._begin_anew()

    def switch(self, discipline: Discipline, rows: ArrayLike | None = None) -> Outcome:
        """Run the queues of these rows (left out: all) by another discipline from now on, in later episodes too.

        Lines are put in the new order, reservations end, and the queue is offered anew at the same time; if nothing
        fits any more, time goes on. No decision is counted.

        Returns:
            As :meth:`step`; the rewards are for the time that has passed, if any has.
        """
        chosen = planning.rows_of(self, rows)
        self.state.way[chosen] = discipline.numbers()
        actions = np.full(self.num_envs, SKIP, np.int64)
        actions[chosen] = kernels.REARRANGE
        return self._unasked(actions)

    def cancel(self, jobs: ArrayLike) -> Outcome:
        """Withdraw a job in each environment, for its user, and look for the next decision anew.

        What is offered next may be the same job as before (then more cards may take it), another, or, when nothing fits
        any more, whatever comes later; an episode of which nothing is left ends. No decision is counted.

        Args:
            jobs: The job's number in each environment's episode, in order of submission; -1: nothing happens there.

        Returns:
            As :meth:`step`; the rewards are for the time that has passed, if any has.

        Raises:
            ConfigError: When there is no such job, or it has ended, or has not been submitted; nothing has changed.
        """
        chosen = np.ascontiguousarray(jobs, dtype=np.int64)
        if chosen.shape != (self.num_envs,):
            raise ConfigError(f"jobs have shape {chosen.shape}", f"({self.num_envs},)")
        for b in np.flatnonzero(chosen != NONE):
            self._check_withdrawal(int(b), int(chosen[b]))
        withdrawals = np.where(chosen == NONE, SKIP, kernels.WITHDRAW - chosen)
        return self._unasked(withdrawals)

    def _unasked(self, actions: NDArray[np.int64]) -> Outcome:
        """Do what is no decision; a reward of the user's, which is given for decisions, is 0 then."""
        at_end, before, active = PARK if self.park else RESTART, self.returns.copy(), self.buffers.active.copy()
        finished = self._advance(actions, NO_ROWS, at_end, checked=False)
        if self.user_reward is not None:
            rewards.put(self, np.zeros(self.num_envs), before, active, at_end)
        return self._outcome(finished)

    def _check_withdrawal(self, b: int, j: int) -> None:
        if not self.buffers.active[b]:
            raise ConfigError(f"the episode of environment {b} is over", "one that is under way", "reset it")
        size, arrived = int(self.state.tally[b, SIZE]), int(self.state.tally[b, ARRIVED])
        where = f"job {j} of environment {b}"
        if not 0 <= j < size:
            raise ConfigError(f"there is no {where}", f"a number from 0 to {size - 1}")
        if j >= arrived:
            raise ConfigError(f"{where} has not been submitted", f"one of the {arrived} that have been")
        if self.state.job[b, j, OUTCOME] != UNDECIDED:
            raise ConfigError(f"{where} has ended", "one that waits or is on a card")

    def recorded(self) -> NDArray[np.int64]:
        """Return the card on which each environment's offered job was recorded; -1: nobody says."""
        homes: NDArray[np.int64] = self.queue.record[self.state.tally[:, OFFERED], CARD].astype(np.int64)
        return homes

    def record(self) -> Record:
        """Return all jobs; lives (epochs) are those of the same model."""
        return Record(np.arange(len(self.trace)), self.trace.arrival_s, self.trace.model.astype(np.int64))

    def seen_until(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of the first job that has not been submitted."""
        seen: NDArray[np.int64] = self.state.tally[rows, FIRST] + self.state.tally[rows, ARRIVED]
        return seen

    def _meeting(self, rows: NDArray[np.int64], future: Future) -> Self:
        given = {name: getattr(self.trace, name) for name in JobTrace.__dataclass_fields__ if name != "model_names"}
        columns = {name: values[future.source] for name, values in given.items() if values.size}
        columns |= {"arrival_s": future.arrival_s, "epochs": self.trace.epochs[future.life]}
        columns |= {"card": np.empty(0), "began_s": np.empty(0), "ended_s": np.empty(0)}  # the state has them
        told = JobTrace(**columns, model_names=self.trace.model_names)
        queue = queue_of(told, self.cards, self.runtimes.belief, self.scenario)
        fork = self.fork(rows)
        # Of the shapes there may be fewer now, and the lines are those of the recorded ones.
        fork.queue = self.queue._replace(rows=queue.rows, links=self.queue.links[future.source])
        fork._world = None
        return fork

    @property
    def returns(self) -> Floats:
        """What each episode has brought so far."""
        brought: Floats = self.state.total[:, RETURN]
        return brought

    def layout(self) -> Layout:
        """Name the cards, and the node that each is in."""
        where = self.topology
        return Layout("card", where.cards, tuple(where.nodes[node] for node in where.card_node))

    def usage(self, b: int) -> dict[str, Floats]:
        """Return the share of each card's memory, and of its node's cores, in use."""
        state, cards = self.state, self.cards
        cores = cards.node_cpu_used + state.node[b, :, CORES] * cards.share_per_core
        return {"gpu_mem": 1.0 - state.card[b, :, GPU_FREE] / cards.mem, "cpu": cores[cards.node]}

    def choice(self, b: int, action: int) -> Choice:
        """Say which job would go to which card: keys are trace rows."""
        cards = len(self.topology)
        if self.rules.pairs == 0:
            return Choice(int(self.state.tally[b, OFFERED]), action)
        slot, card = divmod(action, cards)
        return Choice(NONE, NONE) if slot == self.rules.pairs else Choice(int(self.state.shown[b, slot]), card)

    def choices(self, b: int, actions: Sequence[int]) -> list[Choice]:
        """Where pairs are chosen, each action may be of another job."""
        return [self.choice(b, action) for action in actions]

    def label(self, _b: int, key: int) -> str:
        """Name a job by its row and its model."""
        return f"job {key} {self.trace.model_names[int(self.queue.links[key, MODEL])]}"

    def present(self, b: int) -> Present:
        """Return the jobs on cards; their ends are as predicted now."""
        slots = self.state.slot.shape[2]
        card, slot = np.nonzero(self.state.kind[b, :, :slots] > 0)
        on = self.state.slot[b, card, slot]
        return present(on[:, ROW].astype(np.int64), card, on[:, START], self.state.card[b, card, FINISH + slot])

    def ended_s(self, b: int, key: int, expected_s: float) -> float:
        """Say when a job left its card: when it ended, or went back into the queue."""
        j = key - int(self.state.tally[b, FIRST])
        if j < 0 or self.state.job[b, j, OUTCOME] == OUTSIDE:
            return expected_s  # it was there when the episode began: nobody keeps its books
        return float(self.state.queued_s[b, j])

    def raw_fields(self, b: int) -> tuple[dict[str, Floats], dict[str, float]]:
        """Return the raw fields of environment b's present decision, as the live service would report them."""
        return raw_fields(self, b)

    def _reset(self, starts: NDArray[np.int64]) -> None:
        self._check_starts(starts, len(self.trace))
        super()._reset(starts)
        stuck = np.flatnonzero(self.buffers.feasible == 0)
        if stuck.size:
            raise ConfigError(
                f"from start {starts[stuck[0]]} on, no job fits an empty card and outlives its submission"
            )


def own_discipline(scenario: CpnScenario) -> Discipline:
    """Return the scenario's own discipline."""
    return Discipline(scenario.queue_order, scenario.reservation, scenario.max_jobs_per_card)


def make(scenario: Scenario, num_envs: int, *, seed: int = 0, trace: Any = None, copy: bool = False) -> CpnVectorEnv:
    """Make the environments of a scenario; see :func:`workload` for ``trace``."""
    if not isinstance(scenario, CpnScenario):
        raise ConfigError(f"scenario {scenario.name!r} is a {type(scenario).__name__}", "a CpnScenario")
    load = workload(scenario, trace)
    settings, end = within_split(scenario, len(load.jobs), scenario.episode_jobs)
    load = load._replace(jobs=first_rows(load.jobs, end))
    return CpnVectorEnv(settings, num_envs, load, seed=seed, copy=copy)


def workload(scenario: CpnScenario, trace: Any = None) -> Workload:
    """Return queue, network and run times: as given, or generated by the scenario's settings.

    The trace is a :class:`Workload`; a JobTrace for the scenario's network, of generated models, whose run times are
    known; or the path of a queue in upstream's form (JSON), with ``colocation_profiles.csv`` beside it.
    """
    if trace is None and scenario.trace != SYNTHETIC:
        trace = scenario.trace
    if isinstance(trace, Workload):
        return trace
    if isinstance(trace, str | Path) and str(trace) != SYNTHETIC:
        return beside(Path(trace), scenario.topology, scenario.cards)
    if not (trace is None or isinstance(trace, JobTrace | str | Path)):
        raise ConfigError(f"the trace is a {type(trace).__name__}", "a Workload, a JobTrace, or the path of a queue")
    where = topology.load(scenario.topology, scenario.cards)
    table = synthetic_jobs.runtime(where.card_types)
    if not isinstance(trace, JobTrace):
        trace = synthetic_jobs.queue(
            scenario.trace_rows,
            where,
            load=scenario.load,
            data_gb=scenario.data_gb,
            cancel_rate=scenario.cancel_rate,
            seed=scenario.trace_seed,
            table=table,
        )
    return Workload(trace, where, table)
