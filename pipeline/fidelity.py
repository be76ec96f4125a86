"""Is the simulator true? The windows replayed in it, beside what was measured in them, figure by figure.

Under ``as_recorded``, the placements of the cluster's own scheduler, every night and from the first one on; under our
own live policy it is the back-test. The gate does not believe a simulator that is off by more than its tolerance.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from pipeline import windows
from pipeline.contracts.evaluation import Backtest, Promise
from pipeline.datasets import Workload
from pipeline.datasets.functions import cost_usd
from pipeline.datasets.responses import late_and_slow, quantile_of_ratios
from pipeline.replay import replay
from sched_env.functions.state import HISTOGRAM_BINS, HISTOGRAM_WIDTH
from sched_env.functions.tables import SLO_FACTOR, FunctionTrace
from sched_env.rollout import Policy
from sched_env.tables import Floats
from sched_env.tails import TAIL_AT
from wire.contracts.window import WINDOW_SECONDS

P95 = 0.95


def check(data: Workload, folder: Path, policy: Policy, name: str) -> tuple[Backtest, pd.DataFrame]:
    """Replay a split of ``functions`` under a policy; returns the figures, and both sides window by window."""
    start = datetime.fromisoformat(data.start)
    predicted = replay(data.scenario, data.trace, policy, WINDOW_SECONDS)
    if predicted.empty:
        return Backtest(
            name, data.start, data.end, [], skipped="the windows hold less than two whole windows"
        ), predicted
    first = start + timedelta(seconds=int(predicted.index[0]) * WINDOW_SECONDS)
    last = start + timedelta(seconds=(int(predicted.index[-1]) + 1) * WINDOW_SECONDS)
    instances = data.trace[0]
    standards = {
        function: float(instances.response_s[rows][0])
        for index, function in enumerate(instances.function_names)
        if (rows := np.flatnonzero(instances.function == index)).size
    }
    measured = late_and_slow(folder, first, last, standards, SLO_FACTOR)
    nodes = windows.frame_of(folder, "nodes", first, last, ["cpu_used_mean_cores"])
    clusters = sorted(set(windows.frame_of(folder, "pods", first, last, [])["cluster"]))
    used = nodes[nodes["cluster"].isin(clusters)].dropna().groupby("window_start")["cpu_used_mean_cores"].sum()
    both = predicted.add_prefix("predicted_")
    both["window_start"] = [start + timedelta(seconds=int(window) * WINDOW_SECONDS) for window in both.index]
    both = both.set_index("window_start").join(measured.add_prefix("measured_"))
    both = both.join(used.rename("measured_used_cores"))
    figures = []
    calls = both["measured_calls"].sum()
    if calls > 0 and both["predicted_calls"].sum() > 0:
        answered = both["predicted_calls"].sum()
        if both["measured_late"].notna().any():
            known = both[both["measured_late"].notna()]
            late = known["measured_late"].sum() / known["measured_calls"].sum()
            said = known["predicted_late"].sum() / known["predicted_calls"].sum()
            figures.append(Promise.of("sla_violation_rate", float(said), float(late)))
        ratio = both["measured_ratio"].sum() / calls
        figures.append(Promise.of("response_ratio", float(both["predicted_ratio"].sum() / answered), float(ratio)))
        p95 = quantile_of_ratios(folder, first, last, standards, P95)
        if p95 is not None:
            figures.append(Promise.of("response_ratio_p95", _p95(predicted.attrs["histogram"], instances), p95))
    cores = both.dropna(subset=["measured_used_cores"])
    if cores["measured_used_cores"].sum() > 0 and (instances.work_s > 0.0).any():
        said, seen = (float(cores[f"{side}_used_cores"].mean()) for side in ("predicted", "measured"))
        figures.append(Promise.of("used_cores", said, seen))
    cooldown_s: float = data.scenario.cooldown_s  # type: ignore[attr-defined]
    bill = cost_usd(folder, first, last, cooldown_s)
    figures.append(Promise.of("cost_usd", float(predicted["cost_usd"].sum()), bill))
    return Backtest(name, first.isoformat(), last.isoformat(), figures), both


def figures_of(predicted: pd.DataFrame, instances: FunctionTrace) -> dict[str, float]:
    """What a replay says of its whole stretch."""
    answered = float(predicted["calls"].sum())
    return {
        "sla_violation_rate": float(predicted["late"].sum()) / answered,
        "response_ratio": float(predicted["ratio"].sum()) / answered,
        "response_ratio_p95": _p95(predicted.attrs["histogram"], instances),
        "used_cores": float(predicted["used_cores"].mean()),
        "cost_usd": float(predicted["cost_usd"].sum()),
    }


def _p95(histogram: Floats, instances: FunctionTrace) -> float:
    """95th percentile of single calls, each bin of mean ratios spread as the calls are."""
    means = 1.0 + (np.arange(HISTOGRAM_BINS) + 0.5) * HISTOGRAM_WIDTH
    weights = histogram / histogram.sum()
    if not instances.tails.size:
        return float(means[np.searchsorted(np.cumsum(weights), P95)])
    calls = np.bincount(instances.function, instances.requests, len(instances.function_names))
    tail = calls @ instances.tails / calls.sum()

    def above(limit: float) -> float:
        return float(weights @ np.interp(np.log(limit / means), np.log(TAIL_AT), tail)) - (1.0 - P95)

    return float(brentq(above, 1e-3, 1e3))
