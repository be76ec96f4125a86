"""The kernels against a plain simulation with objects, and what must always hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sched_env import heuristics
from sched_env.functions.contention import cold_calls, cold_ratio, factors, time_shares
from sched_env.functions.state import COST, LEAVING, NODE, ROW, TASK
from sched_env.vector import make_vec
from wire.errors import ConfigError, InfeasibleActionError

RESOURCES = ("cpu", "mem", "net", "disk")


class PlainCluster:
    """The same dynamics with a list of objects, every account entered call by call."""

    def __init__(self, env):
        self.trace, self.table, self.scenario = env.trace, env.table, env.scenario
        self.running, self.now = [], 0.0
        self.late = self.slowed = self.calls = self.cost = 0.0
        self.cold = 0
        self.billed_until = [-np.inf] * len(env.table)
        self.idle = {}

    def used(self, node):
        return [sum(getattr(self.trace, r)[row] for row, n, *_ in self.running if n == node) for r in RESOURCES]

    def ratio(self, row, node, more=None):
        used = self.used(node)
        if more is not None:
            used = [a + getattr(self.trace, r)[more] for a, r in zip(used, RESOURCES, strict=True)]
        capacity = [getattr(self.table, r)[node] for r in RESOURCES]
        shares = [a / b for a, b in zip(used, capacity, strict=True)]
        slow = factors(shares[0], capacity[0] - used[0], *shares[1:])
        weights = time_shares(self.trace.cpu[row], self.trace.net[row], self.trace.disk[row])
        return sum(w * s for w, s in zip(weights, slow, strict=True))

    def enter(self, row, calls, ratio, late):
        self.calls += calls
        self.slowed += calls * ratio
        self.late += late

    def settle(self, until):
        """Let time pass: between two events of the whole cluster nothing changes anywhere."""
        for row, node, _, rate in self.running:
            ratio = self.ratio(row, node)
            calls = rate * (until - self.now)
            slo = self.trace.slo_s[row] / self.trace.response_s[row]
            self.enter(row, calls, ratio, calls if ratio > slo else 0.0)
        self.now = until

    def leave_until(self, time):
        while self.running and min(leave for _, _, leave, _ in self.running) <= time:
            first = min(self.running, key=lambda entry: entry[2])
            self.settle(first[2])
            self.running.remove(first)
            key = (int(self.trace.function[first[0]]), first[1])
            count, until = self.idle.get(key, (0, -np.inf))
            self.idle[key] = (count + 1 if until > self.now else 1, self.now + self.scenario.keep_alive_s)
        if time < np.inf:
            self.settle(time)

    def place(self, row, node):
        trace, scenario = self.trace, self.scenario
        contended = self.ratio(row, node, more=row)
        key = (int(trace.function[row]), node)
        count, until = self.idle.get(key, (0, -np.inf))
        requests, duration, response = float(trace.requests[row]), trace.duration_s[row], trace.response_s[row]
        waiting, r1 = 0.0, contended
        if until > self.now and count > 0:
            self.idle[key] = (count - 1, until)
        else:
            waiting = cold_calls(scenario.cold_start_s, duration, requests)
            added = cold_ratio(scenario.cold_start_s, duration, requests, response)
            r1 += added
            # Calls come one at once, the others evenly; a call that comes s seconds later waits s seconds less.
            slack = trace.slo_s[row] - contended * response
            held_up = min(max(scenario.cold_start_s - slack, 0.0), scenario.cold_start_s, duration)
            late = 1.0 + (requests - 1.0) / duration * held_up if scenario.cold_start_s > slack else 0.0
            self.enter(row, waiting, contended + added * requests / waiting, late)
            self.cold += 1
        self.running.append((row, node, self.now + duration, (requests - waiting) / duration))
        billed = max(self.billed_until[node], self.now)
        end = self.now + duration + scenario.cooldown_s
        extension = max(end - billed, 0.0)
        self.billed_until[node] = max(end, self.billed_until[node])
        price = self.table.price_usd_per_hour[node]
        self.cost += price * extension / 3600.0
        r2 = price * extension / (duration + scenario.cooldown_s)
        return r1, r2

    def reward(self, r1, r2):
        low, high = self.scenario.r1_range
        low2, high2 = self.scenario.r2_range
        first = min(max((r1 - low) / (high - low), 0.0), 1.0)
        second = min(max((r2 - low2) / (high2 - low2), 0.0), 1.0)
        return -(self.scenario.beta * first + (1.0 - self.scenario.beta) * second)


@pytest.mark.parametrize(("seed", "load"), [(0, 0.4), (1, 0.8), (2, 1.2)])
def test_an_episode_equals_a_plain_simulation_of_it(seed, load):
    env = make_vec(
        "functions/serverless", 1, seed, nodes=4, functions=6, load=load, horizon=150, trace_rows=400, trace_seed=seed
    )
    env.reset(options={"starts": [50], "park": True})
    plain, rng, total, rejected = PlainCluster(env), np.random.default_rng(seed), 0.0, 0
    plain.now = env.trace.arrival_s[50]
    for _ in range(150):
        row = int(env.state.cursor[0, ROW])
        plain.leave_until(env.trace.arrival_s[row])
        node = int(rng.choice(np.flatnonzero(env.buffers.mask[0])))
        r1, r2 = plain.place(row, node)
        env.step(np.array([node]))
        assert env.state.last[0, 0] == pytest.approx(r1, rel=1e-12)
        assert env.state.last[0, 1] == pytest.approx(r2, rel=1e-9, abs=1e-12)
        missed = int(env.state.last[0, 3])
        rejected += missed
        assert env.buffers.reward[0] == pytest.approx(plain.reward(r1, r2) - missed, rel=1e-9, abs=1e-12)
        total += env.buffers.reward[0]
        if not env.buffers.active[0]:
            break
    plain.leave_until(np.inf)
    metrics = dict(zip(env.METRICS, env.buffers.metrics[0].tolist(), strict=True))
    arrived = env.trace.requests[50:200].sum()
    assert metrics["requests"] == arrived
    assert metrics["placed"] + metrics["rejected"] == 150
    assert metrics["rejected"] == rejected
    assert metrics["return"] == pytest.approx(total, rel=1e-12)
    assert metrics["cost_usd"] == pytest.approx(plain.cost, rel=1e-9)
    assert metrics["cold_starts"] == plain.cold
    assert metrics["response_ratio"] == pytest.approx(plain.slowed / plain.calls, rel=1e-9)
    late = metrics["sla_violation_rate"] * arrived
    assert late - (arrived - plain.calls) == pytest.approx(plain.late, rel=1e-6, abs=1e-6)


def check_conservation(env):
    """Compare each environment's sums with what is running, and the running with what the trace says."""
    for b in range(env.num_envs):
        slots = env.state.leaving[b, : env.state.cursor[b, LEAVING], 1].astype(int)
        assert len(set(slots.tolist())) == len(slots)
        nodes, rows = env.state.links[b, slots, NODE], env.state.links[b, slots, TASK]
        for column, resource in enumerate(RESOURCES):
            sums = np.bincount(nodes, getattr(env.trace, resource)[rows], len(env.table))
            np.testing.assert_allclose(env.state.nodes[b, :, column], sums, rtol=0, atol=1e-9)
        np.testing.assert_array_equal(env.state.nodes[b, :, 4], np.bincount(nodes, minlength=len(env.table)))
        requests = np.bincount(
            env.trace.function[rows], env.trace.requests[rows], minlength=len(env.trace.function_names)
        )
        np.testing.assert_array_equal(env.state.functions[b, :, 0], requests)
    used = env.state.nodes[:, :, :2]
    assert (used <= np.stack([env.table.cpu, env.table.mem], 1) + 1e-9).all()
    assert (used >= -1e-9).all()
    assert np.isfinite(env.buffers.candidates).all()
    assert np.isfinite(env.buffers.reward).all()


