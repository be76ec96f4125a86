"""Where live policies survive a restart: bundles by digest, and one pointer a problem that says which is live.

Layout of the folder store::

    <store>/lock                                 held by the one process that serves this folder
    <store>/<problem>/live.json                  the pointer, replaced atomically
    <store>/<problem>/history.jsonl              every pointer there ever was; live.json is rebuilt from it
    <store>/<problem>/bundles/<digest hex>/      the files of a bundle
    <store>/staging/                             half-done work; emptied at every start

A killed process leaves either the old pointer or the new one, and a pointer is written only after its bundle is on
disk. Many replicas need a store they can share: another class with the methods of :class:`PolicyStore`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import IO, Literal, Protocol

import msgspec

from placement.errors import StoreError, StoreLockedError
from sched_env import problems
from wire import bundle
from wire.contracts import decode, encode
from wire.contracts.feature_spec import ProblemName
from wire.errors import BundleError, ContractError

log = logging.getLogger(__name__)


class Canary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy that answers a share of the calls."""

    digest: str
    counter: int
    """Of its promotion record: the one that it goes live with."""
    share: float
    since: str


class Returned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last time that the service went back by itself."""

    digest: str
    """What it left."""
    at: str
    until: str
    """The end of the cool-down, in which nothing new is tried on calls."""
    reason: str


class Pointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which bundles answer for one problem, and which are tried beside them."""

    # What has its default is not written: a service of the release before reads the pointer of an idle canary.

    digest: str | None
    """Null: none is, by somebody's wish; the heuristic answers."""
    counter: int
    """Rises with every flip, rollbacks too."""
    previous_digest: str | None
    loaded_at: str
    shadow_digest: str | None = None
    canary: Canary | None = None
    returned: Returned | None = None
    schema: Literal[1] = msgspec.field(default_factory=lambda: 1)  # a plain default would not be written

    @property
    def pinned(self) -> set[str]:
        """Digests of bundles that must stay."""
        trying = self.canary.digest if self.canary else None
        return {one for one in (self.digest, self.previous_digest, self.shadow_digest, trying) if one}


class PolicyStore(Protocol):
    """What the service needs from a store."""

    def pointer(self, problem: ProblemName) -> Pointer | None:
        """Return what is live, or None before the first push."""

    def history(self, problem: ProblemName, most: int) -> list[Pointer]:
        """Return the last pointers there were, newest first."""

    def bundle(self, problem: ProblemName, digest: str) -> dict[str, bytes]:
        """Return the files of a stored bundle, unchecked."""

    def save(self, problem: ProblemName, digest: str, files: dict[str, bytes]) -> None:
        """Keep a bundle; nothing is live by that."""

    def flip(self, problem: ProblemName, pointer: Pointer, expected: Pointer | None) -> None:
        """Make a saved bundle live, if ``expected`` is what is live now."""

    def staging(self) -> Path:
        """Return a new private folder for half-done work."""

    @property
    def shared(self) -> bool:
        """Whether others may change it while we serve from it."""

    def close(self) -> None:
        """Let another process have the store."""


