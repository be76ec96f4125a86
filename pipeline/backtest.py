"""Back-test of the simulator: yesterday replayed under the policy that was live, beside what was measured.

A gate that judges in simulation is worth what the simulator is worth. ``evaluate`` calls :func:`back_test`, or
``python -m pipeline.backtest --problem functions`` writes ``data/evaluation/<problem>/backtest.json``; the gate reads
it, and a simulator that is off by more than ``gate.backtest_tolerance`` makes the verdict ``inconclusive``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from pipeline import champions, datasets, paths, settings, windows
from pipeline.contracts.evaluation import BACKTEST_FILE, Backtest, Promise
from pipeline.errors import DataError
from pipeline.files import write_atomic
from sched_env import problems
from sched_env.scenarios import Scenario
from wire.command import Verb, params_option, problem_option
from wire.contracts.feature_spec import ProblemName
from wire.contracts.window import WINDOW_SECONDS
from wire.errors import run_cli
from wire.policy import load as load_policy

METRICS = ("sla_violation_rate", "cost_usd")
"""What the simulator promises and the cluster can be asked for."""

Rollout = Callable[[datetime, datetime], Mapping[str, float]]
"""Replays the requests of ``[start, end)`` under the policy that was live; answers the metric sheet's figures."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``backtest``."""

    enabled: bool = True
    """Off where the measured cluster is not placed by this service (the embedded sample, a public trace): its
    figures are another scheduler's, and the comparison would say nothing about the simulator."""
    hours: float = 24.0
    """Length of the stretch replayed, back from the newest window: one daily cycle."""


def compare(
    live: str, start: datetime, end: datetime, predicted: Mapping[str, float], measured: Mapping[str, float]
) -> Backtest:
    """Set predictions beside measurements; a metric that one side does not have is left out."""
    figures = []
    for metric in METRICS:
        if metric not in predicted or metric not in measured:
            continue
        figures.append(Promise.of(metric, float(predicted[metric]), float(measured[metric])))
    return Backtest(live, start.isoformat(), end.isoformat(), figures)


def back_test(
    problem: ProblemName, champion: Path, folder: Path, config: Config, rollout: Rollout | None = None
) -> Backtest | None:
    """Back-test the newest windows in which the champion can have been live; None when there is no champion.

    Args:
        problem: Which problem.
        champion: Its folder (``pipeline.champions``).
        folder: Folder of the window tables.
        config: Section ``backtest``.
        rollout: Replays a stretch of the windows; by default, the champion's graph in the simulator.
    """
    live = champions.live(champion)
    if live is None:
        return None
    end = windows.span(folder).end
    # Before it went live another policy placed. Without the registry's word (a champion put there by hand) only this
    # is known: it was trained on data up to windows_end, so it cannot have placed anything before that.
    start = max(end - timedelta(hours=config.hours), _next_window(live.live_since or live.windows_end))

    def skip(reason: str) -> Backtest:
        return Backtest(live.digest, start.isoformat(), end.isoformat(), [], skipped=reason)

    if not config.enabled:
        return skip("switched off for this source, whose cluster the service does not place")
    dataset = datasets.get(problem)
    if dataset.measured is None:
        return skip(f"the windows do not measure the figures of {problem}")
    if start >= end:
        return skip("the champion has not been live in these windows")
    predicted = (rollout or _champion_rollout(problem, champion, folder))(start, end)
    return compare(live.digest, start, end, predicted, dataset.measured(folder, start, end, _scenario(problem)))


def _scenario(problem: ProblemName) -> Scenario:
    found = datasets.calibration(problem)
    return settings.load(f"workload.{problem}", datasets.WorkloadConfig).load(found.overrides if found else None)


def _next_window(moment: datetime) -> datetime:
    """The start of the first window that lies wholly after a moment."""
    return datetime.fromtimestamp(math.ceil(moment.timestamp() / WINDOW_SECONDS) * WINDOW_SECONDS, UTC)


def _champion_rollout(problem: ProblemName, champion: Path, folder: Path) -> Rollout:
    """The champion's graph over the whole stretch, by the code that replays what was recorded."""
    playable = problems.get(problem).played(_scenario(problem))
    policy = load_policy(champion / champions.BUNDLE_FOLDER, lambda _: tuple(spec for spec, _ in playable.values()))
    _, scenario = playable[policy.manifest.feature_spec.version]

    check = datasets.get(problem).check
    if check is None:
        raise DataError(f"windows cannot be replayed for {problem}", "a dataset with a check")

    def rollout(start: datetime, end: datetime) -> Mapping[str, float]:
        trace = datasets.apply(datasets.get(problem).load(folder, start, end), problem, datasets.calibration(problem))
        data = datasets.Workload(problem, scenario, trace, start.isoformat(), end.isoformat())
        found, _ = check(data, folder, policy, "live")
        return {figure.metric: figure.predicted for figure in found.figures if figure.metric in METRICS}

    return rollout


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    problem_option(parser, problems.names())
    params_option(parser, paths.PARAMS)
    parser.add_argument("--windows", type=Path, default=paths.WINDOWS)
    parser.add_argument("--champions", type=Path, default=paths.CHAMPIONS, help="folder of the live bundles")
    parser.add_argument("--out", type=Path, help="default: data/evaluation/<problem>/backtest.json")


def run(chosen: argparse.Namespace) -> int:
    """Back-test one problem and write what the gate reads."""
    problem: ProblemName = chosen.problem
    out: Path = chosen.out or paths.EVALUATION / problem / BACKTEST_FILE
    config = settings.load("backtest", Config, chosen.params)
    found = back_test(problem, chosen.champions / problem, chosen.windows, config)
    if found is None:
        out.unlink(missing_ok=True)
        sys.stdout.write(f"{problem}: no back-test: nothing was live\n")
        return 0
    write_atomic(out, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    for figure in found.figures:
        off = "" if figure.relative_error is None else f" ({100 * figure.relative_error:.1f} % off)"
        sys.stdout.write(
            f"{problem}: {figure.metric} predicted {figure.predicted:g}, measured {figure.measured:g}{off}\n"
        )
    if found.skipped:
        sys.stdout.write(f"{problem}: no back-test: {found.skipped}\n")
    return 0


main = Verb("python -m pipeline.backtest", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
