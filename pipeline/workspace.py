"""The run's own clone: code at one commit, the shared DVC cache, and everything the night depends on written into it.

Two runs never share a workspace, so DVC's locks never meet. What a run depends on beyond the commit (the data range,
the champions it must beat) is written into files of the clone that ``dvc.yaml`` names as dependencies: nothing is
wrongly taken from the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from pipeline.settings import var
from sched_env.errors import ConfigError, run_cli

REPO_ENV = "LOADMASTER_REPO"
"""Environment variable naming the repository to clone; the one this file stands in by default."""

CHAMPIONS = Path("champions")


def repository() -> Path:
    """The repository that runs are cloned from."""
    return Path(os.environ.get(REPO_ENV, Path(__file__).resolve().parent.parent))


def folder_name(run_id: str) -> str:
    """Make a run id (``manual__2026-11-16T02:00:00+00:00``) a plain folder name, readably."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", run_id)


def create(run_id: str, *, source: Path, home: Path) -> Path:
    """Clone ``source`` at HEAD into ``home/runs/<run>``; a workspace that is already whole is taken as it is.

    Args:
        run_id: The Airflow run id.
        source: A git repository with a ``dvc.yaml``.
        home: ``var/``: holds workspaces, the DVC cache and the DVC remote.
    """
    target = home / "runs" / folder_name(run_id)
    if target.exists():
        return target
    head = ["git", "-C", str(source), "rev-parse", "--quiet", "--verify", "HEAD"]
    if subprocess.run(head, check=False, capture_output=True).returncode:
        raise ConfigError(f"{source} is not a git repository with a commit", fix=f"commit first, or set {REPO_ENV}")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(target.name + ".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    # --shared borrows the source's objects: a clone costs no copy of the history.
    subprocess.run(["git", "clone", "--quiet", "--shared", source, unfinished], check=True)
    _configure_dvc(unfinished, home)
    _copy_champions(unfinished, home)
    unfinished.rename(target)
    return target


def _configure_dvc(workspace: Path, home: Path) -> None:
    cache, remote = home / "dvc" / "cache", home / "dvc" / "remote"
    for folder in (cache, remote):
        folder.mkdir(parents=True, exist_ok=True)
    # A run that names its own remote (S3) in .dvc/config keeps it; the embedded folder is only the default.
    config = (workspace / ".dvc" / "config").read_text()
    lines = f"[cache]\n    dir = {cache}\n    type = hardlink,copy\n"
    if "remote =" not in config:
        lines += f"[core]\n    remote = embedded\n['remote \"embedded\"']\n    url = {remote}\n"
    (workspace / ".dvc" / "config.local").write_text(lines)


def _copy_champions(workspace: Path, home: Path) -> None:
    """Put each live bundle where ``evaluate`` expects the champion; without one the folder keeps its README only."""
    from pipeline.registry import live_bundle

    for folder in sorted((workspace / CHAMPIONS).iterdir()):
        bundle = live_bundle(folder.name, home) if folder.is_dir() else None
        if bundle is not None:
            shutil.copytree(bundle, folder, dirs_exist_ok=True)


def stages(workspace: Path) -> dict[str, list[str]]:
    """Names of the mapped stages in this workspace's ``dvc.yaml``: ``{"train": ["train@functions-..."], ...}``."""
    listing = subprocess.run(
        [sys.executable, "-m", "dvc", "stage", "list", "--all", "--name-only"],
        cwd=workspace,
        check=True,
        capture_output=True,
        text=True,
    )
    mapped: dict[str, list[str]] = {}
    for name in listing.stdout.split():
        if "@" in name:
            mapped.setdefault(name.split("@")[0], []).append(name)
    return mapped


def problems(workspace: Path) -> list[str]:
    """The problems this workspace trains, in the order of ``params.yaml``."""
    return list(yaml.safe_load((workspace / "params.yaml").read_text())["problems"])


def main() -> int:
    """Create a workspace and print what the DAG maps over, as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.workspace", description=main.__doc__)
    parser.add_argument("--run-id", required=True, help="the Airflow run id")
    arguments = parser.parse_args()
    workspace = create(arguments.run_id, source=repository(), home=var())
    plan = {"path": str(workspace), "train": stages(workspace)["train"], "problems": problems(workspace)}
    sys.stdout.write(json.dumps(plan) + "\n")
    return 0


if __name__ == "__main__":
    run_cli(main)
