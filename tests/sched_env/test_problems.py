"""What every problem promises, shown on each one in the registry."""

from __future__ import annotations

import graphlib
import json
import subprocess
import sys
from pathlib import Path

import grimp
import gymnasium
import numpy as np
import pytest

from sched_env import envs, heuristics, problems, render, scenarios
from sched_env.vector import make_vec
from wire.errors import ConfigError

CORE_FILES = {
    "problem", "scenario", "state", "kernels", "env", "vector", "features", "heuristics", "batch", "bounds", "tables",
    "trace", "synthetic",
}  # fmt: skip
FALLBACKS = Path(__file__).parents[2] / "docs" / "results" / "fallbacks.json"
SOLID = ("numba", "gymnasium")
"""What the live service does without."""

every_problem = pytest.mark.parametrize("name", problems.names())
_made = {}


def made(name):
    """Return two environments of a problem's first scenario, reset; made once, because that is slow."""
    if name not in _made:
        scenario = min(path.stem for path in (problems.folder(name) / "scenarios").glob("*.yaml"))
        _made[name] = make_vec(f"{name}/{scenario}", 2, seed=0)
    _made[name].reset(seed=0)
    return _made[name]


@every_problem
def test_the_folder_of_a_problem_has_the_files_of_every_other(name):
    folder = problems.folder(name)
    assert {path.stem for path in folder.glob("*.py")} >= CORE_FILES
    assert list((folder / "scenarios").glob("*.yaml"))


@every_problem
def test_the_value_and_what_it_names_agree(name):
    problem = problems.get(name)
    assert problem.name == problem.spec.problem == name
    for path in (problems.folder(name) / "scenarios").glob("*.yaml"):
        scenario = scenarios.load(f"{name}/{path.stem}")
        assert isinstance(scenario, problem.scenario)
        assert scenario.problem == name
        assert problem.better(problem.primary(scenario))
        metric = problem.bound_metric(scenario)
        assert metric is None or problem.better(metric)
    with pytest.raises(ConfigError, match="no metric"):
        problem.better("steps")


@every_problem
def test_metrics_with_a_better_side_are_measured(name):
    problem, measured = problems.get(name), made(name).METRICS
    assert len(set(measured)) == len(measured)
    guarded = problem.guardrails(made(name).scenario)
    assert {*problem.metrics, *guarded} <= {*measured}
    assert all(problem.better(metric) for metric in guarded)


@every_problem
def test_the_fallback_needs_the_declared_raw_fields_alone(name):
    problem, env = problems.get(name), made(name)
    candidates, request = env.raw_fields(0)
    candidates = {field: candidates[field] for field in problem.state_fields if field in candidates}
    request = {field: request[field] for field in problem.request_fields if field in request}
    mask = problem.build(candidates, request).mask
    scores = heuristics.score(name, problem.rule(problem.fallback), candidates, request, mask)
    assert problem.fallback != heuristics.RANDOM_FEASIBLE
    assert np.isfinite(scores[mask]).all()
    assert (scores[~mask] == -np.inf).all()


@every_problem
def test_the_fallback_is_the_best_stateless_rule_that_was_measured(name):
    measured = {found["problem"]: found for found in json.loads(FALLBACKS.read_text())}
    means, metric = measured[name]["means"], measured[name]["metric"]
    better = problems.get(name).better(metric)
    assert {*means} == {*problems.get(name).heuristics}, "python benchmarks/fallbacks.py --out docs/results"
    assert better * means[problems.get(name).fallback] == max(better * mean for mean in means.values())


@every_problem
def test_a_state_without_a_feasible_candidate_is_explained(name):
    problem = problems.get(name)
    candidates, request = made(name).raw_fields(0)
    candidates = {field: np.zeros_like(v) if field == "here" else v for field, v in candidates.items()}
    request |= {field: 1e6 for field in ("cpu", "mem", "gpu_mem") if field in request}
    assert not problem.build(candidates, request).mask.any()
    reasons = problem.ruled_out(candidates, request)
    assert max(reasons.values()) == len(next(iter(candidates.values())))
    assert all(reason and count >= 0 for reason, count in reasons.items())


@every_problem
def test_gauges_are_shares_of_every_candidate(name):
    env = made(name)
    rule = heuristics.batch(heuristics.RANDOM_FEASIBLE, env)
    for _ in range(20):
        candidates, _ = env.raw_fields(0)
        for resource, shares in problems.get(name).gauges(candidates).items():
            assert shares.shape == next(iter(candidates.values())).shape, resource
            assert ((shares >= 0.0) & (shares <= 1.0)).all(), resource
        env.step(rule())


@every_problem
def test_features_heuristics_and_the_value_load_neither_numba_nor_gymnasium(name):
    package = problems.MODULES[name].rpartition(".")[0]
    modules = [f"{package}.{module}" for module in ("features", "heuristics", "problem")]
    script = f"import sys, {', '.join(modules)}\nprint(sorted(set(sys.modules) & set({SOLID})))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


ENVIRONMENTS = [short for name in problems.names() for short in problems.get(name).environments]


@pytest.mark.parametrize("short", ENVIRONMENTS)
def test_gymnasium_makes_every_environment(short):
    env = gymnasium.make(f"{envs.NAMESPACE}/{short}")
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert env.unwrapped.action_masks().any()


@pytest.mark.parametrize("short", ENVIRONMENTS)
def test_every_environment_can_be_drawn_from_the_first_decision_to_the_end(short):
    for mode in render.MODES:
        env = gymnasium.make(f"{envs.NAMESPACE}/{short}", render_mode=mode).unwrapped
        env.reset(seed=0)
        first, over = env.render(), False
        while not over:
            choices = getattr(env.action_space, "nvec", [env.action_masks().size])[0]  # of a plan: one row a task
            best = env.action_masks().reshape(-1, choices).argmax(axis=-1)
            _, _, terminated, truncated, _ = env.step(best if short == "WorkflowPlan-v0" else best[0])
            over = terminated or truncated
        last = env.render()
        assert type(first) is type(last) is {"ansi": str, "rgb_array": np.ndarray}[mode]


def test_no_module_imports_itself_in_a_roundabout_way():
    graph = grimp.build_graph("sched_env", exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(list(graphlib.TopologicalSorter(imports).static_order())) == len(graph.modules)
