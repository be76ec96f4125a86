"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline import storage


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file under another name and rename it: a reader sees the old one or the new one."""
    if storage.is_remote(path):
        path.write_bytes(data)  # object stores do so by themselves
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    unfinished.write_bytes(data)
    unfinished.replace(path)


@contextmanager
def replaced_folder(target: Path) -> Iterator[Path]:
    """Give a fresh folder to fill; it takes the target's place when the block ends well, and goes when it does not.

    An object store renames nothing: there the target itself is emptied and filled.
    """
    if storage.is_remote(target):
        for file in [file for file in target.rglob("*") if file.is_file()]:
            file.unlink()
        yield target
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        yield unfinished
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)
