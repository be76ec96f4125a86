"""Optima of jobs against every order of events, against the environment, and replayed there."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from sched_env import scenarios
from sched_env.jobs import bounds
from sched_env.jobs import synthetic as synthetic_jobs
from sched_env.jobs.optimum import METRICS, NOWHERE, exclusive_optimum, optimum
from sched_env.jobs.runtime import RuntimeModel
from sched_env.jobs.tables import JobTrace
from sched_env.jobs.workload import Workload
from sched_env.vector import make_vec
from wire.errors import ConfigError

MODELS = {"small": (0.1, 0.4, 3.0), "medium": (0.2, 0.8, 6.0), "llm": (5.0, 1.0, 12.0)}
"""Seconds an epoch alone on a card of speed 1, share of it that is kept busy, GiB."""
NAMES = tuple(MODELS)
COMPANY = ("slows", "helps")


def predictor(company):
    def predict(card_type, models):
        speed = {"RTX4090": 1.0, "P100": 0.5, "A100": 1.1}[card_type]
        excess = max(sum(MODELS[m][1] for m in models) - 0.6, 0.0) if len(models) > 1 else 0.0
        helped = [0.5 if company == "helps" and len(models) > 1 and m == "llm" else 1.0 for m in models]
        return [MODELS[m][0] / speed * (1.0 + excess) * h for m, h in zip(models, helped, strict=True)]

    return predict


def workload_of(models, epochs, counts, arrival=0.0, gb=0.0, company="slows"):
    size, where = len(models), synthetic_jobs.topology(counts)
    trace = JobTrace(
        arrival_s=np.broadcast_to(arrival, size).astype(float), model=np.array(models, np.int32),
        epochs=np.array(epochs, float), gpu_mem=np.array([MODELS[NAMES[m]][2] for m in models]),
        data_gb=np.broadcast_to(gb, size).astype(float), model_names=NAMES,
    )  # fmt: skip
    return Workload(trace, where, RuntimeModel(predictor(company)).table(where.card_types, NAMES))


def random_workload(seed, jobs, counts, spread_s=0.0, gb=0.0, company="slows"):
    rng = np.random.default_rng(seed)
    models = rng.integers(0, 3, jobs)
    epochs = np.where(models == 2, rng.integers(5, 40, jobs), rng.integers(100, 1500, jobs))
    arrival = np.sort(rng.uniform(0.0, spread_s, jobs)) if spread_s else 0.0
    return workload_of(models, epochs, counts, arrival, rng.uniform(0.0, gb, jobs), company)


def scenario_of(workload, **keys):
    return scenarios.load("jobs/cpn", {"episode_jobs": len(workload.jobs), **keys})


class Trial:
    """The best of all schedules by trying every assignment and, on each card, every order of events.

    For an order of events the times of the events are a linear program of their own.
    """

    def __init__(self, workload, scenario):
        self.jobs, self.where, self.table = workload.jobs, workload.topology, workload.runtime
        self.most, self.margin = scenario.max_jobs_per_card, scenario.gpu_mem_margin_gib
        self.fixed_s = scenario.dispatch_s + scenario.startup_s
        self.known = {}

    def best(self):
        """Return the last end and the sum of ends, each the least."""
        size, cards = len(self.jobs), len(self.where.cards)
        found = [np.inf, np.inf]
        for places in itertools.product(range(cards), repeat=size):
            ends = [self.card(c, tuple(j for j in range(size) if places[j] == c)) for c in range(cards)]
            found[0] = min(found[0], max(last for last, _ in ends))
            found[1] = min(found[1], sum(total for _, total in ends))
        return found

    def card(self, c, jobs):
        if not jobs:
            return 0.0, 0.0
        if (c, jobs) not in self.known:
            results = [self.times(c, order) for order in self.orders(c, jobs, [], dict.fromkeys(jobs, 0))]
            self.known[c, jobs] = tuple(min((r[k] for r in results), default=np.inf) for k in range(2))
        return self.known[c, jobs]

    def moves(self, c, j):
        gb, origin = self.jobs.data_gb[j], self.jobs.origin[j]
        return self.fixed_s + gb * self.where.seconds_per_gb()[origin, self.where.card_node[c]]

    def orders(self, c, jobs, events, phase):
        """Yield all orders of (job, phase it enters): 1 held (left out without data to move), 2 running, 3 gone."""
        if all(p == 3 for p in phase.values()):
            yield list(events)
        for j in jobs:
            if phase[j] == 3:
                continue
            following = phase[j] + (2 if phase[j] == 0 and self.moves(c, j) == 0.0 else 1)
            held = [i for i in jobs if phase[i] in (1, 2)]
            if phase[j] == 0:
                held.append(j)
                memory = self.jobs.gpu_mem[held].sum()
                if len(held) > self.most or memory > self.where.card_mem[c] - self.margin:
                    continue
            yield from self.orders(c, jobs, [*events, (j, following)], {**phase, j: following})

    def pace(self, c, j, running):
        others = [self.jobs.model[i] + 1 for i in running if i != j] + [0, 0]
        return self.table.seconds[self.jobs.model[j], self.where.card_type[c], others[0], others[1]]

    def times(self, c, events):
        """Return the least last end and sum of ends with events in this order; infinite when it is impossible."""
        size = len(events)
        at = {event: k for k, event in enumerate(events)}
        jobs = sorted({j for j, _ in events})
        later = np.zeros((size - 1, size))
        later[np.arange(size - 1), np.arange(size - 1)] = 1.0
        later[np.arange(size - 1), np.arange(1, size)] = -1.0
        work, epochs, running = np.zeros((len(jobs), size)), self.jobs.epochs[jobs], []
        moving, delay = np.zeros((len(jobs), size)), np.zeros(len(jobs))
        for k, (j, phase) in enumerate(events):
            for own in running:  # until this event since the one before
                rate = 1.0 / self.pace(c, own, running)
                work[jobs.index(own), k] += rate
                work[jobs.index(own), k - 1] -= rate
            running = [*running, j] if phase == 2 else [i for i in running if i != j or phase != 3]
            if phase == 2 and (j, 1) in at:
                moving[jobs.index(j), [k, at[j, 1]]] = [1.0, -1.0]
                delay[jobs.index(j)] = self.moves(c, j)
        limits = [(self.jobs.arrival_s[j], None) for j, _ in events]
        result = []
        for aim in (np.eye(size)[-1], np.array([float(phase == 3) for _, phase in events])):
            answer = linprog(
                aim, A_ub=later, b_ub=np.zeros(size - 1), A_eq=np.vstack([work, moving]),
                b_eq=np.concatenate([epochs, delay]), bounds=limits,
            )  # fmt: skip
            result.append(answer.fun if answer.x is not None else np.inf)
        return result


CASES = [
    # jobs, cards, spread of submissions, most data, company, settings
    (3, {"RTX4090": 1, "P100": 1}, 0.0, 0.0, "slows", {}),
    (3, {"RTX4090": 1, "P100": 1}, 100.0, 0.0, "slows", {}),
    (3, {"RTX4090": 1, "P100": 1}, 100.0, 0.0, "helps", {}),
    (3, {"RTX4090": 2}, 50.0, 0.0, "helps", {"max_jobs_per_card": 2}),
    (4, {"RTX4090": 1}, 0.0, 0.0, "slows", {}),
    (3, {"RTX4090": 1}, 60.0, 5.0, "slows", {"max_jobs_per_card": 2}),
    (2, {"RTX4090": 1, "P100": 1}, 60.0, 9.0, "helps", {"dispatch_s": 20.0, "startup_s": 7.0}),
    (3, {"P100": 1}, 0.0, 5.0, "slows", {"max_jobs_per_card": 2, "startup_s": 30.0}),
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_optimum_is_that_of_trying_every_order_of_events(case, seed):
    size, counts, spread_s, gb, company, keys = case
    workload = random_workload(seed, size, counts, spread_s, gb, company)
    scenario = scenario_of(workload, **keys)
    last, total = Trial(workload, scenario).best()
    arrival = workload.jobs.arrival_s
    expected = (last - arrival[0], (total - arrival.sum()) / size)
    for metric, value in zip(METRICS, expected, strict=True):
        found = optimum(scenario, workload, metric=metric, time_limit_s=300.0)
        assert found.proved
        assert found.value == pytest.approx(value, rel=1e-6)
        assert getattr(bounds.lower(scenario, workload), metric) <= value * (1 + 1e-9)


def replayed(workload, scenario, found):
    """Let the environment run a schedule: every job is submitted when it is to be put on its card."""
    order = np.argsort(found.begin_s, kind="stable")
    begin_s = found.begin_s[order] + 1e-6 * np.arange(order.size)  # after those that end at that moment have left
    columns = {
        name: getattr(workload.jobs, name)[order] for name in ("model", "epochs", "gpu_mem", "data_gb", "origin")
    }
    jobs = JobTrace(arrival_s=begin_s, model_names=NAMES, **columns)
    env = make_vec(scenario, 1, trace=workload._replace(jobs=jobs))
    env.reset(options={"starts": [0], "park": True})
    for card in found.card[order]:
        assert env.buffers.mask[0, card]
        *_, infos = env.step([card])
    last = infos["episode"]["makespan_s"][0] + begin_s[0]
    total = infos["episode"]["mean_completion_s"][0] * order.size + begin_s.sum()
    arrival = workload.jobs.arrival_s
    return dict(zip(METRICS, (last - arrival[0], (total - arrival.sum()) / order.size), strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_no_policy_beats_the_optimum_and_the_environment_runs_its_schedule(seed, every_schedule):
    counts = {"RTX4090": 1, "P100": 1} if seed % 2 else {"RTX4090": 1, "A100": 1}
    delays = {"dispatch_s": 10.0, "startup_s": 5.0} if seed == 4 else {}
    workload = random_workload(seed, 4, counts, [0.0, 60.0][seed % 2], [0.0, 4.0][seed % 3 == 1], COMPANY[seed // 3])
    scenario = scenario_of(workload, **delays)
    reached = [every_schedule(workload, queue_order=order, **delays) for order in ("fifo", "shortest")]
    for k, metric in enumerate(METRICS):
        found = optimum(scenario, workload, metric=metric, time_limit_s=300.0)
        assert found.proved
        assert found.value <= min(values[k] for values in reached) + 1e-6
        assert replayed(workload, scenario, found)[metric] == pytest.approx(found.value, rel=1e-6)


def test_an_environment_that_can_do_nothing_better_reaches_the_optimum(every_schedule):
    # All at once, no transfers, room for everybody: who places without delay loses nothing.
    workload = workload_of([0, 1, 0], [500, 300, 800], {"RTX4090": 1, "P100": 1})
    scenario = scenario_of(workload)
    values = [optimum(scenario, workload, metric=metric).value for metric in METRICS]
    assert every_schedule(workload) == pytest.approx(values)


def test_waiting_for_a_short_job_is_better_than_what_the_environment_can_do(every_schedule):
    # A second after the long job comes a short one; the environment cannot let the card wait for it.
    workload = workload_of([2, 0], [40, 100], {"RTX4090": 1}, arrival=[0.0, 1.0])
    scenario = scenario_of(workload, max_jobs_per_card=1)
    _, completion = every_schedule(workload, max_jobs_per_card=1)
    assert completion == pytest.approx((200.0 + 209.0) / 2)
    found = optimum(scenario, workload, metric="mean_completion_s")
    assert found.value == pytest.approx((211.0 + 10.0) / 2)
    assert found.begin_s == pytest.approx([11.0, 1.0])


def test_data_come_while_others_run():
    # 102.4 s of transfer each, 100 s of run, two places: the second's data come while the first runs.
    workload = workload_of([1, 1], [500, 500], {"RTX4090": 1}, gb=10.0)
    found = optimum(scenario_of(workload), workload, metric="makespan_s")
    apart = optimum(scenario_of(workload, max_jobs_per_card=1), workload, metric="makespan_s")
    assert apart.value == pytest.approx(2 * 202.4)
    assert found.value == pytest.approx(102.4 + 200.0)


@pytest.mark.parametrize("seed", range(3))
def test_with_one_job_a_card_it_is_the_exclusive_optimum(seed):
    workload = random_workload(seed, 5, {"RTX4090": 1, "A100": 2}, gb=3.0)
    scenario = scenario_of(workload, max_jobs_per_card=1)
    exclusive = exclusive_optimum(scenario, workload)
    for metric in METRICS:
        assert optimum(scenario, workload, metric=metric).value == pytest.approx(getattr(exclusive, metric), rel=1e-6)


def test_jobs_that_fit_no_card_fail_when_they_come(every_schedule):
    workload = workload_of([0, 2, 0], [100, 10, 200], {"RTX4090": 1}, arrival=[0.0, 500.0, 10.0 + 490.0])
    jobs = replace(workload.jobs, gpu_mem=np.array([3.0, 99.0, 3.0]), arrival_s=np.array([0.0, 500.0, 500.0]))
    workload = workload._replace(jobs=jobs)
    values = [optimum(scenario_of(workload), workload, metric=metric) for metric in METRICS]
    assert values[0].card.tolist() == [0, NOWHERE, 0]
    assert every_schedule(workload) == pytest.approx([found.value for found in values])


def test_when_a_queue_begins_changes_nothing_but_the_times():
    workload = random_workload(3, 4, {"RTX4090": 1, "P100": 1}, 60.0)
    before = np.concatenate([[0.0], workload.jobs.arrival_s + 1e7])
    columns = {name: getattr(workload.jobs, name) for name in ("model", "epochs", "gpu_mem", "data_gb", "origin")}
    longer = {name: np.concatenate([values[:1], values]) for name, values in columns.items()}
    late = workload._replace(jobs=JobTrace(arrival_s=before, model_names=NAMES, **longer))
    for metric in METRICS:
        early = optimum(scenario_of(workload), workload, metric=metric)
        found = optimum(scenario_of(workload), late, start=1, metric=metric)
        assert found.value == pytest.approx(early.value, rel=1e-7)
        assert found.proved


def test_a_search_without_time_still_gives_a_valid_bound():
    workload = random_workload(0, 4, {"RTX4090": 1, "A100": 1})
    for metric in METRICS:
        stopped = optimum(scenario_of(workload), workload, metric=metric, time_limit_s=0.0)
        assert stopped.bound >= getattr(bounds.lower(scenario_of(workload), workload), metric)
        assert stopped.bound <= optimum(scenario_of(workload), workload, metric=metric).value
        assert stopped.value >= stopped.bound


def test_what_the_search_does_not_cover_is_refused():
    workload = random_workload(0, 3, {"RTX4090": 1})
    scenario = scenario_of(workload)
    with pytest.raises(ConfigError, match="11 jobs"):
        optimum(scenarios.load("jobs/cpn"), random_workload(0, 11, {"RTX4090": 1}))
    with pytest.raises(ConfigError, match="one of makespan_s, mean_completion_s"):
        optimum(scenario, workload, metric="cost_usd")
    withdrawn = workload._replace(jobs=replace(workload.jobs, cancel_s=np.array([np.inf, 5.0, np.inf])))
    for solve in (optimum, exclusive_optimum):
        with pytest.raises(ConfigError, match="withdraw"):
            solve(scenario, withdrawn)
    for crowded in ({"cpu": np.full(3, 20.0)}, {"mem": np.full(3, 60.0)}):
        with pytest.raises(ConfigError, match="node 0"):
            optimum(scenario, workload._replace(jobs=replace(workload.jobs, **crowded)))
    with pytest.raises(ConfigError, match="can fail"):
        optimum(scenario_of(workload, failure_rate=0.1), workload)
    with pytest.raises(ConfigError, match="horizon 2"):
        optimum(scenario_of(workload, horizon=2), workload)
    three = workload_of([0, 0, 0], [100, 100, 100], {"RTX4090": 1})
    seconds = three.runtime.seconds.copy()
    seconds[0, 0, 0, 1] = seconds[0, 0, 1, 0] = np.inf  # three can share a card that two cannot
    broken = three._replace(runtime=replace(three.runtime, seconds=seconds))
    with pytest.raises(ConfigError, match="a part cannot run"):
        optimum(scenario_of(three), broken)


@pytest.mark.parametrize("seed", range(8))
def test_the_exclusive_optimum_is_that_of_trying_every_assignment(seed):
    workload = random_workload(seed, 6, {"RTX4090": 1, "P100": 1, "A100": 1})
    scenario = scenarios.load("jobs/cpn", {"episode_jobs": 6, "max_jobs_per_card": 1})
    optimum = exclusive_optimum(scenario, workload)
    trace, where, table = workload.jobs, workload.topology, workload.runtime
    per_gb = where.seconds_per_gb()
    times = np.array(
        [
            [
                trace.data_gb[j] * per_gb[trace.origin[j], where.card_node[c]]
                + trace.epochs[j] * table.seconds[trace.model[j], where.card_type[c], 0, 0]
                if where.card_mem[c] - 1.0 >= trace.gpu_mem[j]
                else np.inf
                for c in range(3)
            ]
            for j in range(6)
        ]
    )
    makespan, completion = np.inf, np.inf
    for chosen in itertools.product(range(3), repeat=6):
        spent = times[np.arange(6), chosen]
        makespan = min(makespan, max(spent[np.array(chosen) == c].sum() for c in range(3)))
        total = sum(np.cumsum(np.sort(spent[np.array(chosen) == c])).sum() for c in range(3))
        completion = min(completion, total / 6)
    assert optimum.makespan_s == pytest.approx(makespan)
    assert optimum.mean_completion_s == pytest.approx(completion)
    assert bounds.lower(scenario, workload).makespan_s <= makespan + 1e-6
    assert bounds.lower(scenario, workload).mean_completion_s <= completion + 1e-6


def test_an_exclusive_optimum_of_something_large_is_refused():
    with pytest.raises(ConfigError, match="at most 12"):
        exclusive_optimum(scenarios.load("jobs/cpn"), random_workload(0, 13, {"RTX4090": 1}))
