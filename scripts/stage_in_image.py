"""Runs one training here and once more inside the built train image, and compares: docker/check.sh calls this.

    python scripts/stage_in_image.py FOLDER       where docker/check.sh keeps its images

The last line is a JSON object: the two digests, and whether they are the same.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
STAGE = "train@functions-default-1"
BEFORE = ("ingest", "clean", "validate", "calibrate@functions")
USER = 10001


def digest(folder: Path) -> str:
    """Return what DVC says that the training wrote."""
    outs = yaml.safe_load((folder / "dvc.lock").read_text())["stages"][STAGE]["outs"]
    return str(next(out["md5"] for out in outs if out["path"].startswith("data/policies/")))


def main() -> int:
    """Train twice."""
    work = Path(sys.argv[1]).resolve()
    here, inside = work / "stage-here", work / "stage-inside"
    for folder in (here, inside):
        shutil.rmtree(folder, ignore_errors=True)
    environment = {
        **os.environ,
        "LOADMASTER_VAR": str(work / "stage-var"),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    prepare = (
        "import pathlib, sys; from pipeline import workspace;"
        "workspace.create('stage', source=pathlib.Path(sys.argv[1]), home=pathlib.Path(sys.argv[2]),"
        " choice=workspace.Choice(problems=('functions',), size='demo'))"
    )
    shutil.rmtree(work / "stage-var", ignore_errors=True)
    subprocess.run([sys.executable, "-c", prepare, ROOT, work / "stage-var"], check=True, cwd=ROOT, env=environment)
    shutil.move(work / "stage-var" / "runs" / "stage", here)
    # Whole in itself: the image does not see the history that the clone borrows.
    subprocess.run(["git", "-C", here, "repack", "-a", "-d", "-q"], check=True)
    (here / ".git" / "objects" / "info" / "alternates").unlink()
    # Not shared with the image: a cached training would be no training.
    (here / ".dvc" / "config.local").write_text("")
    for name in BEFORE:
        subprocess.run([sys.executable, "-m", "dvc", "repro", "-q", "-s", name], check=True, cwd=here, env=environment)
    shutil.copytree(here, inside, symlinks=True)
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q", "-s", STAGE], check=True, cwd=here, env=environment)
    subprocess.run(["chown", "-R", f"{USER}:{USER}", inside], check=True)
    store = ["buildah", "--root", str(work / "store"), "--runroot", str(work / "runroot")]
    tools = {**os.environ, "STORAGE_DRIVER": os.environ.get("STORAGE_DRIVER", "overlay")}
    made = [*store, "from", "--pull-never", "--isolation", "chroot", "localhost/train"]
    box = subprocess.run(made, check=True, capture_output=True, text=True, env=tools).stdout.strip()
    try:
        run = [*store, "run", "--isolation", "chroot", "-v", f"{inside}:/stage:rw", "--workingdir", "/stage", box, "--"]
        command = ["env", "DVC_SITE_CACHE_DIR=/tmp/dvc", "LOADMASTER_VAR=/stage/var", "NUMBA_CACHE_DIR=/stage/numba"]
        subprocess.run([*run, *command, "python", "-m", "dvc", "repro", "-q", "-s", STAGE], check=True, env=tools)
    finally:
        subprocess.run([*store, "rm", box], check=True, capture_output=True, env=tools)
    found = {"stage": STAGE, "here": digest(here), "in_image": digest(inside)}
    found["same"] = found["here"] == found["in_image"]
    sys.stdout.write(json.dumps(found) + "\n")
    return 0 if found["same"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
