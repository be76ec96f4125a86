"""The images: built on a stand-in base and held to what they promise, or left out with a reason."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIPPED = 77


def check(folder, **more):
    command = ["sh", str(ROOT / "docker" / "check.sh"), str(folder)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **more}, capture_output=True, text=True, check=False)


def test_without_buildah_the_check_says_so_and_does_nothing(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "dirname"):
        (tools / name).symlink_to(shutil.which(name))
    done = check(tmp_path / "images", PATH=str(tools))
    assert done.returncode == SKIPPED, done.stderr
    assert done.stdout == "skipped: there is no buildah here (apt-get install buildah)\n"
    assert not (tmp_path / "images").exists()


@pytest.mark.soak
@pytest.mark.timeout(3500)
def test_every_image_builds_holds_what_it_promises_and_trains_to_the_same_bytes(tmp_path):
    # LOADMASTER_IMAGES names a folder in which an earlier build's layers are.
    folder = Path(os.environ.get("LOADMASTER_IMAGES") or tmp_path / "images")
    done = check(folder)
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((folder / "images.json").read_text())
    assert [one["image"] for one in found["images"]] == ["placement", "train", "airflow"]
    assert all(one["parts_in_sbom"] > 50 for one in found["images"])
    assert found["stage"]["same"] is True
