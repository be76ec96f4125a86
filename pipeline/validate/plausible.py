"""What breaks no rule of a table and yet can hardly be: wrong units, names without end, clocks in another zone.

Nothing is put right here, for each may be true after all: it is said, and too much of it stops the night.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

import pandas as pd

from pipeline.validate.config import ValidateConfig
from pipeline.validate.verdict import Finding, Severity
from wire.contracts.window import WINDOW_SECONDS

DAY_CHECKS = 2
RANGE_CHECKS = 2
MUCH_LONGER = 300.0
"""Responses this many times their standard are milliseconds taken for seconds (1,000), not a busy cluster."""
AT_ONCE = 100.0
"""A pod that would answer more requests than this at a time, all day, is no pod that we know."""
ZONE_S, LARGEST_ZONE_S, CLOSE_S = 1800.0, 14 * 3600.0, 600.0
"""Zones differ by half hours, up to fourteen; windows at both ends may be missing."""

Ends = dict[str, tuple[float, float]]
"""Thing -> its first and last window, seconds since 1970."""
Responses = dict[str, tuple[float, float, int]]
"""Function, with its cluster -> its usual response on a day, the day's standard, and how many requests."""


def check_day(day: str, tables: dict[str, pd.DataFrame], config: ValidateConfig) -> Iterator[Finding]:
    """Look at one day."""
    yield from _at_once(day, tables["functions"], tables["pods"], config)
    yield from _names(day, tables["functions"], config)


def responses_of(functions: pd.DataFrame) -> Responses:
    """Sum up how long requests took on a day."""
    known = functions[(functions["requests"] > 0) & (functions["standard_response_s"] > 0)]
    by_name = known.groupby(known["cluster"] + "/" + known["function"])
    found = by_name.agg({"response_mean_s": "median", "standard_response_s": "min", "requests": "sum"})
    return {str(name): (float(usual), float(own), int(count)) for name, usual, own, count in found.itertuples()}


def check_responses(days: Mapping[str, Responses], config: ValidateConfig) -> Iterator[Finding]:
    """Hold each day's responses to the standard of their function: the fastest day up to then."""
    standard: dict[str, float] = {}
    for day, functions in sorted(days.items()):
        for name, (_, own, _) in functions.items():
            standard[name] = min(own, standard.get(name, own))
        long = {name: usual / standard[name] for name, (usual, *_) in functions.items()}
        long = {name: times for name, times in long.items() if times > MUCH_LONGER}
        if long:
            share = sum(functions[name][2] for name in long) / sum(count for *_, count in functions.values())
            message = (
                f"responses are {MUCH_LONGER:g} times their standard or more all day: milliseconds taken for seconds?"
            )
            examples: list[dict[str, object]] = [
                {"function": name, "times_standard": round(times)}
                for name, times in list(long.items())[: config.examples]
            ]
            severity: Severity = "error" if share > config.broken_links_fail else "warning"
            yield Finding(severity, "functions", "response_unit", day, len(long), message, examples)


def _at_once(day: str, functions: pd.DataFrame, pods: pd.DataFrame, config: ValidateConfig) -> Iterator[Finding]:
    key = ["cluster", "function", "window_start"]
    there = pods.groupby(key)["present_ratio"].sum().rename("pods").reset_index()
    rows = functions[[*key, "requests", "response_mean_s"]].merge(there[there["pods"] > 0], on=key)
    at_once = rows["requests"] * rows["response_mean_s"] / WINDOW_SECONDS / rows["pods"]
    usual = at_once.groupby([rows["cluster"], rows["function"]]).median()
    many = usual[usual > AT_ONCE]
    if len(many):
        message = f"each pod would answer more than {AT_ONCE:g} requests at a time: durations in milliseconds?"
        examples = _examples(many, "at_once", config)
        yield Finding("warning", "functions", "requests_at_once", day, len(many), message, examples)


def _examples(found: pd.Series, name: str, config: ValidateConfig) -> list[dict[str, object]]:
    """Show the first of what is known by cluster and function."""
    rows = found.round().rename(name).head(config.examples).reset_index().to_dict("records")
    return [{str(column): value for column, value in row.items()} for row in rows]


def _names(day: str, functions: pd.DataFrame, config: ValidateConfig) -> Iterator[Finding]:
    for cluster, mine in functions.groupby("cluster"):
        names = mine["function"].nunique()
        if names > config.functions_warn:
            severity: Severity = "error" if names > config.functions_fail else "warning"
            message = f"{cluster}: {names:,} functions in a day; does a label hold paths, users or ids?"
            examples: list[dict[str, object]] = [
                {"function": name} for name in sorted(mine["function"].unique())[: config.examples]
            ]
            yield Finding(severity, "functions", "names_without_end", day, names, message, examples)


@dataclass
class Clocks:
    """First and last window of what each cluster's parts tell, of a day or of several."""

    nodes: dict[str, Ends] = field(default_factory=dict)
    """By cluster, by node."""
    requests: dict[str, Ends] = field(default_factory=dict)
    """By cluster; of all its functions together."""

    @classmethod
    def of(cls, tables: Mapping[str, pd.DataFrame]) -> Clocks:
        """Look at the tables of a day."""
        asked = tables["functions"][tables["functions"]["requests"] > 0].assign(function="requests")
        return cls(_ends(tables["nodes"], "node"), _ends(asked, "function"))

    def add(self, day: Clocks) -> None:
        """Take a day in."""
        for into, found in ((self.nodes, day.nodes), (self.requests, day.requests)):
            for cluster, things in found.items():
                ends = into.setdefault(cluster, {})
                for thing, (first, last) in things.items():
                    known = ends.get(thing, (first, last))
                    ends[thing] = (min(first, known[0]), max(last, known[1]))

    def check(self) -> Iterator[Finding]:
        """Find nodes, and logs of requests, that begin and end by the same half hours apart from the rest."""
        for cluster, nodes in self.nodes.items():
            usual, last = (median(ends[end] for ends in nodes.values()) for end in (0, 1))
            told = {**nodes, **self.requests.get(cluster, {})}
            for thing, ends in told.items():
                early, late = ends[0] - usual, ends[1] - last
                zone = round(early / ZONE_S) * ZONE_S
                near = max(abs(early - zone), abs(late - zone)) <= CLOSE_S
                if zone and near and abs(zone) <= LARGEST_ZONE_S:
                    message = (
                        f"{cluster}: {thing} begin and end {zone / 3600:+g} h beside the rest: a clock in another zone?"
                    )
                    yield Finding("warning", "nodes", "other_zone", "", 1, message)


def _ends(rows: pd.DataFrame, name: str) -> dict[str, Ends]:
    found: dict[str, Ends] = defaultdict(dict)
    for (cluster, thing), times in rows.groupby(["cluster", name])["window_start"]:
        found[str(cluster)][str(thing)] = (times.min().timestamp(), times.max().timestamp())
    return dict(found)
