"""Talking to one Prometheus: authentication, retries with back-off, deadlines, and answers that are checked.

An answer is decoded without a Python object a sample: the values of a series stay bytes until numpy reads them.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import requests
import urllib3
from numpy.typing import NDArray

from pipeline.errors import SourceError
from pipeline.sources.prometheus_server import Patience, Server, Tls
from wire.errors import ConfigError

log = logging.getLogger(__name__)

_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_BLOCK = 1 << 20
SKEW_WARNING_S = 60.0
LONGEST_WAIT_S = 300.0
"""A server that asks for more patience than this is asked again all the same."""
_WHOLE = {"partial_response": "false", "deny_partial_response": "1"}
"""Half an answer would look like a cluster that shrank: what tells Thanos and VictoriaMetrics to fail instead."""


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: msgspec.Raw = msgspec.Raw(b"")
    value: tuple[float, str] | None = None
    histograms: msgspec.Raw = msgspec.Raw(b"")


class _Data(msgspec.Struct, rename={"kind": "resultType"}):
    kind: str
    result: list[_Series]


class _Answer(msgspec.Struct):
    status: Literal["success", "error"]
    data: _Data | None = None
    error: str = ""
    warnings: list[str] = []
    isPartial: bool = False  # noqa: N815  as VictoriaMetrics spells it


_ANSWER = msgspec.json.Decoder(_Answer)
_PAIRS = msgspec.json.Decoder(list[tuple[float, str]])


class Series(NamedTuple):
    """One series of an answer; times in seconds."""

    labels: dict[str, str]
    time_s: NDArray[np.float64]
    value: NDArray[np.float64]


class _TransientError(Exception):
    """A failure worth another attempt."""

    def __init__(self, reason: str, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


class Client:
    """Asks one Prometheus; safe to use from several threads."""

    def __init__(self, server: Server, patience: Patience) -> None:
        self._server, self._patience = server, patience
        self._url = server.url.rstrip("/")
        server.credentials()  # what is missing is said now, not at the first question
        self._local = threading.local()
        self._stopped = threading.Event()
        self._warned: set[str] = set()
        self.skew_s = 0.0
        """Server's clock minus ours, from the last answer."""

    def stop(self) -> None:
        """Ask no more; whoever waits for an answer gets an error."""
        self._stopped.set()

    def range(self, query: str, start_s: float, end_s: float, step_s: float) -> tuple[list[Series], list[str]]:
        """Ask for a range, both ends included; returns series and the server's warnings."""
        form = {"query": query, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
        data, warnings = self._ask("query_range", form, "matrix")
        series = [Series(one.metric, *self._numbers(one, query)) for one in data.result]
        for one in series:
            # Half a millisecond of slack: times are written with three decimals.
            if not np.all((one.time_s >= start_s - 5e-4) & (one.time_s <= end_s + 5e-4)):
                raise self._wrong(
                    query, f"samples from {one.time_s.min()} to {one.time_s.max()}", f"{start_s} to {end_s}"
                )
        return series, warnings

    def instant(self, query: str, time_s: float) -> list[Series]:
        """Ask for one moment."""
        data, _ = self._ask("query", {"query": query, "time": f"{time_s:.3f}"}, "vector")
        found = []
        for one in data.result:
            time_s, text = one.value or (np.nan, "nothing")
            try:
                found.append(Series(one.metric, np.array([time_s]), np.array([float(text)])))
            except ValueError as error:
                raise self._wrong(query, f"the value {text!r}", "a number") from error
        return found

    def now(self) -> datetime:
        """Tell the time by the server's clock."""
        self._ask("query", {"query": "vector(1)"}, "vector")
        return datetime.fromtimestamp(time.time() + self.skew_s, UTC)

    def _ask(self, path: str, form: dict[str, str], kind: str) -> tuple[_Data, list[str]]:
        query = form["query"]
        for attempt in range(1, self._patience.attempts + 1):
            try:
                answer = self._once(path, form)
                break
            except _TransientError as error:
                if attempt == self._patience.attempts:
                    raise SourceError(
                        f"{self._server.name}: {self._url} failed {attempt} times; last: {error} (query {query})",
                        fix="what has been fetched is kept: run ingest again when the server is well",
                    ) from error
                pause = min(self._patience.backoff_seconds * 2 ** (attempt - 1), self._patience.backoff_max_seconds)
                pause = max(pause * random.uniform(0.5, 1.0), error.pause_s)  # noqa: S311  jitter is no secret
                log.warning("%s: %s; asking again in %.1f s", self._server.name, error, pause)
                self._stopped.wait(pause)
        if answer.data is None or answer.data.kind != kind:
            raise self._wrong(query, f"result {answer.data.kind if answer.data else 'without data'}", kind)
        for warning in set(answer.warnings) - self._warned:
            self._warned.add(warning)
            log.warning("%s: the server warns: %s (query %s)", self._server.name, warning, query)
        return answer.data, answer.warnings

    def _once(self, path: str, form: dict[str, str]) -> _Answer:
        patience, deadline = self._patience, time.monotonic() + self._patience.answer_seconds
        tls = self._server.tls or Tls()
        if self._stopped.is_set():
            raise SourceError(f"{self._server.name}: stopped before an answer came")
        try:
            with self._session().post(
                f"{self._url}/api/v1/{path}",
                data={**form, **_WHOLE, "timeout": f"{round(patience.answer_seconds * 1000)}ms"},
                headers={"Accept": "application/json", **self._server.headers, **self._server.credentials()},
                timeout=(patience.connect_seconds, patience.answer_seconds),
                verify=tls.ca_file or True,
                proxies={"http": proxy, "https": proxy} if (proxy := self._server.proxy) else None,
                cert=(tls.cert_file, tls.key_file) if tls.cert_file and tls.key_file else tls.cert_file,
                stream=True,
                allow_redirects=False,
            ) as response:
                blocks, size = [], 0
                # read1 returns what is there: iter_content would wait for a full block of a server that trickles.
                while block := response.raw.read1(_BLOCK, decode_content=True):
                    size += len(block)
                    if size > patience.answer_mb << 20:
                        raise SourceError(
                            f"{self._server.name}: an answer is larger than {patience.answer_mb} MB",
                            fix="lower ingest.prometheus.chunk_seconds",
                        )
                    if time.monotonic() > deadline:
                        raise _TransientError(f"no whole answer within {patience.answer_seconds:g} s")
                    blocks.append(block)
        except requests.exceptions.SSLError as error:
            raise SourceError(
                f"{self._url}: TLS refused: {error}", fix="check tls.ca_file, cert_file, key_file"
            ) from error
        except urllib3.exceptions.HTTPError as error:
            raise _TransientError(f"{type(error).__name__}: {error}") from error
        except OSError as error:
            # requests' errors are OSErrors; so is a certificate file that is not there. Those that are also ValueErrors
            # are about an address or a proxy that cannot be one.
            if isinstance(error, requests.exceptions.RequestException) and not isinstance(error, ValueError):
                raise _TransientError(f"{type(error).__name__}: {error}") from error
            raise ConfigError(f"{self._server.name}: {error}", "readable TLS files, and addresses of hosts") from error
        self._note_clock(response.headers.get("Date"))
        return self._decoded(response, b"".join(blocks))

    def _decoded(self, response: requests.Response, body: bytes) -> _Answer:
        code, kind = response.status_code, response.headers.get("Content-Type", "")
        try:
            answer = _ANSWER.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            shown = body[:120].decode("utf-8", "replace")
            if code in _RETRIED:
                raise _TransientError(f"HTTP {code}: {shown!r}", self._retry_after(response)) from error
            if code == 200 and "json" in kind:
                # Most often a body cut off on the way.
                raise _TransientError(f"{len(body)} bytes that are not a Prometheus answer: {error}") from error
            to = f" to {response.headers['Location']}" if "Location" in response.headers else ""
            raise SourceError(
                f"{self._url} answered HTTP {code}{to} with {kind or 'no content type'}: {shown!r}",
                "JSON of the Prometheus API",
                "check the url (without /api/v1) and the credentials",
            ) from error
        if code in _RETRIED:
            raise _TransientError(f"HTTP {code}: {answer.error}", self._retry_after(response))
        if code != 200 or answer.status == "error":
            fix = "check the credentials" if code in {401, 403} else "check the query in the metric map"
            if any(word in answer.error for word in ("too many", "maximum resolution", "limit")):
                fix = "lower ingest.prometheus.chunk_seconds"
            raise SourceError(f"{self._server.name}: {self._url} refused: HTTP {code}: {answer.error}", fix=fix)
        if answer.isPartial:
            raise _TransientError("only a part of its storage answered")
        return answer

    def _numbers(self, series: _Series, query: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Read ``[[time, "value"], …]``: numpy when the shape is as promised, word by word to find what is wrong."""
        if bytes(series.histograms):
            raise self._wrong(
                query, "a native histogram", "samples", "use the classic histogram's _bucket, _sum, _count"
            )
        text = bytes(series.values)
        flat = text.translate(None, b'[]" \n\t')
        pairs = text.count(b"[") - 1
        try:
            if b"_" not in flat and flat.count(b",") == 2 * pairs - 1:
                numbers = np.fromstring(flat, sep=",")
                if len(numbers) == 2 * pairs:
                    return numbers[0::2], numbers[1::2]
            slow = _PAIRS.decode(text)
            return np.array([t for t, _ in slow]), np.array([float(v) for _, v in slow])
        except (msgspec.DecodeError, ValueError) as error:
            raise self._wrong(query, f"values that cannot be read: {error}", "pairs of a time and a number") from error

    def _session(self) -> requests.Session:
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.trust_env = False  # a .netrc would silently replace our credentials
        session: requests.Session = self._local.session
        return session

    def _note_clock(self, text: str | None) -> None:
        if not text:
            return
        try:
            skew = parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return
        if abs(skew) > SKEW_WARNING_S and abs(self.skew_s) <= SKEW_WARNING_S:
            log.warning("%s: the server's clock differs from ours by %.0f s", self._server.name, skew)
        self.skew_s = skew

    def _retry_after(self, response: requests.Response) -> float:
        """Read how many seconds the server asks us to wait: a number, or a date by its own clock."""
        text = response.headers.get("Retry-After", "")
        try:
            wait = (
                float(text) if text.isdecimal() else parsedate_to_datetime(text).timestamp() - time.time() - self.skew_s
            )
        except ValueError:
            return 0.0  # it did not say, or not so that anybody could read it
        return min(max(wait, 0.0), LONGEST_WAIT_S)

    def _wrong(self, query: str, found: str, expected: str, fix: str = "") -> SourceError:
        return SourceError(f"{self._server.name}: {self._url} answered {query!r} with {found}", expected, fix)
