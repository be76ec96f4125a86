"""What must hold between tables and over time: links, capacity, contiguity, completeness, freshness, quarantine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import pandas as pd

from pipeline.validate.config import ValidateConfig
from pipeline.validate.verdict import Finding, Severity
from wire.contracts.window import WINDOW_SECONDS

DAY_CHECKS = 8
RANGE_CHECKS = 3
_DAY, _WINDOW = timedelta(days=1), timedelta(seconds=WINDOW_SECONDS)
_SLACK = 1e-6
"""Relative room for the rounding of sums."""
_MEASURED = ("nodes", "pods", "functions")
WINDOWS_OF_AN_HOUR = 3600 // WINDOW_SECONDS
_QUALITY = ("nodes", "pods", "functions", "cards")
_EVENTS = ("events", "tasks")


def check_day(day: str, tables: dict[str, pd.DataFrame], config: ValidateConfig) -> Iterator[Finding]:
    """Check one day's tables against each other."""
    yield from _pods_have_nodes(day, tables["pods"], tables["nodes"], config)
    yield from _within_capacity(day, tables["pods"], tables["nodes"], config)
    yield from _demands_have_pods(day, tables["demands"], tables["pods"], config)
    yield from _take_turns(day, tables["events"], config)
    yield from _parents_exist(day, tables["tasks"], config)
    yield from _complete(day, tables, config)
    yield from _of_the_day(day, tables, config)
    yield from _little_quarantined(day, tables, config)


def _share(config: ValidateConfig, bad: int, whole: int) -> Severity:
    return "error" if bad > config.broken_links_fail * whole else "warning"


def _rows(frame: pd.DataFrame, columns: list[str], config: ValidateConfig) -> list[dict[str, object]]:
    picked = frame[columns].head(config.examples)
    return [{str(name): str(value) for name, value in row.items()} for row in picked.to_dict("records")]


def _pods_have_nodes(day: str, pods: pd.DataFrame, nodes: pd.DataFrame, config: ValidateConfig) -> Iterator[Finding]:
    placed = pods[pods["node"].notna()]
    key = ["window_start", "cluster", "node"]
    there = nodes[key].drop_duplicates()
    known = placed[key].merge(there, on=key, how="left", indicator=True)["_merge"].to_numpy() == "both"
    lost = placed[~known]
    if len(lost):
        message = "the pod's node is not in nodes in that window"
        examples = _rows(lost, ["window_start", "cluster", "pod", "node"], config)
        yield Finding(_share(config, len(lost), len(placed)), "pods", "node_exists", day, len(lost), message, examples)


def _demands_have_pods(
    day: str, demands: pd.DataFrame, pods: pd.DataFrame, config: ValidateConfig
) -> Iterator[Finding]:
    key = ["window_start", "cluster", "pod"]
    used = demands[key].drop_duplicates()
    there = pods[key].drop_duplicates()
    known = used.merge(there, on=key, how="left", indicator=True)["_merge"].to_numpy() == "both"
    lost = used[~known]
    if len(lost):
        message = "requests were dealt to a pod that is not in pods in that window"
        examples = _rows(lost, key, config)
        yield Finding(_share(config, len(lost), len(used)), "demands", "pod_exists", day, len(lost), message, examples)


def _within_capacity(day: str, pods: pd.DataFrame, nodes: pd.DataFrame, config: ValidateConfig) -> Iterator[Finding]:
    key = ["window_start", "cluster", "node"]
    # A pod that came or went inside the window counts for the part of it that it was there.
    there = pods["present_ratio"]
    weighted = pods[key].assign(
        cpu_assigned_cores=pods["cpu_assigned_cores"] * there, mem_assigned_gib=pods["mem_assigned_gib"] * there
    )
    sums = weighted.groupby(key)[["cpu_assigned_cores", "mem_assigned_gib"]].sum().reset_index()
    both = sums.merge(nodes[[*key, "cpu_capacity_cores", "mem_capacity_gib"]], on=key)
    for assigned, capacity in (("cpu_assigned_cores", "cpu_capacity_cores"), ("mem_assigned_gib", "mem_capacity_gib")):
        over = both[both[assigned] > both[capacity] * (1 + _SLACK)]
        if len(over):
            message = f"the pods' {assigned} add up to more than the node's {capacity}"
            examples = _rows(over, [*key, assigned, capacity], config)
            severity = _share(config, len(over), len(both))
            yield Finding(severity, "pods", f"{assigned}_within_capacity", day, len(over), message, examples)


