"""A run's ``dvc.lock`` after DVC was killed while it wrote it: empty, refused by DVC, or short of what had ended.

What ended is in DVC's run cache as well, by the hashes of all that a stage depends on; what the lock lacks is taken
from there. A stage that had not ended is in neither, and runs again. ``dags/stages.py`` calls this, in the run's clone,
before the second try of a stage and after one that failed:

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


def mend() -> list[str]:
    """Put into the lock of the clone that we are in what has ended and is not there; returns the stages."""
    from dvc.dvcfile import Lockfile
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from dvc.stage.cache import RunCacheNotFoundError

    restored: list[Any] = []
    with Repo(_wait_for_lock=True) as repo, repo.lock:
        try:
            there = Lockfile(repo, str(LOCK.resolve())).load().get("stages", {})
        except DvcException:  # no YAML, or none of a lock
            LOCK.unlink()
            there = {}
        # In the order of dvc.yaml a stage comes after those that it depends on.
        for stage in repo.stage.load_all(path="dvc.yaml"):
            if stage.name in there or not all(one.exists for one in (*stage.deps, *stage.outs)):
                continue
            try:
                repo.stage_cache.restore(stage)
            except RunCacheNotFoundError:
                continue
            stage.save(run_cache=False)
            restored.append(stage)
        if restored:
            restored[0].dvcfile.dump_stages(restored, update_pipeline=False)
    return [str(stage.name) for stage in restored]


def arguments(_parser: argparse.ArgumentParser) -> None:
    """Declare the command line: it works where it is called."""


def run(_options: argparse.Namespace) -> int:
    """Mend a lock that was cut short; 1: it is whole."""
    if not LOCK.exists():
        return 1
    before = LOCK.read_bytes()
    names = mend()
    if names:
        sys.stdout.write(f"dvc.lock had lost what ended before; taken from DVC's run cache: {', '.join(names)}\n")
    return 1 if LOCK.exists() and LOCK.read_bytes() == before else 0


main = Verb("python -m pipeline.dvc_lock", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
