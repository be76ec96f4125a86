"""``functions``: standard response, spread, contention gains, cold start and keep-alive from the train windows.

A function's demand and standard time are the workload's own; its measured response is the work of the placement. So
the standard is not the response of quiet windows, but what is left when the contention that each pod met is taken
out: ``response = standard x (1 + sum of gain x what was met)``, with the terms of ``sched_env.functions.contention``
at the state that the windows tell, fitted by weighted least squares in turns. What slows calls is what neighbours
use, where windows tell it and it explains the responses better than what they request. Gains are drawn to their
defaults by as much as a hundred calls would, and stay below ten times as steep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
from scipy.optimize import nnls

from pipeline import windows
from pipeline.contracts.calibration import Calibration, FunctionValue, HowKnown, UseValue, Value
from pipeline.datasets.functions import calibrated
from pipeline.datasets.functions import load as load_trace
from pipeline.datasets.responses import NORMAL_95, late_and_slow, logged_calls, spread_of, tails_of
from pipeline.replay import replay
from sched_env import scenarios
from sched_env.functions.calibration import calibrate as ranges
from sched_env.functions.contention import factors, power, time_shares, waiting
from sched_env.functions.tables import SLO_FACTOR
from sched_env.recorded import AsRecorded, told
from sched_env.tables import Floats
from wire.contracts.window import WINDOW_SECONDS

Load = Callable[[Mapping[str, Any] | None], scenarios.Scenario]

GAINS = ("cpu_gain", "busy_gain", "net_gain", "disk_gain")
DEFAULT_GAINS = (1.0, 0.0, 1.0, 1.0)
COLD = "cold_start_s"
"""What a pod's start adds to the calls of its window, in seconds: fitted with the gains where no log tells it."""
PRIOR_CALLS = 100.0
"""Weight of the prior of each gain, in calls at a slowdown of 1."""
MOST_GAIN = 10.0
"""Steeper than this is extrapolation: few windows are that crowded, and a policy must not be judged on guesses."""
MOST_ROUNDS, CONVERGED = 1000, 1e-7
MOST_SCALE = 3.0
"""How far the replay of the train windows may move the gains."""
RANGE_STEPS = 256
"""Decisions of the random policy, in each of 64 environments, that the bounds of the reward are taken from."""
LEAST_STARTS = 20
"""Starts of pods from which the cold start is taken from what they add to their windows."""
NEEDED = "requests and response times by function, and pods with their nodes"


class Fit(NamedTuple):
    """What was fitted."""

    overrides: dict[str, Any]
    values: list[Value]
    functions: dict[str, FunctionValue]
    uses: dict[str, UseValue]


def fit(folder: Path, start: datetime, end: datetime, defaults: dict[str, float]) -> Fit:
    """Fit on the windows of ``[start, end)``; what they do not tell keeps its default, marked as assumed."""
    calls = logged_calls(folder, start, end)
    uses, system = uses_of(folder, start, end)
    contention, rows, starts = "requested", 0, 0
    best = Gains(np.array(DEFAULT_GAINS), np.zeros(len(GAINS)), (defaults[COLD], 0.0), {}, np.inf)
    for way in ("requested", "used") if uses else ("requested",):
        met = _without_first_calls(contention_of(folder, start, end, way, uses), calls)
        found = best if met.empty else _gains(met, defaults[COLD])
        if found.error < best.error:
            contention, best, rows, starts = way, found, len(met), int(met["starts"].sum())
    known = rows > 0
    values = [
        Value(
            name,
            "x the model's slope",
            gain,
            max(gain - NORMAL_95 * error, 0.0) if known else None,
            gain + NORMAL_95 * error if known else None,
            rows,
            _known(known),
            "" if known else NEEDED,
        )
        for name, gain, error in zip(GAINS, best.gains.tolist(), best.errors.tolist(), strict=True)
        if name != "busy_gain" or contention == "used"
    ]
    cold = _cold_start(calls, defaults[COLD])
    if cold.origin == "assumed" and starts >= LEAST_STARTS:
        seconds, error = best.cold_s
        low, high = max(seconds - NORMAL_95 * error, 0.0), seconds + NORMAL_95 * error
        cold = Value(COLD, "s", seconds, low, high, starts, "estimated")
    values += [cold, _keep_alive(folder, start, end, defaults["keep_alive_s"])]
    if uses:
        values.append(system)
    spreads, tails = spread_of(folder, start, end, calls), tails_of(folder, start, end)
    logged = set(calls["name"])
    functions = {
        name: FunctionValue(
            standard,
            *spreads.get(name, (0.0, 0)),
            _known(name in spreads),
            [round(share, 6) for share in tails[name].tolist()] if name in tails and name not in logged else [],
        )
        for name, standard in best.standards.items()
    }
    overrides: dict[str, Any] = {value.name: round(value.value, 6) for value in values}
    if contention == "used":
        overrides["contention"] = contention
    return Fit(overrides, values, functions, uses)


def _known(told: bool) -> HowKnown:
    return "estimated" if told else "assumed"


