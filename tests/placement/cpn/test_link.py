"""A cluster in which nothing happens is not a cluster that is lost."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from placement.cpn import link as links
from placement.cpn.clusters import Clusters
from placement.cpn.link import KubeLink, Link


class Quiet:
    """A gateway that is only ever pinged."""

    def __init__(self) -> None:
        self.pings, self.lost = 0, False
        self.wrong: dict[str, str] = {}

    def ping(self) -> dict[str, str]:
        self.pings += 1
        if self.lost:
            raise ConnectionError("lost")
        return self.wrong


def until(true: Any) -> None:
    end = time.monotonic() + 20.0
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_quiet_cluster_is_asked_whether_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PING_S", 0.01)
    gateway = Quiet()
    link = Link("c", gateway, lambda _: None)  # type: ignore[arg-type]
    link.start()
    until(lambda: gateway.pings > 2)
    assert time.monotonic() - link.answered_at < 20.0
    gateway.lost = True
    before = gateway.pings
    until(lambda: gateway.pings > before + 2)
    answered = link.answered_at
    until(lambda: link.failures > 2)
    assert link.answered_at == answered
    link.stop()


def test_a_cluster_without_its_namespace_or_rights_gets_no_jobs_until_it_has_them(monkeypatch: Any) -> None:
    monkeypatch.setattr(links, "PING_S", 0.01)
    gateway = Quiet()
    gateway.wrong = {"namespace": "404 Not Found"}
    link = Link("c", gateway, lambda _: None)  # type: ignore[arg-type]
    clusters = Clusters.__new__(Clusters)
    clusters.links, clusters._silent_after_s = {"c": link}, 30.0
    link.start()
    until(lambda: link.wrong)
    assert not clusters.heard_of("c")
    gateway.wrong = {}
    until(lambda: clusters.heard_of("c"))
    link.stop()


def test_a_cluster_is_silent_only_when_it_does_not_answer_to_anything() -> None:
    link = KubeLink.__new__(KubeLink)
    quiet, never = SimpleNamespace(silent_s=100.0), SimpleNamespace(silent_s=float("inf"))
    link._watches = (quiet, quiet)  # type: ignore[assignment]
    link.answered_at = time.monotonic()
    assert link.silent_s < 20.0
    link.answered_at = time.monotonic() - 300.0
    assert link.silent_s == 100.0
    link._watches = (quiet, never)  # type: ignore[assignment]
    link.answered_at = time.monotonic()
    assert link.silent_s == float("inf")
