"""Removes what nobody needs any more; never what is live, previous, or named in a record.

Kept: every branch, bundle and data object that a record rests on, the newest runs, everything young. What is removed
from the cache can be fetched again as long as the remote has it; the remote itself is cleaned only on request.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from pipeline.registry import bundles, dvc_objects, places
from pipeline.registry.chain import Chain
from pipeline.registry.runs import PREFIX, branch_of
from pipeline.settings import var

DAY_S = 86_400.0
BUSY_S = 3_600.0
"""A workspace touched within the last hour may be running: its cache entries are not yet in any lock."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to keep beyond what must be kept."""

    keep_runs: int = 14
    """Newest run branches kept without being named in a record: two weeks of nights to compare with."""
    keep_days: float = 30.0
    """Nothing younger is removed; a month covers the longest hunt for the cause of a regression."""
    remote: bool = False
    """Also remove objects from the DVC remote, if it is a folder; off, because that cannot be undone."""


def collect(policy: Policy, *, dry_run: bool) -> list[str]:
    """Remove and return what was removed (or would be)."""
    chain = Chain.open()
    before = time.time() - policy.keep_days * DAY_S
    removed = []
    for kind, found in (
        ("branch", _old_branches(chain, policy, before)),
        ("workspace", _old_workspaces(before)),
        ("bundle", _unnamed_bundles(chain, before)),
        ("log", _old_logs(before)),
    ):
        for item in found:
            removed.append(f"{kind} {item}")
            if not dry_run:
                _remove(chain, kind, item)
    gone = {item.removeprefix("branch ") for item in removed if item.startswith("branch ")}
    removed += _clean_objects(chain, gone, before, remote=policy.remote, dry_run=dry_run)
    return removed


def needed_objects(chain: Chain, *, without: Iterable[str] = ()) -> set[str]:
    """Every DVC object that a pointer of any time, a kept run branch or a workspace rests on."""
    mirror, dropped = chain.mirror, set(without)
    documents = [
        document for commit in chain.commits().values() for document in mirror.files(commit, bundles.POINTERS).values()
    ]
    named = {record.git_commit for record in chain.records}
    branches = mirror.refs(f"refs/remotes/origin/{PREFIX}*")
    kept = {commit for ref, commit in branches.items() if ref.removeprefix("refs/remotes/origin/") not in dropped}
    for commit in named | kept:
        documents += mirror.files(commit, "dvc.lock").values()
    documents += [lock.read_bytes() for lock in (var() / "runs").glob("*/dvc.lock")]
    roots = {out.md5 for document in set(documents) for out in dvc_objects.outputs(document, source="lock")}
    return set().union(*(dvc_objects.reachable(md5) for md5 in roots)) if roots else set()


def _old_branches(chain: Chain, policy: Policy, before: float) -> list[str]:
    listing = chain.mirror.text(
        "for-each-ref", "--sort=-committerdate", "--format=%(committerdate:unix) %(refname)",
        f"refs/remotes/origin/{PREFIX}*",
    )  # fmt: skip
    named = {branch_of(record.run_id) for record in chain.records}
    old = []
    for rank, line in enumerate(listing.splitlines()):
        when, ref = line.split(" ", 1)
        branch = ref.removeprefix("refs/remotes/origin/")
        if branch not in named and rank >= policy.keep_runs and float(when) < before:
            old.append(branch)
    return old


def _old_workspaces(before: float) -> Iterator[str]:
    for folder in sorted((var() / "runs").glob("*")):
        if folder.is_dir() and _touched(folder) < before:
            yield folder.name


def _touched(folder: Path) -> float:
    """When a workspace last changed, as far as its top and DVC's own files tell."""
    watched = [folder, *folder.iterdir(), *(folder / ".dvc" / "tmp").glob("*"), *(folder / "data").glob("*")]
    return max(path.lstat().st_mtime for path in watched)


def _unnamed_bundles(chain: Chain, before: float) -> Iterator[str]:
    named = {places.bundle(record.digest).name for record in chain.records}
    for folder in sorted(places.bundles().glob("*")):
        if folder.name not in named and folder.lstat().st_mtime < before:
            yield folder.name


def _old_logs(before: float) -> Iterator[str]:
    # The service's decision log is not here: it rotates itself, and decisions are walked back through it.
    for path in sorted((var() / "airflow" / "logs").rglob("*")):
        if path.is_file() and path.lstat().st_mtime < before:
            yield str(path.relative_to(var()))


def _remove(chain: Chain, kind: str, item: str) -> None:
    if kind == "branch":
        chain.mirror.push(places.registry_remote(), f":refs/heads/{item}")
        chain.mirror.run("update-ref", "-d", f"refs/remotes/origin/{item}")
    elif kind == "log":
        (var() / item).unlink()
    else:
        shutil.rmtree((var() / "runs" if kind == "workspace" else places.bundles()) / item)


def _clean_objects(chain: Chain, gone: set[str], before: float, *, remote: bool, dry_run: bool) -> list[str]:
    if any(time.time() - _touched(folder) < BUSY_S for folder in (var() / "runs").glob("*") if folder.is_dir()):
        return ["nothing of the DVC cache: a run is under way"]
    needed = needed_objects(chain, without=gone)
    folder = dvc_objects.remote_folder() if remote else None
    removed, freed = 0, 0
    for store in (places.dvc_cache(), *([folder] if folder else [])):
        for path in (store / "files" / "md5").glob("??/*"):
            if path.parent.name + path.name not in needed and path.lstat().st_mtime < before:
                removed, freed = removed + 1, freed + path.lstat().st_size
                if not dry_run:
                    path.unlink()
    done = [f"{removed} DVC objects, {freed} bytes"] if removed else []
    if remote and folder is None:
        done.append(f"nothing of {places.dvc_remote()}: only a remote that is a folder is cleaned")
    return done
