"""What a stage runs is what its dependencies in dvc.yaml cover: nothing changes unseen, nothing reruns for nothing."""

import copy
from pathlib import Path

import pytest
import yaml

from pipeline import datasets, stages
from pipeline.policies import scorer
from pipeline.train import on_scenario, scratch_folder
from sched_env import problems
from wire import closure

ROOT = Path(__file__).parents[2]
DOCUMENT = yaml.safe_load((ROOT / "dvc.yaml").read_text())


def test_the_closure_of_every_stage_is_covered_and_nothing_else_is_named():
    assert stages.findings(DOCUMENT) == [], "run: python -m pipeline.stages --write"


def test_every_stage_that_runs_our_code_is_looked_at():
    assert {*stages.ENTRY_POINTS} == {*DOCUMENT["stages"]}
    for name, stage in DOCUMENT["stages"].items():
        assert stage["cmd"].split()[2] == stages.ENTRY_POINTS[name].removesuffix(".__main__")


@pytest.mark.parametrize(
    ("stage", "dependency"),
    [
        ("train", "pipeline/policies"),
        ("train", "sched_env/${item.problem}"),
        ("train", "pipeline/datasets/${item.problem}.py"),
        ("evaluate", "sched_env/rollout.py"),
        ("gate", "pipeline/statistics"),
        ("clean", "pipeline/clean"),
        ("ingest", "pipeline/sources"),
    ],
)
def test_a_dependency_taken_out_is_found(stage, dependency):
    document = copy.deepcopy(DOCUMENT)
    deps = document["stages"][stage]["deps"]
    whole = dependency in deps
    deps[:] = [dep for dep in deps if dep != dependency and not dep.startswith(dependency + "/")]
    assert whole or len(deps) < len(DOCUMENT["stages"][stage]["deps"])
    assert [finding for finding in stages.findings(document) if finding.startswith(f"{stage} lacks")]


def test_another_problems_folder_is_in_vain():
    document = copy.deepcopy(DOCUMENT)
    document["stages"]["train"]["deps"].append("sched_env/vm")
    assert stages.findings(document) == ["train names sched_env/vm, which is more than it needs"]


def test_no_mapped_stage_depends_on_another_problem():
    for stage in stages.PER_PROBLEM:
        for problem in problems.names():
            others = tuple(f"sched_env/{other}/" for other in problems.names() if other != problem)
            assert not [path for path in stages.code(stage, problem) if path.as_posix().startswith(others)]


def test_what_dvc_does_not_keep_is_a_metric():
    """DVC's run cache restores files of ``cache: false`` only where they are metrics; others make a stage run again."""
    for stage in DOCUMENT["stages"].values():
        assert all(isinstance(out, str) for out in stage["outs"]), stage["outs"]


def test_the_constant_that_decides_violations_is_seen_by_every_stage_after_the_windows():
    for stage in stages.PER_PROBLEM:
        assert Path("sched_env/functions/tables.py") in stages.code(stage, "functions"), "SLO_FACTOR is in there"


def test_editing_the_scorer_starts_a_training_over(tiny_workload, tiny_ppo, monkeypatch, tmp_path):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path))
    task = on_scenario(tiny_workload.scenario)

    def folder():
        closure.fingerprint.cache_clear()
        return scratch_folder(task, "maskable_ppo", 0, tiny_ppo)

    before, source = folder(), Path(scorer.__file__).resolve()
    assert folder() == before
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (b"#" if path.resolve() == source else b""))
    assert folder() != before
    closure.fingerprint.cache_clear()


def test_a_comment_in_another_problems_folder_leaves_a_training_where_it_was(monkeypatch):
    roots = ("pipeline.train", *datasets.code_of("functions"))
    closure.fingerprint.cache_clear()
    before = closure.fingerprint(*roots)
    read = Path.read_bytes
    other = (ROOT / "sched_env" / "jobs").resolve()
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (b"#" if other in path.parents else b""))
    closure.fingerprint.cache_clear()
    assert closure.fingerprint(*roots) == before
    closure.fingerprint.cache_clear()
