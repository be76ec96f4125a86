"""Several replicas: who leads acts, who is replaced writes nothing more, and a shared store needs a lease."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from placement.cpn.config import CpnSettings
from placement.cpn.records import Job
from placement.cpn.service import _lease
from placement.cpn.store import DeposedError, read_only
from tests.placement.cpn.played import Rehearsal
from wire.errors import ConfigError


def test_a_shared_store_needs_a_lease_and_sqlite_none() -> None:
    settings = CpnSettings(topology="")
    assert _lease(settings, SimpleNamespace(shared=False)) is None  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="PostgreSQL and there is no lease"):
        _lease(settings, SimpleNamespace(shared=True))  # type: ignore[arg-type]


def test_a_replica_that_does_not_lead_does_nothing(
    rehearse: Callable[..., Rehearsal], submit: Callable[..., Job]
) -> None:
    rehearsal = rehearse()
    leads = [False]
    rehearsal.controller._leading = lambda: leads[0]
    submit(rehearsal, "one")
    assert rehearsal.controller.tick() == 1.0
    assert not rehearsal.controller.ready
    assert not rehearsal.world.created
    leads[0] = True
    rehearsal.run()
    assert rehearsal.ended() == {"one": "finished"}


def test_a_leader_that_was_replaced_writes_nothing_and_goes_on_from_the_store_when_it_leads_again(
    rehearse: Callable[..., Rehearsal], submit: Callable[..., Job]
) -> None:
    rehearsal = rehearse()
    first = submit(rehearsal, "one", epochs=5000)
    rehearsal.run(until_s=rehearsal.world.now + 1.0)
    with read_only(rehearsal.url) as other:
        other.lead()
    submit(rehearsal, "two")
    with pytest.raises(DeposedError):
        rehearsal.controller.tick()
    assert [job.state for job in rehearsal.store.jobs()] == ["waiting", "running"]
    assert len(rehearsal.world.created) == 1
    rehearsal.controller._led = False  # as the controller's thread does
    rehearsal.run()
    assert rehearsal.ended() == {"one": "finished", "two": "finished"}
    assert all(count == 1 for count in rehearsal.world.created.values())
    assert len(rehearsal.store.attempts([first.id])) == 1
