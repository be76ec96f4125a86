"""Bounds of ``jobs``: makespan and mean completion that no schedule can beat (optima: ``jobs_optimum``).

The lower bounds relax the problem in two ways. A *fluid*: in every instant a card works on some set of models that
fits it, at the speeds of that set; any mix of sets is allowed. Its linear program gives each epoch of a model a price
u_k such that no card of type t can work off more than v_t a second and all cards together not more than 1. With job
sizes epochs x u_k, every schedule is then a schedule of one machine of speed 1, on which shortest-remaining-first ends
the k-th job at least as early as any other schedule, for every k (Schrage 1968). And a *lone job*: nobody ends before
its transfer and its run on its best card in the best company. (Measured company sometimes helps, if only by noise: no
set may be left out because a smaller one looks faster.) The k-th end is late by both, so by the later of the two.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.jobs.runtime import RuntimeModel
from sched_env.jobs.scenario import CpnScenario
from sched_env.jobs.state import ARRIVAL, CANCEL, DATA, EPOCHS, MODEL, ORIGIN, POSSIBLE, SHAPE, Cards, Queue
from sched_env.jobs.state import cards_of as prepare_cards
from sched_env.jobs.state import queue_of as prepare_queue
from sched_env.jobs.tables import Floats, Indices, RuntimeTable
from sched_env.jobs.vector import CpnVectorEnv
from sched_env.jobs.workload import Workload
from sched_env.vector import PlacementVectorEnv
from wire.errors import ConfigError


class Bounds(NamedTuple):
    """What no schedule can beat."""

    makespan_s: float
    mean_completion_s: float


class Problem(NamedTuple):
    """An episode, made ready."""

    cards: Cards
    queue: Queue
    seconds: Floats
    rows: Indices
    """Rows of the episode that some card can hold."""
    jobs: int
    """Rows of the episode."""
    max_jobs: int
    gpu_margin: float
    fixed_s: float
    """Dispatch and start-up: what every attempt takes beside transfer and run."""


def stated_in(scenario: CpnScenario) -> str:
    """Return the metric that the bound is stated in: the one that the scenario rewards."""
    return "makespan_s" if scenario.reward == "makespan" else "mean_completion_s"


def of_starts(env: PlacementVectorEnv, starts: Sequence[int]) -> list[float | None]:
    """Return the least mean completion (or makespan) of an episode from each start.

    None where jobs can be lost, and where episodes begin with jobs on cards or nodes down: it is proved for neither.
    """
    if not isinstance(env, CpnVectorEnv):
        raise ConfigError(f"the environment is a {type(env).__name__}", "one of jobs")
    recorded = (env.trace.card >= 0).any() or not env.topology.node_up.all()
    if _loses_jobs(env.scenario) or env.scenario.horizon > 0 or recorded:
        return [None] * len(starts)
    name = stated_in(env.scenario)
    return [float(getattr(lower(env.scenario, env.workload, start), name)) for start in starts]


def lower(scenario: CpnScenario, workload: Workload, start: int = 0) -> Bounds:
    """Return lower bounds for the episode that begins at a row, valid for every policy of the scenario.

    Raises:
        ConfigError: When attempts can fail: a job that is lost leaves early, which no bound on completions survives.
    """
    problem = problem_of(scenario, workload, start)
    rows = problem.queue.rows[problem.rows]
    links = problem.queue.links[problem.rows]
    arrival = rows[:, ARRIVAL]
    # Whose user may withdraw it leaves by then, perhaps without any work done; its model may still be company.
    lone = np.minimum(arrival + _fastest(problem), rows[:, CANCEL])
    stays = np.isinf(rows[:, CANCEL])
    per_gb = problem.cards.seconds_per_gb.min(axis=1)
    release = arrival + problem.fixed_s + rows[:, DATA] * per_gb[links[:, ORIGIN]]
    best_sum, best_last = float(lone.sum()), float(lone.max())
    for chosen in _groups(problem, links[stays, MODEL]):
        sizes = rows[:, EPOCHS] * prices(problem, chosen)[links[:, MODEL]]
        priced = stays & (sizes > 0.0)
        fluid = np.sort(shortest_remaining_first(release[priced], sizes[priced]))
        ends = np.maximum(fluid, np.sort(lone[priced]))
        best_sum = max(best_sum, float(ends.sum() + lone[~priced].sum()))
        best_last = max(best_last, float(ends.max(initial=0.0)))
    if stays.all():
        signed = prices(problem, np.unique(links[:, MODEL]), exactly=True)
        best_last = max(best_last, float(release.min() + rows[:, EPOCHS] @ signed[links[:, MODEL]]))
    first = float(problem.queue.rows[start, ARRIVAL])
    return Bounds(best_last - first, (best_sum - float(arrival.sum())) / problem.jobs)


def _loses_jobs(scenario: CpnScenario) -> bool:
    return scenario.failure_rate > 0.0 or scenario.memory_check == "total"


def problem_of(scenario: CpnScenario, workload: Workload, start: int) -> Problem:
    """Make the episode from a row ready.

    Raises:
        ConfigError: When attempts can fail, or no job of it fits an empty card.
    """
    if _loses_jobs(scenario):
        raise ConfigError("attempts can fail in this scenario", "failure_rate 0 and memory_check free, for a bound")
    runtime = workload.runtime
    table: RuntimeTable = (
        runtime.table(workload.topology.card_types, workload.jobs.model_names)
        if isinstance(runtime, RuntimeModel)
        else runtime
    )
    seconds = table.select(workload.topology.card_types, workload.jobs.model_names).seconds
    cards = prepare_cards(workload.topology)
    queue = prepare_queue(workload.jobs, cards, seconds, scenario)
    episode = np.arange(start, min(start + scenario.episode_jobs, len(workload.jobs)), dtype=np.int32)
    possible = queue.shapes[queue.links[episode, SHAPE], POSSIBLE] > 0.0
    if not possible.any():
        raise ConfigError(f"no job from row {start} on fits an empty card", "at least one that does")
    return Problem(
        cards,
        queue,
        seconds,
        episode[possible],
        episode.size,
        scenario.max_jobs_per_card,
        scenario.gpu_mem_margin_gib,
        scenario.dispatch_s + scenario.startup_s,
    )


def _fastest(problem: Problem) -> Floats:
    """Return the least seconds from submission to end of each job: delay and run on one card, in any company."""
    rows, links = problem.queue.rows[problem.rows], problem.queue.links[problem.rows]
    K, T = problem.seconds.shape[:2]
    company = problem.seconds.reshape(K, T, -1).min(axis=2)  # all companies, also those that never fit: still valid
    times = delay_s(problem) + rows[:, EPOCHS, None] * company[links[:, MODEL]][:, problem.cards.type]
    fastest: Floats = np.where(holds(problem), times, np.inf).min(axis=1)
    return fastest


def delay_s(problem: Problem) -> Floats:
    """Return the seconds [jobs, cards] from the decision for a card until the job computes there."""
    rows, links = problem.queue.rows[problem.rows], problem.queue.links[problem.rows]
    return problem.fixed_s + rows[:, DATA, None] * problem.cards.seconds_per_gb[links[:, ORIGIN]][:, problem.cards.node]


def holds(problem: Problem) -> NDArray[np.bool_]:
    """Return which jobs [jobs, cards] an empty card has the memory for."""
    needs = problem.queue.shapes[problem.queue.links[problem.rows, SHAPE], 0]
    room: NDArray[np.bool_] = problem.cards.mem - problem.gpu_margin >= needs[:, None]
    return room


def _groups(problem: Problem, models: Indices) -> Iterator[Indices]:
    """Yield sets of models to price: all of them, and those that only the larger cards can hold.

    Prices of the whole queue can be 0 for models that are not the bottleneck; a group of its own prices them all.
    """
    present = np.unique(models)
    room = problem.cards.mem - problem.gpu_margin
    holders = (room[None, :] >= _needs(problem, present)[:, None]).sum(axis=1)
    for count in np.unique(holders)[::-1]:
        yield present[holders <= count]


def _needs(problem: Problem, models: Indices) -> Floats:
    """Return the least GPU memory that a job of each model needs."""
    links = problem.queue.links[problem.rows]
    gpu = problem.queue.shapes[links[:, SHAPE], 0]
    return np.array([gpu[links[:, MODEL] == model].min() for model in models])


def prices(problem: Problem, models: Indices, *, exactly: bool = False) -> Floats:
    """Return a price an epoch for each model such that all cards together work off at most 1 a second.

    Models outside the group are free. Any prices are valid once scaled; those of the fluid's linear program, found by
    the epochs the group has to run, make the bound strongest.

    Args:
        problem: The episode.
        models: The group.
        exactly: No model runs more epochs than it has: who makes others faster is used up, and its price may be
            negative. Only the worth of all jobs together, the least makespan, then means something.
    """
    from scipy.optimize import linprog

    rows = problem.queue.rows[problem.rows]
    links = problem.queue.links[problem.rows]
    work = np.bincount(links[:, MODEL], rows[:, EPOCHS], minlength=len(problem.seconds))
    types = np.unique(problem.cards.type)
    rates, of_type = _rates(problem, models, types)  # [sets, models], [sets]
    count = np.bincount(problem.cards.type)[types].astype(np.float64)
    # Variables: seconds of each set, then Z. Work in shares of each model's epochs, so that numbers are near 1.
    scaled = rates / work[models]
    capacity = np.zeros((types.size, len(rates) + 1))
    capacity[of_type, np.arange(len(rates))] = 1.0
    capacity[:, -1] = -count
    done = np.column_stack([scaled.T, np.zeros(len(models))]) / scaled.max()
    aim = np.zeros(len(rates) + 1)
    aim[-1] = 1.0
    ones, idle = np.ones(len(models)), np.zeros(types.size)
    if exactly:
        answer = linprog(aim, A_ub=capacity, b_ub=idle, A_eq=done, b_eq=ones, method="highs")
    else:
        limits, most_of_each = np.vstack([capacity, -done]), np.concatenate([idle, -ones])
        answer = linprog(aim, A_ub=limits, b_ub=most_of_each, method="highs")
    if answer.x is None:
        raise RuntimeError(f"the fluid has no solution: {answer.message}")
    share_price = answer.eqlin.marginals if exactly else np.maximum(-answer.ineqlin.marginals[types.size :], 0.0)
    price = share_price / work[models]
    # Whatever the solver's tolerance: scaled by the most the cards can really work off, the prices are valid.
    earned = rates @ price
    most = np.array([earned[of_type == t].max(initial=0.0) for t in range(types.size)])
    result = np.zeros(len(problem.seconds))
    result[models] = price / float(most @ count)
    return result


def _rates(problem: Problem, models: Indices, types: Indices) -> tuple[Floats, Indices]:
    """Return the epochs a second of each model in every set that fits a type of card, and the set's type.

    Sets hold models outside the group too.
    """
    everyone = np.unique(problem.queue.links[problem.rows, MODEL])
    need = dict(zip(everyone.tolist(), _needs(problem, everyone), strict=True))
    at = {model: column for column, model in enumerate(models.tolist())}
    rates, of_type = [], []
    for position, t in enumerate(types):
        room = problem.cards.mem[problem.cards.type == t].max() - problem.gpu_margin
        for size in range(1, problem.max_jobs + 1):
            for chosen in itertools.combinations_with_replacement(everyone.tolist(), size):
                # Rounding must not exclude a set that the environment allows.
                if at.keys().isdisjoint(chosen) or sum(need[model] for model in chosen) > room + 1e-9:
                    continue
                row = np.zeros(len(models))
                for own, model in enumerate(chosen):
                    if model not in at:
                        continue
                    others = [other + 1 for slot, other in enumerate(chosen) if slot != own] + [0, 0]
                    row[at[model]] += 1.0 / problem.seconds[model, t, others[0], others[1]]
                rates.append(row)
                of_type.append(position)
    return np.array(rates), np.array(of_type, np.int32)


def shortest_remaining_first(release: Floats, sizes: Floats) -> Floats:
    """Return the ends of jobs on one machine of speed 1 that always serves the job with the least work left."""
    order = np.argsort(release, kind="stable")
    ends = np.empty(len(sizes))
    queue: list[tuple[float, int]] = []
    now, following = 0.0, 0
    while following < order.size or queue:
        if not queue:
            now = max(now, float(release[order[following]]))
        while following < order.size and release[order[following]] <= now:
            heapq.heappush(queue, (float(sizes[order[following]]), int(order[following])))
            following += 1
        left, job = heapq.heappop(queue)
        until = float(release[order[following]]) if following < order.size else np.inf
        if now + left <= until:
            now += left
            ends[job] = now
        else:
            heapq.heappush(queue, (left - (until - now), job))
            now = until
    return ends
