"""Files that only their owner may read: the signing key, and the token that the pipeline and the service share."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from wire import environment
from wire.errors import ConfigError, legal

Role = Literal["push", "rollback"]
ROLES: tuple[Role, ...] = get_args(Role)
"""``push``: hand over a bundle that a signed record promotes. ``rollback``: back to the previous policy, or to none."""

MIN_TOKEN = 32
"""Characters; what is made here has 43, of 64 kinds."""

FORBIDDEN_MODE = 0o027
"""Others nothing, and the group may read at most: Kubernetes mounts secrets for a group."""


class Token(NamedTuple):
    """Who may do what."""

    name: str
    roles: frozenset[str]
    secret: str


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
    """Return the token that this machine pushes with: the first of the file that may."""
    for token in tokens(path):
        if "push" in token.roles:
            return token.secret
    raise ConfigError(f"{path} holds no token of role push", "one that may push")


def tokens(path: Path) -> list[Token]:
    """Read the tokens of a file and what each may do; raises when others can read it, or one could be guessed.

    A line is ``<name> <role>[,<role>] <token>``; a token alone on its line, as it is made here, has every role.
    """
    try:
        mode, lines = stat.S_IMODE(path.stat().st_mode), path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token file {path.name} cannot be read ({error})", "a text file") from error
    if mode & FORBIDDEN_MODE:
        found = f"token file {path.name} has mode {mode:o}: others may read it, or its group may write it"
        raise ConfigError(found, "mode 600, or 440 where it is mounted", f"chmod 600 {path.name}")
    found_tokens = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        name, roles, secret = ("default", ",".join(ROLES), *words) if len(words) == 1 else (*words, "", "")[:3]
        allowed = frozenset(roles.split(","))
        if len(words) not in (1, 3) or not allowed <= set(ROLES):
            raise ConfigError(f"token file {path.name} line {number}", f"<name> <role> <token>, roles {legal(ROLES)}")
        if len(secret) < MIN_TOKEN:
            found = f"the token of {name} in {path.name} has {len(secret)} characters"
            raise ConfigError(found, f"at least {MIN_TOKEN}", "remove the file: a new token is made at start")
        found_tokens.append(Token(name, allowed, secret))
    return found_tokens
