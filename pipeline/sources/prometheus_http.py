"""Talking to one Prometheus: authentication, retries with back-off, deadlines, and answers that are checked.

An answer is decoded without a Python object a sample: the values of a series stay bytes until numpy reads them.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import requests
import urllib3
from numpy.typing import NDArray

from pipeline.errors import SourceError
from sched_env.errors import ConfigError

log = logging.getLogger(__name__)

_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_BLOCK = 1 << 20
SKEW_WARNING_S = 60.0


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files for TLS; a client certificate makes it mutual."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


class Basic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """User and the file or environment variable that holds the password."""

    user: str
    password_file: str | None = None
    password_env: str | None = None


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cluster's Prometheus. Secrets are named by file or environment variable, never written here."""

    name: str
    """Name of the cluster, as it appears in every table."""
    url: str
    matchers: str = ""
    """PromQL matchers that pick this cluster where one Prometheus holds several, e.g. ``cluster="prod-1"``."""
    bearer_file: str | None = None
    bearer_env: str | None = None
    basic: Basic | None = None
    tls: Tls | None = None
    headers: dict[str, str] = {}
    """Further headers, e.g. the tenant of Mimir (``X-Scope-OrgID``)."""
    proxy: str | None = None
    """HTTP proxy; those of the environment are not used."""


class Patience(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait, and how often to ask again."""

    connect_seconds: float = 10.0
    answer_seconds: float = 120.0
    """For a whole answer, however slowly it trickles."""
    attempts: int = 6
    backoff_seconds: float = 0.5
    """First pause; it doubles, with jitter, up to ``backoff_max_seconds``; a server's Retry-After counts if longer."""
    backoff_max_seconds: float = 30.0
    answer_mb: int = 512
    """Larger answers are refused, so that one query cannot fill the memory."""


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
        if not self._url.startswith(("http://", "https://")):
            raise ConfigError(f"url {server.url!r} of cluster {server.name!r}", "http:// or https://")
        self._local = threading.local()
        self._headers = {"Accept": "application/json", **server.headers}
        if token := _secret(server.bearer_file, server.bearer_env, f"bearer token of {server.name}"):
            self._headers["Authorization"] = f"Bearer {token}"
        self._auth: tuple[str, str] | None = None
        if basic := server.basic:
            password = _secret(basic.password_file, basic.password_env, f"password of {basic.user}")
            self._auth = (basic.user, password or "")
        self.skew_s = 0.0
        """Server's clock minus ours, from the last answer."""

    def range(self, query: str, start_s: float, end_s: float, step_s: float) -> tuple[list[Series], list[str]]:
        """Ask for a range, both ends included; returns series and the server's warnings."""
        form = {"query": query, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
        data, warnings = self._ask("query_range", form, "matrix")
        series = [Series(one.metric, *self._numbers(one, query)) for one in data.result]
        for one in series:
            # Half a millisecond of slack: times are written with three decimals.
            if len(one.time_s) and (one.time_s[0] < start_s - 5e-4 or one.time_s[-1] > end_s + 5e-4):
                raise self._wrong(query, f"samples from {one.time_s[0]} to {one.time_s[-1]}", f"{start_s} to {end_s}")
        return series, warnings

    def instant(self, query: str, time_s: float) -> list[Series]:
        """Ask for one moment."""
        data, _ = self._ask("query", {"query": query, "time": f"{time_s:.3f}"}, "vector")
        found = []
        for one in data.result:
            if one.value is None:
                raise self._wrong(query, "a series without a value", "one value a series")
            found.append(Series(one.metric, np.array([one.value[0]]), np.array([float(one.value[1])])))
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
                time.sleep(pause)
        if answer.data is None or answer.data.kind != kind:
            raise self._wrong(query, f"result {answer.data.kind if answer.data else 'without data'}", kind)
        return answer.data, answer.warnings

    def _once(self, path: str, form: dict[str, str]) -> _Answer:
        patience, deadline = self._patience, time.monotonic() + self._patience.answer_seconds
        tls = self._server.tls or Tls()
        try:
            with self._session().post(
                f"{self._url}/api/v1/{path}",
                data={**form, "timeout": f"{round(patience.answer_seconds * 1000)}ms"},
                headers=self._headers,
                auth=self._auth,
                timeout=(patience.connect_seconds, patience.answer_seconds),
                verify=tls.ca_file or True,
                proxies={"http": proxy, "https": proxy} if (proxy := self._server.proxy) else None,
                cert=(tls.cert_file, tls.key_file) if tls.cert_file and tls.key_file else None,
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
            # requests' errors are OSErrors; so is a certificate file that is not there.
            if isinstance(error, requests.exceptions.RequestException):
                raise _TransientError(f"{type(error).__name__}: {error}") from error
            raise ConfigError(f"{self._server.name}: {error}", "readable TLS files") from error
        self._note_clock(response.headers.get("Date"))
        return self._decoded(response, b"".join(blocks))

    def _decoded(self, response: requests.Response, body: bytes) -> _Answer:
        code, kind = response.status_code, response.headers.get("Content-Type", "")
        try:
            answer = _ANSWER.decode(body)
        except msgspec.DecodeError as error:
            shown = body[:120].decode("utf-8", "replace")
            if code in _RETRIED:
                raise _TransientError(f"HTTP {code}: {shown!r}", _retry_after(response)) from error
            if code == 200 and "json" in kind:
                # Most often a body cut off on the way.
                raise _TransientError(f"{len(body)} bytes that are not a Prometheus answer: {error}") from error
            raise SourceError(
                f"{self._url} answered HTTP {code} with {kind or 'no content type'}: {shown!r}",
                "JSON of the Prometheus API",
                "check the url (without /api/v1) and the credentials",
            ) from error
        if code in _RETRIED:
            raise _TransientError(f"HTTP {code}: {answer.error}", _retry_after(response))
        if code != 200 or answer.status == "error":
            raise SourceError(
                f"{self._server.name}: {self._url} refused: HTTP {code}: {answer.error}",
                fix="check the credentials" if code in {401, 403} else "check the query in the metric map",
            )
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

    def _wrong(self, query: str, found: str, expected: str, fix: str = "") -> SourceError:
        return SourceError(f"{self._server.name}: {self._url} answered {query!r} with {found}", expected, fix)


def _retry_after(response: requests.Response) -> float:
    text = response.headers.get("Retry-After", "")
    return min(float(text), 300.0) if text.isdigit() else 0.0


def _secret(file: str | None, variable: str | None, what: str) -> str | None:
    if file is not None:
        try:
            return Path(file).read_text().strip()
        except OSError as error:
            raise ConfigError(f"{what}: {file}: {error.strerror}", "a readable file") from error
    if variable is not None:
        if variable not in os.environ:
            raise ConfigError(f"{what}: environment variable {variable} is not set")
        return os.environ[variable].strip()
    return None
