"""A policy store in S3 (or what speaks like it), shared by any number of replicas.

Layout below the URL's prefix: as the folder store, with ``history/<counter>.json`` in place of one growing file. The
pointer is replaced by a conditional write: of two replicas that flip at once one wins, the other is told. Credentials
and endpoint come from the variables that every AWS tool reads (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL`` ...).
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from placement.errors import StoreError
from placement.store import Pointer, bundle_name
from wire.bundle import MAX_FILE_BYTES
from wire.contracts import decode, encode
from wire.contracts.feature_spec import ProblemName
from wire.errors import ConfigError, ContractError

log = logging.getLogger(__name__)

SCHEME = "s3://"
TIMEOUT_S = 10
"""For one call: a bundle is small, and a place request never waits for the store."""


class S3Store:
    """The store below ``s3://bucket/prefix``."""

    shared = True

    def __init__(self, url: str, keep_bundles: int) -> None:
        try:
            from obstore import store
        except ImportError as error:
            raise ConfigError("obstore is not installed", "pip install 'loadmaster[serve]'") from error
        if not url.startswith(SCHEME) or url == SCHEME:
            raise ConfigError(f"store {url!r}", "s3://bucket/prefix")
        self.url, self.keep_bundles = url.rstrip("/"), keep_bundles
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        config: Any = {"region": os.environ.get("AWS_DEFAULT_REGION", "us-east-1")}
        if endpoint:
            config |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
        client: Any = {"timeout": f"{TIMEOUT_S}s", "connect_timeout": "3s", "allow_http": endpoint[:5] == "http:"}
        retries: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=TIMEOUT_S)}
        self._store = store.S3Store.from_url(self.url, config=config, client_options=client, retry_config=retries)

    def pointer(self, problem: ProblemName) -> Pointer | None:
        """Return what is live; a lost or unreadable pointer is replaced by the last of the history."""
        return self._pointer(problem)[0]

    def bundle(self, problem: ProblemName, digest: str) -> dict[str, bytes]:
        """Return the files of a stored bundle, unchecked."""
        import obstore

        folder = f"{problem}/bundles/{bundle_name(digest)}/"
        files: dict[str, bytes] = {}
        with _store_error(f"bundle {digest}"):
            for page in obstore.list(self._store, prefix=folder):
                for entry in page:
                    name = entry["path"].removeprefix(folder)
                    if not name or entry["size"] > max(MAX_FILE_BYTES.values()):
                        continue  # folders have entries of their own; nothing of ours is larger
                    files[name] = bytes(obstore.get(self._store, entry["path"]).bytes())
        if not files:
            raise StoreError(f"{self.url}/{folder} holds nothing", "a stored bundle")
        return files

    def save(self, problem: ProblemName, digest: str, files: dict[str, bytes]) -> None:
        """Keep a bundle; half of one is never live, because the pointer comes after it."""
        import obstore

        with _store_error(f"bundle {digest}"):
            for name, data in files.items():
                obstore.put(self._store, f"{problem}/bundles/{bundle_name(digest)}/{name}", data)

    def flip(self, problem: ProblemName, pointer: Pointer, expected: Pointer | None) -> None:
        """Make a saved bundle live, if ``expected`` is what is live now, for whichever replica asks first."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        current, tag = self._pointer(problem)
        if current != expected:
            raise StoreError(f"store says {current} is live", f"{expected}", "another replica changed it: ask again")
        mode: Any = {"e_tag": tag} if tag is not None else "create"
        try:
            with _store_error(f"pointer of {problem}"):
                # The condition decides who wins; only the winner writes what a lost pointer is rebuilt from.
                obstore.put(self._store, f"{problem}/live.json", encode(pointer), mode=mode)
                obstore.put(self._store, _history(problem, pointer.counter), encode(pointer))
        except (PreconditionError, AlreadyExistsError) as error:
            found = f"another replica changed what is live for {problem} at the same moment"
            raise StoreError(found, f"{expected}", "ask again") from error
        try:
            self._prune(problem, pointer)
        except StoreError as error:  # the flip has happened; what is not removed now is removed after the next
            log.warning("old bundles of %s stay for now: %s", problem, error)

    def _prune(self, problem: ProblemName, pointer: Pointer) -> None:
        import obstore

        prefix = f"{problem}/bundles/"
        pinned = {bundle_name(digest) for digest in pointer.pinned}
        newest: dict[str, Any] = {}
        files: dict[str, list[str]] = {}
        with _store_error(f"bundles of {problem}"):
            for page in obstore.list(self._store, prefix=prefix):
                for entry in page:
                    name, _, file = entry["path"].removeprefix(prefix).partition("/")
                    if file and name not in pinned:
                        files.setdefault(name, []).append(entry["path"])
                        newest[name] = max(newest.get(name, entry["last_modified"]), entry["last_modified"])
            order = sorted(files, key=lambda name: newest[name], reverse=True)
            for name in order[max(0, self.keep_bundles - len(pinned)) :]:
                obstore.delete(self._store, files[name])

    def staging(self) -> Path:
        """Return a new private folder for half-done work."""
        return Path(tempfile.mkdtemp(prefix="loadmaster-"))

    def close(self) -> None:
        """Nothing is held."""

    def _pointer(self, problem: ProblemName) -> tuple[Pointer | None, str | None]:
        """Return what is live, and the tag of its object when there is one."""
        import obstore

        path = f"{problem}/live.json"
        try:
            with _store_error(path):
                answer = obstore.get(self._store, path)
                data, tag = bytes(answer.bytes()), answer.meta["e_tag"]
        except FileNotFoundError:
            return self._last(problem), None
        try:
            return decode(data, Pointer, source=f"{self.url}/{path}"), tag
        except ContractError as error:
            last = self._last(problem)
            if last is None:
                raise StoreError(error.found, error.expected, "restore live.json, or remove it") from error
            return last, tag

    def history(self, problem: ProblemName, most: int) -> list[Pointer]:
        """Return the last pointers there were, newest first; those that cannot be read are left out."""
        import obstore

        found: list[Pointer] = []
        with _store_error(f"history of {problem}"):
            names = [
                entry["path"]
                for page in obstore.list(self._store, prefix=f"{problem}/history/")
                for entry in page
                if entry["path"].endswith(".json")
            ]
            for name in sorted(names, reverse=True):
                try:
                    found.append(decode(bytes(obstore.get(self._store, name).bytes()), Pointer, source=name))
                except ContractError:
                    log.warning("%s/%s cannot be read", self.url, name)
                if len(found) == most:
                    break
        return found

    def _last(self, problem: ProblemName) -> Pointer | None:
        """Return the newest of the history that can be read; a counter never restarts."""
        return next(iter(self.history(problem, 1)), None)


def _history(problem: ProblemName, counter: int) -> str:
    return f"{problem}/history/{counter:012d}.json"


@contextmanager
def _store_error(what: str) -> Iterator[None]:
    """Turn what a store can say into our error; what a caller decides on is passed on."""
    from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

    try:
        yield
    except (FileNotFoundError, PreconditionError, AlreadyExistsError):
        raise
    except (BaseError, OSError, TimeoutError) as error:
        said = str(error).split("\n")[0][:200]
        raise StoreError(f"{what}: {said}", "a store that answers", "it is tried again") from error