def uses_of(folder: Path, start: datetime, end: datetime) -> tuple[dict[str, UseValue], Value]:
    """Return what the pods of each workload use, idle and by call, and what nodes use beside their pods."""
    asked = ["pod", "node", "function", "present_ratio", "cpu_used_mean_cores", "mem_used_mean_gib"]
    pods = windows.frame_of(folder, "pods", start, end, asked).dropna(subset=["function", "cpu_used_mean_cores"])
    pods = pods.assign(name=windows.spelled(pods, "function", pods["cluster"].nunique() > 1))
    pods["seconds"] = pods["present_ratio"] * WINDOW_SECONDS
    pods["spent"] = pods["cpu_used_mean_cores"] * pods["seconds"]
    pods["mem"] = pods["mem_used_mean_gib"] * pods["seconds"]
    told = windows.frame_of(folder, "functions", start, end, ["function", "requests"])
    key = ["window_start", "cluster", "function"]
    sums = pods.groupby([*key, "name"])[["seconds", "spent", "mem"]].sum().reset_index().merge(told, on=key, how="left")
    found = {}
    for name, rows in sums.groupby("name"):
        calls, seconds = rows["requests"].fillna(0.0).to_numpy(np.float64), rows["seconds"].to_numpy(np.float64)
        spent = rows["spent"].to_numpy(np.float64)
        scale = 1.0 / np.maximum(seconds, 1.0)
        idle, work = nnls(np.stack([seconds, calls], axis=1) * scale[:, None], spent * scale)[0].tolist()
        # The two sum up to what was used; the fit only says which part the calls have.
        whole = float(spent.sum() / max(idle * seconds.sum() + work * calls.sum(), 1e-9))
        mem = float(rows["mem"].sum() / max(seconds.sum(), 1e-9))
        found[str(name)] = UseValue(idle * whole, work * whole, mem, len(rows))
    nodes = windows.frame_of(folder, "nodes", start, end, ["node", "cpu_used_mean_cores"]).dropna()
    where = ["window_start", "cluster", "node"]
    mine = pods.groupby(where)["spent"].sum().rename("spent").reset_index()
    rest = nodes.merge(mine, on=where, how="left").fillna({"spent": 0.0})
    rest = rest[rest["cluster"].isin(set(pods["cluster"]))]
    by_node = (rest["cpu_used_mean_cores"] - rest["spent"] / WINDOW_SECONDS).groupby([rest["cluster"], rest["node"]])
    each = by_node.mean().clip(lower=0.0)
    if each.empty:
        return {}, Value("system_cores", "cores", 0.0, None, None, 0, "assumed", "cpu use of nodes and pods")
    error = float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else 0.0
    mean = float(each.mean())
    low, high = max(mean - NORMAL_95 * error, 0.0), mean + NORMAL_95 * error
    return found, Value("system_cores", "cores", mean, low, high, len(each), "estimated")


def contention_of(
    folder: Path, start: datetime, end: datetime, way: str = "requested", uses: Mapping[str, UseValue] | None = None
) -> pd.DataFrame:
    """Return, for every function and window, its mean response and the contention that its calls met.

    ``way`` says whether by what the pods of a node request or by what the node uses. ``work_s`` of a call is 0 where
    its share of the time is not known: then its assumed share is in the columns already.
    """
    columns = ["cpu_capacity_cores", "mem_capacity_gib", "net_capacity_mb_s", "disk_capacity_iops"]
    ask = ["cpu_requested_cores", "mem_requested_gib"]
    if way == "used":
        ask = ["cpu_used_mean_cores", "mem_used_mean_gib"]
    state = [*ask, "net_used_mean_mb_s", "disk_used_mean_iops"]
    left = ["cpu_allocatable_cores", "mem_allocatable_gib"]
    nodes = windows.frame_of(folder, "nodes", start, end, ["node", *columns, *left, *state])
    for total, allocatable in zip(columns[:2], left, strict=True):  # as the simulator's nodes are
        nodes[total] = nodes[allocatable].fillna(nodes[total])
    share = [
        (nodes[used] / nodes[total]).fillna(0.0).to_numpy(np.float64)
        for used, total in zip(state, columns, strict=True)
    ]
    cores = nodes[columns[0]].fillna(1.0).to_numpy(np.float64)
    free = cores * (1.0 - share[0])
    cpu, net, disk = factors(share[0], free, *share[1:])
    busy = np.zeros_like(cpu)
    if way == "used":
        cpu, busy = 1.0 + waiting(share[0], free, power(cores)), share[0]
    for name, term in zip(GAINS, (cpu - 1.0, busy, net - 1.0, disk - 1.0), strict=True):
        nodes[name] = term
    used = {"cpu_request_cores": "cpu", "net_used_mean_mb_s": "net", "disk_used_mean_iops": "disk"}
    asked = ["pod", "node", "function", "requests_handled", "present_ratio", *used]
    pods = windows.frame_of(folder, "pods", start, end, asked).rename(columns=used)
    pods = pods.dropna(subset=["node", "function"]).merge(
        nodes[["window_start", "cluster", "node", *GAINS]], on=["window_start", "cluster", "node"]
    )
    pods["weight"] = pods["requests_handled"].fillna(pods["present_ratio"]).astype(float)
    mean = pods.groupby(["cluster", "function"])[["cpu", "net", "disk"]].transform("mean").fillna(0.0)
    shares = time_shares(mean["cpu"].clip(lower=1e-6), mean["net"], mean["disk"])
    several = pods["cluster"].nunique() > 1
    work = windows.spelled(pods, "function", several).map({n: u.work_s for n, u in (uses or {}).items()}).fillna(0.0)
    pods["work_s"] = work if way == "used" else 0.0
    computing = shares[0].where(pods["work_s"] == 0.0, 1.0)
    for name, part in zip(GAINS, (computing, computing, *shares[1:]), strict=True):
        pods[name] = pods[name] * part * pods["weight"]
    key = ["window_start", "cluster", "function"]
    met = pods.groupby(key).agg({**dict.fromkeys((*GAINS, "weight"), "sum"), "work_s": "first"}).reset_index()
    met = met[met["weight"] > 0]
    for name in GAINS:
        met[name] /= met["weight"]
    told = windows.frame_of(folder, "functions", start, end, ["function", "requests", "response_mean_s"])
    told = told[(told["requests"] > 0) & (told["response_mean_s"] > 0)]
    came = windows.frame_of(folder, "events", start, end, ["kind", "action", "function"])
    came = came[(came["kind"] == "pod") & (came["action"] == "create")]
    starts = came.groupby(key).size().rename("starts")
    rows = met.merge(told, on=key).join(starts, on=key).fillna({"starts": 0})
    return rows.assign(name=windows.spelled(rows, "function", told["cluster"].nunique() > 1))