def _take_turns(day: str, events: pd.DataFrame, config: ValidateConfig) -> Iterator[Finding]:
    key = ["cluster", "kind", "entity"]
    rows = events.sort_values([*key, "time"])
    again = (rows[key] == rows[key].shift()).all(axis=1) & (rows["action"] == rows["action"].shift())
    if again.any():
        message = "a thing is created or deleted twice without the other in between"
        examples = _rows(rows[again], [*key, "time", "action"], config)
        yield Finding("warning", "events", "take_turns", day, int(again.sum()), message, examples)


def _parents_exist(day: str, tasks: pd.DataFrame, config: ValidateConfig) -> Iterator[Finding]:
    key = ["cluster", "workflow", "time"]
    links = tasks[[*key, "task", "parents"]].dropna(subset=["parents"])
    links = links.assign(parent=links["parents"].str.split(" ")).explode("parent")
    there = tasks[[*key, "task"]].drop_duplicates().rename(columns={"task": "parent"})
    known = links[[*key, "parent"]].merge(there, on=[*key, "parent"], how="left", indicator=True)["_merge"] == "both"
    lost = links[~known.to_numpy()]
    if len(lost):
        message = "a parent is not a task of the same execution: half a workflow is another workflow"
        examples = _rows(lost, [*key, "task", "parent"], config)
        yield Finding("error", "tasks", "parents_exist", day, len(lost), message, examples)


def _complete(day: str, tables: dict[str, pd.DataFrame], config: ValidateConfig) -> Iterator[Finding]:
    for table in _QUALITY:
        rows = tables[table]
        mean = float(rows["completeness"].mean()) if len(rows) else 1.0
        if mean < config.completeness_warn:
            # A trace that ends minutes after midnight has a day of a few, partial windows.
            whole = rows["window_start"].nunique() >= WINDOWS_OF_AN_HOUR
            severity: Severity = "error" if mean < config.completeness_fail and whole else "warning"
            message = f"mean completeness is {mean:.3f}, expected at least {config.completeness_warn}"
            low = rows[rows["completeness"] < config.completeness_warn]
            yield Finding(severity, table, "completeness", day, len(low), message)


def _of_the_day(day: str, tables: dict[str, pd.DataFrame], config: ValidateConfig) -> Iterator[Finding]:
    grid = _windows(pd.Timestamp(day, tz="UTC"), pd.Timestamp(day, tz="UTC") + _DAY - _WINDOW)
    for table, rows in tables.items():
        odd = rows[~rows["window_start"].isin(grid)] if table != "quarantine" else rows.head(0)
        if len(odd):
            message = f"windows that are not of this day, or do not start at a multiple of {WINDOW_SECONDS} s"
            yield Finding("error", table, "on_the_grid", day, len(odd), message, _rows(odd, ["window_start"], config))


def _little_quarantined(day: str, tables: dict[str, pd.DataFrame], config: ValidateConfig) -> Iterator[Finding]:
    aside = tables["quarantine"]
    used = int(sum(tables[table]["samples"].sum() for table in _QUALITY)) + sum(len(tables[table]) for table in _EVENTS)
    share = len(aside) / max(1, used + len(aside))
    if share > config.quarantine_warn:
        severity: Severity = "error" if share > config.quarantine_fail else "warning"
        rules = (aside["table"] + " " + aside["rule"]).value_counts()
        most = ", ".join(f"{rule} {count}" for rule, count in rules.head(config.examples).items())
        message = f"{share:.1%} of the raw rows were put aside ({most})"
        yield Finding(severity, "quarantine", "share", day, len(aside), message, _rows(aside, ["rule", "raw"], config))


