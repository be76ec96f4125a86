"""Response times of single calls, where windows hold a request log: how they spread, and how many were late."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import ndtr

from pipeline import windows
from pipeline.statistics.estimators import Floats

NORMAL_95 = 1.959963984540054
_P95_DEVIATIONS = 1.6448536269514722
LEAST_CALLS = 30
"""Calls of a function from which its own spread is taken."""


def logged_calls(folder: Path, start: datetime, end: datetime) -> pd.DataFrame:
    """Return every call of the request log: ``window_start, name, duration_s, first`` (the first call of its pod).

    A window whose calls all took the same time was dealt from counts, not logged.
    """
    columns = ["pod", "position", "arrival_offset_s", "duration_s"]
    calls = windows.frame_of(folder, "demands", start, end, columns)
    owners = windows.frame_of(folder, "pods", start, end, ["pod", "function"]).dropna()
    several = owners["cluster"].nunique() > 1
    owners = owners.drop_duplicates(["cluster", "pod"]).assign(
        name=lambda frame: windows.spelled(frame, "function", several)
    )
    calls = calls.merge(owners[["cluster", "pod", "name"]], on=["cluster", "pod"])
    groups = calls.groupby(["window_start", "name"])["duration_s"]
    alike = (groups.transform("min") == groups.transform("max")) & (groups.transform("size") > 1)
    calls = calls[~alike].sort_values(["window_start", "arrival_offset_s"], kind="stable")
    began = windows.frame_of(folder, "events", start, end, ["entity", "kind", "action"])
    began = began[(began["kind"] == "pod") & (began["action"] == "create")].drop_duplicates(["cluster", "entity"])
    # Only of a pod that came in the span is it known which call was the first.
    came = pd.MultiIndex.from_frame(began[["cluster", "entity"]])
    key = pd.MultiIndex.from_frame(calls[["cluster", "pod"]])
    first = ~calls.duplicated(["cluster", "pod"]) & key.isin(came)
    return calls.assign(first=first)[["window_start", "name", "duration_s", "first"]]


def spread_of(folder: Path, start: datetime, end: datetime, calls: pd.DataFrame) -> dict[str, tuple[float, int]]:
    """Return the spread of each function's calls and how many it rests on: from the log, else from mean and p95."""
    found: dict[str, tuple[float, int]] = {}
    usual = calls[~calls["first"]]
    if len(usual):
        logs = np.log(usual["duration_s"].clip(lower=1e-9))
        centred = logs - logs.groupby([usual["window_start"], usual["name"]]).transform("mean")
        size = logs.groupby([usual["window_start"], usual["name"]]).transform("size")
        table = pd.DataFrame({"name": usual["name"], "squares": centred**2, "freedom": 1.0 - 1.0 / size})
        sums = table.groupby("name").agg({"squares": "sum", "freedom": "sum"})
        counts = usual.groupby("name").size().reindex(sums.index).to_numpy()
        spreads = np.sqrt(sums["squares"].to_numpy() / np.maximum(sums["freedom"].to_numpy(), 1e-9))
        for name, spread, count in zip(sums.index.astype(str), spreads.tolist(), counts.tolist(), strict=True):
            if count >= LEAST_CALLS:
                found[name] = (spread, count)
    told = windows.frame_of(
        folder, "functions", start, end, ["function", "requests", "response_mean_s", "response_p95_s"]
    ).dropna()
    told = told[(told["requests"] > 0) & (told["response_mean_s"] > 0)]
    told = told.assign(name=windows.spelled(told, "function", told["cluster"].nunique() > 1))
    for name, rows in told.groupby("name"):
        if name not in found:
            each = log_normal_spread(
                rows["response_mean_s"].to_numpy(np.float64), rows["response_p95_s"].to_numpy(np.float64)
            )
            calls_of = rows["requests"].to_numpy(np.float64)
            found[str(name)] = (float(np.average(each, weights=calls_of)), int(calls_of.sum()))
    return found


def log_normal_spread(mean: Floats, p95: Floats) -> Floats:
    """Return the spread of the log-normal distribution with this mean and 95th percentile.

    From ``ln(p95 / mean) = 1.645 s - s^2 / 2`` the smaller root for ``s`` is taken; a p95 too far above the mean for
    any log-normal gives the widest one.
    """
    distance = np.log(np.maximum(p95, 1e-12) / mean)
    root = np.sqrt(np.maximum(_P95_DEVIATIONS**2 - 2.0 * np.maximum(distance, 0.0), 0.0))
    return np.maximum(_P95_DEVIATIONS - root, 1e-9)


def share_above(mean: Floats, p95: Floats, limit: Floats) -> Floats:
    """Estimate the share of response times above a limit from their mean and 95th percentile, as log-normal ones."""
    spread = log_normal_spread(mean, p95)
    centre = np.log(mean) - spread**2 / 2.0
    return np.asarray(1.0 - ndtr((np.log(limit) - centre) / spread))


def late_and_slow(
    folder: Path, start: datetime, end: datetime, standards: Mapping[str, float], slo_factor: float
) -> pd.DataFrame:
    """Return for every window ``calls, late, ratio`` as measured: late calls counted in the log, else estimated.

    ``ratio`` is the sum of response times over standards; ``counted`` says how many calls the log has.
    """
    columns = ["function", "requests", "response_mean_s", "response_p95_s"]
    told = windows.frame_of(folder, "functions", start, end, columns)
    told = told[(told["requests"] > 0) & (told["response_mean_s"] > 0)]
    told = told.assign(name=windows.spelled(told, "function", told["cluster"].nunique() > 1))
    told = told.assign(standard=told["name"].map(dict(standards)).astype(float)).dropna(subset=["standard"])
    told["ratio"] = told["requests"] * told["response_mean_s"] / told["standard"]
    limit = slo_factor * told["standard"].to_numpy(np.float64)
    mean, p95 = (told[name].to_numpy(np.float64) for name in ("response_mean_s", "response_p95_s"))
    told["late"] = told["requests"] * np.where(
        np.isfinite(p95), share_above(mean, np.where(np.isfinite(p95), p95, mean), limit), np.nan
    )
    calls = logged_calls(folder, start, end)
    calls = calls.assign(standard=calls["name"].map(dict(standards)).astype(float)).dropna(subset=["standard"])
    calls["over"] = calls["duration_s"] > slo_factor * calls["standard"]
    logged = calls.groupby(["window_start", "name"]).agg(counted=("over", "size"), over=("over", "sum")).reset_index()
    told = told.merge(logged, on=["window_start", "name"], how="left")
    told["late"] = told["late"].where(told["counted"].isna(), told["requests"] * told["over"] / told["counted"])
    told["counted"] = told["counted"].fillna(0)
    return told.groupby("window_start").agg(
        calls=("requests", "sum"), late=("late", lambda late: late.sum(skipna=False)), ratio=("ratio", "sum"),
        counted=("counted", "sum"),
    )  # fmt: skip