def adversary(env, rng, steps):
    """Step at random, towards the fullest node, or towards the emptiest, changing one's mind now and then."""
    for step in range(steps):
        if step % 50 == 0:
            mood = rng.integers(3)
        taste = {
            0: rng.random(env.buffers.mask.shape),
            1: env.buffers.candidates[..., 7],
            2: -env.buffers.candidates[..., 7],
        }
        env.step(np.where(env.buffers.mask, taste[int(mood)], -np.inf).argmax(1))
        assert (env.buffers.feasible > 0).all(), "a decision without a feasible node"


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000), load=st.floats(0.1, 2.5), nodes=st.integers(1, 8), keep=st.sampled_from([0.0, 30.0])
)
def test_resources_are_conserved_whatever_the_actions(seed, load, nodes, keep):
    env = make_vec(
        "functions/serverless", 4, seed, nodes=nodes, functions=5, load=load, trace_rows=600, trace_seed=seed,
        horizon=200, keep_alive_s=keep, cooldown_s=keep,
    )  # fmt: skip
    env.reset()
    rng = np.random.default_rng(seed)
    for _ in range(4):
        adversary(env, rng, 80)
        check_conservation(env)


@pytest.mark.soak
def test_a_million_adversarial_steps_break_nothing():
    env = make_vec("functions/serverless", 64, 1, load=0.9)
    env.reset()
    rng = np.random.default_rng(1)
    for _ in range(1_000_000 // (64 * 250)):
        adversary(env, rng, 250)
        check_conservation(env)


def test_the_observation_equals_a_rebuild_from_raw_state_bit_for_bit():
    env = make_vec("functions/serverless", 3, 5, load=0.8)
    env.reset()
    rng = np.random.default_rng(5)
    for _ in range(10):
        adversary(env, rng, 40)
        for b in range(3):
            whole = env.rebuild(b)
            np.testing.assert_array_equal(env.buffers.candidates[b], whole.candidates)
            np.testing.assert_array_equal(env.buffers.request[b], whole.request)
            np.testing.assert_array_equal(env.buffers.mask[b], whole.mask)


def test_the_same_seed_gives_the_same_bits_whatever_the_batch_size():
    def rewards(batch):
        env = make_vec("functions/serverless", batch, 9, horizon=40)
        env.reset()
        rule = heuristics.batch("least_allocated", env)
        seen = []
        for _ in range(100):  # two episodes and a half: restarts are compared too
            env.step(rule())
            seen.append(
                (env.buffers.reward[:2].copy(), env.buffers.candidates[:2].copy(), env.buffers.start[:2].copy())
            )
        return seen

    for small, large in zip(rewards(2), rewards(7), strict=True):
        for one, other in zip(small, large, strict=True):
            np.testing.assert_array_equal(one, other)


def test_an_infeasible_action_raises_and_changes_nothing(one, tasks):
    env = one(tasks([0.0, 1.0, 2.0], cpu=[3.0, 3.0, 1.0]))
    env.step(np.array([0]))
    before = [array.copy() for array in (*env.state, *env.buffers)]
    for action in (0, -1, 2):
        with pytest.raises(InfeasibleActionError, match="nothing was changed"):
            env.step(np.array([action]))
    for old, new in zip(before, (*env.state, *env.buffers), strict=True):
        np.testing.assert_array_equal(old, new)


def test_one_infeasible_action_of_many_stops_all(two_nodes, tasks):
    env = make_vec("functions/serverless", 2, 0, (tasks([0.0, 1.0], cpu=5.0), two_nodes), horizon=0)
    env.reset(options={"starts": [0, 0]})
    with pytest.raises(InfeasibleActionError, match="environment 1"):
        env.step(np.array([1, 0]))
    assert env.state.nodes[:, :, 0].sum() == 0.0


def test_a_node_can_be_filled_exactly(one, tasks):
    env = one(tasks([0.0] * 11, cpu=0.4, mem=0.1))
    for _ in range(10):
        assert env.buffers.mask[0, 0]
        env.step(np.array([0]))
    assert not env.buffers.mask[0, 0]


def test_an_arrival_that_fits_nowhere_is_rejected_and_time_goes_on(one, tasks, play):
    env = one(
        tasks([0.0, 1.0, 2.0, 3.0], cpu=[4.0, 8.0, 5.0, 1.0], duration_s=[10.0, 1.5, 10.0, 10.0]), rejection_penalty=1.0
    )
    env.step(np.array([0]))
    env.step(np.array([1]))  # now both are full, and the third arrival asks for five cores
    assert env.state.last[0, 3] == 1.0
    assert env.buffers.reward[0] < -1.0
    assert env.state.cursor[0, ROW] == 3, "the fourth arrival comes after the large node is free again"
    metrics = play(env, [1])
    assert (metrics["placed"], metrics["rejected"], metrics["requests"]) == (3, 1, 400)
    assert metrics["sla_violation_rate"] >= 0.25, "all calls of a rejected instance are violations"


def test_the_end_of_the_trace_truncates(one, tasks):
    env = one(tasks([0.0, 1.0]))
    env.step(np.array([0]))
    *_, terminated, truncated, infos = env.step(np.array([1]))
    assert (bool(terminated[0]), bool(truncated[0])) == (False, True)
    assert infos["episode"]["ended"][0] == 1
    assert np.isfinite(infos["final_obs"]["candidates"]).all()


def test_episode_s_cuts_an_episode_by_time(one, tasks, play):
    env = one(tasks([0.0, 5.0, 9.0, 10.0, 11.0]), episode_s=10.0)
    assert play(env, [0, 1, 0])["placed"] == 3


def test_every_policy_is_measured_on_the_same_calls():
    def requests(policy):
        env = make_vec("functions/serverless", 8, 0, load=1.5, horizon=200)
        env.reset(options={"starts": np.arange(8) * 300, "park": True})
        rule = heuristics.batch(policy, env)
        while env.buffers.active.any():
            env.step(rule())
        return env.buffers.metrics[:, 3], env.buffers.metrics[:, 10]

    (calls, rejected), (others, _) = requests("first_fit"), requests("least_allocated")
    assert rejected.sum() > 0
    np.testing.assert_array_equal(calls, others)


def test_a_neighbour_makes_the_calls_of_those_already_running_late(one, tasks, play):
    two = tasks([0.0, 50.0], cpu=[2.0, 2.0], mem=[3.9, 3.9], slo_s=0.6)
    together, apart = play(one(two), [0, 0]), play(one(two), [0, 1])
    assert apart["sla_violation_rate"] == 0.0
    # Half of the first one's life, and of the second one's, is spent together on a full node.
    assert together["sla_violation_rate"] == pytest.approx(0.5)
    assert together["response_ratio"] > apart["response_ratio"]


def test_an_idle_node_is_billed_while_it_cools_down_and_then_no_longer(one, tasks, play):
    # 100 s of life and 60 s of cooling down; the second comes 40 s after that: two separate bills.
    apart = play(one(tasks([0.0, 200.0])), [0, 0])
    assert apart["cost_usd"] == pytest.approx(0.2 * 320.0 / 3600.0)
    # The second comes 30 s into the cool-down: one bill of 130 + 100 + 60 s.
    joined = play(one(tasks([0.0, 130.0])), [0, 0])
    assert joined["cost_usd"] == pytest.approx(0.2 * 290.0 / 3600.0)


def test_r2_is_the_price_of_a_node_that_is_opened_and_nothing_on_one_that_stays(one, tasks):
    env = one(tasks([0.0, 10.0, 20.0], duration_s=[100.0, 50.0, 100.0]))
    env.step(np.array([0]))
    assert env.state.last[0, 1] == pytest.approx(0.2)
    env.step(np.array([0]))
    assert env.state.last[0, 1] == 0.0
    env.step(np.array([0]))  # prolongs the bill by 20 of its 160 s
    assert env.state.last[0, 1] == pytest.approx(0.2 * 20.0 / 160.0)


@pytest.mark.parametrize(("kind", "expected"), [("instant", [0.2, 0.0, 0.4]), ("price", [0.2, 0.2, 0.4])])
def test_r2_of_the_instant_and_as_a_price(one, tasks, kind, expected):
    env = one(tasks([0.0, 10.0, 20.0]), r2=kind)
    seen = []
    for action in (0, 0, 1):
        env.step(np.array([action]))
        seen.append(env.state.last[0, 1])
    assert seen == pytest.approx(expected)


def test_cost_changes_add_up_to_the_bill():
    env = make_vec("functions/serverless", 1, 0, horizon=0, trace_rows=300)
    env.reset(options={"starts": [0], "park": True})
    rule, total = heuristics.batch("random_feasible", env, 0), 0.0
    while env.buffers.active[0]:
        span = env.trace.duration_s[env.state.cursor[0, ROW]] + env.scenario.cooldown_s
        env.step(rule())
        total += env.state.last[0, 1] * span / 3600.0
    assert env.state.totals[0, COST] == pytest.approx(total, rel=1e-9)


def test_a_warm_container_saves_the_cold_start_until_it_expires(one, tasks, play):
    trace = tasks([0.0, 101.0, 300.0], requests=101, response_s=1.0)
    assert play(one(trace, cold_start_s=10.0, keep_alive_s=50.0), [0, 0, 0])["cold_starts"] == 2
    assert play(one(trace, cold_start_s=10.0, keep_alive_s=150.0), [0, 0, 0])["cold_starts"] == 1
    assert play(one(trace, cold_start_s=10.0, keep_alive_s=150.0), [0, 1, 0])["cold_starts"] == 3


def test_a_container_that_is_in_use_is_not_idle(one, tasks, play):
    env = one(tasks([0.0, 101.0, 102.0]), cold_start_s=1.0, keep_alive_s=600.0)
    assert play(env, [0, 0, 0])["cold_starts"] == 2


def test_containers_serve_their_own_function_only(one, tasks, play):
    env = one(tasks([0.0, 101.0], function=[0, 1]), cold_start_s=1.0)
    assert play(env, [0, 0])["cold_starts"] == 2


def test_calls_held_up_by_a_cold_start_are_late(one, tasks, play):
    # One call at once, then one a second; SLO 2 s, own time 1 s: those that wait longer than 1 s are late.
    env = one(tasks([0.0], requests=101, response_s=1.0), cold_start_s=10.0)
    contended = 1.0 + 0.25**4 / 3.5
    slack = 2.0 - contended
    assert play(env, [0])["sla_violation_rate"] == pytest.approx((1.0 + (10.0 - slack)) / 101.0)


def test_a_trace_that_fits_nowhere_is_refused(two_nodes, tasks):
    with pytest.raises(ConfigError, match="fits an empty node"):
        make_vec("functions/serverless", 1, 0, (tasks([0.0], cpu=9.0), two_nodes))


def test_a_start_beyond_the_trace_or_without_a_decision_is_refused(two_nodes, tasks):
    env = make_vec("functions/serverless", 1, 0, (tasks([0.0, 1.0], cpu=[1.0, 9.0]), two_nodes), horizon=0)
    with pytest.raises(ConfigError, match="beyond the trace"):
        env.reset(options={"starts": [2]})
    with pytest.raises(ConfigError, match="start 1"):
        env.reset(options={"starts": [1]})


class TestExceeded:
    """The small node's network (1,000 MB/s) is asked for 1,200 until the first instance leaves after 100 s."""

    def test_a_node_of_which_more_is_asked_than_it_has_is_inactive_until_enough_has_left(self, one, tasks):
        env = one(tasks([0.0, 1.0, 2.0, 150.0], net=[700.0, 500.0, 0.0, 0.0]), exceeded="inactive")
        env.step(np.array([0]))
        assert env.active(0).all()
        env.step(np.array([0]))
        assert env.active(0).tolist() == env.buffers.mask[0].tolist() == [False, True]
        assert env.rebuild(0).mask.tolist() == [False, True]
        env.step(np.array([1]))
        assert env.active(0).tolist() == env.buffers.mask[0].tolist() == [True, True]

    def test_by_default_it_is_only_slow(self, one, tasks):
        env = one(tasks([0.0, 1.0, 2.0], net=[700.0, 500.0, 0.0]))
        env.step(np.array([0]))
        env.step(np.array([0]))
        assert env.buffers.mask[0].all()

    def test_arrivals_are_rejected_while_every_node_is_inactive(self, one, tasks, play):
        env = one(tasks([0.0, 1.0, 2.0, 150.0], net=[1200.0, 1200.0, 0.0, 0.0]), exceeded="inactive")
        sheet = play(env, [0, 1, 0])
        assert (sheet["placed"], sheet["rejected"]) == (3, 1)
