"""What a person can look at beside the question: the pages of the very commit that they are asked about.

A page is named by the commit that ``record`` pushed. The report is read from that commit, replays of the worst episodes
from the DVC objects that its ``dvc.lock`` names, each byte by byte what the lock says: never from a workspace, and
never "the latest".
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple
from urllib.parse import urlparse

from pipeline.errors import RegistryError
from pipeline.paths import REPORT_HTML
from pipeline.registry import bundles, dvc_objects, places, runs
from pipeline.registry.chain import sync
from pipeline.registry.git import Repository
from sched_env import problems
from wire import environment

PREFIX = "/loadmaster"
"""Where Airflow's web server shows the pages (``dags/pages.py``)."""

URL_ENV = environment.variable("airflow_url")
"""Address of Airflow, as people and tasks reach it."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPLAY = re.compile(r"worst-([1-9][0-9]{0,2})\.html")


class NotShownError(RegistryError):
    """Raised when there is no such page."""


class Shown(NamedTuple):
    """What there is to look at of one problem of a recorded run."""

    run_id: str
    commit: str
    problem: str
    report: dict[str, Any]
    report_sha256: str
    """Of every file of the report; the question names the same."""
    pages: tuple[str, ...]
    """The report's page first, then the replays of the worst episodes."""


def address(commit: str, problem: str, page: str = "") -> str:
    """Where a page is on Airflow's own web server, below the path that Airflow itself has there."""
    below = urlparse(os.environ.get(URL_ENV, "")).path.rstrip("/")
    return f"{below}{PREFIX}/{commit}/{problem}/{page}"


def of_commit(commit: str, problem: str) -> Shown:
    """Say what there is to look at; the commit must be one that a run recorded."""
    return _of(_recorded(commit), commit, problem)


def of_run(run_id: str) -> list[Shown]:
    """Say what there is to look at of a run, a problem each; nothing while it has recorded nothing."""
    mirror = sync()
    commit = mirror.resolve(f"refs/remotes/origin/{runs.branch_of(run_id)}")
    if commit is None:
        return []
    there = {path.split("/")[2] for path in mirror.paths(commit) if path.startswith(runs.REPORTS)}
    return [_of(mirror, commit, problem) for problem in problems.names() if problem in there]


def page(commit: str, problem: str, name: str) -> bytes:
    """Return one page, as the commit and its lock have it."""
    mirror = _recorded(commit)
    shown = _of(mirror, commit, problem)
    if name not in shown.pages:
        raise NotShownError(f"{name[:80]!r} is no page of {problem} in commit {commit[:12]}", ", ".join(shown.pages))
    if name == REPORT_HTML:
        path = f"{runs.REPORTS}{problem}/{name}"
        return mirror.files(commit, path)[path]
    output = runs.gate_output(problem)
    with bundles.output_of_run(mirror, commit, output) as folder:
        wanted = dvc_objects.members(runs.outputs_of(mirror, commit)[output])[name]
        if not dvc_objects.is_right(folder / name, wanted):
            raise RegistryError(
                f"{name} of commit {commit[:12]} is not what its {runs.LOCK} names", fix="loadmaster registry verify"
            )
        return (folder / name).read_bytes()


def _recorded(commit: str) -> Repository:
    """Give the mirror in which a run's branch ends with this commit; the registry is asked only if it is not known."""
    if _COMMIT.fullmatch(commit):
        mirror = Repository(places.registry_mirror())
        for look_again in (True, False):
            if (mirror.path / "HEAD").exists() and commit in _runs(mirror).values():
                return mirror
            if look_again:
                mirror = sync()
    raise NotShownError(f"{commit[:40]!r} is no commit that a run recorded", "the one that the question names")


def _runs(mirror: Repository) -> dict[str, str]:
    """Branches of runs -> the commits that they end with."""
    return mirror.refs(f"refs/remotes/origin/{runs.PREFIX}")


def _of(mirror: Repository, commit: str, problem: str) -> Shown:
    if problem not in problems.names():
        raise NotShownError(f"{problem[:40]!r} is no problem", ", ".join(problems.names()))
    branch = next(ref for ref, tip in _runs(mirror).items() if tip == commit)
    committed = mirror.files(commit, f"{runs.REPORTS}{problem}/")
    report = runs.read_report(committed.get(runs.report_of(problem), b""))
    if not report:
        raise NotShownError(f"commit {commit[:12]} holds no report of {problem}", "a run in which its gate was run")
    pages = [REPORT_HTML] if f"{runs.REPORTS}{problem}/{REPORT_HTML}" in committed else []
    return Shown(
        run_id=runs.run_id_of(branch.removeprefix("refs/remotes/origin/")),
        commit=commit,
        problem=problem,
        report=report,
        report_sha256=runs.shown_sha256(mirror, commit, problem),
        pages=(*pages, *_replays(mirror, commit, problem)),
    )


def _replays(mirror: Repository, commit: str, problem: str) -> list[str]:
    output = runs.gate_output(problem)
    md5 = runs.outputs_of(mirror, commit).get(output, "")
    if md5.endswith(dvc_objects.DIRECTORY) and dvc_objects.find(md5) is None:
        with bundles.output_of_run(mirror, commit, output):
            pass  # From the remote into the cache that this machine shares.
    numbered = {match: name for name in dvc_objects.members(md5) if (match := _REPLAY.fullmatch(name))}
    return [numbered[match] for match in sorted(numbered, key=lambda match: int(match[1]))]
