"""The run's own clone: code at one commit, the shared DVC cache, and everything the night depends on written into it.

Two runs never share a workspace, so DVC's locks never meet. What a run depends on beyond the commit (the data range,
the champions it must beat) is written into files of the clone that ``dvc.yaml`` names as dependencies: nothing is
wrongly taken from the cache.
"""

from __future__ import annotations

import argparse
import glob
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from pipeline import champions, paths
from pipeline.registry import places
from pipeline.settings import load, var
from pipeline.validate import drift
from sched_env import problems as registry_of_problems
from wire.command import Verb
from wire.errors import ConfigError, legal, run_cli

REPO_ENV = "LOADMASTER_REPO"
"""Environment variable naming the repository to clone; the one this file stands in by default."""


PROBLEMS_ENV = "LOADMASTER_PROBLEMS"
"""Other problems than ``params.yaml`` lists, with commas between them, or ``every``: without a commit."""
EVERY_PROBLEM = "every"

FULL, SIZES = "full", Path("sizes")
"""Runs of another size than ``params.yaml`` says: ``sizes/<name>.yaml`` is laid over it."""

KERNELS = ("sched_env", "pipeline")
"""Packages with functions that numba compiles."""
LOOKED_AT, SETTLED_S = 3, 10.0
"""Nights whose compiled kernels are handed on, and for how long these have not changed."""

UNFINISHED = "+unfinished"
"""Ends the name of a clone that is being made; no run's folder has a ``+`` in its name."""


def repository() -> Path:
    """The repository that runs are cloned from."""
    return Path(os.environ.get(REPO_ENV, Path(__file__).resolve().parent.parent))


class Choice(msgspec.Struct, frozen=True):
    """What a person chose in the Trigger form for one run, in place of what ``params.yaml`` says."""

    days: tuple[date, date] | None = None
    """First and last day to work on; None: what ``nightly.days`` says."""
    problems: tuple[str, ...] = ()
    """Only these, of those that ``params.yaml`` lists."""
    source: str | None = None
    """Another ``ingest.source``; its settings are those of ``params.yaml``."""
    size: str = FULL
    density: float | None = None
    """Train and judge at so many times the recorded load."""


class NightlyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``nightly`` of ``params.yaml``."""

    days: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Whole days up to last midnight (UTC) that a night works on; null: ``data`` stays as it is committed."""


def create(run_id: str, *, source: Path, home: Path, choice: Choice = Choice()) -> Path:  # noqa: B008  (frozen)
    """Clone ``source`` at HEAD into ``home/runs/<run>``; a workspace that is already whole is taken as it is.

    Args:
        run_id: The Airflow run id.
        source: A git repository with a ``dvc.yaml``.
        home: ``var/``: holds workspaces, the DVC cache and the DVC remote.
        choice: What was chosen for this run.
    """
    target = places.workspace(run_id, home)
    if target.exists():
        return target
    head = ["git", "-C", str(source), "rev-parse", "--quiet", "--verify", "HEAD"]
    if subprocess.run(head, check=False, capture_output=True).returncode:
        raise ConfigError(f"{source} is not a git repository with a commit", fix=f"commit first, or set {REPO_ENV}")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(target.name + UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    # --shared borrows the source's objects: a clone costs no copy of the history.
    subprocess.run(["git", "clone", "--quiet", "--shared", source, unfinished], check=True)
    configure_dvc(unfinished, home)
    hand_on_kernels([source, *_newest_first(home / "runs")], unfinished)
    _write_params(unfinished, choice)
    _copy_champions(unfinished, home)
    drift.hand_on((home / "runs").glob(f"*/{paths.VALIDATION}"), unfinished / drift.ACCEPTED)
    unfinished.rename(target)
    return target


def configure_dvc(workspace: Path, home: Path, *, verify: bool = False) -> None:
    """Give a clone the shared cache and, unless its commit names one, the remote.

    Args:
        workspace: The clone.
        home: ``var/``.
        verify: Hash every file that comes from the remote.
    """
    cache, embedded = home / "dvc" / "cache", home / "dvc" / "remote"
    for folder in (cache, embedded):
        folder.mkdir(parents=True, exist_ok=True)
    # A run that names its own remote in .dvc/config keeps it; otherwise its data goes where the bundles go.
    config = (workspace / ".dvc" / "config").read_text()
    lines = f"[cache]\n    dir = {cache}\n    type = hardlink,copy\n"
    if "remote =" not in config:
        remote = os.environ.get(places.DVC_REMOTE_ENV) or embedded
        lines += f"[core]\n    remote = registry\n['remote \"registry\"']\n    url = {remote}\n"
        lines += "    verify = true\n" if verify else ""
    (workspace / ".dvc" / "config.local").write_text(lines)


def hand_on_kernels(known: Iterable[Path], clone: Path) -> None:
    """Give a clone the machine code that others of the same simulators were compiled to: half a minute a problem.

    Nothing is trusted here: numba uses what bears the stamp of the very source that it would compile
    (``sched_env.jit``), and compiles otherwise. It never writes into a file, so a link is as good as a copy.

    Args:
        known: Repositories, clones or installations; of two that have the same kernel the first counts.
        clone: Where they are wanted.
    """
    for folder in known:
        for index in (found for package in KERNELS for found in folder.glob(f"{package}/**/__pycache__/*.nbi")):
            target = clone / index.relative_to(folder)
            # numba writes an index before the code it names: of one that is fresh the code may still be another's.
            settled = time.time() - index.stat().st_mtime > SETTLED_S
            if not settled or target.exists() or not target.parent.parent.is_dir():
                continue
            target.parent.mkdir(exist_ok=True)
            for file in (*index.parent.glob(f"{glob.escape(index.stem)}.*.nbc"), index):
                try:
                    os.link(file, target.with_name(file.name))
                except OSError:  # another file system
                    shutil.copyfile(file, target.with_name(file.name))


def _newest_first(runs: Path) -> list[Path]:
    """The clones of the last few nights: what they compiled beyond the repository."""
    found = [path for path in runs.glob("*") if path.is_dir() and not path.name.endswith(UNFINISHED)]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:LOOKED_AT]


