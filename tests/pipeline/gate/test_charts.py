"""The drawings of the report: what they show, that they escape, and that replays are linked."""

import json
from xml.etree import ElementTree

import pytest

from pipeline.gate import charts, html
from pipeline.gate.config import Config
from pipeline.gate.replays import pages
from pipeline.gate.simulated import TERMS
from pipeline.gate.verdict import Circumstances, judge
from sched_env import rollout

POLICIES = {"challenger": 0.01, "champion": 0.0, "least_allocated": -0.02}
QUICK = Config(bootstrap_samples=200)
TITLES = ("How the traces are spread", "SLA against cost", "Slice by slice", "Learning curves", "Worst episodes")


@pytest.fixture
def judged(simulate, healthy):
    episodes = simulate(POLICIES)
    return episodes, judge(TERMS, episodes, healthy, QUICK, Circumstances())


def test_every_part_is_well_formed_and_named(judged, tmp_path):
    episodes, report = judged
    (tmp_path / "ppo-0").mkdir()
    (tmp_path / "ppo-0" / "curve.csv").write_text(f"steps,{report.primary_metric}\n1000,-3\n2000,-2\n")
    parts = charts.sections(report, episodes, tmp_path, {})
    page = html.render(report, parts)
    for title in (
        "How the traces are spread",
        "SLA against cost",
        "Slice by slice",
        "Learning curves",
        "Worst episodes",
    ):
        assert f"<h2>{title}</h2>" in page
    for part in parts:
        ElementTree.fromstring(f"<div>{part}</div>")
    assert page.count("<svg") >= 5


def test_the_worst_episodes_are_those_with_the_largest_loss(judged):
    episodes, report = judged
    found = charts.worst(episodes, report)
    behind = episodes.metric(report.reference, report.primary_metric) - episodes.metric(
        "challenger", report.primary_metric
    )
    assert [each.reference - each.challenger for each in found] == sorted(behind[behind > 0], reverse=True)[
        : len(found)
    ]


def test_names_in_the_data_stay_text(judged, tmp_path):
    episodes, report = judged
    (tmp_path / "<b>x").mkdir()
    (tmp_path / "<b>x" / "curve.csv").write_text(f"steps,{report.primary_metric}\n1,1\n2,2\n")
    assert "<b>" not in "".join(charts.sections(report, episodes, tmp_path, {}))


def test_recorded_worst_episodes_become_pages_that_the_report_links(judged, tmp_path):
    episodes, report = judged
    first = charts.worst(episodes, report)[0]
    folder = tmp_path / "worst"
    for name, rule in (("challenger", "best_fit"), (report.reference, "first_fit")):
        rollout.run_episodes("vm/fading", rule, [5], record=folder / f"1-{name}.parquet", servers=2, horizon=20)
    entry = {"scenario": first.scenario, "trace": first.trace, "policies": ["challenger", report.reference]}
    entry["files"] = [f"1-{name}.parquet" for name in entry["policies"]]
    (folder / "index.json").write_text(json.dumps([entry]))
    written: dict[str, bytes] = {}
    replays = pages(tmp_path, written.__setitem__)
    assert b"Worst episode 1" in written["worst-1.html"]
    assert 'href="worst-1.html"' in "".join(charts.sections(report, episodes, tmp_path / "none", replays))


def test_an_evaluation_without_replays_has_none(tmp_path):
    assert pages(tmp_path, lambda name, data: pytest.fail(name)) == {}
