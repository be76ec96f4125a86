"""Optima of small queues of ``jobs``: jobs that share cards, and exclusive ones.

With sharing. Cards go their own ways (nodes' cores and memory must not bind, which is checked), so a schedule is a
choice of jobs for each card and the best schedule of those there. A mixed-integer program chooses, each job on one card
and each card once, by what every choice has at least; the cards it has chosen are then solved
(:mod:`sched_env.jobs.card_plan`), and what was found replaces the lower bounds, until the program chooses only what
is known. The last choice is optimal: all others have at least their lower bounds.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.jobs.bounds import Bounds, Problem, delay_s, holds, lower, problem_of, stated_in
from sched_env.jobs.card_plan import CardPlan, OneCard, best_plan, least
from sched_env.jobs.scenario import CpnScenario
from sched_env.jobs.state import ARRIVAL, CANCEL, EPOCHS, MODEL, NEED_CPU, NEED_GPU, NEED_MEM, SHAPE
from sched_env.jobs.tables import Floats
from sched_env.jobs.workload import Workload
from sched_env.milp import Program
from wire.errors import ConfigError, legal

METRICS = ("makespan_s", "mean_completion_s")
MOST_JOBS = 10
"""Every set of jobs is a choice for a card."""
MOST_EXCLUSIVE_JOBS, MOST_EXCLUSIVE_CARDS = 12, 6
"""Size up to which :func:`exclusive_optimum` is solved exactly in a moment."""
PROVED = 1.0 + 1e-6
"""What the solver's tolerances may leave between a schedule and its bound."""
NOWHERE = -1
Column = tuple[int, tuple[int, ...]]
"""A kind of card, and the jobs that one of them is to run."""


class Optimum(NamedTuple):
    """The best schedule found."""

    value: float
    """Its metric; infinite when there was no time to find one."""
    bound: float
    """What every schedule has at least."""
    card: NDArray[np.int64]
    """[jobs of the episode]: where each runs; ``NOWHERE`` for those that no card can hold. Empty without a schedule."""
    begin_s: Floats
    """[jobs of the episode]: when it is put there, in the queue's time."""

    @property
    def proved(self) -> bool:
        """Whether no schedule is better."""
        return self.value <= self.bound * PROVED


class _Kind(NamedTuple):
    """Cards that are alike for this queue."""

    cards: list[int]
    card: OneCard
    """With all jobs of the queue that such a card can hold ..."""
    jobs: tuple[int, ...]
    """... which are these."""

    def part(self, chosen: tuple[int, ...]) -> OneCard:
        """Return the card with some of the jobs only."""
        at = [self.jobs.index(j) for j in chosen]
        number = {old: new for new, old in enumerate(at)}
        pace = {
            tuple(number[j] for j in together): seconds
            for together, seconds in self.card.pace.items()
            if number.keys() >= set(together)
        }
        return OneCard(self.card.release_s[at], self.card.move_s[at], self.card.epochs[at], pace)

    def alone_s(self) -> dict[int, float]:
        """Return when each job would end at the earliest if it had the card to itself."""
        run_s = self.card.epochs * [self.card.pace[at,][0] for at in range(len(self.jobs))]
        return dict(zip(self.jobs, (self.card.release_s + self.card.move_s + run_s).tolist(), strict=True))

    def company_slows(self) -> bool:
        """Say whether no job is ever faster for one job more on the card."""
        pace = self.card.pace
        return all(
            pace[together][own] >= pace[together[:gone] + together[gone + 1 :]][own - (gone < own)]
            for together in pace
            for own, gone in itertools.permutations(range(len(together)), 2)
        )