def _without_first_calls(table: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """Take the calls that waited for their container out, where the log tells them apart: the cold start is its own."""
    warm = calls[~calls["first"]].groupby(["window_start", "name"])["duration_s"].agg(["mean", "size"]).reset_index()
    rows = table.merge(warm, on=["window_start", "name"], how="left")
    return rows.assign(
        response_mean_s=rows["mean"].fillna(rows["response_mean_s"]), requests=rows["size"].fillna(rows["requests"])
    )


class Gains(NamedTuple):
    """What least squares found."""

    gains: Floats
    errors: Floats
    cold_s: tuple[float, float]
    """Seconds that a start adds, and their standard error."""
    standards: dict[str, float]
    error: float
    """Mean square of what is left, call by call."""


def _gains(table: pd.DataFrame, cold_s: float = 0.0) -> Gains:
    """Fit gains, the cold start and standards in turns."""
    terms = table[list(GAINS)].to_numpy(np.float64)
    calls, response = table["requests"].to_numpy(np.float64), table["response_mean_s"].to_numpy(np.float64)
    work, starts = table["work_s"].to_numpy(np.float64), table["starts"].to_numpy(np.float64) / calls
    names, codes = np.unique(table["name"].to_numpy(str), return_inverse=True)
    weight, size = np.sqrt(calls), len(GAINS) + 1
    centre = np.array([*DEFAULT_GAINS, cold_s])
    found = centre.copy()
    standard = np.bincount(codes, calls * response) / np.bincount(codes, calls)
    # A second of a cold start is drawn to its default by as much as one start a hundred calls would.
    prior = np.sqrt(PRIOR_CALLS) * np.diag([1.0] * len(GAINS) + [0.01])
    for _ in range(MOST_ROUNDS):
        before = found
        computing = np.where(work > 0.0, np.minimum(work / standard[codes], 1.0), 1.0)
        met = np.column_stack([terms, starts / standard[codes]])
        met[:, :2] *= computing[:, None]
        slow = 1.0 + met @ found
        standard = np.bincount(codes, calls * response * slow) / np.bincount(codes, calls * slow * slow)
        excess = response / standard[codes] - 1.0
        left = np.vstack([met * weight[:, None], prior])
        found = nnls(left, np.concatenate([excess * weight, prior @ centre]))[0]
        found[:-1] = np.minimum(found[:-1], MOST_GAIN)
        if np.abs(found - before).max() < CONVERGED:
            break
    rest = weight * (excess - met @ found)
    # Windows of one hour are alike: their errors are not independent, so the error is that of hours.
    hours = table["window_start"].dt.floor("h").to_numpy()
    _, hour = np.unique(hours, return_inverse=True)
    score = np.stack([np.bincount(hour, met[:, k] * weight * rest) for k in range(size)], axis=1)
    bread = np.linalg.inv(left.T @ left)
    errors = np.sqrt(np.diag(bread @ (score.T @ score) @ bread))
    standards = dict(zip(names.tolist(), standard.tolist(), strict=True))
    cold = float(found[-1]), float(errors[-1])
    return Gains(found[:-1], errors[:-1], cold, standards, float(rest @ rest / calls.sum()))


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
        fitted.uses,
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
    scaled: dict[str, Any] = {value.name: round(value.value, 6) for value in values if value.name in GAINS}
    return msgspec.structs.replace(found, values=values, overrides={**found.overrides, **scaled})
