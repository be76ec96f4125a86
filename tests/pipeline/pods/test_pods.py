"""Stages in pods, without a cluster: each runs in a `var/` of its own, and only digests are believed."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

from pipeline import workspace
from pipeline.errors import RegistryError
from pipeline.pods import command, fragments, inside, settings
from pipeline.registry import dvc_objects, places, runs
from tests.servers import s3_server
from wire.errors import ConfigError

RUN = "manual__2026-11-16T02:00:00+00:00"
STAGES = """
import json, pathlib, sys
stage, problem, seed = (*sys.argv[1:], "", "")[:3]
pathlib.Path("data/metrics").mkdir(parents=True, exist_ok=True)
if stage == "ingest":
    out = pathlib.Path("data/raw")
elif stage == "train":
    assert pathlib.Path("data/raw/rows").read_text() == "rows of ingest"
    out = pathlib.Path(f"data/policies/{problem}/ppo-{seed}")
    pathlib.Path(f"data/metrics/train-{seed}.json").write_text(json.dumps({"return": int(seed)}))
else:
    trained = sorted(path.name for path in pathlib.Path(f"data/policies/{problem}").iterdir())
    out = pathlib.Path(f"data/gate/{problem}")
    out.mkdir(parents=True)
    (out / "report.json").write_text(json.dumps({"outcome": "pass", "trained": trained}))
out.mkdir(parents=True, exist_ok=True)
(out / "rows").write_text(f"rows of {stage}")
"""
DVC_YAML = """
stages:
  ingest: {cmd: python stages.py ingest, deps: [stages.py], outs: [data/raw]}
  train:
    matrix: {problem: [vm], seed: [0, 1]}
    cmd: python stages.py train ${item.problem} ${item.seed}
    deps: [data/raw]
    outs: ["data/policies/${item.problem}/ppo-${item.seed}"]
    metrics: ["data/metrics/train-${item.seed}.json": {cache: false}]
  gate:
    matrix: {problem: [vm]}
    cmd: python stages.py gate ${item.problem}
    deps: ["data/policies/${item.problem}"]
    outs: ["data/gate/${item.problem}"]
"""


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Airflow's side: a run whose branch has been put where pods can clone it."""
    home = tmp_path_factory.mktemp("pods")
    source = home / "repository"
    for name, text in {
        "stages.py": STAGES,
        "dvc.yaml": DVC_YAML,
        "params.yaml": "problems: [vm]\nnightly: {days: null}\ndata: {from: null, to: null}\n",
        ".gitignore": "/data/\n",
        ".dvc/config": "[core]\n    analytics = false\n",
        ".dvc/.gitignore": "/config.local\n/tmp\n/cache\n",
    }.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "stages"]):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=source, check=True)
    subprocess.run(["git", "init", "-q", "--bare", home / "registry.git"], check=True)
    with pytest.MonkeyPatch.context() as patch:
        told(home, patch)
        workspace.create(RUN, source=source, home=home / "airflow")
        command.begin(RUN)
    return home


def told(home, patch):
    """Say to whoever runs here where everything is."""
    patch.setenv("LOADMASTER_REGISTRY", str(home / "registry.git"))
    patch.setenv("LOADMASTER_DVC_REMOTE", str(home / "remote"))
    patch.setenv("LOADMASTER_VAR", str(home / "airflow"))


def in_a_pod(home, stage, patch):
    """Run a stage where nothing is but what the pod fetches."""
    with patch.context() as inner, tempfile.TemporaryDirectory() as empty:
        inner.setenv("LOADMASTER_VAR", empty)
        inner.setenv("DVC_SITE_CACHE_DIR", f"{empty}/site")
        return inside.run_stage(RUN, stage)


@pytest.fixture(scope="module")
def made_night(begun):
    """A night of four pods, and the place where they were."""
    with pytest.MonkeyPatch.context() as patch:
        told(begun, patch)
        for stage in ("ingest", "train@vm-0", "train@vm-1", "gate@vm"):
            in_a_pod(begun, stage, patch)
            command.check(RUN, stage)
    return begun


@pytest.fixture
def night(made_night, tmp_path, monkeypatch):
    """That night, with a registry and a remote of the test's own."""
    for name in ("registry.git", "remote", "airflow"):
        shutil.copytree(made_night / name, tmp_path / name, symlinks=True)
    told(tmp_path, monkeypatch)
    return tmp_path


def test_a_night_of_pods_is_recorded_as_one_that_ran_here(night):
    assert command.merge(RUN) == ["gate@vm", "ingest", "train@vm-0", "train@vm-1"]
    folder = places.workspace(RUN)
    report = json.loads((folder / "data/gate/vm/report.json").read_text())
    assert report["trained"] == ["ppo-0", "ppo-1"], "the gate's pod had both seeds, each trained in a pod of its own"
    assert json.loads((folder / "data/metrics/train-1.json").read_text()) == {"return": 1}
    assert not (folder / "data/raw").exists(), "what Airflow does not read stays where it is"
    recorded = runs.record_run(folder, RUN)
    there = runs.outputs_of(runs.sync(), recorded.commit)
    assert there.keys() >= {"data/raw", "data/policies/vm/ppo-0", "data/gate/vm"}
    assert runs.recorded_run(runs.sync(), RUN).commit == recorded.commit
    command.end(RUN)
    assert runs.sync().resolve(f"refs/remotes/origin/{inside.branch(RUN)}") is None


