"""Random and adversarial steps: nothing overbooked, nothing early, and what the policy sees is the truth."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sched_env.tables import NodeTable
from sched_env.vector import make_vec
from sched_env.workflow.env import WorkflowEnv, WorkflowPlanEnv
from sched_env.workflow.features import SPEC
from sched_env.workflow.state import CPU, FINISH, FIRST, FLOW, MEM, NEXT, NODE, PRICE, SECONDS_PER_MB, START
from sched_env.workflow.tables import Dag, Surroundings
from wire.errors import InfeasibleActionError

BATCH = 16
SOAK_STEPS = 62_500  # a million environment steps
SETTINGS = {
    "plain": {},
    "crowded": {"nodes": 2, "tasks": 60},
    "one node": {"nodes": 1, "tasks": 30},
    "many nodes": {"nodes": 30, "tasks": 20},
    "much data": {"data_share": 5.0},
    "chains": {"shape": "chain", "tasks": 10},
    "fans in the order of the trace": {"shape": "fan", "order": "trace"},
    "cut": {"horizon": 7},
    "money": {"beta": 0.2, "shape": "layered"},
    "among others": {"others": True, "nodes": 6, "dispatch_s": 3.5},
}


def check(env):
    """Hold the invariants, counted again from where and when tasks were placed."""
    plan, state = env.plan, env.state
    assert np.isfinite(env.buffers.candidates).all()
    assert np.isfinite(env.buffers.request).all()
    assert np.isfinite(env.buffers.metrics).all()
    for b in range(env.num_envs):
        first, number = int(state.cursor[b, FIRST]), int(state.cursor[b, NEXT])
        placed, needs = state.placed[b, :number], plan.tasks[first : first + number, [CPU, MEM]]
        node, start, finish = placed[:, NODE].astype(int), placed[:, START], placed[:, FINISH]
        cost, flow = 0.0, int(state.cursor[b, FLOW])
        others = plan.there[plan.there_first[flow] : plan.there_first[flow + 1]]
        for n in range(len(env.table)):
            there = np.flatnonzero((node == n) & (finish > start))
            for moment in start[there]:
                running = there[(start[there] <= moment) & (moment < finish[there])]
                beside = others[(others[:, 0] == n) & (moment < others[:, 1]), 2:].sum(axis=0)
                assert (needs[running].sum(axis=0) + beside <= plan.room[plan.room_of[flow], n] + 1e-6).all()
            until = others[others[:, 0] == n, 1].max(initial=0.0)
            cost += plan.nodes[n, PRICE] / 3600.0 * union(start[there], finish[there], until)
        for task in range(number):
            for edge in range(plan.parents[first + task], plan.parents[first + task + 1]):
                parent = plan.parent[edge]
                assert parent < task
                moving = plan.edge_mb[edge] * plan.nodes[[node[task], node[parent]], SECONDS_PER_MB].max()
                moving = moving if node[task] != node[parent] else 0.0
                assert start[task] >= finish[parent] + moving + plan.dispatch_s * (1 - 1e-12)
        totals = state.totals[b]
        assert totals[1] == finish.max(initial=0.0)
        assert totals[2] == pytest.approx(cost)
        flow, beta = plan.flows[state.cursor[b, FLOW]], env.rules.beta
        assert totals[0] == pytest.approx(-(beta * totals[1] / flow[0] + (1 - beta) * cost / flow[3]))
        assert state.nodes[b, :, 0].sum() == number


def union(start, finish, until=0.0):
    total = 0.0
    for begin, end in sorted(zip(start, finish, strict=True)):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total


def compare(env, b):
    """The observation of the kernels is the one worked out anew, bit for bit; so is the mask."""
    whole = env.rebuild(b)
    assert env.buffers.candidates[b].tobytes() == whole.candidates.tobytes()
    assert env.buffers.request[b].tobytes() == whole.request.tobytes()
    np.testing.assert_array_equal(env.buffers.mask[b], whole.mask)


def choose(env, style, rng):
    mask = env.buffers.mask
    if style == "first":
        return mask.argmax(axis=1)
    if style == "last":
        return mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
    if style == "latest":  # where it ends last: long waits and large gaps
        late = [feature.name for feature in SPEC.candidate].index("late")
        return np.where(mask, env.buffers.candidates[:, :, late], -1.0).argmax(axis=1)
    return np.where(mask, rng.random(mask.shape), -1.0).argmax(axis=1)


def among_others(dags, nodes, seed):
    """Let workflows begin where nodes are partly taken, one is down and others still run."""
    rng = np.random.default_rng(seed)
    whole, found = np.stack([nodes.cpu, nodes.mem], axis=1), []
    for dag in dags:
        room = whole * rng.choice([0.0, 0.5, 1.0], (len(nodes), 1))
        room[int(np.argmax(nodes.cpu))] = whole[int(np.argmax(nodes.cpu))]
        there = [[n, rng.uniform(1.0, 500.0), room[n, 0] / 3, room[n, 1] / 3] for n in range(len(nodes)) for _ in "ab"]
        found.append(dataclasses.replace(dag, around=Surroundings(room, np.array(there))))
    return tuple(found), nodes


def run(setting, style, seed, steps, every):
    settings = {"workflows": 60, "tasks": 40, **SETTINGS[setting]}
    trace = None
    if settings.pop("others", False):
        plain = make_vec("workflow/dag", 1, **settings)
        trace = among_others(plain.dags, plain.table, seed)
    env = make_vec("workflow/dag", BATCH, seed, trace, **settings)
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    for step in range(steps):
        assert env.buffers.mask.any(axis=1).all()
        actions = choose(env, style, rng)
        if step % every == 0:
            wrong = actions.copy()
            bad = np.flatnonzero(~env.buffers.mask[0])
            wrong[0] = bad[0] if bad.size else env.width
            before = [array.copy() for array in env.state[:-1]]
            with pytest.raises(InfeasibleActionError):
                env.step(wrong)
            for was, now in zip(before, env.state[:-1], strict=True):
                np.testing.assert_array_equal(was, now)
        env.step(actions)
        if step % every == 0:
            check(env)
            compare(env, step % BATCH)


@pytest.mark.parametrize("setting", SETTINGS)
def test_nothing_is_overbooked_or_early(setting):
    for style in ("random", "first", "latest"):
        run(setting, style, seed=len(setting), steps=80, every=10)


@pytest.mark.soak
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("style", ["random", "first", "last", "latest"])
def test_a_million_steps(setting, style):
    run(setting, style, seed=1, steps=-(-SOAK_STEPS // (4 * len(SETTINGS))), every=50)


@st.composite
def problems(draw):
    """Draw a small workflow, nodes that can hold it, and a node for each task."""
    size, count = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    amount = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 7.0])
    some = st.lists(amount, min_size=size, max_size=size)
    needs = st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=size, max_size=size)
    pairs = [(i, j) for i in range(size) for j in range(i + 1, size)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=8)) if pairs else []
    flow = Dag(
        name="drawn",
        runtime_s=np.array(draw(some)) + (np.arange(size) == 0),
        cpu=np.array(draw(needs)),
        mem=np.array(draw(needs)),
        edges=np.array(edges, np.int64).reshape(-1, 2),
        edge_mb=np.array([draw(amount) for _ in edges]),
        input_mb=np.array(draw(some)),
    )
    sizes = st.lists(st.sampled_from([2.0, 3.0]), min_size=count, max_size=count)
    speeds = st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=count, max_size=count)
    table = NodeTable(
        names=tuple(f"n{n}" for n in range(count)),
        cpu=np.array(draw(sizes)),
        mem=np.array(draw(sizes)),
        net=np.array(draw(speeds)),
        disk=np.ones(count),
        price_usd_per_hour=np.array(draw(speeds)),
        speed=np.array(draw(speeds)),
    )
    return flow, table, draw(st.lists(st.integers(0, count - 1), min_size=size, max_size=size))


@settings(max_examples=150, deadline=None)
@given(problem=problems(), order=st.sampled_from(["rank", "trace"]), beta=st.sampled_from([0.0, 0.4, 1.0]))
def test_a_plan_equals_the_same_choices_made_one_at_a_time(problem, order, beta):
    flow, table, choices = problem
    keys = {"trace": ((flow,), table), "order": order, "beta": beta, "invalid_action": "raise"}
    single, whole = WorkflowEnv(**keys), WorkflowPlanEnv(**keys)
    single.reset()
    total = 0.0
    for node in choices:
        compare(single.many, 0)
        check(single.many)
        _, reward, terminated, _, info = single.step(node)
        total += reward
    assert terminated
    whole.reset()
    seen, reward, terminated, truncated, planned = whole.step(choices)
    assert terminated
    assert not truncated
    assert reward == total
    assert planned["episode_metrics"] == info["episode_metrics"]
    for name, values in info["schedule"].items():
        np.testing.assert_array_equal(planned["schedule"][name], values)
    assert whole.observation_space.contains(seen)
