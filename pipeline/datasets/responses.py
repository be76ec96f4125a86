"""Response times of calls: how they spread and how many were late, counted in the request log or in histograms.

Where an SLO lies within a bucket of a histogram, calls are taken to thin out evenly there: the logarithm of the share
that takes longer falls in a straight line between the two bounds. The count is never outside of what the bounds say.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import ndtr

from pipeline import windows
from pipeline.statistics.estimators import Floats
from sched_env.tails import TAIL_AT

NORMAL_95 = 1.959963984540054
_P95_DEVIATIONS = 1.6448536269514722
LEAST_CALLS = 30
"""Calls of a function from which its own spread is taken."""


def logged_calls(folder: Path, start: datetime, end: datetime) -> pd.DataFrame:
    """Return every call of the request log: ``window_start, name, duration_s, first`` (the first call of its pod).

    A window whose calls all took the same time was dealt from counts, not logged, and so was the only call of a window
    if its function's other windows were.
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
    several_calls = groups.transform("size") > 1
    differ = groups.transform("min") < groups.transform("max")
    logged = differ.groupby(calls["name"]).transform("any")
    calls = calls[logged & (differ | ~several_calls)].sort_values(["window_start", "arrival_offset_s"], kind="stable")
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


def histograms(folder: Path, start: datetime, end: datetime) -> pd.DataFrame:
    """Return ``window_start, name, le_s, calls, over`` of every bucket: calls within the bound, and beyond it."""
    rows = windows.frame_of(folder, "responses", start, end, ["function", "le_s", "calls"])
    rows = rows.assign(name=windows.spelled(rows, "function", rows["cluster"].nunique() > 1))
    total = rows.groupby(["window_start", "name"])["calls"].transform("max")
    # Counters of buckets are scraped one by one: between two of them a call may be missing.
    return rows.assign(over=(total - rows["calls"]).clip(lower=0.0)).sort_values(["name", "window_start", "le_s"])


class Survival:
    """Share of calls that take longer than a time, from the bounds of a histogram and how many calls went beyond."""

    def __init__(self, le_s: Floats, over: Floats, total: float) -> None:
        finite = np.isfinite(le_s)
        self.bounds = np.concatenate([[0.0], le_s[finite]])
        self.shares = np.concatenate([[1.0], np.minimum.accumulate(np.minimum(over[finite] / total, 1.0))])

    def at(self, time_s: Floats) -> Floats:
        """Return the share at some times; beyond the last bound nobody knows, and it is that of the bound."""
        upper = np.clip(np.searchsorted(self.bounds, time_s, side="right"), 1, self.bounds.size - 1)
        low, high = self.bounds[upper - 1], self.bounds[upper]
        part = np.clip((time_s - low) / (high - low), 0.0, 1.0)
        first, last = self.shares[upper - 1], self.shares[upper]
        bent = np.exp((1.0 - part) * np.log(np.maximum(first, 1e-12)) + part * np.log(np.maximum(last, 1e-12)))
        return np.asarray(np.where(last > 0.0, bent, first * (1.0 - part)))


def survival(buckets: pd.DataFrame) -> Survival | None:
    """Sum histograms of one function up; None where they hold no call."""
    sums = buckets.groupby("le_s")[["over", "calls"]].sum()
    total = float(sums["calls"].max()) if len(sums) else 0.0
    return Survival(sums.index.to_numpy(np.float64), sums["over"].to_numpy(np.float64), total) if total > 0 else None


def late_in_buckets(buckets: pd.DataFrame, limits: Mapping[str, float]) -> pd.DataFrame:
    """Return ``window_start, name, bucketed, beyond``: calls of the histograms, and those that took longer than limits.

    How calls lie within the one bucket that the limit cuts is told by all windows of the function together.
    """
    parts = []
    for name, rows in buckets.groupby("name"):
        limit, whole = limits.get(str(name)), survival(rows)
        bounds = np.sort(rows["le_s"].unique())
        if limit is None or whole is None or limit > bounds[np.isfinite(bounds)].max(initial=0.0):
            continue
        above = float(bounds[bounds >= limit].min())
        below = float(bounds[bounds < limit].max(initial=0.0))
        first, last, at = whole.at(np.array([below, above, limit])).tolist()
        part = (at - last) / (first - last) if first > last else 0.0
        table = rows.pivot_table(index="window_start", columns="le_s", values="over")
        total = rows.groupby("window_start")["calls"].max()
        more = table.get(below, total)
        parts.append(
            pd.DataFrame({"name": name, "bucketed": total, "beyond": table[above] + part * (more - table[above])})
        )
    if not parts:
        return pd.DataFrame({"window_start": [], "name": [], "bucketed": [], "beyond": []})
    return pd.concat(parts).reset_index()


