"""Every rule that validation tries, with when it warns and when it stops the night: what the page and the docs list."""

from __future__ import annotations

from typing import NamedTuple

from pipeline.contracts.windows import TABLES
from pipeline.validate.config import ValidateConfig


class Rule(NamedTuple):
    """One rule of one table."""

    table: str
    name: str
    about: str
    """What must hold."""
    stops: str
    """When it stops the night; empty: never."""
    warns: str
    """When it is a warning; empty: never."""


def over_tables(config: ValidateConfig) -> list[Rule]:
    """Rules between tables and over time; those of one table alone are in ``suites.yaml``."""
    links, share = f"more than {config.broken_links_fail:.0%}", "any"
    late = f"windows end more than {config.stale_minutes:g} minutes before data.to ends"
    if config.max_age_hours is not None:
        late += f", or the last is older than {config.max_age_hours:g} h"
    rules = [
        Rule("pods", "node_exists", "every pod's node is in nodes in that window", links, share),
        Rule("pods", "cpu_assigned_cores_within_capacity", "pods get no more cpu than their node has", links, share),
        Rule("pods", "mem_assigned_gib_within_capacity", "pods get no more memory than their node has", links, share),
        Rule("demands", "pod_exists", "every demand's pod is in pods in that window", links, share),
        Rule("events", "take_turns", "creations and deletions of a thing take turns", "", share),
        Rule("tasks", "parents_exist", "every parent is a task of the same execution", share, ""),
        Rule("nodes", "contiguous", "every window of a cluster has a node",
             f"more than {config.missing_windows_fail:.0%} of a day's windows", share),
        Rule("nodes", "days_contiguous", "no day is missing", share, ""),
        Rule("nodes", "not_empty", "some table has a row", "none has", ""),
        Rule("nodes", "fresh", "windows reach the end of what was asked for", late, ""),
        Rule("nodes", "other_zone", "nodes and request logs begin and end together", "",
             "by the same half hours apart"),
        Rule("quarantine", "share", "few raw rows are put aside",
             f"more than {config.quarantine_fail:.0%}", f"more than {config.quarantine_warn:.0%}"),
        Rule("functions", "request_mix_drift", "the mix of requests is that of the last accepted day",
             f"moved by more than {config.drift_fail:g}", f"by more than {config.drift_warn:g}, or no request at all"),
        Rule("functions", "response_unit", "responses are of the size of their standard",
             f"{links} of requests are of functions hundreds of times slower", share),
        Rule("functions", "requests_at_once", "a pod answers a plausible number of requests at a time", "", share),
        Rule("functions", "names_without_end", "there are as many functions as people can have written",
             f"more than {config.functions_fail:,}", f"more than {config.functions_warn:,}"),
    ]  # fmt: skip
    complete = f"on average below {config.completeness_fail:g}", f"below {config.completeness_warn:g}"
    scraped, grid = (
        "the scrapes that should be there are there",
        "windows start at multiples of 300 s, on their own day",
    )
    rules += [Rule(table, "completeness", scraped, *complete) for table in ("nodes", "pods", "functions", "cards")]
    return rules + [Rule(table, "on_the_grid", grid, share, "") for table in TABLES if table != "quarantine"]
