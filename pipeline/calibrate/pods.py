"""``pods``: how requests meet on a node, what they take, and the test windows replayed beside what was measured.

A pod's requests are dealt to it, and together they take what the pod was measured to use. The use of the nodes tells
the rest, on the train windows. How much more or less a node uses than its pods: amounts are scaled until the means
agree. And how peaks are seen: whether the k-th requests of a node's pods meet (``serial``) or those that
overlap (``parallel``), each spread over the time that an exporter averages over. Of these ways the one is taken whose
share of time above the threshold is nearest to the measured one.
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
from pipeline.datasets.pods import AVERAGED, GAINS, Trace, by_own_use, load, scaled_demands, spread_out
from pipeline.datasets.responses import share_above
from pipeline.errors import DataError
from pipeline.statistics.estimators import Floats
from sched_env import scenarios
from sched_env.pods.scenario import DeployScenario
from sched_env.pods.state import CPU_MEAN, MEM_MEAN, OVER, PODS, POSITIONS
from sched_env.pods.vector import make
from sched_env.recorded import AsRecorded
from sched_env.rollout import Policy, run_episodes
from wire.contracts.window import WINDOW_SECONDS

WAYS: tuple[tuple[Literal["serial", "parallel"], float], ...] = (
    ("serial", 0.0),
    *(("parallel", seconds) for seconds in (0.0, 30.0, 60.0, 120.0, 300.0)),
)
"""How requests can meet: the way of counting, and the seconds over which use is averaged."""
NEEDED = "use of the nodes that hold pods (node-exporter)"
UNITS = {"cpu": "cores", "mem": "gib"}


class Seen(NamedTuple):
    """What was measured of the nodes of a trace, where it was: [windows, nodes] each, NaN where it was not."""

    cpu: Floats
    mem: Floats
    above: Floats
    """Share of the window in which cpu or memory was above the threshold, by mean and 95th percentile."""


def seen(folder: Path, start: datetime, end: datetime, trace: Trace, threshold: float) -> Seen:
    """Lay the use of nodes beside the windows of a trace."""
    pods, nodes = trace
    used = [f"{name}_used_{statistic}_{unit}" for name, unit in UNITS.items() for statistic in ("mean", "p95")]
    told = windows.frame_of(folder, "nodes", start, end, ["node", *used])
    several = len(set(nodes.domain.tolist())) > 1
    told["name"] = windows.spelled(told, "node", several)
    told["elapsed"] = (told["window_start"] - pd.Timestamp(start)).dt.total_seconds()
    told = told[told["name"].isin(nodes.names)]

    def laid(column: str) -> Floats:
        table = told.pivot_table(index="elapsed", columns="name", values=column, aggfunc="last", dropna=False)
        return table.reindex(index=pods.window_s, columns=list(nodes.names)).to_numpy(np.float64)

    cpu, cpu_p95, mem, mem_p95 = (laid(column) for column in used)
    above = np.full(cpu.shape, np.nan)
    known = (cpu > 0.0) & (mem > 0.0) & ~np.isnan(cpu_p95) & ~np.isnan(mem_p95)
    size = {"cpu": np.broadcast_to(nodes.cpu, cpu.shape), "mem": np.broadcast_to(nodes.mem, cpu.shape)}
    above[known] = np.maximum(
        share_above(cpu[known], cpu_p95[known], threshold * size["cpu"][known]),
        share_above(mem[known], mem_p95[known], threshold * size["mem"][known]),
    )
    return Seen(np.where(known, cpu, np.nan), np.where(known, mem, np.nan), above)


def played(scenario: scenarios.Scenario, trace: Trace) -> tuple[Floats, Floats]:
    """Return how windows go in the simulator with pods where they were: [windows, nodes, columns]."""
    return make(scenario, 1, trace=trace).as_recorded()


def fit(
    folder: Path, span: windows.Span, make_scenario: Callable[[Mapping[str, Any] | None], scenarios.Scenario]
) -> Calibration:
    """Scale the amounts and choose how requests meet, on the train windows; what is set by hand stays."""
    trace, begin, end = by_own_use(load(folder, span.start, span.end)), span.start.isoformat(), span.end.isoformat()
    threshold = cast(DeployScenario, make_scenario(None)).threshold
    measured = seen(folder, span.start, span.end, trace, threshold)
    times = pd.Series(pd.Timestamp(span.start) + pd.to_timedelta(trace[0].window_s, unit="s")).repeat(len(trace[1]))
    best: tuple[float, dict[str, Any], list[Value]] | None = None
    for mode, seconds in WAYS:
        scenario = cast(DeployScenario, make_scenario({"arrival": mode}))
        if scenario.arrival != mode:
            continue
        spread = spread_out(trace, seconds)
        nodes, _ = played(scenario, spread)
        there = ~np.isnan(measured.above) & (nodes[:, :, PODS] > 0.0)
        values = [
            share_used(name, unit, nodes[:, :, column][there], use[there], times[there.ravel()], NEEDED)
            for name, unit, column, use in (
                (GAINS["cpu"], "cores a core of its pods", CPU_MEAN, measured.cpu),
                (GAINS["mem"], "GiB a GiB of its pods", MEM_MEAN, measured.mem),
            )
        ]  # fmt: skip
        if not there.any():
            averaged = Value(AVERAGED, "s", 0.0, None, None, 0, "assumed", NEEDED)
            return Calibration("pods", begin, end, {}, [*values, averaged], {})
        _, books = played(scenario, scaled_demands(spread, values))
        off = abs(_above(books, there) - float(measured.above[there].mean()))
        if best is None or off < best[0]:
            averaged = Value(AVERAGED, "s", seconds, None, None, int(there.sum()), "estimated")
            best = off, {"arrival": mode}, [*values, averaged]
    if best is None:
        raise DataError(f"arrival is {cast(DeployScenario, make_scenario(None)).arrival}", "serial or parallel")
    return Calibration("pods", begin, end, best[1], best[2], {})


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
