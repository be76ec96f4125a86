"""A run's ``dvc.lock`` after DVC was killed while it wrote it: empty or cut short, and DVC refuses to read it.

What ended is in DVC's run cache as well, by the hashes of all that a stage depends on; the lock is put together again
from there. A stage that had not ended is in neither, and runs again. ``dags/stages.py`` calls this when a stage failed:

    python -m pipeline.dvc_lock      0: the lock was mended, try again; 1: there was nothing to mend
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from wire.command import Verb
from wire.errors import run_cli

LOCK = Path("dvc.lock")


def whole(folder: Path) -> bool:
    """Whether DVC reads the lock of a clone; none at all is fine too."""
    from dvc.dvcfile import Lockfile
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    if not (folder / LOCK).exists():
        return True
    with Repo(str(folder)) as repo:
        try:
            Lockfile(repo, str(folder / LOCK)).load()
        except DvcException:
            return False
    return True


def mend(folder: Path) -> list[str]:
    """Write the lock of a clone anew from the run cache; returns the stages that are in it."""
    from dvc.dependency.base import DependencyDoesNotExistError
    from dvc.repo import Repo
    from dvc.stage.cache import RunCacheNotFoundError

    (folder / LOCK).unlink()
    restored: list[Any] = []
    with Repo(str(folder)) as repo, repo.lock:
        # In the order of dvc.yaml a stage comes after those that it depends on.
        for stage in repo.stage.load_all(path=str(folder / "dvc.yaml")):
            try:
                repo.stage_cache.restore(stage)
            except (RunCacheNotFoundError, DependencyDoesNotExistError):
                continue
            stage.save(run_cache=False)
            restored.append(stage)
        if restored:
            restored[0].dvcfile.dump_stages(restored, update_pipeline=False)
    return [str(stage.name) for stage in restored]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--folder", type=Path, default=Path(), help="the clone (default: here)")


def run(options: argparse.Namespace) -> int:
    """Mend a lock that is broken; 1: it is whole."""
    folder = options.folder.resolve()
    if whole(folder):
        return 1
    names = mend(folder)
    sys.stdout.write(
        f"dvc.lock was cut short, by a kill in the middle of its writing; put together again from DVC's run cache: "
        f"{', '.join(names) or 'nothing had ended'}\n"
    )
    return 0


main = Verb("python -m pipeline.dvc_lock", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