def optimum(
    scenario: CpnScenario, workload: Workload, start: int = 0, *, metric: str = "", time_limit_s: float = 60.0
) -> Optimum:
    """Return the least makespan or mean completion of all schedules with sharing, those that let cards wait included.

    A policy of the environment may stay above it: the environment places whatever fits, in the order of its queue.

    Args:
        scenario: Its limits count, not its queue order or reservations.
        workload: Queue, network and run times.
        start: Row at which the episode begins.
        metric: One of ``METRICS``; left out: that of the scenario's reward.
        time_limit_s: When it is over, the best schedule so far and a valid bound are returned.

    Raises:
        ConfigError: When there are more than ``MOST_JOBS``, users withdraw jobs, attempts can fail, a horizon cuts the
            episode, or a node's cores or memory may bind.
    """
    until = time.monotonic() + time_limit_s
    metric = metric or stated_in(scenario)
    if metric not in METRICS:
        raise ConfigError(f"metric {metric!r}", legal(METRICS))
    problem = problem_of(scenario, workload, start)
    makespan = metric == "makespan_s"
    _check(scenario, problem)
    # Times from the first submission: tolerances are relative.
    rows, since = problem.queue.rows.copy(), float(problem.queue.rows[start, ARRIVAL])
    rows[:, ARRIVAL] -= since
    problem = problem._replace(queue=problem.queue._replace(rows=rows))
    search = _Search(list(_kinds(scenario, problem)), len(problem.rows), makespan)
    bound, choice = search.run(until)
    arrival, at = rows[start : start + problem.jobs, ARRIVAL], problem.rows - start
    lost = np.delete(arrival, at).max(initial=0.0)  # a job that fits no card fails when it is submitted

    def stated(ends: float) -> float:
        return float(max(ends, lost) if makespan else (ends - arrival[at].sum()) / problem.jobs)

    proved = max(stated(bound), float(getattr(lower(scenario, workload, start), metric)))
    if not choice:
        return Optimum(np.inf, proved, np.empty(0, np.int64), np.empty(0))
    card, begin_s = np.full(problem.jobs, NOWHERE, np.int64), arrival.copy()
    free = {index: iter(kind.cards) for index, kind in enumerate(search.kinds)}
    for kind, jobs in choice:
        card[at[list(jobs)]], begin_s[at[list(jobs)]] = next(free[kind]), search.plans[kind, jobs].begin_s
    return Optimum(stated(search.value(choice)), proved, card, since + begin_s)


def _check(scenario: CpnScenario, problem: Problem) -> None:
    """Refuse what the search does not cover."""
    rows, links, cards = problem.queue.rows[problem.rows], problem.queue.links[problem.rows], problem.cards
    if len(rows) > MOST_JOBS:
        raise ConfigError(f"{len(rows)} jobs", f"at most {MOST_JOBS}")
    if scenario.horizon > 0:
        raise ConfigError(f"horizon {scenario.horizon} cuts the episode", "horizon 0: all jobs run to their end")
    if np.isfinite(rows[:, CANCEL]).any():
        raise ConfigError("users withdraw jobs of this episode", "jobs that all run to their end")
    shapes = problem.queue.shapes[links[:, SHAPE]]
    for n in range(cards.node_mem.size):
        places = problem.max_jobs * int((cards.node == n).sum())
        cores, memory = (np.sort(shapes[:, need])[::-1] for need in (NEED_CPU, NEED_MEM))
        # Whoever comes last finds the node as busy as the others make it.
        busy = cards.node_cpu_used[n] + cores[: places - 1].sum() * cards.share_per_core[n]
        full = memory[:places].sum() > cards.node_mem[n] - scenario.mem_margin_gib
        if full or (busy > scenario.cpu_threshold and cards.node_cpu_used[n] <= scenario.cpu_threshold):
            raise ConfigError(
                f"jobs that together may need more cores or memory than node {n} has",
                "nodes whose cards alone limit what they hold",
            )


def _kinds(scenario: CpnScenario, problem: Problem) -> Iterator[_Kind]:
    """Yield the cards, those that are alike together."""
    rows, links = problem.queue.rows[problem.rows], problem.queue.links[problem.rows]
    cards, moves = problem.cards, delay_s(problem)
    idle = cards.node_cpu_used[cards.node] <= scenario.cpu_threshold
    fits = holds(problem) & idle & np.isfinite(problem.seconds[links[:, MODEL]][:, cards.type, 0, 0])
    alike: dict[tuple[object, ...], list[int]] = {}
    for c in range(cards.type.size):
        key = (cards.type[c], cards.mem[c], *moves[:, c], *fits[:, c])
        alike.setdefault(key, []).append(c)
    for members in alike.values():
        c = members[0]
        jobs = np.flatnonzero(fits[:, c])
        if jobs.size:
            pace = _pace(problem, c, jobs)
            yield _Kind(
                members, OneCard(rows[jobs, ARRIVAL], moves[jobs, c], rows[jobs, EPOCHS], pace), tuple(jobs.tolist())
            )


