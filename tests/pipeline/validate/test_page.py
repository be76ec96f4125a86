"""One page for all that can stop a night: whole, readable without a network, of one mind with the verdict."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.contracts.windows import TABLES
from pipeline.validate import plausible
from pipeline.validate.config import ValidateConfig
from pipeline.validate.page import render
from pipeline.validate.rules import Rule, over_tables
from pipeline.validate.suites import Suites
from pipeline.validate.verdict import Finding, Verdict
from wire.errors import ConfigError

CONFIG = ValidateConfig()
ROOM = Path(plausible.__file__).parent


@pytest.fixture(scope="module")
def suites() -> Suites:
    return Suites(examples=3)


def verdict_of(*findings: Finding) -> Verdict:
    errors = [str(finding) for finding in findings if finding.severity == "error"]
    warnings = [str(finding) for finding in findings if finding.severity == "warning"]
    return Verdict(not errors, False, "2026-03-02", "2026-03-03", {"nodes": 5}, 9, errors, warnings, list(findings), {})


class Page(HTMLParser):
    """The rows of the table, and everything the page would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [str(value) for name, value in attrs if name in ("href", "src")]
        assert tag not in ("script", "link", "img", "iframe"), tag
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_every_rule_that_the_code_knows_is_listed(suites: Suites) -> None:
    listed = {rule.name for rule in over_tables(CONFIG)}
    code = "".join((ROOM / name).read_text() for name in ("cross.py", "drift.py", "plausible.py"))
    found = set(re.findall(r'Finding\(\s*[^,()]+(?:\([^)]*\))?,\s*"?\w+"?,\s*f?"([^"]+)"', code))
    assert len(found) > 12
    assert {name.replace("{assigned}", "cpu_assigned_cores") for name in found} <= listed
    assert len(suites.rules()) > 60
    assert {rule.table for rule in suites.rules()} == set(TABLES)
    assert all(bool(rule.stops) != bool(rule.warns) for rule in suites.rules()), "an expectation has one severity"


def test_the_page_needs_no_network_and_agrees_with_the_verdict(suites: Suites) -> None:
    rules = [*over_tables(CONFIG), *suites.rules()]
    null = next(
        rule for rule in suites.rules() if rule.name == "column_values_to_not_be_null" and "price" in rule.about
    )
    verdict = verdict_of(
        Finding("error", "nodes", "days_contiguous", "", 1, "days without <windows>", [{"day": "2026-03-01"}]),
        Finding("warning", "nodes", null.name, "2026-03-02", 5, "expected a price", about=null.about),
    )
    page = Page(render(verdict, rules))
    assert page.links == ["docs/index.html", "verdict.json"]
    states = [row[0] for row in page.rows[1:]]
    assert states == ["error", "warning", *["ok"] * (len(rules) - 2)]
    assert "days without <windows>" in page.rows[1][2]
    assert "2026-03-01" in page.rows[1][2]
    assert page.rows[2][1:3] == ["nodes", page.rows[2][2]]
    assert "price_usd_per_hour" in page.rows[2][2]
    assert "stopped" in render(verdict, rules)
    assert "passed" in render(verdict_of(), rules)


def test_an_error_wins_over_warnings_of_other_days() -> None:
    rule = Rule("nodes", "contiguous", "every window has a node", "many", "any")
    findings = [
        Finding(severity, "nodes", "contiguous", day, 1, "gone") for severity, day in (("warning", "a"), ("error", "b"))
    ]
    assert Page(render(verdict_of(*findings), [rule])).rows[1][0] == "error"


def test_a_day_without_prices_costs_hardly_more_than_one_with(suites: Suites) -> None:
    """Once every failing row was collected: 54 seconds for a day of a few hundred nodes."""
    starts = pd.date_range("2026-03-02", periods=288, freq="300s", tz="UTC").as_unit("us")
    nodes = pd.concat(
        [pd.DataFrame({"window_start": starts, "cluster": "c", "node": f"n{n}", "completeness": 1.0, "samples": 9,
                       "cpu_capacity_cores": 8.0, "mem_capacity_gib": 32.0, "cpu_used_mean_cores": 1.0})
         for n in range(150)],
        ignore_index=True,
    ).reindex(columns=TABLES["nodes"].names)  # fmt: skip
    for name, price in (("with", 1.0), ("without", np.nan)):
        begun = time.process_time()
        _, findings = suites.run("nodes", f"2026-03-02 {name}", nodes.assign(price_usd_per_hour=price))
        assert time.process_time() - begun < 15, "a hundred times what it takes: every failing row is collected again"
        missing = [finding for finding in findings if "price" in finding.about]
        assert bool(missing) == (name == "without")
    assert missing[0].count == len(nodes)
    assert [row["node"] for row in missing[0].examples] == ["n0"] * 3


