"""Workflows as people meet them: Gymnasium ids, whole plans, heuristics, rollout and replay."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import sched_env  # noqa: F401 - registers the ids
from sched_env import heuristics, problems, scenarios
from sched_env.replay import frames
from sched_env.rollout import run_episodes
from sched_env.vector import make_vec
from sched_env.workflow.env import WorkflowEnv, WorkflowPlanEnv
from wire.bundle import check_spec
from wire.errors import BundleError, ConfigError, InfeasibleActionError

SMALL = {"tasks": 8, "workflows": 12}
NAMES = problems.get("workflow").heuristics


@pytest.mark.filterwarnings("ignore:.*A Box observation space.*")
@pytest.mark.parametrize("name", ["Workflow-v0", "WorkflowPlan-v0"])
@pytest.mark.parametrize("invalid_action", ["terminate", "penalise"])
def test_gymnasium_finds_nothing_wrong(name, invalid_action):
    env = gymnasium.make(f"sched_env.envs:sched_env/{name}", invalid_action=invalid_action, **SMALL)
    check_env(env.unwrapped, skip_render_check=True)


def test_an_episode_ends_when_every_task_is_placed():
    env = WorkflowEnv(**SMALL)
    seen, info = env.reset(seed=3, options={"start": 4})
    assert info == {"start": 4, "invalid": False, "workflow": "fan-00004"}
    over, steps = False, 0
    while not over:
        np.testing.assert_array_equal(seen["mask"].astype(bool), env.action_masks())
        seen, _, over, truncated, info = env.step(int(seen["mask"].argmax()))
        steps += 1
    assert not truncated
    assert info["episode_metrics"]["ended"] == "end_of_trace"
    assert steps == len(env.many.dags[4]) == info["episode_metrics"]["placed"] == len(env.schedule()["node"])
    with pytest.raises(ResetNeeded):
        env.step(0)


@pytest.mark.parametrize("kind", [WorkflowEnv, WorkflowPlanEnv])
def test_invalid_actions_do_what_they_are_told_to(kind, dag, nodes):
    flow = dag([1.0, 1.0], {(0, 1): 1.0}, cpu=[2.0, 1.0])  # the first task fits node 0 alone
    wrong, right = (1, 0) if kind is WorkflowEnv else ([1, 0], [0, 1])
    for invalid_action in ("terminate", "penalise", "raise"):
        env = kind(trace=((flow,), nodes()), invalid_action=invalid_action)
        first, _ = env.reset()
        if invalid_action == "raise":
            with pytest.raises(InfeasibleActionError):
                env.step(wrong)
            continue
        seen, reward, terminated, _, info = env.step(wrong)
        assert (info["workflow"], info["invalid"]) == (flow.name, True)
        assert terminated == (invalid_action == "terminate")
        assert reward < -10.0 if terminated else reward == -10.0
        for name, values in first.items():
            np.testing.assert_array_equal(values, seen[name])
        if not terminated:
            assert not env.step(right)[4]["invalid"]
    with pytest.raises(ConfigError, match="terminate, penalise, raise"):
        kind(invalid_action="shrug")


def test_a_plan_shows_the_whole_workflow(dag, nodes):
    flow = dag([4.0, 1.0, 2.0], {(0, 2): 5.0, (1, 2): 6.0}, cpu=[1.0, 2.0, 1.0])
    other = dag([1.0])
    env = WorkflowPlanEnv(trace=((other, flow), nodes()))
    assert env.action_space == spaces.MultiDiscrete([2, 2, 2])
    seen, _ = env.reset(options={"start": 1})
    assert seen["tasks"][:, 2].tolist() == [4.0, 1.0, 2.0]
    assert seen["edges"].tolist() == [[0, 2, 5], [1, 2, 6]]
    assert seen["mask"].tolist() == [[1, 1], [1, 0], [1, 1]]
    seen, _ = env.reset(options={"start": 0})
    assert seen["edges"].tolist() == [[-1, -1, -1]] * 2
    assert seen["mask"].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert env.action_masks().reshape(3, 2).all()  # what lies beyond the workflow is free
    assert env.step([1, 0, 0])[2]


def test_a_plan_of_the_wrong_length_or_for_a_cut_workflow_is_refused():
    env = WorkflowPlanEnv(**SMALL)
    env.reset()
    with pytest.raises(ConfigError, match="a node for each task"):
        env.step([0])
    with pytest.raises(ConfigError, match="horizon is 3"):
        WorkflowPlanEnv(**SMALL, horizon=3)


@pytest.mark.parametrize("name", NAMES)
def test_every_heuristic_runs_through_rollout(name):
    for episode in run_episodes("workflow/dag", name, range(6), **SMALL):
        assert episode["ended"] == "end_of_trace"
        assert episode["infeasible"] == 0
        assert episode["placed"] == episode["requests"]
        assert episode["response_ratio"] >= 1.0 - 1e-9


@pytest.mark.parametrize("name", [name for name in NAMES if name != "random_feasible"])
def test_a_heuristic_chooses_alike_for_one_decision_and_for_a_batch(name):
    env = make_vec("workflow/dag", 3, seed=2, nodes=6, tasks=30, workflows=12)
    rule = heuristics.batch(name, env)
    env.reset(seed=2)
    scores = np.empty((3, env.width))
    for step in range(40):
        actions = rule(scores)
        b = step % 3
        alone = heuristics.score("workflow", name, *env.raw_fields(b), env.buffers.mask[b])
        np.testing.assert_array_equal(alone, scores[b])
        assert alone.argmax() == actions[b]
        env.step(actions)


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("heft", [1, 0, 1]),  # the longest task first, on the fast node; the second is there at once elsewhere
        ("first_fit", [0, 0, 0]),
        ("round_robin", [0, 1, 0]),
        ("cheapest", [0, 0, 0]),
        ("min_transfer", [1, 0, 0]),  # of two nodes that nothing moves to, the one where it ends first
    ],
)
def test_a_rule_chooses_what_its_definition_says(name, choices, dag, nodes):
    flow = dag([10.0, 4.0, 2.0], {(0, 2): 1.0, (1, 2): 2.0})
    env = make_vec("workflow/dag", 1, 0, ((flow,), nodes(price_usd_per_hour=[0.36, 0.8])))
    rule = heuristics.batch(name, env)
    env.reset(options={"park": True})
    made = []
    while env.buffers.active[0]:
        made.append(int(rule()[0]))
        env.step(made[-1:])
    assert made == choices


def test_rank_order_pays():
    figures = {
        name: np.mean([e["makespan_s"] for e in run_episodes("workflow/dag", name, range(30), workflows=30)])
        for name in ("heft", "earliest_finish", "random_feasible")
    }
    assert figures["heft"] < figures["earliest_finish"] < 0.7 * figures["random_feasible"]


def test_a_heuristic_brings_its_own_order_and_says_when_it_is_too_late():
    env = make_vec("workflow/dag", 2, **SMALL)
    heuristics.batch("earliest_finish", env)
    assert env.order == "trace"
    env.reset()
    starts = env.buffers.start.copy()
    heuristics.batch("heft", env)
    assert env.order == "rank"
    np.testing.assert_array_equal(env.buffers.start, starts)
    env.step(env.buffers.mask.argmax(axis=1))
    with pytest.raises(ConfigError, match="reset the environment"):
        heuristics.batch("earliest_finish", env)


def test_a_replay_rebuilds_every_state(tmp_path):
    path = tmp_path / "replay.parquet"
    run_episodes("workflow/dag", "heft", [0, 1], record=path, **SMALL)
    env = make_vec("workflow/dag", 1, **SMALL)
    for episode in (0, 1):
        env.reset(options={"starts": [episode], "park": True})
        for frame in (frame for frame in frames(path) if frame.row["episode"] == episode):
            np.testing.assert_array_equal(frame.candidates, env.buffers.candidates[0])
            env.step([frame.row["action"]])
        assert not env.buffers.active[0]


def test_a_policy_for_workflows_is_not_taken_for_one_of_single_functions():
    spec, other = problems.spec("workflow"), problems.spec("functions")
    assert spec.problem == "workflow"
    assert len(spec.candidate) != len(other.candidate)  # so that even a bare ONNX file is refused
    with pytest.raises(BundleError, match="workflow feature spec has version"):
        check_spec(spec, other)


def test_raw_fields_left_out_take_their_defaults():
    seen = problems.get("workflow").build({"cpu_capacity": np.array([4.0, 0.5])}, {"runtime_s": 30.0})
    assert seen.mask.tolist() == [True, False]
    run = [feature.name for feature in problems.spec("workflow").candidate].index("run")
    assert seen.candidates[0, run] == 0.5  # 30 s of a critical path of 60
    assert np.isfinite(seen.candidates).all()


def test_settings_that_make_no_sense_are_refused():
    for key, value in {"order": "random", "beta": 2.0, "nodes": 0, "shape": "ring", "colour": 1}.items():
        with pytest.raises(ConfigError, match=key):
            scenarios.load("workflow/dag", {key: value})
    assert scenarios.load("dag", {"num_nodes": 7}).nodes == 7