def _pace(problem: Problem, c: int, jobs: NDArray[np.int64]) -> dict[tuple[int, ...], tuple[float, ...]]:
    """Return the sets of jobs (numbers among those given) that a card can hold, with their paces."""
    links = problem.queue.links[problem.rows[jobs]]
    need, models = problem.queue.shapes[links[:, SHAPE], NEED_GPU], links[:, MODEL]
    room, t = problem.cards.mem[c] - problem.gpu_margin, problem.cards.type[c]
    found: dict[tuple[int, ...], tuple[float, ...]] = {}
    for size in range(1, problem.max_jobs + 1):
        for together in itertools.combinations(range(jobs.size), size):
            if need[list(together)].sum() > room + 1e-9:
                continue
            seconds = []
            for own in together:
                others = [models[other] + 1 for other in together if other != own] + [0, 0]
                seconds.append(float(problem.seconds[models[own], t, others[0], others[1]]))
            parts = all(part in found for part in itertools.combinations(together, size - 1) if part)
            if np.isfinite(seconds).all() and parts:
                found[together] = tuple(seconds)
            elif np.isfinite(seconds).any():
                raise ConfigError(
                    f"run times for models {models[list(together)].tolist()} together, of which some are infinite or "
                    "a part cannot run",
                    "sets that run with all of their parts, or not at all",
                )
    return found


class _Search:
    """Choices of jobs for cards, with what is known of each."""

    def __init__(self, kinds: list[_Kind], jobs: int, makespan: bool) -> None:
        self.kinds, self.jobs, self.makespan = kinds, jobs, makespan
        self.plans: dict[Column, CardPlan] = {}
        self.least = {
            (index, chosen): least(kind.part(chosen), makespan=makespan)
            for index, kind in enumerate(kinds)
            for size in range(1, len(kind.jobs) + 1)
            for chosen in itertools.combinations(kind.jobs, size)
        }

    def value(self, choice: list[Column]) -> float:
        """Return the last end, or the sum of ends, of chosen cards that are all solved."""
        values = [self.plans[column].value for column in choice]
        return max(values) if self.makespan else sum(values)

    def run(self, until: float) -> tuple[float, list[Column]]:
        """Return a bound and the best choice, empty when there was no time for one."""
        bound = 0.0
        best: list[Column] = []
        while True:
            lowest, choice = self._choose(until - time.monotonic())
            bound = max(bound, lowest)
            for column in choice:
                if column not in self.plans:
                    self._solve(column, bound, until - time.monotonic())
            if choice and self.value(choice) < (self.value(best) if best else np.inf):
                best = choice
            if (best and self.value(best) <= bound * PROVED) or time.monotonic() > until:
                return bound, best

    def _solve(self, column: Column, bound: float, time_limit_s: float) -> None:
        """Solve a card and raise what is known of it, and of those with more jobs."""
        index, jobs = column
        kind = self.kinds[index]
        # Every schedule lasts until the bound: no card needs to end before it.
        plan = best_plan(kind.part(jobs), makespan=self.makespan, time_limit_s=time_limit_s, floor_s=bound)
        self.plans[column] = plan
        alone = kind.alone_s()
        for other, more in self.least if kind.company_slows() else [column]:
            if other == index and set(jobs) <= set(more):
                # Without the others nobody runs slower, so nobody ends later.
                others = 0.0 if self.makespan else sum(alone[j] for j in more if j not in jobs)
                self.least[other, more] = max(self.least[other, more], plan.bound + others)

    def _choose(self, time_limit_s: float) -> tuple[float, list[Column]]:
        """Choose the cards' jobs by what each choice has at least; return what all choices have at least."""
        columns = list(self.least)
        values = np.array([self.least[column] for column in columns])
        unit = float(values.max()) / 100.0
        kinds = np.array([kind for kind, _ in columns])
        program = Program()
        taken = program.variables(len(columns), whole=True)
        last = program.variables(1, upper=np.inf)
        program.cost(*((last, 1.0) if self.makespan else (taken, values / unit)))
        for j in range(self.jobs):
            within = np.array([j in chosen for _, chosen in columns])
            program.demand((taken[within], 1.0), low=1.0, high=1.0)
            program.demand((last, 1.0), (taken[within], -values[within] / unit), low=0.0 if self.makespan else -np.inf)
        for index, kind in enumerate(self.kinds):
            program.demand((taken[kinds == index], 1.0), high=len(kind.cards))
        found = program.solve(time_limit_s)
        chosen = [] if found.values is None else np.flatnonzero(found.values[taken] > 0.5).tolist()
        return found.bound * unit, [columns[at] for at in chosen]


