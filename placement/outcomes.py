"""Whether pods that were placed met their objective, asked of Prometheus and joined with decisions by pod UID.

The query answers with one series a pod, its UID in the label ``uid``, and a value between 0 (met) and 1 (violated).
Each pod counts once, some minutes after it was placed: what is read of it later depends on what was read before.
"""

from __future__ import annotations

import json
import logging
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

from placement.settings import Settings

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Problem and digest."""

MOST = 50_000
"""Pods that may wait for their outcome; the oldest are given up first."""
FORGOTTEN_S = 3600.0
"""After which a pod that Prometheus does not know is given up."""
TIMEOUT_S = 5.0
ANSWER_BYTES = 32 * 1024 * 1024


class Outcomes:
    """Pods whose outcome is not known yet."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._expected: dict[str, tuple[Key, float]] = {}
        self._asked = 0.0
        self.failures = 0

    @property
    def wanted(self) -> bool:
        """Whether there is anybody to ask."""
        return bool(self._settings.prometheus_url and self._settings.sla_query)

    def expect(self, requests: Sequence[str], key: Key) -> None:
        """Remember which policy placed these pods; one that is asked about again was not bound."""
        for request in requests:
            self._expected.pop(request, None)
            self._expected[request] = (key, time.monotonic())
        while len(self._expected) > MOST:
            del self._expected[next(iter(self._expected))]

    def ask(self) -> Iterator[tuple[Key, float]]:
        """Yield the outcomes that are known by now; a Prometheus that is gone, slow or lying yields none."""
        now = time.monotonic()
        if not self.wanted or not self._expected or now - self._asked < self._settings.sla_every_s:
            return
        self._asked = now
        try:
            found = self._query()
        except (OSError, ValueError, LookupError, TypeError) as error:
            self.failures += 1
            log.warning("Prometheus does not say which pods met their objective: %s", str(error)[:200])
            return
        for uid, value in found:
            key, since = self._expected.get(uid, (None, now))
            if key is not None and now - since >= self._settings.sla_after_s and 0.0 <= value <= 1.0:
                del self._expected[uid]
                yield key, value
        for uid in [uid for uid, (_, since) in self._expected.items() if now - since > FORGOTTEN_S]:
            del self._expected[uid]

    def _query(self) -> list[tuple[str, float]]:
        query = urllib.parse.urlencode({"query": self._settings.sla_query, "timeout": f"{TIMEOUT_S:g}s"})
        address = f"{self._settings.prometheus_url.rstrip('/')}/api/v1/query?{query}"
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:  # noqa: S310  (settings check the scheme)
            said: dict[str, Any] = json.loads(answer.read(ANSWER_BYTES))
        if said["status"] != "success":
            raise ValueError(f"status {said['status']}")
        rows = []
        for one in said["data"]["result"]:
            value = float(one["value"][1])
            if "uid" in one["metric"] and math.isfinite(value):
                rows.append((str(one["metric"]["uid"]), value))
        return rows