CLASSES = 8
"""Parts, by their mean response, that a function's windows are put into: calls are compared with their own mean."""


def tails_of(folder: Path, start: datetime, end: datetime) -> dict[str, Floats]:
    """Return for each function with histograms which share of calls takes longer than ``TAIL_AT`` x the mean."""
    buckets = histograms(folder, start, end)
    told = windows.frame_of(folder, "functions", start, end, ["function", "requests", "response_mean_s"])
    told = told[(told["requests"] > 0) & (told["response_mean_s"] > 0)]
    told = told.assign(name=windows.spelled(told, "function", told["cluster"].nunique() > 1))
    found: dict[str, Floats] = {}
    for name, rows in told.groupby("name"):
        mine = buckets[buckets["name"] == name]
        if mine["calls"].max() < LEAST_CALLS or mine.empty:
            continue
        ranks = (rows["response_mean_s"].rank(method="first") - 1) * CLASSES // len(rows)
        parts, weights = [], []
        for _, group in rows.groupby(ranks):
            whole = survival(mine[mine["window_start"].isin(group["window_start"])])
            if whole is not None:
                calls = group["requests"].to_numpy(np.float64)
                mean = float(np.average(group["response_mean_s"].to_numpy(np.float64), weights=calls))
                parts.append(whole.at(TAIL_AT * mean))
                weights.append(calls.sum())
        if parts:
            found[str(name)] = np.average(parts, axis=0, weights=weights)
    return found


def log_normal_tail(spread: float) -> Floats:
    """Return the same of calls that are log-normal."""
    if spread <= 0.0:
        return (TAIL_AT < 1.0).astype(np.float64)
    return np.asarray(1.0 - ndtr((np.log(TAIL_AT) + 0.5 * spread**2) / spread))


def quantile_of_ratios(
    folder: Path, start: datetime, end: datetime, standards: Mapping[str, float], share: float
) -> float | None:
    """Return a quantile of response over standard of all calls: from the log, else from histograms; None: neither."""
    calls = logged_calls(folder, start, end)
    ratios = (calls["duration_s"] / calls["name"].map(dict(standards)).astype(float)).dropna()
    if len(ratios):
        return float(ratios.quantile(share))
    curves = []
    for name, rows in histograms(folder, start, end).groupby("name"):
        whole = survival(rows)
        if whole is not None and name in standards:
            curves.append((whole, standards[str(name)], float(rows.groupby("window_start")["calls"].max().sum())))
    if not curves:
        return None
    total = sum(calls for _, _, calls in curves)

    def above(ratio: float) -> float:
        late = sum(calls * float(whole.at(np.array([ratio * standard]))[0]) for whole, standard, calls in curves)
        return late / total - (1.0 - share)

    return float(brentq(above, 1e-6, 1e6)) if above(1e6) < 0.0 else None


def late_and_slow(
    folder: Path, start: datetime, end: datetime, standards: Mapping[str, float], slo_factor: float
) -> pd.DataFrame:
    """Return for every window ``calls, late, ratio`` as measured: late calls counted in the log or histogram.

    ``ratio`` is the sum of response times over standards; ``counted`` says how many calls log or histogram have: of the
    others only mean and p95 are known, and their late ones are estimated.
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
    limits = {name: slo_factor * standard for name, standard in standards.items()}
    told = told.merge(late_in_buckets(histograms(folder, start, end), limits), on=["window_start", "name"], how="left")
    told["over"] = told["over"].fillna(told["beyond"])
    told["counted"] = told["counted"].fillna(told["bucketed"].where(told["bucketed"] > 0))
    told["late"] = told["late"].where(told["counted"].isna(), told["requests"] * told["over"] / told["counted"])
    told["counted"] = told["counted"].fillna(0)
    return told.groupby("window_start").agg(
        calls=("requests", "sum"), late=("late", lambda late: late.sum(skipna=False)), ratio=("ratio", "sum"),
        counted=("counted", "sum"),
    )  # fmt: skip
