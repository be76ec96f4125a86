"""What became of each night, in words: from the registry alone."""

import json
import subprocess
import sys

import msgspec
import pytest

from pipeline import brief
from pipeline.errors import RegistryError
from pipeline.registry import command, nights
from pipeline.registry.chain import Chain, sync
from tests.pipeline.registry.conftest import HISTORY_RUNS
from wire.errors import LoadmasterError

SLA = {"metric": "sla_violation_rate", "unit": "absolute", "challenger_mean": 0.012, "reference_mean": 0.015}
COST = {"metric": "cost_usd", "unit": "relative", "challenger_mean": 11.0, "reference_mean": 10.0}
REPORT = {
    "outcome": "pass", "reason": "better by 2 %", "reference": "champion", "best_heuristic": "best_fit",
    "digest": "sha256:" + "1" * 64, "champion_digest": "sha256:" + "2" * 64,
    "warnings": ["one node | was <b>silent</b>"], "gap_closed": 0.4,
    "comparisons": [
        {**SLA, "reference": "champion", "scenario": None, "traces": 9,
         "better_by": {"estimate": 0.003, "lower": 0.001, "upper": 0.005}},
        {**COST, "reference": "champion", "scenario": None, "traces": 9,
         "better_by": {"estimate": -0.1, "lower": -0.12, "upper": None}},
        {**SLA, "reference": "champion", "scenario": "busy", "traces": 3,
         "better_by": {"estimate": -0.9, "lower": -1.0, "upper": -0.8}},
    ],
}  # fmt: skip


def test_a_history_is_told_night_by_night(history):
    told = {one.run_id: one for one in nights.all_nights(Chain.open())}
    first, second, third = (told[run] for run in HISTORY_RUNS)
    # Going back to the first policy is a record about the first night's bundle.
    assert (first.ended, second.ended, third.ended) == ("rolled back to", "promoted", "rejected")
    assert (second.by, third.by, third.comment) == ("ada", "bob", "not on a Friday")
    lines = list(nights.table(list(told.values())))
    assert lines[0].split()[:4] == ["run", "problem", "verdict", "ended"]
    assert len(lines) == 4


def test_two_nights_are_compared(history):
    chain = Chain.open()
    said = list(nights.difference(chain, HISTORY_RUNS[1], nights.matching(chain, "manual__")))
    assert "  ended: promoted -> rejected" in said
    assert "  by: ada -> bob" in said
    assert any("params.yaml differs" in line for line in said)
    with pytest.raises(LoadmasterError, match="2 recorded runs begin with 'scheduled"):
        nights.matching(chain, "scheduled")


def test_figures_speak_of_the_whole_and_mark_what_got_worse():
    found = {figure.metric: figure for figure in nights.figures(REPORT)}
    assert set(found) == {"sla_violation_rate", "cost_usd"}, "slices are not the headline"
    assert found["sla_violation_rate"].words() == "sla_violation_rate 1.2 % (better by +0.300 points)"
    assert found["cost_usd"].words().endswith("▲ WORSE)")


def test_the_note_of_a_night_fits_into_airflows_thousand_characters():
    one = nights.Outcome("r", "vm", "", "", "fail", "x" * 900, "", "champion", "best_fit", nights.figures(REPORT),
                         "failed the gate", None, "")  # fmt: skip
    text = nights.note([one, msgspec.structs.replace(one, problem="pods")])
    assert len(text) <= 1000
    assert [line.split(":")[0] for line in text.splitlines()] == ["pods", "vm"]


def test_an_approval_says_in_its_first_lines_what_changes_and_what_got_worse():
    assert brief.subject("vm", REPORT) == (
        "Promote vm sha256:111111111111? SLA violations -0.300 points, cost +10.00 % against the champion"
    )
    lines = brief.body("vm", REPORT).splitlines()
    assert lines[0] == "**vm: better by 2 %**"
    assert lines[2] == "- ⚠ one node \\| was \\<b\\>silent\\</b\\>", "names come from data"
    assert lines[3].startswith("- ▲ worse than champion: cost")
    assert "Trigger the DAG rollback in Airflow with problem vm" in lines[4]
    assert "| cost | 11 | 10 | ▲ **worse** by -10.00 % [-12.00 %, unbounded] | - | - |" in lines
    assert "40 % of the gap" in lines[-2]


def test_who_only_reads_makes_no_registry(tmp_path):
    asked = (["list"], ["show", "1"], ["diff", "a", "b"], ["gc"], ["lineage", "sha256:ab"], ["tags"])
    for arguments in (*(["registry", *one] for one in asked), ["runs"]):
        done = subprocess.run(
            [sys.executable, "-m", "wire.cli", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "there is no registry at" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["list"], "no record yet: make run"),
        (["list", "--problem", "functions"], "no record of functions yet: make run"),
        (["gc"], "removed nothing"),
        (["gc", "--dry-run"], "would remove nothing"),
        (["tags"], None),
        (["verify"], "0 records, 0 findings"),
        (["show", "1"], "the registry holds no record yet; expected a promotion, or a rejection; make run"),
        (["diff", "a", "b"], "the registry holds no record yet"),
        (["lineage", "sha256:ab"], "the registry holds no record yet"),
    ],
)
def test_an_empty_registry_says_so_and_how_it_gets_its_first_record(home, capsys, arguments, says):
    sync()
    try:
        assert command.main(arguments) == 0
        said = capsys.readouterr().out
    except RegistryError as error:
        said = str(error)
    if says is not None:
        assert says in said


def test_runs_are_printed_as_a_table_and_as_json(history, capsys):
    assert nights.main([]) == 0
    assert "rejected" in capsys.readouterr().out
    assert nights.main(["--json"]) == 0
    assert {row["run_id"] for row in json.loads(capsys.readouterr().out)} == set(HISTORY_RUNS)
    assert nights.main(["show", "manual"]) == 0
    assert capsys.readouterr().out.startswith("functions: rejected by bob: not on a Friday")
    assert command.main(["list"]) == 0


def test_no_night_yet_is_said_and_not_an_empty_table():
    assert list(nights.table([])) == ["no night is in the registry yet: make run, or nightly_retrain in Airflow"]
