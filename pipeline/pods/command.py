"""Stages as pods, from both sides: Airflow begins a run, checks each stage and merges; a pod runs one stage.

python -m pipeline.pods begin --run-id R              put the run's branch where pods can clone it
python -m pipeline.pods run --run-id R --stage S      inside a pod
python -m pipeline.pods check --run-id R --stage S    has it really ended? says the fragment's digest
python -m pipeline.pods list --run-id R               what the stages that have ended wrote, as JSON
python -m pipeline.pods merge --run-id R              one lock out of all fragments, in the run's workspace
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from pipeline.errors import RegistryError
from pipeline.pods import fragments, inside
from pipeline.pods.fragments import Fragment
from pipeline.registry import places, runs
from pipeline.registry.chain import now, sync
from pipeline.registry.git import Repository
from wire.command import Verb

NEEDED = ("data/validation", "data/bundles/", "data/gate/")
"""What Airflow's machine reads itself: what tomorrow is compared with, what is signed, what a person is shown."""


def begin(run_id: str) -> str:
    """Commit the run's workspace as it is on a branch of its own; run again, it is the same commit."""
    mirror, clone = sync(), Repository(places.workspace(run_id))
    name = inside.branch(run_id)
    there = mirror.resolve(f"refs/remotes/origin/{name}")
    if there is None:
        parents = [clone.text("rev-parse", "HEAD")]
        there = clone.commit_tree(runs.tree(clone), f"run {run_id}: begun\n", parents=parents, when=now())
        clone.push(places.registry_remote(), f"{there}:refs/heads/{name}")
        sync()
    return there


def check(run_id: str, stage: str) -> Fragment:
    """Return what a stage published, if it is of this run, built on what the run made, and all in the remote."""
    known = fragments.all_of(run_id)
    fragment = known.get(stage)
    if fragment is None:
        raise RegistryError(f"{stage} of run {run_id!r} has published nothing", "a fragment", "see the log of its pod")
    commit = sync().resolve(f"refs/remotes/origin/{inside.branch(run_id)}")
    if commit is None:
        raise RegistryError(
            f"run {run_id!r} has no branch {inside.branch(run_id)}", fix="run its task `workspace` again"
        )
    if found := list(fragments.faults(fragment, commit=commit, others=known)):
        raise RegistryError(f"{stage} of run {run_id!r}: {'; '.join(found)}", fix="clear the task: it runs again")
    return fragment


def merge(run_id: str) -> list[str]:
    """Make the workspace what it would be had the stages run in it: one lock, the metrics, and what people need."""
    folder, known = places.workspace(run_id), fragments.all_of(run_id)
    if not known:
        raise RegistryError(f"no stage of run {run_id!r} has ended", "fragments of its lock", "see the pods' logs")
    good = {stage: check(run_id, stage) for stage in known}
    inside.write_lock(folder, good)
    wanted = sorted(out.path for one in good.values() for out in one.kept() if f"{out.path}/".startswith(NEEDED))
    if wanted:
        done = subprocess.run(
            [sys.executable, "-m", "dvc", "pull", "--quiet", *wanted],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RegistryError(f"dvc pull in {folder} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return sorted(good)


def end(run_id: str) -> None:
    """Take the branch of a recorded run away; the record holds everything."""
    branch = inside.branch(run_id)
    if sync().resolve(f"refs/remotes/origin/{branch}") is not None:
        Repository(places.registry_mirror()).push(places.registry_remote(), f":refs/heads/{branch}")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("what", choices=("begin", "run", "check", "list", "merge", "end"))
    parser.add_argument("--run-id", required=True, help="the Airflow run id")
    parser.add_argument("--stage", help="name of a DVC stage, for run and check")


def run(options: argparse.Namespace) -> int:
    """Do it, and say in one line what came of it."""
    if options.what in ("run", "check") and not options.stage:
        raise RegistryError(f"{options.what} without --stage", "the name of a DVC stage")
    if options.what == "begin":
        said = begin(options.run_id)
    elif options.what in ("run", "check"):
        act = inside.run_stage if options.what == "run" else check
        said = f"{options.stage}: {act(options.run_id, options.stage).digest()}"
    elif options.what == "list":
        known = fragments.all_of(options.run_id).values()
        said = json.dumps(sorted(out.path for fragment in known for out in fragment.outputs()))
    elif options.what == "merge":
        said = json.dumps(merge(options.run_id))
    else:
        end(options.run_id)
        said = f"the branch of {options.run_id} is gone; the record stays"
    sys.stdout.write(said + "\n")
    return 0


main = Verb("python -m pipeline.pods", __doc__, arguments, run)
