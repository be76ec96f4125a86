"""The lives of pods, or of VMs, in a span: when each came and went, where it was, what it asks for; one row a life.

Events tell to the moment. A pod that windows show and no event tells of was there from its first window to its last.
A life that goes on beyond the span is cut there, and one that began before it begins with it: what an episode can
start from.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline import windows
from wire.contracts.window import WINDOW_SECONDS

KEY = ["cluster", "entity"]
SIZES = {"cpu": ("cpu_request_cores", "cpu_used_mean_cores"), "mem": ("mem_request_gib", "mem_used_mean_gib")}
WINDOW = timedelta(seconds=WINDOW_SECONDS)
HELD_KINDS = ("DaemonSet", "StatefulSet", "Node")
"""Owners whose pods are where they are: one a node, bound to their volume, or started by the node itself."""
COMPLETING_KINDS = ("Job", "CronJob", "Workflow")
"""Owners whose pods end by themselves, at a moment that is told; others are deleted, and are missed at a scrape."""


def is_held(pods: pd.DataFrame) -> pd.Series[bool]:
    """Say which pods cannot be moved: those without a workload, and of owners that keep them where they are."""
    return pods["function"].isna() | pods["owner_kind"].isin(HELD_KINDS)


def lives(folder: Path, start: datetime, end: datetime, kind: str = "pod") -> pd.DataFrame:
    """Return the lives that touch ``[start, end)``, in order of their beginning.

    Columns: ``cluster, entity, function, owner_kind, node`` (null: not known), ``begin_s, end_s`` from its start,
    ``before`` (began before the span, ``lived_s`` seconds), ``ended`` (went within it, not cut), ``cpu, mem`` with
    ``asked`` (by event or metrics; False: only what was used is known), ``net, disk`` (null: not measured).
    """
    told, seen = _told(folder, start, end, kind), _seen(folder, start, end)
    seen = seen if kind == "pod" else seen.iloc[:0]  # of others there are events alone
    rows = told.merge(seen, on=KEY, how="outer", suffixes=("", "_seen"))
    for name in ("function", "owner_kind"):
        rows[name] = rows[name].fillna(rows[f"{name}_seen"])
    rows["node"] = rows["node_seen"].fillna(rows["node"])
    first, last = pd.Timestamp(start), pd.Timestamp(end)
    # Windows say when a pod was there to five minutes; the event, where there is one, to the moment.
    untold = rows["begin"].isna()
    rows["begin"] = rows["begin"].fillna(rows["first"])
    # Nobody says when it came, and it was there in the first window: it was there before.
    rows["before"] = (rows["begin"] < first) | (untold & (rows["begin"] <= first))
    rows["lived_s"] = (first - rows["begin"]).dt.total_seconds().clip(lower=0.0)
    rows["finish"] = rows["finish"].fillna(rows["last"].where(untold) + WINDOW)
    rows["ended"] = rows["finish"] < last
    rows["begin"] = rows["begin"].where(rows["begin"] > first, first)
    rows["finish"] = rows["finish"].where(rows["ended"], last)
    rows["begin_s"] = (rows["begin"] - first).dt.total_seconds()
    rows["end_s"] = (rows["finish"] - first).dt.total_seconds()
    requested = {name: rows[f"{name}_event"].fillna(rows[f"{name}_request"]) for name in SIZES}
    rows["asked"] = (requested["cpu"] > 0) & (requested["mem"] > 0)
    for name, asked in requested.items():
        rows[name] = asked.where(asked > 0, rows[f"{name}_used"])
    rows = rows[rows["end_s"] > rows["begin_s"]].sort_values(["begin_s", *KEY], kind="stable")
    names = [
        *KEY,
        "function",
        "owner_kind",
        "node",
        "begin_s",
        "end_s",
        "before",
        "lived_s",
        "ended",
        "cpu",
        "mem",
        "asked",
        "net",
        "disk",
    ]
    return rows[names].reset_index(drop=True)


def _told(folder: Path, start: datetime, end: datetime, kind: str) -> pd.DataFrame:
    """One row a life that events tell of: every creation with the deletion that follows it."""
    first = min(windows.span(folder).start, start)
    columns = ["entity", "time", "kind", "action", "node", "function", "owner_kind", "cpu_cores", "mem_gib"]
    events = windows.frame_of(folder, "events", first, end, columns)
    events = events[events["kind"] == kind].sort_values(["time", *KEY], kind="stable")
    created, deleted = (events[events["action"] == action] for action in ("create", "delete"))
    created = created.assign(begin=created["time"])
    # Told twice at one moment is one life; a second creation before any deletion is the first one told again.
    gone = deleted[[*KEY, "time"]].assign(finish=deleted["time"])
    rows = pd.merge_asof(created, gone, on="time", by=KEY, direction="forward", allow_exact_matches=False)
    rows = rows.drop_duplicates([*KEY, "finish"])
    # A deletion without a creation ends a life that began before there were events.
    orphans = pd.merge_asof(
        gone, created[[*KEY, "time", "begin"]], on="time", by=KEY, direction="backward", allow_exact_matches=False
    )
    orphans = orphans[orphans["begin"].isna()].drop_duplicates(KEY)
    orphans = orphans.assign(begin=pd.Timestamp(first) - WINDOW)
    about = deleted.drop_duplicates([*KEY, "time"])[
        [*KEY, "time", "node", "function", "owner_kind", "cpu_cores", "mem_gib"]
    ]
    rows = pd.concat([rows, orphans.merge(about, on=[*KEY, "time"])], ignore_index=True)
    alive = (rows["begin"] < pd.Timestamp(end)) & ~(rows["finish"] <= pd.Timestamp(start))
    rows = rows[alive].rename(columns={"cpu_cores": "cpu_event", "mem_gib": "mem_event"})
    return rows[[*KEY, "begin", "finish", "node", "function", "owner_kind", "cpu_event", "mem_event"]]


def _seen(folder: Path, start: datetime, end: datetime) -> pd.DataFrame:
    """One row a pod that windows show."""
    used = [column for pair in SIZES.values() for column in pair]
    columns = ["pod", "node", "function", "owner_kind", *used, "net_used_mean_mb_s", "disk_used_mean_iops"]
    pods = windows.frame_of(folder, "pods", start, end, columns).rename(columns={"pod": "entity"})
    grouped = pods.groupby(KEY)
    return grouped.agg(
        first=("window_start", "min"),
        last=("window_start", "max"),
        node_seen=("node", "first"),
        function_seen=("function", "first"),
        owner_kind_seen=("owner_kind", "first"),
        cpu_request=("cpu_request_cores", "max"),
        mem_request=("mem_request_gib", "max"),
        cpu_used=("cpu_used_mean_cores", "mean"),
        mem_used=("mem_used_mean_gib", "mean"),
        net=("net_used_mean_mb_s", "mean"),
        disk=("disk_used_mean_iops", "mean"),
    ).reset_index()


def overlaps(begin_s: np.ndarray, end_s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (life, window, seconds) of every window of a life; windows are counted from the start of the span."""
    first = (begin_s // WINDOW_SECONDS).astype(np.int64)
    last = np.maximum(np.ceil(end_s / WINDOW_SECONDS).astype(np.int64), first + 1)
    count = last - first
    life = np.repeat(np.arange(begin_s.size), count)
    window = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + first[life]
    low, high = window * WINDOW_SECONDS, (window + 1) * WINDOW_SECONDS
    return life, window, np.minimum(end_s[life], high) - np.maximum(begin_s[life], low)
