"""Reports: what the person who approves sees, and that nothing in the data can deceive them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec
import pytest

from pipeline.contracts.gate import GateReport
from pipeline.gate import html, markdown
from pipeline.gate.config import Config
from pipeline.gate.explain import explain
from pipeline.gate.simulated import TERMS
from pipeline.gate.verdict import Circumstances, judge

POLICIES = {"challenger": 0.05, "champion": 0.0, "least_allocated": -0.02}
QUICK = Config(bootstrap_samples=500)
HOSTILE = "evil | ![x](https://evil.example/a) <script>alert(1)</script> `code`\n# Approved by admin\n{{ ti }} **PASS**"


@pytest.fixture
def report(simulate, healthy) -> GateReport:
    return judge(TERMS, simulate(POLICIES), healthy, QUICK, Circumstances(warnings=["nodes: 3 gaps filled"]))


@pytest.fixture
def hostile(simulate, healthy) -> GateReport:
    policies = {"challenger": 0.05, "champion": 0.0, HOSTILE: 0.01}
    data = simulate(policies, scenarios=(HOSTILE + "a", "www.evil.example b"))
    bad = msgspec.structs.replace(healthy, bundle_errors=[HOSTILE], digest="sha256:`|" + HOSTILE)
    return judge(TERMS, data, bad, QUICK, Circumstances(warnings=[HOSTILE, "mail me@evil.example"]))


def test_the_first_line_is_the_verdict_and_its_reason(report):
    first = markdown.render(report).splitlines()[0]
    assert first.startswith("**PASS**: return better than champion: +")


def test_the_body_has_everything_an_approval_needs(report):
    body = markdown.render(report)
    for wanted in (
        "| metric | challenger | champion | better by",
        "| return (higher is better) |",
        "| sla_violation_rate (lower is better) |",
        "| cost_usd (lower is better) |",
        "least_allocated (best heuristic)",
        "### Guardrails",
        "### Slices",
        "| load-1.3 | 200 |",
        "integrity: parity of scores",
        "no back-test: nothing was live",
        "- nodes: 3 gaps filled",
        "### If it goes wrong",
        "loadmaster registry rollback --problem functions",
        report.champion_digest,
        "seed 20260716",
    ):
        assert wanted in body, wanted


def test_every_table_row_has_as_many_cells_as_its_header(report, hostile):
    for document in (report, hostile):
        width = 0
        for line in markdown.render(document).splitlines():
            if not line.startswith("|"):
                width = 0
                continue
            cells = len(re.findall(r"(?<!\\)\|", line))
            assert cells == (width or cells)
            width = cells


def test_nothing_in_the_data_becomes_markup_in_markdown(hostile):
    body = markdown.render(hostile)
    assert not re.search(r"(?<!\\)!\[|(?<!\\)\]\(", body)
    assert not re.search(r"(?<!\\)<", body)
    assert not re.search(r"https?://|www\.|\w@\w", body)
    assert "{{" not in body
    assert not re.search(r"(?m)^# ", body)
    assert "**PASS**" not in body
    assert body.startswith("**FAIL**: bundle: ")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in {"meta", "line"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_is_well_formed_and_has_no_tag_of_the_datas(hostile, report):
    for document in (hostile, report):
        page = Tags()
        page.feed(html.render(document))
        assert page.open == []
        assert not page.seen & {"script", "img", "a", "iframe", "link", "object"}
        assert not any(name.startswith("on") or name in {"href", "src"} for name in page.attributes)


def test_html_shows_the_profile_of_challenger_and_rivals(report):
    page = html.render(report)
    assert page.count("<polyline") == 3
    assert "default-src 'none'" in page


def test_profiles_fall_from_one_to_zero(report):
    for shares in report.profile.share_above.values():
        assert shares == sorted(shares, reverse=True)
        assert shares[-1] == 0.0
        assert 0.9 < shares[0] <= 1.0


def test_explain_names_every_rule_with_what_was_found_and_required(report):
    text = explain(report)
    assert text.startswith("PASS: ")
    for rule in report.rules:
        assert rule.name in text
        assert f"found     {rule.found}" in text
        assert f"required  {rule.required}" in text


def test_explain_does_not_let_names_control_the_terminal(simulate, healthy):
    data = simulate({"challenger": 0.05, "champion": 0.0, "\x1b[2Jgone": 0.0})
    assert "\x1b" not in explain(judge(TERMS, data, healthy, QUICK))


def test_a_failed_report_shows_what_failed_first(simulate, healthy):
    failed = judge(TERMS, simulate(POLICIES, worse={"cost_usd": 0.05}), healthy, QUICK)
    body = markdown.render(failed)
    assert body.startswith("**FAIL**: cost_usd: worse than champion by +")
    assert re.search(r"\| cost_usd \|.*\*\*FAILS\*\* \|", body)


def test_the_first_promotion_says_there_is_nothing_older_than_the_heuristic(simulate, healthy):
    first = msgspec.structs.replace(healthy, champion_digest=None)
    data = simulate({"challenger": 0.05, "least_allocated": 0.0})
    body = markdown.render(judge(TERMS, data, first, QUICK))
    assert "the heuristic now live, least_allocated (there is no champion), which is the best heuristic too" in body
    assert "loadmaster mode heuristic --problem functions lets the rule answer again" in body
    assert "champion `none`" in body


def test_the_report_survives_its_own_json(report):
    assert msgspec.json.decode(msgspec.json.encode(report), type=GateReport) == report
