"""An infeasible action never pays: in no problem, from no state, against no way on."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sched_env.functions.env import ServerlessSchedulingEnv
from sched_env.jobs.env import CpnEnv
from sched_env.pods.env import DeployEnv
from sched_env.vm.env import SchedEnv
from sched_env.workflow.env import WorkflowEnv, WorkflowPlanEnv

DAGS = {"tasks": 6, "workflows": 8, "beta": 0.5}
JOBS = {"cards": 3, "episode_jobs": 6, "trace_rows": 60, "failure_rate": 0.3}
PODS = {"nodes": 3, "pods_per_node": 3, "trace_windows": 30, "load": 0.7, "episode_windows": 4}
CASES = {
    "vm, +1": (SchedEnv, {"servers": 2, "horizon": 20}),
    "vm, cpu": (SchedEnv, {"servers": 2, "horizon": 20, "reward": "cpu"}),
    "vm, wait": (SchedEnv, {"servers": 1, "ending": "wait", "queue_extra": 4, "synthetic_vms": 300, "start_min": 0}),
    "functions, tutorial": (ServerlessSchedulingEnv, {"num_nodes": 2, "scenario": "functions/tutorial", "horizon": 20}),
    "functions, rejecting": (
        ServerlessSchedulingEnv,
        {"num_nodes": 1, "horizon": 20, "load": 3.0, "rejection_penalty": 2.5, "trace_rows": 400},
    ),
    "functions, seconds": (ServerlessSchedulingEnv, {"num_nodes": 2, "horizon": 0, "episode_s": 20.0, "load": 2.0}),
    "pods": (DeployEnv, PODS),
    "pods, parallel": (DeployEnv, {**PODS, "arrival": "parallel", "weight_moved": 1.0}),
    "jobs, completion": (CpnEnv, JOBS),
    "jobs, makespan": (CpnEnv, {**JOBS, "reward": "makespan", "dispatch_s": 5.0}),
    "workflow": (WorkflowEnv, DAGS),
    "workflow, cost alone": (WorkflowEnv, {**DAGS, "beta": 0.0}),
    "workflow, plan": (WorkflowPlanEnv, DAGS),
}
WRONG = 10**6
PICKS = {"first": 0, "last": -1, "random": None}
_made = {}


def environment(case, **keys):
    """A fresh copy of a case's environment: traces are generated once."""
    kind, own = CASES[case]
    name = case, *sorted(keys.items())
    if name not in _made:
        _made[name] = kind(**own, **keys)
    return copy.deepcopy(_made[name])


def feasible(env, pick, rng):
    masks = env.action_masks().reshape(-1, env.many.width)  # a row, or a row a task
    chosen = [rng.choice(np.flatnonzero(mask)) if pick is None else np.flatnonzero(mask)[pick] for mask in masks]
    return np.array(chosen) if isinstance(env, WorkflowPlanEnv) else int(chosen[0])


def wrong(env):
    return np.full(env.action_space.shape, WRONG) if isinstance(env, WorkflowPlanEnv) else WRONG


def finish(env, pick, rng):
    """Go on to the end; the rewards until then."""
    rewards, over = [], False
    while not over:
        _, reward, terminated, truncated, _ = env.step(feasible(env, pick, rng))
        rewards.append(reward)
        over = terminated or truncated
    return rewards


@pytest.mark.parametrize("case", CASES)
@given(seed=st.integers(0, 1000), steps=st.integers(0, 12), penalty=st.sampled_from([0.0, 0.5]), data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_ending_the_episode_costs_as_much_as_the_worst_way_on(case, seed, steps, penalty, data):
    env, rng = environment(case, invalid_penalty=penalty), np.random.default_rng(seed)
    env.reset(seed=seed)
    before = data.draw(st.sampled_from(list(PICKS)))
    total = 0.0
    for _ in range(0 if isinstance(env, WorkflowPlanEnv) else steps):
        _, reward, terminated, truncated, _ = env.step(feasible(env, PICKS[before], rng))
        total += reward
        if terminated or truncated:
            return
    ways = [finish(copy.deepcopy(env), pick, rng) for pick in (*PICKS.values(), None, None)]
    _, reward, terminated, truncated, info = env.step(wrong(env))
    assert (terminated, truncated, info["invalid"]) == (True, False, True)
    for discount in (1.0, 0.99, 0.9):
        worst = min(float(np.dot(way, discount ** np.arange(len(way)))) for way in ways)
        assert reward <= worst - penalty + 1e-9
    sheet = info["episode_metrics"]
    assert (sheet["ended"], sheet["infeasible"]) == ("invalid", 1)
    assert sheet["return"] == pytest.approx(total + reward)


@pytest.mark.parametrize("case", CASES)
def test_penalise_ends_whatever_the_policy_does_and_never_pays(case):
    """Against the very same choices without the wrong ones; so it is dominated for every penalty, even none."""
    env = environment(case, invalid_action="penalise", invalid_penalty=0.25)
    env.reset(seed=5)
    straight = copy.deepcopy(env)
    erring, over, refusals = 0.0, False, 0
    while not over:  # a policy that is wrong always
        _, reward, terminated, truncated, info = env.step(wrong(env))
        assert info["invalid"]
        erring, over, refusals = erring + reward, terminated or truncated, refusals + 1
        assert refusals < 3000
    right = sum(finish(straight, PICKS["first"], None))
    assert erring == pytest.approx(right - 0.25 * refusals)
    assert info["episode_metrics"]["infeasible"] == refusals
    assert info["episode_metrics"]["return"] == pytest.approx(erring)
