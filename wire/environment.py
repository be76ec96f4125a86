"""Names of the environment and places under ``var/`` that the pipeline and the service must agree on.

Both run on one machine by default and find each other's keys, token and store there; in a cluster each place is moved
by its variable. A variable that one side alone reads is named where it is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PREFIX = "LOADMASTER_"

VAR = f"{PREFIX}VAR"
"""Moves ``var/``: state that outlives a run (keys, registry, store, logs, caches)."""

KEYS = Path("keys")
"""Folder below ``var/`` that everything secret or trusted lies in."""

BELOW_VAR = {
    "store_dir": Path("store"),
    "trusted_keys_dir": KEYS / "trusted",
    "revoked_keys_file": KEYS / "revoked.json",
    "push_token_file": KEYS / "push-token",
    "log_dir": Path("log/decisions"),
}
"""Place below ``var/`` of what has a variable of its own, ``LOADMASTER_<NAME IN CAPITALS>``."""


def variable(name: str) -> str:
    """Name the variable of a setting."""
    return PREFIX + name.upper()


def var(environ: Mapping[str, str] = os.environ) -> Path:
    """Where state that outlives a run is kept, as the environment says it."""
    return Path(environ.get(VAR) or "var")


def place(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Where something of :data:`BELOW_VAR` is: what its own variable says, else below ``var/``."""
    return Path(environ.get(variable(name)) or var(environ) / BELOW_VAR[name])
