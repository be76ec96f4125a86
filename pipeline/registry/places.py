"""Where the registry's parts lie: under ``var/`` by default, elsewhere when the environment says so."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pipeline.errors import RegistryError
from pipeline.settings import var
from wire import environment
from wire.errors import ConfigError

REGISTRY_ENV = environment.variable("registry")
"""Environment variable naming the git remote of the registry; ``var/registry.git`` without it."""

DVC_REMOTE_ENV = environment.variable("dvc_remote")
"""Environment variable naming the DVC remote that holds signed bundles; ``var/dvc/remote`` without it."""


def registry_remote() -> str:
    """Address of the git remote."""
    return os.environ.get(REGISTRY_ENV) or str(var() / "registry.git")


def is_embedded() -> bool:
    """Whether the git remote is our own repository under ``var/``."""
    return not os.environ.get(REGISTRY_ENV)


def require_registry() -> None:
    """Raise where there is no registry: who only reads makes none."""
    if is_embedded() and not (var() / "registry.git").exists():
        raise RegistryError(
            f"there is no registry at {var() / 'registry.git'}",
            "the registry of earlier nights; nothing was made",
            f"run it where make run was, or set {environment.VAR} or {REGISTRY_ENV}",
        )


def registry_mirror() -> Path:
    """Our own bare copy, in which commits are made before they are pushed; remembers what the remote once said."""
    return var() / "registry-mirror.git"


def dvc_cache() -> Path:
    """The cache that all workspaces of this machine share."""
    return var() / "dvc" / "cache"


def dvc_remote() -> str:
    """Address of the DVC remote."""
    return os.environ.get(DVC_REMOTE_ENV) or str(var() / "dvc" / "remote")


def bundles() -> Path:
    """Signed bundles, one folder each, named by the hex part of the digest."""
    return var() / "bundles"


def bundle(digest: str) -> Path:
    """Folder of one signed bundle."""
    return bundles() / digest.removeprefix("sha256:")


def store() -> Path:
    """The placement service's policy store, when it runs on this machine."""
    return environment.place("store_dir").absolute()


LONGEST_NAME = 240
"""Of a folder, in bytes; file systems take 255."""


def run_folder_name(run_id: str) -> str:
    """Make a run id (``manual__2026-11-16T02:00:00+00:00``) a folder name: readable, and no two runs share one.

    Letters, digits, ``_``, ``-`` and inner dots stay; every other byte becomes ``~3A``, the tilde too.
    """
    escaped = "".join(
        chr(byte) if re.fullmatch(rb"[A-Za-z0-9._-]", bytes([byte])) else f"~{byte:02X}"
        for byte in run_id.encode("utf-8", "surrogatepass")
    )
    name = f"~2E{escaped[1:]}" if escaped.startswith(".") else escaped
    if not name or len(name) > LONGEST_NAME:
        raise ConfigError(f"run id {run_id[:80]!r} is {len(name)} bytes as a folder", f"1 to {LONGEST_NAME}")
    return name


def workspace(run_id: str, home: Path | None = None) -> Path:
    """The clone that a run works in."""
    return (home or var()) / "runs" / run_folder_name(run_id)
