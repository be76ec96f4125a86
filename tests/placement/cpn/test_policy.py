"""The strategy ``policy``: the live ``jobs`` policy chooses the card, and a heuristic where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from placement.cpn.allocation import Allocator
from placement.cpn.records import Job
from placement.cpn.service import _by_policy
from sched_env import problems
from tests.placement.cpn.played import Rehearsal
from wire import sample_bundle
from wire.contracts.bundle import Verdict


@pytest.mark.parametrize("live", [True, False])
def test_the_live_policy_chooses_and_a_heuristic_answers_where_there_is_none(
    rehearse: Callable[..., Rehearsal],
    submit: Callable[..., Job],
    client: TestClient,
    workshop: Any,
    kit: Any,
    live: bool,
) -> None:
    if live:
        files = sample_bundle.build(problems.spec("jobs"), seed=1, hidden=8, gate=Verdict("pass", "a sample"))
        answer = kit.push(client, workshop.sign(files), counter=1, problem="jobs")
        assert answer.status_code == 200, answer.text
    rehearsal = rehearse(strategy="policy")
    service = client.app.state.service  # type: ignore[attr-defined]
    asked: list[str] = []
    by_policy = _by_policy(service.decider)

    def choose(env: Any, job: Job, names: Any) -> int:
        asked.append(job.name)
        return by_policy(env, job, names)

    rounds = rehearsal.controller.rounds
    rounds._allocator = Allocator(rehearsal.settings, rehearsal.controller.tables, choose)
    for number in range(6):
        submit(rehearsal, f"job-{number}")
    rehearsal.run()
    assert set(rehearsal.ended().values()) == {"finished"}
    assert len(asked) == 6
    assert {one.strategy for one in rehearsal.store.everything()[1]} == {"policy"}
    said = client.get("/metrics").text
    fallen_back = [line for line in said.splitlines() if line.startswith("loadmaster_fallback_decisions_total{")]
    assert any('problem="jobs"' in line and not line.endswith(" 0.0") for line in fallen_back) != live
