"""Files that only their owner may read: the signing key, and the token that the pipeline and the service share."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from wire import environment
from wire.errors import ConfigError


def create(path: Path, content: bytes, *, exclusive: bool) -> None:
    """Write a secret with mode 0600, whole or not at all; with ``exclusive`` the first of two writers wins."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)  # left by a killed process that had our number
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if not exclusive:
        scratch.replace(path)
        return
    try:
        path.hardlink_to(scratch)
    except FileExistsError:
        pass  # Another process was first; both go on with its secret.
    finally:
        scratch.unlink()


def make_push_token(path: Path) -> None:
    """Make the push token where there is none; whoever comes first makes it, pipeline or service."""
    if path.exists():  # in a cluster it is mounted, read-only
        return
    try:
        create(path, secrets.token_urlsafe(32).encode() + b"\n", exclusive=True)
    except OSError as error:
        raise ConfigError(
            f"push token {path}: {error}",
            "an existing file, or a folder to make it in",
            f"set {environment.variable('push_token_file')}",
        ) from error


def push_token(path: Path) -> str:
    """Read the push token; an empty one lets nobody in."""
    return path.read_text().strip()
