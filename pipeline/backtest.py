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
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from scipy.special import ndtr

from pipeline import champions, settings, windows
from pipeline.contracts.evaluation import BACKTEST_FILE, Backtest, Promise
from pipeline.contracts.windows import WINDOW_SECONDS
from pipeline.errors import DataError
from pipeline.files import write_atomic
from pipeline.prices import DEFAULT_USD_PER_HOUR
from pipeline.statistics.estimators import Floats
from sched_env import problems
from sched_env.functions.tables import SLO_FACTOR
from wire import policy
from wire.contracts.feature_spec import ProblemName
from wire.errors import run_cli

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("sla_violation_rate", "cost_usd")
"""What the simulator promises and the cluster can be asked for."""

_P95_DEVIATIONS = 1.6448536269514722

Rollout = Callable[[datetime, datetime], Mapping[str, float]]
"""Replays the requests of ``[start, end)`` under the policy that was live; answers the metric sheet's figures."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``backtest``."""

    enabled: bool = True
    """Off where the measured cluster is not placed by this service (the embedded sample, a public trace): its
    figures are another scheduler's, and the comparison would say nothing about the simulator."""
    hours: float = 24.0
    """Length of the stretch replayed, back from the newest window: one daily cycle."""
    cooldown_s: float = 300.0
    """A node is billed this long after its last instance has left; as in the functions scenarios."""


def compare(
    live: str, start: datetime, end: datetime, predicted: Mapping[str, float], measured: Mapping[str, float]
) -> Backtest:
    """Set predictions beside measurements; a metric that one side does not have is left out."""
    figures = []
    for metric in METRICS:
        if metric not in predicted or metric not in measured:
            continue
        said, seen = float(predicted[metric]), float(measured[metric])
        if not (np.isfinite(said) and np.isfinite(seen)):
            raise DataError(f"the back-test has {metric} {said} predicted, {seen} measured", "finite numbers")
        error = abs(said - seen) / abs(seen) if seen != 0.0 else 0.0 if said == 0.0 else None
        figures.append(Promise(metric, said, seen, error))
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
    if problem != "functions":
        return skip(f"the windows do not measure the figures of {problem}")
    if start >= end:
        return skip("the champion has not been live in these windows")
    predicted = (rollout or _champion_rollout(champion, folder))(start, end)
    return compare(live.digest, start, end, predicted, measure(folder, start, end, config.cooldown_s))


def _next_window(moment: datetime) -> datetime:
    """The start of the first window that lies wholly after a moment."""
    return datetime.fromtimestamp(math.ceil(moment.timestamp() / WINDOW_SECONDS) * WINDOW_SECONDS, UTC)


def _champion_rollout(champion: Path, folder: Path) -> Rollout:
    """The champion's graph over the whole stretch as one episode, in the scenario it is trained and evaluated in."""
    from pipeline.datasets import WorkloadConfig
    from sched_env.rollout import run_episodes

    config = settings.load("workload.functions", WorkloadConfig)
    champion_policy = policy.load(champion / champions.BUNDLE_FOLDER, problems.spec)

    def rollout(start: datetime, end: datetime) -> Mapping[str, float]:
        trace = windows.function_trace(folder, start, end)
        overrides = config.overrides | {"horizon": len(trace[0])}
        starts = np.zeros(1, dtype=np.int64)
        (episode,) = run_episodes(config.scenario, champion_policy, starts, trace=trace, **overrides)
        return {metric: episode[metric] for metric in METRICS}

    return rollout


def measure(folder: Path, start: datetime, end: datetime, cooldown_s: float) -> dict[str, float]:
    """What the cluster did in ``[start, end)``: SLA violations and cost of ``functions``, from the window tables.

    A figure is left out when the windows do not hold what it needs.
    """
    functions = windows.read(folder, "functions", start, end).to_pandas()
    measured = {"cost_usd": _cost_usd(folder, start, end, cooldown_s)}
    known = functions.dropna(subset=["response_mean_s", "response_p95_s", "standard_response_s"])
    known = known[(known["requests"] > 0) & (known["standard_response_s"] > 0.0) & (known["response_mean_s"] > 0.0)]
    if len(known):
        late = share_above(
            known["response_mean_s"].to_numpy(np.float64),
            known["response_p95_s"].to_numpy(np.float64),
            SLO_FACTOR * known["standard_response_s"].to_numpy(np.float64),
        )
        measured["sla_violation_rate"] = float(np.average(late, weights=known["requests"].to_numpy(np.float64)))
    return measured


