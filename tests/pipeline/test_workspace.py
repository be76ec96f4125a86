import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta

import pytest
import yaml

from pipeline import workspace
from pipeline.champions import Standing
from pipeline.registry import command as registry
from pipeline.registry import places
from sched_env import problems
from wire.errors import ConfigError

PARAMS = "problems: [functions]\ndata: {from: null, to: null}\nnightly: {days: null}\n"
RUN = "manual__2026-11-16T02:00:00.5+00:00"


def git(folder, *arguments):
    subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / ".dvc").mkdir(parents=True)
    (folder / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    (folder / ".dvc" / ".gitignore").write_text("/config.local\n/tmp\n")
    (folder / "champions" / "functions").mkdir(parents=True)
    (folder / "champions" / "functions" / "standing.json").write_text("{}\n")
    (folder / "params.yaml").write_text(PARAMS)
    (folder / "dvc.yaml").write_text(
        "stages:\n  first: {cmd: 'true'}\n"
        "  train:\n    matrix: {problem: '${problems}', seed: [0, 1]}\n    cmd: echo ${item.problem} ${item.seed}\n"
    )
    git(tmp_path, "init", "-q", "-b", "main", str(folder))
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "first")
    return folder


@pytest.fixture(autouse=True)
def var(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    return tmp_path / "var"


def test_a_run_gets_its_own_clone_with_the_shared_cache(source, var):
    path = workspace.create(RUN, source=source, home=var)
    assert path == var / "runs" / "manual__2026-11-16T02~3A00~3A00.5~2B00~3A00"
    local = (path / ".dvc" / "config.local").read_text()
    assert str(var / "dvc" / "cache") in local
    assert str(var / "dvc" / "remote") in local
    assert workspace.problems(path) == ["functions"]
    assert workspace.stages(path) == {"train": ["train@functions-0", "train@functions-1"]}


def test_a_remote_of_the_users_own_is_kept(source, var):
    (source / ".dvc" / "config").write_text("[core]\n    remote = s3\n['remote \"s3\"']\n    url = s3://bucket\n")
    git(source, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qam", "remote")
    path = workspace.create(RUN, source=source, home=var)
    assert "remote =" not in (path / ".dvc" / "config.local").read_text()


def test_data_goes_to_the_remote_of_the_registry(source, var, monkeypatch):
    monkeypatch.setenv("LOADMASTER_DVC_REMOTE", "s3://bucket/loadmaster")
    path = workspace.create(RUN, source=source, home=var)
    assert "url = s3://bucket/loadmaster\n" in (path / ".dvc" / "config.local").read_text()


def test_a_champion_comes_with_what_the_registry_says_of_it(source, var, tmp_path, monkeypatch):
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "manifest.json").write_text("{}")
    monkeypatch.setattr(registry, "live_bundle", lambda problem, home: bundle)
    monkeypatch.setattr(registry, "standing", lambda problem: Standing("sha256:a", "2026-11-16T05:00:00+00:00", 0.5))
    champion = workspace.create(RUN, source=source, home=var) / "champions" / "functions"
    assert (champion / "bundle" / "manifest.json").exists()
    said = json.loads((champion / "standing.json").read_text())
    assert said == {"digest": "sha256:a", "live_since": "2026-11-16T05:00:00+00:00", "density": 0.5}


def test_a_second_call_takes_the_workspace_as_it_is(source, var):
    path = workspace.create(RUN, source=source, home=var)
    (path / "work").write_text("half a night")
    assert workspace.create(RUN, source=source, home=var) == path
    assert (path / "work").read_text() == "half a night"


def test_what_a_killed_clone_left_behind_is_not_taken_for_a_workspace(source, var):
    unfinished = var / "runs" / (places.run_folder_name(RUN) + workspace.UNFINISHED)
    unfinished.mkdir(parents=True)
    (unfinished / "garbage").touch()
    path = workspace.create(RUN, source=source, home=var)
    assert not (path / "garbage").exists()
    assert not unfinished.exists()


def test_uncommitted_changes_are_not_part_of_a_run(source, var):
    (source / "params.yaml").write_text(PARAMS.replace("functions", "vm"))
    assert workspace.problems(workspace.create(RUN, source=source, home=var)) == ["functions"]


def test_a_folder_without_a_commit_is_refused(tmp_path, var):
    git(tmp_path, "init", "-q", str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="commit first"):
        workspace.create(RUN, source=tmp_path / "empty", home=var)


def days_of(path):
    return yaml.safe_load((path / "params.yaml").read_text())["data"]


def test_a_range_is_written_into_the_runs_own_parameters(source, var):
    path = workspace.create(RUN, source=source, home=var, choice=workspace.Choice((date(2026, 1, 5), date(2026, 1, 7))))
    assert days_of(path) == {"from": "2026-01-05", "to": "2026-01-07"}, "DVC refuses parameters that are dates"
    assert days_of(source) == {"from": None, "to": None}


def test_a_night_takes_the_whole_days_up_to_last_midnight(source, var):
    (source / "params.yaml").write_text(PARAMS.replace("days: null", "days: 3"))
    git(source, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qam", "three days")
    before = datetime.now(UTC).date()
    data = days_of(workspace.create(RUN, source=source, home=var))
    first, last = (date.fromisoformat(data[end]) for end in ("from", "to"))
    assert last - first == timedelta(days=2)
    assert last in (before - timedelta(days=1), datetime.now(UTC).date() - timedelta(days=1))


@pytest.mark.parametrize(
    ("days", "message"),
    [
        (["--from", "2026-01-05"], "one end"),
        (["--from", "2026-01-05", "--to", "2026-01-04"], "--from 2026-01-05 is after --to 2026-01-04"),
    ],
)
def test_half_a_range_or_one_that_ends_before_it_begins_is_refused(monkeypatch, days, message):
    monkeypatch.setattr("sys.argv", ["workspace", "--run-id", RUN, *days])
    with pytest.raises(ConfigError, match=message):
        workspace.main()


def test_dates_without_quotes_become_text_that_dvc_takes(source, var):
    (source / "params.yaml").write_text(
        PARAMS.replace("from: null", "from: 2026-01-05").replace("to: null", "to: 2026-01-06")
    )
    git(source, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qam", "bare dates")
    assert days_of(workspace.create(RUN, source=source, home=var)) == {"from": "2026-01-05", "to": "2026-01-06"}


def test_what_was_chosen_for_one_run_is_written_into_its_parameters_alone(source, var):
    (source / "params.yaml").write_text(
        PARAMS.replace("[functions]", "[functions, vm]") + "ingest: {source: sample, x: 1}\n"
    )
    (source / "sizes").mkdir()
    (source / "sizes" / "demo.yaml").write_text("ingest: {x: 2}\n")
    git(source, "add", "-A")
    git(source, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "sizes")
    choice = workspace.Choice(problems=("vm",), source="traces", size="demo", density=0.25)
    path = workspace.create(RUN, source=source, home=var, choice=choice)
    written = yaml.safe_load((path / "params.yaml").read_text())
    assert written["problems"] == ["vm"]
    assert written["ingest"] == {"source": "traces", "x": 2}
    assert written["workload"] == {"vm": {"density": 0.25}}
    assert workspace.problems(source) == ["functions", "vm"]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (workspace.Choice(problems=("cats",)), "'cats' is none of this night's problems"),
        (workspace.Choice(size="huge"), "there is no size 'huge'"),
        (workspace.Choice(density=0.0), "the density is 0.0; expected more than 0"),
        (workspace.Choice(density=float("nan")), "the density is nan"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused_and_leaves_no_workspace(source, var, choice, message):
    with pytest.raises(ConfigError, match=message):
        workspace.create(RUN, source=source, home=var, choice=choice)
    assert not places.workspace(RUN, var).exists()


def test_other_problems_can_be_tried_without_a_commit(source, var, monkeypatch):
    monkeypatch.setenv("LOADMASTER_PROBLEMS", "functions, vm")
    path = workspace.create(RUN, source=source, home=var)
    assert workspace.problems(path) == ["functions", "vm"]


@pytest.mark.parametrize(
    "path", sorted((workspace.repository() / workspace.SIZES).glob("*.yaml")), ids=lambda path: path.stem
)
def test_a_smaller_run_still_evaluates_the_rule_that_its_gate_compares_with(path):
    laid = workspace.laid_over(
        yaml.safe_load((workspace.repository() / "params.yaml").read_text()), yaml.safe_load(path.read_text())
    )
    for problem, settings in laid["evaluate"].items():
        if problem in problems.names() and "heuristics" in settings:
            assert problems.get(problem).fallback in settings["heuristics"], problem


def test_every_problem_can_be_asked_for_those_of_the_file_first(source, var, monkeypatch):
    monkeypatch.setenv("LOADMASTER_PROBLEMS", "every")
    path = workspace.create(RUN, source=source, home=var)
    assert workspace.problems(path)[0] == "functions"
    assert sorted(workspace.problems(path)) == sorted(problems.names())


KERNEL = """
from sched_env.jit import kernel
@kernel
def apply(x):
    return x * {factor}
"""


def loaded(folder):
    """Load the kernel of a folder as a new process would; returns it after its first call."""
    spec = importlib.util.spec_from_file_location("handed_on", folder / "sched_env" / "toy" / "handed_on.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["handed_on"] = module
    spec.loader.exec_module(module)
    module.apply(3.0)
    return module.apply


def settle(folder):
    for path in folder.glob("sched_env/**/*.nb?"):
        os.utime(path, (time.time() - 60, time.time() - 60))


@pytest.mark.parametrize(("factor", "hits"), [(2, 1), (5, 0)], ids=["same source", "other source"])
def test_a_clone_is_given_compiled_kernels_and_uses_those_of_its_own_source(tmp_path, factor, hits):
    pytest.importorskip("numba")
    known, clone = tmp_path / "known", tmp_path / "clone"
    for folder, number in ((known, 2), (clone, factor)):
        (folder / "sched_env" / "toy").mkdir(parents=True)
        (folder / "sched_env" / "toy" / "handed_on.py").write_text(KERNEL.format(factor=number))
    assert sum(loaded(known).stats.cache_misses.values()) == 1
    settle(known)
    workspace.hand_on_kernels([known], clone)
    there = loaded(clone)
    assert sum(there.stats.cache_hits.values()) == hits
    assert there(3.0) == 3.0 * factor


def test_what_is_being_compiled_or_has_no_place_in_the_clone_is_not_handed_on(tmp_path):
    known, clone = tmp_path / "known", tmp_path / "clone"
    for name in ("toy", "gone"):
        (known / "sched_env" / name / "__pycache__").mkdir(parents=True)
        for file in ("k-1.py311.nbi", "k-1.py311.1.nbc"):
            (known / "sched_env" / name / "__pycache__" / file).write_text("code")
    (clone / "sched_env" / "toy").mkdir(parents=True)
    workspace.hand_on_kernels([known], clone)
    assert not list(clone.rglob("*.nb?")), "a fresh index may name code that is not written yet"
    settle(known)
    workspace.hand_on_kernels([known], clone)
    found = sorted(path.relative_to(clone).as_posix() for path in clone.rglob("*.nb?"))
    assert found == [f"sched_env/toy/__pycache__/k-1.py311.{end}" for end in ("1.nbc", "nbi")]
    shutil.rmtree(known)
    assert (clone / found[0]).read_text() == "code"
