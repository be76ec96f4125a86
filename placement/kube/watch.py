"""List and watch one kind of object, for ever: resumes where it was, lists anew when the server has forgotten that.

Raw lines come from the client library, which knows every way to log in; what is read of them is ``objects``. An object
that cannot be read is counted and passed over: one strange pod must not blind the service to the others.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec
from kubernetes.client import ApiClient, ApiException
from kubernetes.watch.watch import iter_resp_lines
from urllib3.exceptions import HTTPError

from placement.kube.objects import Metadata, Node, Pod, Read

log = logging.getLogger(__name__)

PAGE = 500
WATCH_S = 290
"""Length of one watch; the server would end it after five to ten minutes by itself."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
GONE = 410

Kind = TypeVar("Kind", bound=Node | Pod)


class _Page(Read, frozen=True):
    metadata: dict[str, Any]
    items: list[msgspec.Raw]


class _Event(Read, frozen=True):
    type: str
    object: msgspec.Raw


class _Error(Read, frozen=True):
    code: int = 0
    message: str = ""


class _Bookmark(Read, frozen=True):
    metadata: Metadata


class _Forgotten(Exception):  # noqa: N818  (not an error: the server says so after every few minutes of silence)
    """Raised when the server no longer knows where we were."""


class Watch(threading.Thread, Generic[Kind]):
    """Follows one kind of object.

    Args:
        client: Knows the server and how to log in.
        path: ``/api/v1/nodes`` or ``/api/v1/pods``.
        kind: What to read of each.
        put: Told of every object that appeared or changed.
        drop: Told of every object that went.
        only: Told of all objects there are, after each list.
    """

    def __init__(
        self,
        client: ApiClient,
        path: str,
        kind: type[Kind],
        *,
        put: Callable[[Kind], None],
        drop: Callable[[Kind], None],
        only: Callable[[list[Kind]], None],
    ) -> None:
        super().__init__(name=f"watch {path}", daemon=True)
        self._client, self._path = client, path
        self._put, self._drop, self._only = put, drop, only
        self._decoder = msgspec.json.Decoder(kind)
        self._version = ""
        self._stopped = threading.Event()
        self._answer: Any = None
        self.listed = threading.Event()
        """Set once everything was seen for the first time."""
        self.unreadable = self.lists = self.failures = 0
        self._heard: float | None = None

    @property
    def silent_s(self) -> float:
        """Seconds since the server last said that we are up to date; infinite before the first time."""
        return float("inf") if self._heard is None else time.monotonic() - self._heard

    def stop(self) -> None:
        """End the thread; a watch that waits for news is cut."""
        self._stopped.set()
        answer = self._answer
        if answer is not None:
            with contextlib.suppress(ValueError, OSError):  # it ended by itself meanwhile
                answer.shutdown()  # close() would wait for the thread that reads

    def run(self) -> None:
        """Follow until stopped; pauses grow while the server is not there."""
        pause = SHORTEST_PAUSE_S
        while not self._stopped.is_set():
            try:
                if not self._version:
                    self._list()
                self._follow()
                pause = SHORTEST_PAUSE_S
                continue
            except _Forgotten as forgotten:
                log.info("%s: listing anew: %s", self._path, forgotten)
                self._version = ""
            except (ApiException, HTTPError, OSError, ValueError) as error:
                if self._stopped.is_set():
                    return
                self.failures += 1
                if isinstance(error, ApiException) and error.status == GONE:
                    self._version = ""
                log.warning("%s: %s; again in %.1f s", self._path, str(error).split("\n")[0][:200], pause)
            # Not all replicas at the same moment.
            self._stopped.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _list(self) -> None:
        found: list[Kind] = []
        more: dict[str, str] = {}
        while True:
            with self._get({"limit": str(PAGE), **more}, timeout_s=60) as answer:
                page = msgspec.json.decode(answer.read(), type=_Page)
            found += self._readable(page.items)
            if not page.metadata.get("continue"):
                break
            more = {"continue": page.metadata["continue"]}
        for one in found:
            self._tell(self._put, one)
        self._only(found)
        self._version = str(page.metadata["resourceVersion"])
        self._heard = time.monotonic()
        self.lists += 1
        self.listed.set()

    def _follow(self) -> None:
        asked = {
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        with self._get(asked, timeout_s=WATCH_S + 30) as answer:
            self._answer, self._heard = answer, time.monotonic()
            try:
                for line in iter_resp_lines(answer):
                    if line:
                        self._take(line)
                        self._heard = time.monotonic()
            finally:
                self._answer = None

    def _take(self, line: str) -> None:
        event = msgspec.json.decode(line, type=_Event)
        if event.type == "ERROR":
            error = msgspec.json.decode(event.object, type=_Error)
            if error.code == GONE:
                raise _Forgotten(error.message)
            raise ValueError(f"the server says {error.code}: {error.message}")
        if event.type == "BOOKMARK":
            self._version = msgspec.json.decode(event.object, type=_Bookmark).metadata.resource_version
            return
        for one in self._readable([event.object]):
            self._tell(self._drop if event.type == "DELETED" else self._put, one)
            self._version = one.metadata.resource_version or self._version

    def _readable(self, raw: Iterable[msgspec.Raw]) -> Iterator[Kind]:
        for data in raw:
            try:
                yield self._decoder.decode(data)
            except (msgspec.MsgspecError, RecursionError) as error:
                self.unreadable += 1
                log.warning("%s: an object cannot be read: %s", self._path, error)

    def _tell(self, whom: Callable[[Kind], None], one: Kind) -> None:
        try:
            whom(one)
        except ValueError as error:  # an amount that is none
            self.unreadable += 1
            log.warning("%s: %s/%s: %s", self._path, one.metadata.namespace, one.metadata.name, error)

    def _get(self, query: dict[str, str], timeout_s: float) -> Any:
        answer = self._client.call_api(
            self._path,
            "GET",
            query_params=list(query.items()),
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
            _preload_content=False,
            _return_http_data_only=True,
            _request_timeout=(5, timeout_s),
        )
        return _Closing(answer)


class _Closing:
    """An answer that gives its connection back, or cuts it when it was not read to its end."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __enter__(self) -> Any:
        return self._answer

    def __exit__(self, *_: object) -> None:
        self._answer.close()
        self._answer.release_conn()
