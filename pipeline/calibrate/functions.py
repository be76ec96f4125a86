"""``functions``: standard response, spread, contention gains, cold start and keep-alive from the train windows.

A function's demand and standard time are the workload's own; its measured response is the work of the placement. So
the standard is not the response of quiet windows, but what is left when the contention that each pod met is taken
out: ``response = standard x (1 + sum of gain x (factor - 1))``, with the factors of ``sched_env.functions.contention``
at the state that the windows tell, fitted by weighted least squares in turns. Gains are drawn to 1, the model's own
curve, by as much as a hundred calls would, and stay below ten times as steep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from pipeline import windows
from pipeline.contracts.calibration import Calibration, FunctionValue, HowKnown, Value
from pipeline.datasets.functions import calibrated
from pipeline.datasets.functions import load as load_trace
from pipeline.datasets.responses import NORMAL_95, late_and_slow, logged_calls, spread_of
from pipeline.replay import replay
from sched_env import scenarios
from sched_env.functions.calibration import calibrate as ranges
from sched_env.functions.contention import factors, time_shares
from sched_env.functions.tables import SLO_FACTOR
from sched_env.recorded import AsRecorded, told
from wire.contracts.window import WINDOW_SECONDS

Load = Callable[[Mapping[str, Any] | None], scenarios.Scenario]

GAINS = ("cpu_gain", "net_gain", "disk_gain")
PRIOR_CALLS = 100.0
"""Weight of the prior of each gain, in calls at a slowdown of 1."""
MOST_GAIN = 10.0
"""Steeper than this is extrapolation: few windows are that crowded, and a policy must not be judged on guesses."""
MOST_ROUNDS, CONVERGED = 1000, 1e-7
MOST_SCALE = 3.0
"""How far the replay of the train windows may move the gains."""
RANGE_STEPS = 256
"""Decisions of the random policy, in each of 64 environments, that the bounds of the reward are taken from."""
NEEDED = "requests and response times by function, and pods with their nodes"


class Fit(NamedTuple):
    """What was fitted."""

    overrides: dict[str, float]
    values: list[Value]
    functions: dict[str, FunctionValue]


def fit(folder: Path, start: datetime, end: datetime, defaults: dict[str, float]) -> Fit:
    """Fit on the windows of ``[start, end)``; what they do not tell keeps its default, marked as assumed."""
    calls = logged_calls(folder, start, end)
    table = _without_first_calls(contention_of(folder, start, end), calls)
    gains, errors, standards = (np.ones(3), np.zeros(3), {}) if table.empty else _gains(table)
    values = [
        Value(
            name,
            "x the model's slope",
            float(gain),
            max(gain - NORMAL_95 * error, 0.0) if len(table) else None,
            gain + NORMAL_95 * error if len(table) else None,
            len(table),
            "estimated" if len(table) else "assumed",
            "" if len(table) else NEEDED,
        )
        for name, gain, error in zip(GAINS, gains.tolist(), errors.tolist(), strict=True)
    ]
    cold, keep = _cold_start(calls, defaults["cold_start_s"]), _keep_alive(folder, start, end, defaults["keep_alive_s"])
    values += [cold, keep]
    spreads = spread_of(folder, start, end, calls)
    functions = {
        name: FunctionValue(standard, *spreads.get(name, (0.0, 0)), _known(name in spreads))
        for name, standard in standards.items()
    }
    overrides = {value.name: round(value.value, 6) for value in values}
    return Fit(overrides, values, functions)


def _known(told: bool) -> HowKnown:
    return "estimated" if told else "assumed"


def contention_of(folder: Path, start: datetime, end: datetime) -> pd.DataFrame:
    """Return, for every function and window, its mean response and the contention that its calls met."""
    columns = ["cpu_capacity_cores", "mem_capacity_gib", "net_capacity_mb_s", "disk_capacity_iops"]
    state = ["cpu_requested_cores", "mem_requested_gib", "net_used_mean_mb_s", "disk_used_mean_iops"]
    nodes = windows.frame_of(folder, "nodes", start, end, ["node", *columns, *state])
    share = [
        (nodes[used] / nodes[total]).fillna(0.0).to_numpy(np.float64)
        for used, total in zip(state, columns, strict=True)
    ]
    free = (nodes[columns[0]] - nodes[state[0]]).fillna(0.0).to_numpy(np.float64)
    for name, factor in zip(GAINS, factors(share[0], free, *share[1:]), strict=True):
        nodes[name] = factor - 1.0
    used = {"cpu_request_cores": "cpu", "net_used_mean_mb_s": "net", "disk_used_mean_iops": "disk"}
    asked = ["pod", "node", "function", "requests_handled", "present_ratio", *used]
    pods = windows.frame_of(folder, "pods", start, end, asked).rename(columns=used)
    pods = pods.dropna(subset=["node", "function"]).merge(
        nodes[["window_start", "cluster", "node", *GAINS]], on=["window_start", "cluster", "node"]
    )
    pods["weight"] = pods["requests_handled"].fillna(pods["present_ratio"]).astype(float)
    mean = pods.groupby(["cluster", "function"])[["cpu", "net", "disk"]].transform("mean").fillna(0.0)
    for name, part in zip(GAINS, time_shares(mean["cpu"].clip(lower=1e-6), mean["net"], mean["disk"]), strict=True):
        pods[name] = pods[name] * part * pods["weight"]
    key = ["window_start", "cluster", "function"]
    met = pods.groupby(key)[[*GAINS, "weight"]].sum().reset_index()
    met = met[met["weight"] > 0]
    for name in GAINS:
        met[name] /= met["weight"]
    told = windows.frame_of(folder, "functions", start, end, ["function", "requests", "response_mean_s"])
    told = told[(told["requests"] > 0) & (told["response_mean_s"] > 0)]
    several = told["cluster"].nunique() > 1
    rows = met.merge(told, on=key)
    return rows.assign(name=windows.spelled(rows, "function", several))


def _without_first_calls(table: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """Take the calls that waited for their container out, where the log tells them apart: the cold start is its own."""
    warm = calls[~calls["first"]].groupby(["window_start", "name"])["duration_s"].agg(["mean", "size"]).reset_index()
    rows = table.merge(warm, on=["window_start", "name"], how="left")
    return rows.assign(
        response_mean_s=rows["mean"].fillna(rows["response_mean_s"]), requests=rows["size"].fillna(rows["requests"])
    )


def _gains(table: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.float64], dict[str, float]]:
    """Fit gains and standards in turns; returns both, and the standard errors of the gains."""
    met = table[list(GAINS)].to_numpy(np.float64)
    calls, response = table["requests"].to_numpy(np.float64), table["response_mean_s"].to_numpy(np.float64)
    names, codes = np.unique(table["name"].to_numpy(str), return_inverse=True)
    gains = np.ones(3)
    prior = np.sqrt(PRIOR_CALLS) * np.eye(3)
    for _ in range(MOST_ROUNDS):
        before = gains
        slow = 1.0 + met @ gains
        standard = np.bincount(codes, calls * response * slow) / np.bincount(codes, calls * slow * slow)
        excess = response / standard[codes] - 1.0
        weight = np.sqrt(calls)
        left = np.vstack([met * weight[:, None], prior])
        gains = np.minimum(nnls(left, np.concatenate([excess * weight, prior @ np.ones(3)]))[0], MOST_GAIN)
        if np.abs(gains - before).max() < CONVERGED:
            break
    rest = weight * (excess - met @ gains)
    # Windows of one hour are alike: their errors are not independent, so the error is that of hours.
    hours = table["window_start"].dt.floor("h").to_numpy()
    _, hour = np.unique(hours, return_inverse=True)
    score = np.stack([np.bincount(hour, (met * weight[:, None])[:, k] * rest) for k in range(3)], axis=1)
    bread = np.linalg.inv(left.T @ left)
    errors = np.sqrt(np.diag(bread @ (score.T @ score) @ bread))
    return gains, errors, dict(zip(names.tolist(), standard.tolist(), strict=True))


def _cold_start(calls: pd.DataFrame, default: float) -> Value:
    """How much longer the first call of a pod takes than the other calls of its function."""
    needs = "a request log that names pods, and pod events"
    firsts = calls[calls["first"]]
    if len(firsts) < 2:
        return Value("cold_start_s", "s", default, None, None, len(firsts), "assumed", needs)
    usual = calls[~calls["first"]].groupby("name")["duration_s"].mean()
    extra = (firsts["duration_s"] - firsts["name"].map(usual)).dropna()
    mean, error = float(extra.mean()), float(extra.std(ddof=1) / np.sqrt(len(extra)))
    low, high = max(mean - NORMAL_95 * error, 0.0), max(mean + NORMAL_95 * error, 0.0)
    return Value("cold_start_s", "s", max(mean, 0.0), low, high, len(extra), "estimated")


def _keep_alive(folder: Path, start: datetime, end: datetime, default: float) -> Value:
    """Where windows show pods, a recorded life includes its idle end: when the pod is gone nothing is left warm."""
    pods = windows.frame_of(folder, "pods", start, end, ["pod", "function"]).dropna(subset=["function"])
    count = int(pods.drop_duplicates(["cluster", "pod"]).shape[0])
    if count == 0:
        return Value("keep_alive_s", "s", default, None, None, 0, "assumed", "pods in the windows")
    return Value("keep_alive_s", "s", 0.0, 0.0, 0.0, count, "estimated")


def calibrate(folder: Path, span: windows.Span, load: Load) -> Calibration:
    """Fit everything to the train windows; ``load`` makes the scenario with these keys."""
    scenario = load(None)
    defaults = {name: float(getattr(scenario, name)) for name in ("cold_start_s", "keep_alive_s")}
    fitted = fit(folder, span.start, span.end, defaults)
    found = Calibration(
        "functions",
        span.start.isoformat(),
        span.end.isoformat(),
        dict(fitted.overrides),
        fitted.values,
        fitted.functions,
    )
    trace = calibrated(load_trace(folder, span.start, span.end), found)
    found = _steepened(found, load, trace, folder, span)
    # Bounds of the reward, last: they depend on all the rest.
    bounds = ranges(scenarios.load(load(found.overrides), {"horizon": 0}), trace=trace, steps=RANGE_STEPS)
    return msgspec.structs.replace(found, overrides={**found.overrides, **bounds})


def _steepened(found: Calibration, load: Load, trace: Any, folder: Path, span: windows.Span) -> Calibration:
    """Scale the gains until the simulator, replaying the train windows as recorded, slows calls as was measured.

    Windows tell means, and contention grows faster than load: what is fitted to means is too steep for the moments
    that the simulator lives in. Placements being given, the mean is linear in the gains, so two replays are enough.
    """
    if not (found.functions and told(trace)):
        return found
    standards = {name: value.standard_s for name, value in found.functions.items()}
    seen = late_and_slow(folder, span.start, span.end, standards, SLO_FACTOR)

    def slowdown(gains: dict[str, Any]) -> float:
        rows = replay(load({**found.overrides, **gains}), trace, AsRecorded(), WINDOW_SECONDS)
        return float(rows["ratio"].sum() / rows["calls"].sum())

    base, fitted = slowdown(dict.fromkeys(GAINS, 0.0)), slowdown({})
    measured = float(seen["ratio"].sum() / seen["calls"].sum())
    scale = min(max((measured - base) / (fitted - base), 0.0), MOST_SCALE) if fitted > base else 1.0
    values = [
        msgspec.structs.replace(
            value,
            value=value.value * scale,
            low=None if value.low is None else value.low * scale,
            high=None if value.high is None else value.high * scale,
        )
        if value.name in GAINS
        else value
        for value in found.values
    ]
    scaled = {value.name: round(value.value, 6) for value in values if value.name in GAINS}
    return msgspec.structs.replace(found, values=values, overrides={**found.overrides, **scaled})
