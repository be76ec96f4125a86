"""Which code each stage of ``dvc.yaml`` runs: its import closure, and whether its dependencies cover it.

``python -m pipeline.stages`` says what ``dvc.yaml`` lacks and what it names in vain, ``--write`` puts it right; a test
holds it to that, so that a changed constant can never leave a stage in the cache.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from pipeline.datasets import code_of
from sched_env import problems
from wire import closure
from wire.command import Verb
from wire.errors import run_cli

DVC_FILE = Path("dvc.yaml")
ITEM = "${item.problem}"

ENTRY_POINTS: Mapping[str, str] = {
    "ingest": "pipeline.ingest",
    "clean": "pipeline.clean.__main__",
    "validate": "pipeline.validate.__main__",
    "calibrate": "pipeline.calibrate.__main__",
    "runtime_model": "pipeline.runtime_model.__main__",
    "lifetime_model": "pipeline.lifetime_model.__main__",
    "forecast": "pipeline.forecast.__main__",
    "train": "pipeline.train",
    "export": "pipeline.export",
    "evaluate": "pipeline.evaluate",
    "gate": "pipeline.gate.__main__",
}
"""Stage -> module that its command runs."""
PER_PROBLEM = ("calibrate", "train", "export", "evaluate")
"""Stages whose code is also that of the problem they are mapped over; the gate judges numbers, whatever they are of."""


def code(stage: str, problem: str | None = None) -> tuple[Path, ...]:
    """Return every file of ours that a stage depends on; of a mapped stage, for one problem."""
    return closure.files(ENTRY_POINTS[stage], *(code_of(problem) if problem else ()))


def declared(document: Mapping[str, Any], stage: str, problem: str | None = None) -> list[PurePosixPath]:
    """Return the dependencies of a stage in ``dvc.yaml`` that are code."""
    deps = [str(dep).replace(ITEM, problem or ITEM) for dep in document["stages"][stage]["deps"]]
    return [PurePosixPath(dep) for dep in deps if dep.partition("/")[0] in closure.PACKAGES]


def missing(document: Mapping[str, Any], stage: str, problem: str | None = None) -> list[str]:
    """Return the files whose change the stage would not see."""
    covered = set(declared(document, stage, problem))
    files = (PurePosixPath(path.as_posix()) for path in code(stage, problem))
    return [str(path) for path in files if covered.isdisjoint((path, *path.parents))]


def problems_of(stage: str) -> list[str | None]:
    """Return the problems whose code a stage runs, each in its turn; or nothing."""
    return [*problems.names()] if stage in PER_PROBLEM else [None]


def wanted(stage: str) -> list[str]:
    """Return the code dependencies that a stage should have: as few as cover its closure for every problem.

    Folders that are needed whole are named as such; what is a problem's own is named by the item.
    """
    files: set[PurePosixPath] = set()
    own: set[str] = set()
    for problem in problems_of(stage):
        prefixes = (f"sched_env/{problem}/", f"pipeline/datasets/{problem}.py")
        for path in map(PurePosixPath, code(stage, problem)):
            if problem and str(path).startswith(prefixes):
                own |= {f"sched_env/{ITEM}", f"pipeline/datasets/{ITEM}.py"}
            else:
                files.add(path)
    whole = {folder for path in files for folder in path.parents[:-2] if _every_file(folder) <= files}
    outer = {path for path in files | whole if whole.isdisjoint(path.parents)}
    return sorted(map(str, outer)) + sorted(own, reverse=True)


def _every_file(folder: PurePosixPath) -> set[PurePosixPath]:
    found = (path for suffix in ("py", "yaml") for path in (closure.ROOT / folder).rglob(f"*.{suffix}"))
    return {PurePosixPath(path.relative_to(closure.ROOT).as_posix()) for path in found}


def findings(document: Mapping[str, Any]) -> list[str]:
    """Say everything that is wrong with the code dependencies of ``dvc.yaml``."""
    said = []
    for stage in ENTRY_POINTS:
        lacking = {path: problem for problem in problems_of(stage) for path in missing(document, stage, problem)}
        for path, problem in sorted(lacking.items()):
            said.append(f"{stage} lacks {path}" + (f" (for {problem})" if problem else ""))
        vain = {str(path) for path in declared(document, stage)} - {*wanted(stage)}
        said += [f"{stage} names {path}, which is more than it needs" for path in sorted(vain)]
    return said


def write(path: Path) -> None:
    """Put the code dependencies of a ``dvc.yaml`` right; its comments and everything else stay."""
    from ruamel.yaml import YAML

    editor = YAML()
    editor.width, editor.preserve_quotes = 120, True
    editor.indent(mapping=2, sequence=4, offset=2)
    document = editor.load(path.read_text())
    for stage in ENTRY_POINTS:
        deps = document["stages"][stage]["deps"]
        data = [dep for dep in deps if str(dep).partition("/")[0] not in closure.PACKAGES]
        deps[:] = [*wanted(stage), *data]
    with path.open("w") as file:
        editor.dump(document, file)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--write", action="store_true", help="put the code dependencies right")


def run(options: argparse.Namespace) -> int:
    """Check ``dvc.yaml``, or put it right; 1 when something is wrong."""
    if options.write:
        write(DVC_FILE)
    said = findings(yaml.safe_load(DVC_FILE.read_text()))
    sys.stdout.write("\n".join([*said, f"{len(said)} findings"]) + "\n")
    return 1 if said else 0


main = Verb("python -m pipeline.stages", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