def share_above(mean: Floats, p95: Floats, limit: Floats) -> Floats:
    """Estimate the share of response times above a limit from their mean and 95th percentile.

    Windows keep these two, not the times themselves; a log-normal distribution is fitted to them. From
    ``ln(p95 / mean) = 1.645 s - s^2 / 2`` the smaller root for ``s`` is taken; a p95 too far above the mean for any
    log-normal gives the widest one.
    """
    distance = np.log(np.maximum(p95, 1e-12) / mean)
    root = np.sqrt(np.maximum(_P95_DEVIATIONS**2 - 2.0 * np.maximum(distance, 0.0), 0.0))
    spread = np.maximum(_P95_DEVIATIONS - root, 1e-9)
    centre = np.log(mean) - spread**2 / 2.0
    return np.asarray(1.0 - ndtr((np.log(limit) - centre) / spread))


def _cost_usd(folder: Path, start: datetime, end: datetime, cooldown_s: float) -> float:
    """Hours in which each node held a pod, cool-down included, times its price."""
    pods = windows.read(folder, "pods", start, end, ["cluster", "pod", "node"]).to_pandas()
    if pods["node"].isna().all():
        raise DataError(
            f"{folder} has no pod on a node between {start} and {end}",
            "pods with their nodes",
            "check that the source says where pods run, or set backtest.enabled: false",
        )
    key = ["cluster", "pod"]
    lives = pods.dropna(subset=["node"]).groupby([*key, "node"], as_index=False)["window_start"].agg(["min", "max"])
    events = windows.read(folder, "events", start, end, ["cluster", "entity", "time", "kind", "action"]).to_pandas()
    events = events[events["kind"] == "pod"].rename(columns={"entity": "pod"})
    for action in ("create", "delete"):
        times = events[events["action"] == action].groupby(key)["time"].agg("min" if action == "create" else "max")
        lives = lives.join(times.rename(action), on=key)
    # Windows say when a pod was on a node to five minutes; the event, where there is one, to the moment.
    window = timedelta(seconds=WINDOW_SECONDS)
    lives["begin"] = lives["create"].where(lives["create"] >= lives["min"], lives["min"])
    lives["finish"] = lives["delete"].where(lives["delete"] <= lives["max"] + window, lives["max"] + window)
    lives["finish"] = (lives["finish"] + timedelta(seconds=cooldown_s)).clip(upper=end)
    nodes = windows.read(folder, "nodes", start, end, ["cluster", "node", "price_usd_per_hour"]).to_pandas()
    prices = nodes.groupby(["cluster", "node"])["price_usd_per_hour"].last().fillna(DEFAULT_USD_PER_HOUR)
    total = 0.0
    for name, group in lives.groupby(["cluster", "node"]):
        total += _covered_hours(group) * float(prices.get(name, DEFAULT_USD_PER_HOUR))
    return total


def _covered_hours(lives: pd.DataFrame) -> float:
    """Length of the union of intervals: overlapping pods do not bill a node twice."""
    ordered = lives.sort_values("begin")
    begin = ordered["begin"].to_numpy("datetime64[us]").astype(np.int64)
    reached = np.maximum.accumulate(ordered["finish"].to_numpy("datetime64[us]").astype(np.int64))
    before = np.concatenate((begin[:1], reached[:-1]))
    return float(np.sum(np.maximum(reached - np.maximum(begin, before), 0))) / 3.6e9


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.backtest", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problem", choices=problems.names(), required=True)
    parser.add_argument("--params", type=Path, default=settings.PARAMS_FILE)
    parser.add_argument("--windows", type=Path, default=Path("data/windows"))
    parser.add_argument("--champions", type=Path, default=Path("champions"), help="folder of the live bundles")
    parser.add_argument("--out", type=Path, help="default: data/evaluation/<problem>/backtest.json")
    chosen = parser.parse_args(arguments)
    problem: ProblemName = chosen.problem
    out: Path = chosen.out or Path("data/evaluation") / problem / BACKTEST_FILE
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


if __name__ == "__main__":
    run_cli(main)
