"""The command line: files in, files out, and an exit code that is about errors only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.contracts.evaluation import Backtest, Integrity, Promise
from pipeline.contracts.gate import GateReport
from pipeline.errors import GateError
from pipeline.gate import command as gate
from pipeline.gate.config import Config, Promotion
from pipeline.gate.simulated import TERMS
from wire.errors import ConfigError, ContractError

POLICIES = {"challenger": 0.05, "champion": 0.0, "least_allocated": -0.02}
EQUAL = POLICIES | {"challenger": 0.0}


@pytest.fixture
def workspace(tmp_path, monkeypatch, simulate, tabulate, healthy):
    """A workspace after evaluate; called again it writes another evaluation."""
    monkeypatch.chdir(tmp_path)

    def evaluate(policies=POLICIES, config: Config | None = None, **truth) -> Path:
        folder = tmp_path / "data" / "evaluation" / "functions"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(tabulate(simulate(policies, **truth)), folder / "episodes.parquet")
        (folder / "integrity.json").write_bytes(msgspec.json.encode(healthy))
        (folder / "terms.json").write_bytes(msgspec.json.encode(TERMS))
        rules = msgspec.to_builtins(config or Config(bootstrap_samples=500))
        Path("params.yaml").write_text(yaml.safe_dump({"gate": rules}))
        return folder

    evaluate()
    return evaluate


def report() -> GateReport:
    return msgspec.json.decode(Path("data/gate/functions/report.json").read_bytes(), type=GateReport)


def _manifest(folder: str, windows_end: str) -> None:
    Path(folder).mkdir(parents=True)
    (Path(folder) / "manifest.json").write_text(
        json.dumps({"digest": "d", "lineage": {"windows_end": windows_end}, "of": 9})
    )


def test_every_verdict_exits_zero_and_writes_all_files(workspace, capsys):
    for policies, outcome in ((POLICIES, "pass"), (EQUAL, "fail")):
        workspace(policies)
        assert gate.main(["--problem", "functions"]) == 0
        assert report().outcome == outcome
        assert capsys.readouterr().out.startswith(f"functions: {outcome}: ")
        assert f"**{outcome.upper()}**" in Path("data/gate/functions/report.md").read_text()
        assert outcome.upper() in Path("data/gate/functions/report.html").read_text()
        metrics = json.loads(Path("data/metrics/gate-functions.json").read_text())
        assert metrics["passed"] == (outcome == "pass")
        assert all(value is None or isinstance(value, float) for value in metrics.values())
        assert {"return", "return_better_than_reference", "cost_usd_better_than_best_heuristic"} <= set(metrics)
        assert len(metrics) <= 11, "a handful of columns, not all that was measured"


def test_no_unfinished_file_is_left(workspace):
    gate.main(["run", "--problem", "functions"])
    assert sorted(path.name for path in Path("data/gate/functions").iterdir()) == [
        "report.html",
        "report.json",
        "report.md",
    ]


def test_explain_reads_the_report_that_was_written(workspace, capsys):
    gate.main(["--problem", "functions"])
    capsys.readouterr()
    assert gate.main(["explain", "--problem", "functions"]) == 0
    assert capsys.readouterr().out.startswith("PASS: ")


def test_explain_without_a_report_says_what_to_run(workspace):
    with pytest.raises(GateError, match=r"run python -m pipeline\.gate --problem functions"):
        gate.main(["explain", "--problem", "functions"])


def test_a_missing_evaluation_is_an_error(workspace):
    folder = workspace()
    (folder / "integrity.json").unlink()
    with pytest.raises(GateError, match=r"integrity\.json does not exist"):
        gate.main(["--problem", "functions"])
    (folder / "episodes.parquet").unlink()
    with pytest.raises(GateError, match=r"episodes\.parquet does not exist"):
        gate.main(["--problem", "functions"])


def test_rules_that_do_not_parse_are_an_error_naming_the_key(workspace):
    Path("params.yaml").write_text("gate: {confidense: 0.95}")
    with pytest.raises(ConfigError, match="confidense"):
        gate.main(["--problem", "functions"])
    Path("params.yaml").write_text("gate: {guardrails: {cost_usd: {}}}")
    with pytest.raises(ConfigError, match="absolute, relative, or both"):
        gate.main(["--problem", "functions"])


def test_an_empty_section_means_the_defaults(workspace):
    Path("params.yaml").write_text("gate: {}")
    gate.main(["--problem", "functions"])
    assert report().settings == json.loads(msgspec.json.encode(Config()))


def test_integrity_with_a_nan_is_an_error(workspace, healthy):
    folder = workspace()
    broken = msgspec.structs.replace(healthy, decision_p99_us=float("nan"))
    (folder / "integrity.json").write_bytes(msgspec.json.encode(broken))
    with pytest.raises(ContractError, match="decision_p99_us"):
        gate.main(["--problem", "functions"])


def test_golden_vectors_that_could_not_run_fail_instead_of_crashing(workspace, healthy):
    folder = workspace()
    broken = msgspec.structs.replace(healthy, golden_max_error=float("inf"), bundle_errors=["golden: wrong shape"])
    (folder / "integrity.json").write_bytes(msgspec.json.encode(broken))
    assert msgspec.json.decode((folder / "integrity.json").read_bytes(), type=Integrity).golden_max_error is None
    gate.main(["--problem", "functions"])
    assert report().outcome == "fail"


def test_a_back_test_beside_the_evaluation_is_read(workspace):
    folder = workspace()
    found = Backtest("sha256:a", "start", "end", [Promise("cost_usd", 130.0, 100.0, 0.3)])
    (folder / "backtest.json").write_bytes(msgspec.json.encode(found))
    gate.main(["--problem", "functions"])
    assert report().outcome == "inconclusive"


def test_age_is_counted_between_the_data_of_both_bundles(workspace):
    workspace(EQUAL, Config(bootstrap_samples=500, promotion=Promotion(mode="refresh")), deviation=0.02)
    _manifest("champions/functions/bundle", "2026-11-01T00:00:00+00:00")
    _manifest("data/bundles/functions", "2026-11-16T00:00:00+00:00")
    gate.main(["--problem", "functions"])
    assert report().outcome == "pass"
    assert "15.0 days older" in " ".join(report().warnings)


@pytest.mark.parametrize("end", ["yesterday", "2026-11-01T00:00:00"])
def test_a_manifest_without_a_usable_time_is_an_error(workspace, end):
    _manifest("champions/functions/bundle", end)
    with pytest.raises(GateError, match=f"lineage.windows_end.*{end}"):
        gate.main(["--problem", "functions"])


def test_validation_warnings_and_drift_reach_the_gate(workspace):
    Path("data/validation").mkdir()
    Path("data/validation/verdict.json").write_text(
        json.dumps({"warnings": ["nodes: freshness 12 min"], "drifted": True})
    )
    gate.main(["--problem", "functions"])
    assert report().warnings == ["nodes: freshness 12 min"]
    workspace(EQUAL, Config(bootstrap_samples=500, promotion=Promotion(mode="refresh")), deviation=0.02)
    gate.main(["--problem", "functions"])
    assert report().outcome == "pass"
    assert "the request mix has drifted" in " ".join(report().warnings)


def test_no_validation_verdict_is_a_warning_of_its_own(workspace):
    gate.main(["--problem", "functions"])
    assert report().warnings == ["no validation verdict at data/validation/verdict.json"]


def test_the_module_runs_and_reports_errors_in_one_line(workspace):
    root = str(Path(gate.__file__).parents[1])
    command = [sys.executable, "-m", "pipeline.gate", "--problem", "functions", "--data", "nowhere"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={"PYTHONPATH": root, "PATH": ""})
    assert done.returncode == 2
    assert done.stderr.startswith("error: nowhere/evaluation/functions/episodes.parquet does not exist")
    assert len(done.stderr.splitlines()) == 1
