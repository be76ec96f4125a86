"""Slices beside the verdict: shown with intervals, warned of where it is worse, never part of the verdict."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from pipeline.contracts.evaluation import ASKED, HOUR
from pipeline.gate import charts, html, markdown
from pipeline.gate.config import Config
from pipeline.gate.simulated import TERMS
from pipeline.gate.verdict import Circumstances, judge

QUICK = Config(bootstrap_samples=500)
TOLD = msgspec.structs.replace(TERMS, asked_in="cores", sizes={"tenfold": 10.0, "half": 0.5})
POLICIES = {"challenger": 0.05, "champion": 0.0, "least_allocated": -0.02}


@pytest.fixture
def told(simulate):
    """Every policy's episodes with the hour and the size of what they ask for: the challenger is worse at night."""
    episodes = simulate(POLICIES)
    block = episodes.block
    about = {HOUR: block % 24.0, ASKED: 1.0 + block / 10.0}
    for metrics in episodes.values.values():
        metrics.update(about)
    night = about[HOUR] < 6.0
    ours = episodes.values["challenger"]["return"]
    ours[night] *= 1.3
    return episodes


def report_of(simulate, healthy, told, sizes=None):
    return judge(TOLD, told, healthy, QUICK, Circumstances(sizes=sizes))


def test_hours_and_sizes_of_requests_are_slices_of_the_same_traces(simulate, healthy, told):
    found = report_of(simulate, healthy, told).shown_slices
    hours = [each for each in found if each.by == "hour"]
    assert [each.name for each in hours] == [f"{h:02d}:00 to {h + 6:02d}:00 UTC" for h in (0, 6, 12, 18)]
    assert sum(each.against[0].traces for each in hours) == len(told)
    assert hours[0].against[0].better_by.upper < 0 < hours[1].against[0].better_by.lower
    sizes = [each for each in found if each.by == "size of request"]
    assert [each.name.split(",")[0] for each in sizes] == ["1 to 1.6 cores", "1.7 to 2.3 cores", "2.4 to 2.9 cores"]
    assert {row.reference for each in found for row in each.against} == {"champion", "least_allocated"}


def test_where_it_is_worse_is_warned_of_and_the_verdict_is_as_without(simulate, healthy, told):
    with_slices = report_of(simulate, healthy, told)
    for metrics in told.values.values():
        del metrics[HOUR], metrics[ASKED]
    without = report_of(simulate, healthy, told)
    assert without.shown_slices == []
    assert (with_slices.outcome, with_slices.reason, with_slices.rules) == (
        without.outcome, without.reason, without.rules,
    )  # fmt: skip
    said = [text for text in with_slices.warnings if text not in without.warnings]
    assert any(text.startswith("worse than champion by hour, 00:00 to 06:00 UTC: ") for text in said)
    assert all("(shown, not judged)" in text for text in said)


def test_other_sizes_of_the_cluster_come_in_their_order_and_have_traces_of_their_own(simulate, healthy, told):
    sizes = simulate(
        {"challenger": -0.1, "champion": 0.0, "least_allocated": 0.0}, scenarios=("half", "tenfold"), blocks=12, seed=1
    )
    report = report_of(simulate, healthy, told, sizes)
    found = [each for each in report.shown_slices if each.by == "size of cluster"]
    assert [each.name for each in found] == ["0.5 times the cluster and its load", "10 times the cluster and its load"]
    assert [each.against[0].traces for each in found] == [120, 120]
    assert all(each.blocks == 12 and each.against[0].better_by.upper < 0 for each in found)
    assert sum("by size of cluster" in text for text in report.warnings) == 4
    assert not any(text.startswith("not shown on") for text in report.warnings)


def test_sizes_that_were_too_much_work_are_named(simulate, healthy, told):
    sizes = simulate(dict.fromkeys(POLICIES, 0.0), scenarios=("half",), blocks=12, seed=1)
    wanted = "not shown on 10 times the cluster: more than evaluate may spend on it (size_work)"
    assert [text for text in report_of(simulate, healthy, told, sizes).warnings if "not shown on" in text] == [wanted]
    none = report_of(simulate, healthy, told).warnings
    assert [text.split()[3] for text in none if text.startswith("not shown on")] == ["10", "0.5"]


def test_a_slice_of_one_block_has_no_interval_and_no_warning(simulate, healthy, told):
    for metrics in told.values.values():
        metrics[HOUR] = np.where(told.block == 0, 3.0, 13.0)
    report = report_of(simulate, healthy, told)
    alone = report.shown_slices[0]
    assert (alone.blocks, alone.against[0].better_by.lower) == (1, None)
    assert not any("by hour, 00:00" in text for text in report.warnings)


def test_a_person_sees_them_in_every_form_of_the_report(simulate, healthy, told, tmp_path):
    report = report_of(simulate, healthy, told)
    page = html.render(report, charts.sections(report, told, tmp_path, {}))
    for shown in (markdown.render(report), page):
        assert "Where it is better, and where not" in shown
        assert "18:00 to 24:00 UTC" in shown
    assert page.count("06:00 to 12:00 UTC") == 3, "a row of the table, and a label with its tip in the drawing"