class FolderStore:
    """A store in a local folder, for one process."""

    shared = False

    def __init__(self, root: Path, keep_bundles: int) -> None:
        self.root, self.keep_bundles = root, keep_bundles
        self._lock: IO[str] | None = None
        try:
            self._own()
        except StoreLockedError:
            raise
        except StoreError as error:
            # A full or read-only disk: what is stored can still be read, and is better than no service at all.
            log.warning("nothing can be written for now: %s", error)
        shutil.rmtree(root / "staging", ignore_errors=True)
        for problem in problems.names():
            self._finish_replacements(root / problem / "bundles")

    def _own(self) -> None:
        """Make sure that the store is ours to write; asked before every change, since a lock file can be deleted."""
        path = self.root / "lock"
        try:
            if (
                self._lock is not None
                and path.exists()
                and os.path.samestat(os.fstat(self._lock.fileno()), path.stat())
            ):
                return
            for problem in problems.names():
                (self.root / problem / "bundles").mkdir(parents=True, exist_ok=True)
            lock = path.open("a+")
        except OSError as error:
            raise StoreError(f"policy store {self.root}: {error}", "a folder this user may write") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise StoreLockedError(
                f"policy store {self.root} is in use by process {owner}",
                "one service process for each folder store",
                "stop that process, or give this one another LOADMASTER_STORE_DIR",
            ) from error
        self.close()
        self._lock = lock
        with contextlib.suppress(OSError):  # the number is for people; the lock holds on a full disk too
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()

    def close(self) -> None:
        """Let another process have the store."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._lock.close()
            self._lock = None

    def staging(self) -> Path:
        """Return a new private folder for half-done work; elsewhere when the store cannot be written."""
        folder = self.root / "staging" / uuid.uuid4().hex
        try:
            folder.mkdir(parents=True, mode=0o700)
        except OSError:
            return Path(tempfile.mkdtemp(prefix="loadmaster-"))
        return folder

    def pointer(self, problem: ProblemName) -> Pointer | None:
        """Return what is live; a lost or unreadable pointer is replaced by the last of the history, as new or newer."""
        path = self.root / problem / "live.json"
        try:
            return decode(path.read_bytes(), Pointer, source=str(path))
        except FileNotFoundError:
            history = self._history(problem)
            return history[-1] if history else None
        except OSError as error:
            raise StoreError(f"{path}: {error}", "a readable pointer") from error
        except ContractError as error:
            history = self._history(problem)
            if not history:
                raise StoreError(
                    error.found, error.expected, "restore live.json, or remove it to start anew"
                ) from error
            return history[-1]

    def history(self, problem: ProblemName, most: int) -> list[Pointer]:
        """Return the last pointers there were, newest first."""
        return self._history(problem)[::-1][:most]

    def _history(self, problem: ProblemName) -> list[Pointer]:
        path = self.root / problem / "history.jsonl"
        pointers: list[Pointer] = []
        try:
            lines = path.read_bytes().splitlines() if path.exists() else []
        except OSError as error:
            raise StoreError(f"{path}: {error}", "a readable history") from error
        for line in lines:
            try:
                pointers.append(decode(line, Pointer, source=str(path)))
            except ContractError:
                continue  # a torn last line of a killed process: that flip did not happen
        return pointers

    def bundle(self, problem: ProblemName, digest: str) -> dict[str, bytes]:
        """Return the files of a stored bundle, unchecked."""
        try:
            return bundle.read(self._folder(problem, digest))
        except BundleError as error:
            raise StoreError(error.found, error.expected) from error

    def save(self, problem: ProblemName, digest: str, files: dict[str, bytes]) -> None:
        """Keep a bundle: written aside, flushed to disk, then renamed into place."""
        self._own()
        target = self._folder(problem, digest)
        scratch = self.root / "staging" / uuid.uuid4().hex
        try:
            scratch.mkdir(parents=True, mode=0o700)
            for name, data in files.items():
                _write_durably(scratch / name, data)
            if target.exists():
                # The same decisions with another manifest or signature; two renames, the first undone on restart.
                aside = target.with_name(".replaced-" + target.name)
                shutil.rmtree(aside, ignore_errors=True)
                target.rename(aside)
                scratch.rename(target)
                shutil.rmtree(aside)
            else:
                scratch.rename(target)
            _sync_folder(target.parent)
        except OSError as error:
            raise StoreError(f"bundle {digest} cannot be written: {error}", "free space and rights") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def flip(self, problem: ProblemName, pointer: Pointer, expected: Pointer | None) -> None:
        """Make a saved bundle live, if ``expected`` is what is live now."""
        self._own()
        current = self.pointer(problem)
        if current != expected:
            raise StoreError(f"store says {current} is live", f"{expected}", "another process writes this store")
        folder, data = self.root / problem, encode(pointer)
        try:
            with (folder / "history.jsonl").open("a+b") as history:
                # A line that a killed process left half-written must not take this one with it.
                history.write(b"\n" * _torn(history) + data + b"\n")
                history.flush()
                os.fsync(history.fileno())
            scratch = folder / "live.json.new"
            _write_durably(scratch, data)
            scratch.replace(folder / "live.json")
            _sync_folder(folder)
        except OSError as error:
            raise StoreError(f"pointer of {problem} cannot be written: {error}", "free space and rights") from error
        with contextlib.suppress(OSError):  # the flip has happened; what is not removed now is removed after the next
            self._prune(problem, pointer)

    def _prune(self, problem: ProblemName, pointer: Pointer) -> None:
        pinned = {self._folder(problem, digest) for digest in pointer.pinned}
        stored = [path for path in (self.root / problem / "bundles").iterdir() if path not in pinned]
        stored.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in stored[max(0, self.keep_bundles - len(pinned)) :]:
            shutil.rmtree(path, ignore_errors=True)

    def _folder(self, problem: ProblemName, digest: str) -> Path:
        return self.root / problem / "bundles" / bundle_name(digest)

    @staticmethod
    def _finish_replacements(bundles: Path) -> None:
        try:
            for aside in bundles.glob(".replaced-*"):
                target = bundles / aside.name.removeprefix(".replaced-")
                if target.exists():
                    shutil.rmtree(aside)
                else:
                    aside.rename(target)
        except OSError as error:
            log.warning("a replacement that was interrupted cannot be finished: %s", error)


def bundle_name(digest: str) -> str:
    """Return the name under which a store keeps a bundle."""
    kind, _, name = digest.partition(":")
    if kind != "sha256" or len(name) != 64 or set(name) - set("0123456789abcdef"):
        raise StoreError(f"digest {digest!r}", "sha256:<64 hex digits>")
    return name


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _torn(file: IO[bytes]) -> bool:
    """Whether the last line of a file has no end."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 1))
    return size > 0 and file.read(1) != b"\n"


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