def windows_by_cluster(nodes: pd.DataFrame) -> dict[str, pd.DatetimeIndex]:
    """The windows of a day in which each cluster has a node."""
    return {str(cluster): pd.DatetimeIndex(rows.unique()) for cluster, rows in nodes.groupby("cluster")["window_start"]}


@dataclass(frozen=True)
class Found:
    """What was found of a range, gathered day by day."""

    rows: dict[str, dict[str, int]]
    """By day, by table."""
    windows: dict[str, dict[str, pd.DatetimeIndex]] = field(default_factory=dict)
    """By day, by cluster: those with a node."""
    last_window: datetime | None = None
    """Of any table."""


def check_range(found: Found, asked: tuple[date | None, date | None], config: ValidateConfig) -> Iterator[Finding]:
    """Check the range as a whole: every day asked for is there, and every window of it, up to its end.

    ``asked`` are the first and the last day; None where nobody said.
    """
    # Metrics flow every day; a trace of events alone may have quiet days.
    measured = sorted(day for day, rows in found.rows.items() if any(rows[table] for table in _MEASURED))
    first = min(measured[:1] + [str(asked[0])] * bool(asked[0]), default="")
    due = set(pd.date_range(first, measured[-1], freq="D").strftime("%Y-%m-%d")) if measured else set()
    missing = sorted(due - set(measured))
    if missing:
        examples: list[dict[str, object]] = [{"day": day} for day in missing[: config.examples]]
        yield Finding("error", "nodes", "days_contiguous", "", len(missing), "days without windows", examples)
    if not any(rows[table] for rows in found.rows.values() for table in (*_MEASURED, *_EVENTS)):
        yield Finding("error", "nodes", "not_empty", "", 1, "no table has a row")
    clusters = sorted({cluster for windows in found.windows.values() for cluster in windows})
    ends = {"windows": found.last_window} if found.last_window is not None and not clusters else {}
    for cluster in clusters:
        seen = {day: windows[cluster] for day, windows in found.windows.items() if cluster in windows}
        yield from _no_gaps(cluster, seen, set(missing), config)
        ends[cluster] = max(windows.max() for windows in seen.values()).to_pydatetime()
    for name, last in ends.items():
        yield from _fresh(name, last + _WINDOW, asked[1], config)


def _windows(first: pd.Timestamp, last: pd.Timestamp) -> pd.DatetimeIndex:
    return pd.date_range(first, last, freq=_WINDOW, unit="us")


def _no_gaps(
    cluster: str, seen: dict[str, pd.DatetimeIndex], known: set[str], config: ValidateConfig
) -> Iterator[Finding]:
    """Look for windows without a node between a cluster's first and last; ``known`` days are told of already."""
    every = _windows(min(windows.min() for windows in seen.values()), max(windows.max() for windows in seen.values()))
    days = every.strftime("%Y-%m-%d")
    for day in days.unique():
        due = every[days == day]
        missing = due.difference(seen[day]) if day in seen else due
        if len(missing) and day not in known:
            severity: Severity = "error" if len(missing) > config.missing_windows_fail * len(due) else "warning"
            message = f"{cluster}: {len(missing)} of {len(due)} windows have no node at all"
            examples: list[dict[str, object]] = [{"window_start": str(time)} for time in missing[: config.examples]]
            yield Finding(severity, "nodes", "contiguous", day, len(missing), message, examples)


def _fresh(name: str, end: datetime, asked: date | None, config: ValidateConfig) -> Iterator[Finding]:
    wanted = datetime(asked.year, asked.month, asked.day, tzinfo=UTC) + _DAY if asked else end
    if (wanted - end).total_seconds() > config.stale_minutes * 60:
        message = f"{name} end at {end}, {config.stale_minutes:g} minutes or more before the asked end {wanted}"
        yield Finding("error", "nodes", "fresh", "", 1, message)
    age = (datetime.now(UTC) - end).total_seconds() / 3600
    if config.max_age_hours is not None and age > config.max_age_hours:
        message = f"{name}: the last is {age:.1f} hours old, expected at most {config.max_age_hours:g}"
        yield Finding("error", "nodes", "fresh", "", 1, message)