def exclusive_optimum(scenario: CpnScenario, workload: Workload, start: int = 0) -> Bounds:
    """Return the least makespan and the least mean completion (not at once) with one job a card, all submitted at once.

    Limits of nodes are left out; where they do not bind, the optimum is exact, otherwise still a lower bound.

    Raises:
        ConfigError: When the episode is larger than ``MOST_EXCLUSIVE_JOBS`` x ``MOST_EXCLUSIVE_CARDS``,
            jobs come one after another or may be withdrawn.
    """
    problem = problem_of(scenario, workload, start)
    rows, links = problem.queue.rows[problem.rows], problem.queue.links[problem.rows]
    n, C = len(rows), problem.cards.type.size
    if n > MOST_EXCLUSIVE_JOBS or C > MOST_EXCLUSIVE_CARDS:
        raise ConfigError(f"{n} jobs on {C} cards", f"at most {MOST_EXCLUSIVE_JOBS} on {MOST_EXCLUSIVE_CARDS}")
    if np.ptp(rows[:, ARRIVAL]) > 0.0:
        raise ConfigError("jobs are submitted one after another", "all at once")
    if np.isfinite(rows[:, CANCEL]).any():
        raise ConfigError("users withdraw jobs of this episode", "jobs that all run to their end")
    run = rows[:, EPOCHS, None] * problem.seconds[links[:, MODEL]][:, problem.cards.type, 0, 0]
    times = np.where(holds(problem), delay_s(problem) + run, np.inf)
    return Bounds(_least_makespan(times), _least_mean_completion(times) * n / problem.jobs)


def _least_makespan(times: Floats) -> float:
    """Solve the assignment of jobs to cards that ends first, as a mixed-integer program."""
    from scipy.optimize import Bounds as Range
    from scipy.optimize import LinearConstraint, milp

    n, C = times.shape
    possible = np.isfinite(times)
    finite = np.where(possible, times, 0.0)
    scale = finite.max()
    each = np.zeros((n, n * C + 1))
    load = np.zeros((C, n * C + 1))
    for j in range(n):
        each[j, j * C : (j + 1) * C] = 1.0
        load[np.arange(C), j * C + np.arange(C)] = finite[j] / scale
    load[:, -1] = -1.0
    aim = np.zeros(n * C + 1)
    aim[-1] = 1.0
    answer = milp(
        aim,
        constraints=[LinearConstraint(each, 1.0, 1.0), LinearConstraint(load, -np.inf, 0.0)],
        integrality=np.append(np.ones(n * C), 0.0),
        bounds=Range(np.zeros(n * C + 1), np.append(possible.ravel().astype(np.float64), np.inf)),
        options={"mip_rel_gap": 0.0},
    )
    if answer.x is None:
        raise RuntimeError(f"the assignment has no solution: {answer.message}")
    chosen = answer.x[:-1].reshape(n, C).argmax(axis=1)
    return float(np.bincount(chosen, finite[np.arange(n), chosen], minlength=C).max())


def _least_mean_completion(times: Floats) -> float:
    """Solve the exclusive mean completion exactly: a job that is k-th from last on a card counts k times."""
    from scipy.optimize import linear_sum_assignment

    n = len(times)
    never = float(np.where(np.isfinite(times), times, 0.0).sum()) * n * n + 1.0
    costs = np.concatenate([np.where(np.isfinite(times), times, never) * (k + 1) for k in range(n)], axis=1)
    jobs, places = linear_sum_assignment(costs)
    return float(costs[jobs, places].sum() / n)
