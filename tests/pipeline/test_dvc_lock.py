"""A lock that a kill left in pieces is put together again from DVC's run cache; nothing that had not ended gets in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.standing_night import stand_ins

ENDED = ["ingest", "clean", "validate"]


def repro(folder, stage):
    command = [sys.executable, "-m", "dvc", "repro", "--single-item", stage]
    # Stages say `python`: that of the tests, whether or not their environment is activated.
    found = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(command, cwd=folder, env=found, capture_output=True, text=True, check=False)


def mend(folder):
    """Call it as a stage's task does; DVC's logging is not made for several calls in one process."""
    command = [sys.executable, "-m", "pipeline.dvc_lock"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A repository three of whose stages have ended, and its lock."""
    folder = stand_ins(tmp_path_factory.mktemp("lock") / "repository")
    pipeline = (folder / "dvc.yaml").read_text()
    # Every stage of ours depends on its code; DVC keeps no run of one that depends on nothing.
    (folder / "dvc.yaml").write_text(
        pipeline.replace("ingest data/raw, outs", "ingest data/raw, deps: [stages.py], outs")
    )
    for stage in ENDED:
        done = repro(folder, stage)
        assert done.returncode == 0, done.stderr
    return folder, (folder / "dvc.lock").read_text()


@pytest.mark.parametrize(
    ("last", "lost"),
    [("", ENDED), ("schema: '2.0'", ENDED), ("  clean:", ENDED), ("      nfiles: 1\n", ENDED[1:])],
    ids=["empty", "its first line", "DVC refuses it", "DVC reads it, and two stages are gone"],
)
def test_a_lock_that_was_cut_short_is_put_together_again(ended, last, lost):
    folder, before = ended
    (folder / "dvc.lock").write_text(before[: before.index(last) + len(last)] if last else "")
    # A fourth stage was killed in the middle of its work: what it left is no output.
    half = folder / "data" / "models"
    half.mkdir(parents=True, exist_ok=True)
    (half / "half").write_text("not whole")
    done = mend(folder)
    assert done.returncode == 0, done.stderr
    assert f"run cache: {', '.join(lost)}\n" in done.stdout
    assert yaml.safe_load((folder / "dvc.lock").read_text()) == yaml.safe_load(before)


def test_dvc_takes_what_was_mended_for_done(ended):
    folder, _ = ended
    (folder / "dvc.lock").write_text("")
    assert repro(folder, "validate").returncode != 0, "DVC refuses an empty lock"
    assert mend(folder).returncode == 0
    done = repro(folder, "validate")
    assert "didn't change, skipping" in done.stdout + done.stderr


def test_a_whole_lock_and_none_are_left_alone(ended, tmp_path):
    folder, before = ended
    (folder / "dvc.lock").write_text(before)
    assert mend(folder).returncode == 1
    assert (folder / "dvc.lock").read_text() == before
    assert mend(tmp_path).returncode == 1
