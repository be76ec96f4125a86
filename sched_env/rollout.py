"""Run a policy on a scenario: one episode a start point, and a summary on the metric sheet.

python -m sched_env.rollout --scenario vm/recovering --policy best_fit --set servers=20 --json
python -m sched_env.rollout --scenario vm/recovering --policy policy.onnx --bound --best-heuristic first_fit
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray

from sched_env import heuristics, problems, scenarios
from sched_env.metrics import summarise
from sched_env.problem import Problem
from sched_env.recorded import AsRecorded
from sched_env.vector import ENDED, PlacementVectorEnv, make_vec
from wire.command import Verb, json_option, seed_option
from wire.errors import ConfigError, legal, run_cli

BATCH = 64
"""Episodes run side by side: enough to hide Python's overhead, few enough to stay in cache."""
DEFAULT_EPISODES = 64

Policy = str | AsRecorded | Callable[[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]], NDArray[Any]]
"""A heuristic's name, the path of an ONNX file or bundle, what was recorded, or a function from a batched observation
to scores."""
Episode = dict[str, Any]
Chooser = Callable[[NDArray[np.float64] | None], NDArray[np.int64]]


def run_episodes(
    scenario: str | scenarios.Scenario,
    policy: Policy,
    starts: ArrayLike | None = None,
    *,
    trace: Any = None,
    seed: int = 0,
    episodes: int = DEFAULT_EPISODES,
    record: Path | None = None,
    bound: bool = False,
    **overrides: Any,
) -> list[Episode]:
    """Run one episode from each start point; the results do not depend on how many run side by side.

    Args:
        scenario: Built-in name, path of a YAML file, or a loaded scenario.
        policy: What decides.
        starts: Trace rows; without them ``episodes`` rows are drawn from the seed.
        trace: A trace table or file; the scenario's own when left out.
        seed: Names the draws of start points and of ``random_feasible``.
        episodes: How many, when ``starts`` is left out.
        record: Write every decision to this Parquet file.
        bound: Fill in what no policy could beat from each start, in the metric its bound is stated in.
        overrides: Scenario keys to replace.
    """
    wanted = np.full(episodes, -1, np.int64) if starts is None else np.asarray(starts, np.int64).ravel()
    if wanted.size == 0:
        raise ConfigError("there are no start points", "at least one")
    # Recorded episodes run one after another, so that a file's rows are in order and states have their true width.
    size = 1 if record else min(BATCH, wanted.size)
    loaded = scenarios.load(scenario, overrides)
    spec = getattr(policy, "spec", None)  # a bundle's: one of the spec before may be played in another scenario
    if spec is not None:
        _, loaded = problems.get(loaded.problem).played(loaded).get(spec.version, (spec, loaded))
    env = make_vec(loaded, size, seed, trace)
    if record is None:
        results = _run_all(env, policy, wanted, seed, None)
    else:
        from sched_env.replay import Recorder

        name = policy if isinstance(policy, str) else getattr(policy, "name", type(policy).__name__)
        with Recorder(record, env, name) as recorder:  # the file appears only when every episode is in it
            results = _run_all(env, policy, wanted, seed, recorder)
    if bound:
        for episode, best in zip(results, _bounds(env, [each["start"] for each in results]), strict=True):
            episode["bound"] = best
    return results


def _run_all(
    env: PlacementVectorEnv, policy: Policy, starts: NDArray[np.int64], seed: int, recorder: Any
) -> list[Episode]:
    choose = chooser(env, policy, seed)
    results: list[Episode] = []
    for first in range(0, starts.size, env.num_envs):
        part = starts[first : first + env.num_envs]
        # The last part may be short: its spare environments repeat its first start and are not reported.
        padded = np.concatenate([part, np.full(env.num_envs - part.size, part[0])])
        results += _run_batch(env, choose, padded, recorder, len(results))[: part.size]
    return results