def _write_params(workspace: Path, choice: Choice) -> None:
    """Write what was chosen for this run into its ``params.yaml``: parameters of the stages like any other."""
    path = workspace / paths.PARAMS
    days, nightly = choice.days, load("nightly", NightlyConfig, path)
    if days is None and nightly.days is not None:
        last = datetime.now(UTC).date() - timedelta(days=1)
        days = (last - timedelta(days=nightly.days - 1), last)
    document = yaml.safe_load(path.read_text())
    written = dates_as_text(document)
    if choice.size != FULL:
        written = laid_over(written, dates_as_text(yaml.safe_load(_size_file(workspace, choice.size).read_text())))
    written["problems"] = offered(workspace)
    if strangers := set(choice.problems) - set(written["problems"]):
        raise ConfigError(f"{sorted(strangers)[0]!r} is none of this night's problems", legal(written["problems"]))
    if choice.problems:
        written["problems"] = [name for name in written["problems"] if name in choice.problems]
    if choice.density is not None:
        if not 0 < choice.density < math.inf:
            raise ConfigError(f"the density is {choice.density}", "more than 0; 1: arrivals as dense as recorded")
        workload = {name: {"density": choice.density} for name in written["problems"]}
        written = laid_over(written, {"workload": workload})
    if choice.source is not None:
        written["ingest"] = {**(written.get("ingest") or {}), "source": choice.source}
    if days is not None:
        written["data"] = {"from": days[0].isoformat(), "to": days[1].isoformat()}
    if written != document:
        path.write_text(yaml.safe_dump(written, sort_keys=False))


def has_size(folder: Path, size: str) -> bool:
    """Say whether runs from ``folder`` can have a size; a repository of the user's own may lack some of ours."""
    return (folder / SIZES / f"{size}.yaml").is_file()


def _size_file(workspace: Path, size: str) -> Path:
    path = workspace / SIZES / f"{size}.yaml"
    known = [FULL, *sorted(found.stem for found in (workspace / SIZES).glob("*.yaml"))]
    if size not in known:
        raise ConfigError(f"there is no size {size!r}", legal(known), f"add {SIZES}/{size}.yaml and commit it")
    return path


def laid_over(below: Any, above: Any) -> Any:
    """Lay one document over another: mappings key by key, anything else as a whole."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: laid_over(below.get(key), value) for key, value in above.items()}


def dates_as_text(value: Any) -> Any:
    """Turn what YAML takes for a date into text, at any depth: DVC refuses such a parameter."""
    if isinstance(value, dict):
        return {key: dates_as_text(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [dates_as_text(inner) for inner in value]
    return value.isoformat() if isinstance(value, date) else value


def _copy_champions(workspace: Path, home: Path) -> None:
    """Put each live bundle where ``evaluate`` expects the champion; without one its standing says so."""
    from pipeline.registry.command import live_bundle, standing

    for problem in problems(workspace):
        bundle = live_bundle(problem, home)
        if bundle is not None:
            champions.put(workspace / paths.CHAMPIONS / problem, bundle, standing(problem))


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
    return load("problems", list[str], workspace / paths.PARAMS)


def offered(folder: Path) -> list[str]:
    """The problems that a night from ``folder`` is about: what :data:`PROBLEMS_ENV` says, else ``params.yaml``."""
    named = [name.strip() for name in os.environ.get(PROBLEMS_ENV, "").split(",") if name.strip()]
    if named == [EVERY_PROBLEM]:
        # Those of params.yaml first: what is listed there is what somebody waits for.
        return list(dict.fromkeys([*problems(folder), *registry_of_problems.names()]))
    return named or problems(folder)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--run-id", required=True, help="the Airflow run id")
    parser.add_argument("--from", dest="first", type=date.fromisoformat, help="first day, YYYY-MM-DD")
    parser.add_argument("--to", dest="last", type=date.fromisoformat, help="last day, included")
    parser.add_argument(
        "--problem", dest="problems", action="append", default=[], help="only this one; may be repeated"
    )
    parser.add_argument("--source", help="another ingest.source than that of params.yaml")
    parser.add_argument("--size", default=FULL, help=f"{FULL}, or a file of {SIZES}/ to lay over params.yaml")
    parser.add_argument("--density", type=float, help="train and judge at so many times the recorded load")


def run(options: argparse.Namespace) -> int:
    """Create a workspace and print what the DAG maps over, as one line of JSON."""
    if (options.first is None) != (options.last is None):
        raise ConfigError("one end of the range is missing", "--from and --to, or neither")
    if options.first and options.first > options.last:
        raise ConfigError(f"--from {options.first} is after --to {options.last}", "from on or before to")
    days = (options.first, options.last) if options.first else None
    choice = Choice(days, tuple(options.problems), options.source, options.size, options.density)
    workspace = create(options.run_id, source=repository(), home=var(), choice=choice)
    plan = {"path": str(workspace), "train": stages(workspace)["train"], "problems": problems(workspace)}
    sys.stdout.write(json.dumps(plan) + "\n")
    return 0


main = Verb("python -m pipeline.workspace", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