def test_a_failed_seed_loses_itself_alone(night, monkeypatch):
    for stage in ("train@vm-0", "gate@vm"):
        (fragments.folder(RUN) / f"{places.run_folder_name(stage)}.json").unlink()
    gate = in_a_pod(night, "gate@vm", monkeypatch)
    (out,) = gate.outputs()
    (report,) = [
        one
        for one in json.loads(dvc_objects.object_path(night / "remote", out.md5).read_text())
        if one["relpath"] == "report.json"
    ]
    assert json.loads(dvc_objects.object_path(night / "remote", report["md5"]).read_text())["trained"] == ["ppo-1"]


def test_a_stage_that_has_ended_is_not_run_again(night, monkeypatch):
    before = fragments.get(RUN, "train@vm-0")
    monkeypatch.setattr(inside, "_pull", lambda *_: pytest.fail("it worked again"))
    assert in_a_pod(night, "train@vm-0", monkeypatch) == before


def test_a_pod_that_published_nothing_has_not_ended(night):
    with pytest.raises(RegistryError, match="has published nothing"):
        command.check("another", "ingest")


def test_data_that_is_lost_or_changed_in_the_remote_is_told_and_made_again(night, monkeypatch):
    raw = next(out for out in fragments.get(RUN, "ingest").outputs() if out.path == "data/raw")
    (name,) = json.loads(dvc_objects.object_path(night / "remote", raw.md5).read_text())
    dvc_objects.object_path(night / "remote", name["md5"]).unlink()
    with pytest.raises(RegistryError, match="1 files of data/raw are not in the DVC remote, rows the first"):
        command.check(RUN, "ingest")
    in_a_pod(night, "ingest", monkeypatch)
    command.check(RUN, "ingest")
    path = dvc_objects.object_path(night / "remote", raw.md5)
    path.chmod(0o644)
    path.write_text("[]")
    with pytest.raises(RegistryError, match="holds other bytes"):
        command.check(RUN, "ingest")


@pytest.mark.s3
def test_the_next_pod_refuses_what_was_changed_in_an_s3_store(begun, tmp_path, monkeypatch):
    pytest.importorskip("dvc_s3", reason="the s3 extra is not installed: pip install -e '.[s3]'")
    for name in ("registry.git", "airflow"):
        shutil.copytree(begun / name, tmp_path / name, symlinks=True)
    told(tmp_path, monkeypatch)
    with s3_server(tmp_path / "s3", "loadmaster", monkeypatch) as server:
        monkeypatch.setenv("LOADMASTER_DVC_REMOTE", "s3://loadmaster/dvc")
        (raw,) = in_a_pod(tmp_path, "ingest", monkeypatch).kept()
        command.check(RUN, "ingest")
        store = server.folder / "loadmaster" / "dvc"
        (rows,) = json.loads(dvc_objects.object_path(store, raw.md5).read_text())
        dvc_objects.object_path(store, rows["md5"]).write_text("rows of nobody")
        with pytest.raises(RegistryError, match="dvc pull"):
            in_a_pod(tmp_path, "train@vm-0", monkeypatch)
        assert fragments.all_of(RUN).keys() == {"ingest"}


def test_a_stage_built_on_other_data_than_the_runs_is_told(night):
    train = fragments.get(RUN, "train@vm-0")
    lock = {**train.lock, "deps": [{**train.lock["deps"][0], "md5": "0" * 32 + ".dir"}]}
    fragments.put(fragments.Fragment(RUN, train.stage, train.commit, lock, train.files))
    with pytest.raises(RegistryError, match="it was built on data/raw"):
        command.check(RUN, "train@vm-0")
    fragments.put(fragments.Fragment(RUN, train.stage, "f" * 40, train.lock, train.files))
    with pytest.raises(RegistryError, match="it was made from commit ffff"):
        command.check(RUN, "train@vm-0")


def test_a_fragment_whose_metrics_were_changed_is_told(night):
    train = fragments.get(RUN, "train@vm-0")
    files = dict.fromkeys(train.files, '{"return": 99}')
    fragments.put(fragments.Fragment(RUN, train.stage, train.commit, train.lock, files))
    with pytest.raises(RegistryError, match="is not what its lock says"):
        command.merge(RUN)


def test_a_stage_that_fails_publishes_nothing(night, monkeypatch):
    for path in fragments.folder(RUN).iterdir():
        path.unlink()
    with pytest.raises(RegistryError, match="dvc repro --single-item -- ended with"):
        in_a_pod(night, "train@vm-0", monkeypatch)
    assert fragments.all_of(RUN) == {}


def test_beginning_a_run_twice_is_the_same_branch(night):
    assert command.begin(RUN) == command.begin(RUN)


def test_resources_of_each_stage_come_from_the_file_and_unknown_keys_are_errors(tmp_path, monkeypatch):
    pods = settings.load(Path(__file__).parents[3])
    assert pods.stage("train").resources()["limits"] == {"memory": "8Gi", "nvidia.com/gpu": "1"}
    assert "nvidia.com/gpu" not in pods.stage("gate").resources()["limits"]
    path = tmp_path / "stages.yaml"
    monkeypatch.setenv(settings.FILE_ENV, str(path))
    path.write_text(yaml.safe_dump({"image": "x", "stages": {"train": {"gpu": 1}}}))
    with pytest.raises(ConfigError, match=r"stage 'train'.*`gpu`"):
        settings.load(tmp_path)