def chooser(env: PlacementVectorEnv, policy: Policy, seed: int = 0) -> Chooser:
    """Bind a policy to an environment: a function that returns an action for each, and fills in scores if asked."""
    if isinstance(policy, str):
        if policy in env.problem.heuristics:
            return heuristics.batch(policy, env, seed)
        check_policy(policy, env.problem)
        from wire.policy import load

        policy = load(Path(policy))
    if isinstance(policy, AsRecorded):
        return policy.bind(env, seed)  # type: ignore[no-any-return]
    score = policy

    def choose(scores: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
        seen = env.observe()
        given = score(np.ascontiguousarray(seen["candidates"]), seen["request"], np.ascontiguousarray(seen["mask"]))
        masked = np.where(seen["mask"], given, -np.inf)
        if scores is not None:
            scores[:] = masked
        actions: NDArray[np.int64] = masked.argmax(axis=1)
        return actions

    return choose


def check_policy(policy: str, problem: Problem) -> None:
    """Refuse a name that is neither a rule of the problem nor a file; asked before anything is compiled."""
    if policy not in problem.heuristics and not Path(policy).exists():
        near = difflib.get_close_matches(policy, problem.heuristics, n=1)
        raise ConfigError(
            f"policy {policy!r} is neither a heuristic of {problem.name} nor a file",
            f"{legal(problem.heuristics)}, an ONNX file or a bundle's folder",
            f"did you mean {near[0]!r}?" if near else "",
        )


def _run_batch(
    env: PlacementVectorEnv, choose: Chooser, starts: NDArray[np.int64], recorder: Any, number: int
) -> list[Episode]:
    env.reset(options={"starts": starts, "park": True})
    buffers = env.buffers
    waits: list[list[float]] = [[] for _ in starts]
    first, spent, decisions, step = 0.0, 0.0, 0, -1
    while buffers.active.any():
        running = np.flatnonzero(buffers.active)
        step += 1
        scores = np.empty((env.num_envs, env.width)) if recorder else None
        began = time.perf_counter()
        actions = choose(scores)
        elapsed = time.perf_counter() - began
        if step == 0:
            first = elapsed  # loads compiled code too: not counted, unless it stays alone
        else:
            spent += elapsed
            decisions += running.size
        if recorder and scores is not None:
            recorder.decision(number, step, int(actions[0]), scores[0])
        env.step(actions)
        if recorder:
            recorder.outcome(float(buffers.reward[0]))
        for b in running[buffers.wait_s[running] > 0.0]:
            waits[b].append(float(buffers.wait_s[b]))
    decision_us = (spent / decisions if decisions else first / env.num_envs) * 1e6
    results = [_episode(env, b, waits[b], decision_us) for b in range(env.num_envs)]
    if recorder:
        recorder.ended(number, results[0])
    return results


def _episode(env: PlacementVectorEnv, b: int, waits: Sequence[float], decision_us: float) -> Episode:
    buffers = env.buffers
    episode: Episode = {"start": int(buffers.final_start[b])}
    for name, value in zip(env.METRICS, buffers.metrics[b].tolist(), strict=True):
        episode[name] = int(value) if name in env.COUNTS else value
    everybody = np.zeros(max(episode["placed"], len(waits), 1))  # most did not wait at all
    everybody[: len(waits)] = waits
    episode["p99_wait_s"] = float(np.quantile(everybody, 0.99))
    episode["ended"] = ENDED[buffers.ended[b]]
    episode["infeasible"] = 0  # the environment raises instead of placing
    episode["decision_us"] = decision_us
    episode["bound"] = None
    return episode


def _bounds(env: PlacementVectorEnv, starts: Sequence[int]) -> list[float | None]:
    """Return what no policy could beat from each start; None where nothing is known."""
    return env.problem.simulation().bounds(env, starts)


def parse_overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """Read ``--set key=value`` pairs; values are YAML."""
    overrides: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {pair!r}", "key=value, for example servers=20")
        overrides[key] = yaml.safe_load(value)
    return overrides


def _read_starts(path: Path) -> list[int]:
    try:
        starts = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--starts {path}: {error}", "a JSON list of trace rows") from error
    if not isinstance(starts, list) or not all(type(row) is int and row >= 0 for row in starts):
        raise ConfigError(f"--starts {path} holds something else", "a JSON list of trace rows, 0 or more each")
    return starts


def _line(episode: Mapping[str, Any]) -> str:
    shown = ("start", "placed", "return", "ended", "sla_violation_rate", "cost_usd", "wait_s")
    return "  ".join(f"{name} {_short(episode[name])}" for name in shown)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--scenario", required=True, help=f"{', '.join(scenarios.names())}, or a YAML file")
    parser.add_argument("--policy", required=True, help="a heuristic's name, an ONNX file or a bundle's folder")
    parser.add_argument("--trace", help="trace file; default: the scenario's own")
    parser.add_argument("--starts", type=Path, help="JSON list of trace rows, one episode each")
    parser.add_argument("--episodes", type=int, default=DEFAULT_EPISODES, help="start points drawn without --starts")
    seed_option(parser, "the draws of start points and of random_feasible")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace a scenario key")
    parser.add_argument("--record", type=Path, help="write every decision to this Parquet file")
    parser.add_argument("--bound", action="store_true", help="add what no policy could beat from each start")
    parser.add_argument("--best-heuristic", metavar="NAME", help="with --bound: add the share of its gap closed")
    json_option(parser, "one line an episode, the summary last")


def run(options: argparse.Namespace) -> int:
    """Run the episodes and write them with their summary."""
    loaded = scenarios.load(options.scenario, parse_overrides(options.set))
    if options.best_heuristic and not options.bound:
        raise ConfigError("--best-heuristic without --bound", "both: the gap is that between heuristic and bound")
    starts = _read_starts(options.starts) if options.starts else None
    check_policy(options.policy, problems.get(loaded.problem))
    if options.best_heuristic:
        problems.get(loaded.problem).rule(options.best_heuristic)
    given = {"trace": options.trace, "seed": options.seed, "episodes": options.episodes}
    results = run_episodes(loaded, options.policy, starts, record=options.record, bound=options.bound, **given)
    problem, best = problems.get(loaded.problem), None
    primary = problem.primary(loaded)
    if options.best_heuristic:
        rule = problem.rule(options.best_heuristic)
        best = summarise(run_episodes(loaded, rule, starts, **given))[primary]
    for episode in results:
        sys.stdout.write((json.dumps(episode) if options.json else _line(episode)) + "\n")
    summary = {
        "scenario": loaded.name,
        "policy": options.policy,
        "seed": options.seed,
        **summarise(
            results,
            primary=(primary, problem.better(primary)),
            bound_metric=problem.bound_metric(loaded) if options.bound else None,
            best_heuristic=best,
        ),
        "price_assumed": loaded.price_assumed,
    }
    if options.json:
        sys.stdout.write(json.dumps({"summary": summary}) + "\n")
    else:
        width = max(map(len, summary))
        sys.stdout.write("".join(f"{name:>{width}}  {_short(value)}\n" for name, value in summary.items()))
    return 0


main = Verb("python -m sched_env.rollout", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