def functions(**columns: object) -> pd.DataFrame:
    starts = pd.date_range("2026-03-02", periods=12, freq="300s", tz="UTC").as_unit("us")
    row = {"cluster": "c", "function": "f", "requests": 10, "response_mean_s": 0.2, "standard_response_s": 0.2}
    return pd.DataFrame({"window_start": starts, **row, **columns}).reindex(columns=TABLES["functions"].names)


def pods(count: int = 1) -> pd.DataFrame:
    frame = functions()[["window_start", "cluster", "function"]]
    return pd.concat([frame.assign(pod=f"p{n}", present_ratio=1.0) for n in range(count)])


def check(table: pd.DataFrame) -> list[tuple[str, str]]:
    found = [
        *plausible.check_day("2026-03-02", {"functions": table, "pods": pods()}, CONFIG),
        *plausible.check_responses({"2026-03-02": plausible.responses_of(table)}, CONFIG),
    ]
    return [(finding.severity, finding.rule) for finding in found]


def test_durations_in_milliseconds_are_seen_by_their_history_and_by_what_pods_can_do() -> None:
    assert check(functions()) == []
    assert check(functions(response_mean_s=12.0)) == [], "sixty times slower is a busy day"
    assert ("error", "response_unit") in check(functions(response_mean_s=200.0))
    few = pd.concat([functions(response_mean_s=200.0, requests=1), functions(function="g", requests=1000)])
    assert ("warning", "response_unit") in check(few)
    new = functions(response_mean_s=2000.0, standard_response_s=2000.0, requests=3000)
    assert check(new) == [("warning", "requests_at_once")]


def test_milliseconds_that_begin_on_a_later_day_are_seen_by_the_days_before() -> None:
    """A day knows only its own standard, which is in milliseconds too; the fastest day up to then tells."""
    days = {
        day: plausible.responses_of(functions(response_mean_s=seconds, standard_response_s=seconds))
        for day, seconds in (("2026-03-02", 0.2), ("2026-03-03", 200.0), ("2026-03-04", 0.2))
    }
    [found] = plausible.check_responses(days, CONFIG)
    assert (found.severity, found.rule, found.day) == ("error", "response_unit", "2026-03-03")


def test_labels_without_end_are_seen() -> None:
    many = functions().head(1).merge(pd.DataFrame({"path": [f"/user/{n}" for n in range(2500)]}), how="cross")
    assert check(many.assign(function=many["path"])) == [("warning", "names_without_end")]
    with pytest.raises(ConfigError, match="functions_warn is 10"):
        ValidateConfig(functions_warn=10, functions_fail=5)


def clocks(**shifts: float) -> list[str]:
    """Nodes a and b, and requests, over a day; each moved by some hours."""
    starts = pd.date_range("2026-03-02", periods=288, freq="300s", tz="UTC").as_unit("us")
    nodes = pd.concat(
        [pd.DataFrame({"window_start": starts + pd.Timedelta(hours=shifts.get(name, 0)), "cluster": "c", "node": name})
         for name in ("a", "b", "c")]
    )  # fmt: skip
    asked = pd.DataFrame({"window_start": starts[1:-1] + pd.Timedelta(hours=shifts.get("requests", 0)), "cluster": "c"})
    found = plausible.Clocks.of({"nodes": nodes, "functions": asked.assign(function="f", requests=1)})
    return [finding.message for finding in found.check()]


def test_a_clock_in_another_zone_is_seen() -> None:
    assert clocks() == []
    assert clocks(a=0.2) == []
    [message] = clocks(a=-5.5)
    assert "a begin and end -5.5 h" in message
    [message] = clocks(requests=2)
    assert "requests begin and end +2 h" in message
