"""Where raw rows and windows lie: a folder here, or a prefix of an object store, by the same words.

``place("s3://bucket/raw")`` gives something that is used as a path is: joined with ``/``, listed with ``glob``, opened.
Address, region and keys of the store are those that every AWS tool reads (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``,
…).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from wire.errors import ConfigError


def place(name: str) -> Path:
    """Return the place that a path or URI names."""
    if "://" not in name:
        return Path(name)
    if name.startswith("file://"):
        return Path(name.removeprefix("file://"))
    if not name.startswith("s3://"):
        raise ConfigError(f"{name!r} is no place that we know", "a path, file:///path or s3://bucket/prefix")
    try:
        from upath import UPath
    except ImportError as error:
        raise ConfigError(
            f"{name} cannot be reached: {error}", "the extra s3", "pip install 'loadmaster[s3]'"
        ) from error
    # What others have written since must be seen.
    found = UPath(name, use_listings_cache=False, skip_instance_cache=True)
    _ = found.fs  # made now: what is joined to this place shares it, and does not make, and connect, one each
    return cast(Path, found)


def is_remote(path: Path) -> bool:
    """Tell whether a place is in an object store."""
    return not isinstance(path, Path)


def filesystem(path: Path) -> Any:
    """Return the file system of a place in an object store, as pyarrow takes it."""
    return cast(Any, path).fs


def name_in(path: Path) -> str:
    """Name a file to its file system."""
    return str(cast(Any, path).path) if is_remote(path) else str(path)


def identity(path: Path) -> str | None:
    """Name an object of a store by what the store itself says of its content; None for a file here, to be read."""
    if not is_remote(path):
        return None
    about = filesystem(path).info(name_in(path))
    return f"{about['ETag']}-{about['size']}"


def put(source: Path, target: Path) -> None:
    """Copy a file into an object store; it is there whole or not at all."""
    filesystem(target).put_file(str(source), name_in(target))
