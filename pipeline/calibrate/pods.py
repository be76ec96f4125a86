"""``pods``: how requests meet on a node, what they take, and the test windows replayed beside what was measured.

A pod's requests are dealt to it, and together they take what the pod was measured to use. The use of the nodes tells
the rest, on the train windows. How much more or less a node uses than its pods: amounts are scaled until the means
agree. And how peaks are seen: whether the k-th requests of a node's pods meet (``serial``) or those that
overlap (``parallel``), or what is used on average over some seconds; the longer, the lower are peaks. Of these ways the
one is taken whose share of time above the threshold is nearest to the measured one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline import windows
from pipeline.calibrate.shares import share_used
from pipeline.contracts.calibration import Calibration, Value
from pipeline.contracts.evaluation import Backtest, Promise
from pipeline.datasets import Workload
from pipeline.datasets.pods import AVERAGED, GAINS, PARTS, Trace, as_exported, load, scaled_demands
from pipeline.errors import DataError
from pipeline.statistics.estimators import Floats
from sched_env import scenarios
from sched_env.pods.scenario import DeployScenario
from sched_env.pods.state import CPU_MEAN, MEM_MEAN, OVER, PODS, POSITIONS
from sched_env.pods.vector import make
from sched_env.recorded import AsRecorded
from sched_env.rollout import Policy, run_episodes
from wire.contracts.window import WINDOW_SECONDS

LEAST_S, MOST_S = WINDOW_SECONDS / PARTS, float(WINDOW_SECONDS)
HALVINGS = 6
"""Of the range of seconds that use may be averaged over: to 4 s."""
NEEDED = "use of the nodes that hold pods (node-exporter)"
UNITS = {"cpu": "cores", "mem": "gib"}


class Seen(NamedTuple):
    """What was measured of the nodes of a trace, where it was: [windows, nodes] each, NaN where it was not."""

    cpu: Floats
    mem: Floats
    above: Floats
    """Share of the window in which cpu or memory was above the threshold (:func:`time_above`)."""


class _Way(NamedTuple):
    """How requests can meet, and how it compares."""

    off: float
    overrides: dict[str, Any]
    values: list[Value]


def seen(folder: Path, start: datetime, end: datetime, trace: Trace, threshold: float) -> Seen:
    """Lay the use of nodes beside the windows of a trace."""
    pods, nodes = trace
    used = [f"{name}_used_{statistic}_{unit}" for name, unit in UNITS.items() for statistic in ("mean", "p95", "max")]
    told = windows.frame_of(folder, "nodes", start, end, ["node", *used])
    several = len(set(nodes.domain.tolist())) > 1
    told["name"] = windows.spelled(told, "node", several)
    told["elapsed"] = (told["window_start"] - pd.Timestamp(start)).dt.total_seconds()
    told = told[told["name"].isin(nodes.names)]

    def laid(column: str) -> Floats:
        table = told.pivot_table(index="elapsed", columns="name", values=column, aggfunc="last", dropna=False)
        return table.reindex(index=pods.window_s, columns=list(nodes.names)).to_numpy(np.float64)

    cpu, cpu_p95, cpu_most, mem, mem_p95, mem_most = (laid(column) for column in used)
    above = np.full(cpu.shape, np.nan)
    known = (cpu > 0.0) & (mem > 0.0) & ~np.isnan(cpu_p95 + cpu_most + mem_p95 + mem_most)
    limits = {size: np.broadcast_to(threshold * getattr(nodes, size), cpu.shape)[known] for size in UNITS}
    above[known] = np.maximum(
        time_above(cpu[known], cpu_p95[known], cpu_most[known], limits["cpu"]),
        time_above(mem[known], mem_p95[known], mem_most[known], limits["mem"]),
    )
    return Seen(np.where(known, cpu, np.nan), np.where(known, mem, np.nan), above)


def time_above(mean: Floats, p95: Floats, largest: Floats, limit: Floats) -> Floats:
    """Return the share of a window in which use was above a limit, from the three numbers that windows keep of it.

    Use is taken to be spread evenly between the 95th percentile and the largest sample, and evenly below, as widely as
    its mean asks for. Nothing goes beyond what was seen: nobody was above a limit that no sample reached.
    """
    upper = 0.05 * np.clip((largest - limit) / np.maximum(largest - p95, 1e-12), 0.0, 1.0)
    rest = (mean - 0.05 * (p95 + largest) / 2.0) / 0.95
    lower = 0.95 * np.clip((p95 - limit) / np.maximum(2.0 * (p95 - rest), 1e-12), 0.0, 1.0)
    return upper + lower


def played(scenario: scenarios.Scenario, trace: Trace) -> tuple[Floats, Floats]:
    """Return how windows go in the simulator with pods where they were: [windows, nodes, columns]."""
    return make(scenario, 1, trace=trace).as_recorded()


def fit(
    folder: Path, span: windows.Span, make_scenario: Callable[[Mapping[str, Any] | None], scenarios.Scenario]
) -> Calibration:
    """Scale the amounts and choose how requests meet, on the train windows; what is set by hand stays."""
    trace, begin, end = load(folder, span.start, span.end), span.start.isoformat(), span.end.isoformat()
    threshold = cast(DeployScenario, make_scenario(None)).threshold
    measured = seen(folder, span.start, span.end, trace, threshold)
    times = pd.Series(pd.Timestamp(span.start) + pd.to_timedelta(trace[0].window_s, unit="s")).repeat(len(trace[1]))
    ways: list[_Way] = []

    def tried(mode: Literal["serial", "parallel"], seconds: float) -> float:
        """Try a way; returns by how much it is more often above the threshold than was measured."""
        scenario = cast(DeployScenario, make_scenario({"arrival": mode}))
        if scenario.arrival != mode:  # set by hand
            return 0.0
        exported = as_exported(trace, seconds)
        nodes, _ = played(scenario, exported)
        there = ~np.isnan(measured.above) & (nodes[:, :, PODS] > 0.0)
        values = [
            share_used(name, unit, nodes[:, :, column][there], use[there], times[there.ravel()], NEEDED)
            for name, unit, column, use in (
                (GAINS["cpu"], "cores a core of its pods", CPU_MEAN, measured.cpu),
                (GAINS["mem"], "GiB a GiB of its pods", MEM_MEAN, measured.mem),
            )
        ]
        if not there.any():
            ways.append(_Way(0.0, {}, [*values, Value(AVERAGED, "s", 0.0, None, None, 0, "assumed", NEEDED)]))
            return 0.0
        _, books = played(scenario, scaled_demands(exported, values))
        off = _above(books, there) - float(measured.above[there].mean())
        averaged = Value(AVERAGED, "s", seconds, None, None, int(there.sum()), "estimated")
        ways.append(_Way(off, {"arrival": mode}, [*values, averaged]))
        return off

    tried("serial", 0.0)
    tried("parallel", 0.0)
    low, high = LEAST_S, MOST_S
    if tried("parallel", low) > 0.0 > tried("parallel", high):
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            low, high = (middle, high) if tried("parallel", middle) > 0.0 else (low, middle)
    if not ways:
        raise DataError(f"arrival is {cast(DeployScenario, make_scenario(None)).arrival}", "serial or parallel")
    best = min(ways, key=lambda way: abs(way.off))
    return Calibration("pods", begin, end, best.overrides, best.values, {})


def _above(books: Floats, there: NDArray[np.bool_]) -> float:
    """Return the mean share of positions above the threshold, node by node and window by window."""
    share = books[:, :, OVER] / np.maximum(books[:, :, POSITIONS], 1.0)
    return float(share[there].mean())


def check(data: Workload, folder: Path, policy: Policy, name: str) -> tuple[Backtest, pd.DataFrame]:
    """Replay a split: use and stress of the nodes, and the bill, beside what was measured.

    Under another policy than what was recorded pods are elsewhere, and only what it makes of all of them is compared.
    """
    start, end = (datetime.fromisoformat(time) for time in (data.start, data.end))
    trace = cast(Trace, data.trace)
    pods, table = trace
    scenario = cast(DeployScenario, data.scenario)
    nodes, books = played(scenario, trace)
    measured = seen(folder, start, end, trace, scenario.threshold)
    there = ~np.isnan(measured.above) & (nodes[:, :, PODS] > 0.0)
    if not there.any():
        return Backtest(name, data.start, data.end, [], skipped=f"nobody measures {NEEDED}"), pd.DataFrame()
    hours = WINDOW_SECONDS / 3600.0
    home = np.zeros(there.shape, np.bool_)  # which nodes held a pod, by the windows alone
    window = np.repeat(np.arange(len(pods)), np.diff(pods.window_rows))
    home[window[pods.node >= 0], pods.node[pods.node >= 0]] = True
    bill = float((home * table.price_usd_per_hour).sum()) * hours
    said = float(((nodes[:, :, PODS] > 0.0) * table.price_usd_per_hour).sum()) * hours
    figures = [Promise.of("cost_usd", said, bill)]
    both = pd.DataFrame({"window_start": pd.Timestamp(start) + pd.to_timedelta(pods.window_s, unit="s")})
    pairs = {
        "used_cores": (nodes[:, :, CPU_MEAN], measured.cpu),
        "used_gib": (nodes[:, :, MEM_MEAN], measured.mem),
        "sla_violation_rate": (books[:, :, OVER] / np.maximum(books[:, :, POSITIONS], 1.0), measured.above),
    }
    for metric, (left, right) in pairs.items():
        combined = np.mean if metric.endswith("rate") else np.sum
        for side, values in (("predicted", left), ("measured", right)):
            both[f"{side}_{metric}"] = [
                float(combined(row[here])) if here.any() else np.nan for row, here in zip(values, there, strict=True)
            ]
        figures.append(Promise.of(metric, float(np.mean(left[there])), float(np.mean(right[there]))))
    if not isinstance(policy, AsRecorded):
        whole = scenarios.load(scenario, {"episode_windows": len(pods), "horizon": 0})
        [episode] = run_episodes(whole, policy, [0], trace=trace)
        figures = [Promise.of("cost_usd", float(episode["cost_usd"]), bill)]
    return Backtest(name, data.start, data.end, figures), both
