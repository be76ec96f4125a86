"""The strategy ``policy``: the live ``jobs`` policy chooses card or pair, and a heuristic where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from placement.cpn.allocation import Allocator, Moment, Round
from placement.cpn.records import Job
from placement.cpn.service import _by_policy, pairs_of
from placement.cpn.topology import Network
from sched_env import problems
from sched_env.jobs.state import WAITING
from sched_env.vector import make_vec
from tests.placement.cpn.played import Rehearsal
from tests.placement.cpn.test_controller import COUNTS, enter, queue
from wire import bundle, sample_bundle
from wire.contracts.bundle import Verdict
from wire.contracts.feature_spec import FeatureSpec
from wire.policy import GraphPolicy

BOTH = problems.spoken("jobs")
SHOWN: dict[str, Any] = {"queue_order": "shortest", "reservation": "big", "shown_jobs": 6}


@pytest.mark.parametrize("spec", [*BOTH, None], ids=["pairs", "cards", "nobody"])
def test_the_live_policy_chooses_and_a_heuristic_answers_where_there_is_none(
    rehearse: Callable[..., Rehearsal],
    submit: Callable[..., Job],
    client: TestClient,
    workshop: Any,
    kit: Any,
    spec: FeatureSpec | None,
) -> None:
    if spec is not None:
        files = sample_bundle.build(spec, seed=1, hidden=8, gate=Verdict("pass", "a sample"))
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
    rounds._allocator = Allocator(
        rehearsal.settings, rehearsal.controller.tables, choose, lambda: pairs_of(service.live.get("jobs").policy)
    )
    for number in range(6):
        submit(rehearsal, f"job-{number}")
    rehearsal.run()
    assert set(rehearsal.ended().values()) == {"finished"}
    assert len(asked) >= 6 if spec is BOTH[0] else len(asked) == 6  # who chooses pairs may wait, and is asked again
    assert {one.strategy for one in rehearsal.store.everything()[1]} == {"policy"}
    said = client.get("/metrics").text
    fallen_back = [line for line in said.splitlines() if line.startswith("loadmaster_fallback_decisions_total{")]
    assert any('problem="jobs"' in line and not line.endswith(" 0.0") for line in fallen_back) == (spec is None)


def placements(policy: GraphPolicy, workload: Any) -> list[tuple[float, str, str]]:
    """Play a queue in the simulator; when each job went to which card, in order of the decisions."""
    env = make_vec("jobs/testbed", 1, 0, workload, choice="pair", episode_jobs=len(workload.jobs), **SHOWN)
    env.reset(options={"starts": [0], "park": True})
    found, b = [], env.buffers
    while b.active[0]:
        action = int(policy(b.candidates, b.request, b.mask)[0].argmax())
        row, card = env.choice(0, action)
        if card >= 0:
            found.append((float(b.time_s[0]), f"job-{row:04d}", workload.topology.cards[card]))
        env.step([action])
    return found


@pytest.mark.parametrize("seed", [2, 5])
def test_pairs_are_chosen_live_as_in_the_simulator_decision_by_decision(
    rehearse: Callable[..., Rehearsal], client: TestClient, workshop: Any, kit: Any, seed: int
) -> None:
    files = sample_bundle.build(
        BOTH[0],
        seed=seed,
        hidden=8,
        gate=Verdict("pass", "a sample"),
        params={"workload": {"overrides": {**SHOWN, "choice": "pair"}}},
    )
    assert kit.push(client, workshop.sign(files), counter=1, problem="jobs").status_code == 200
    rehearsal = rehearse(COUNTS, strategy="policy")
    workload = queue(24, data_gb=8.0)._replace(topology=rehearsal.controller.network.table)
    checked = bundle.check(files)
    expected = placements(GraphPolicy(checked.policy, "sample", checked), workload)
    service = client.app.state.service  # type: ignore[attr-defined]
    by_policy, found, began = _by_policy(service.decider), [], rehearsal.world.now
    slots: set[int] = set()

    def choose(env: Any, job: Job, names: Any) -> int:
        waiting = int(env.state.tally[0, WAITING])
        assert len(names) == len(env.buffers.mask[0]) == min(waiting, SHOWN["shown_jobs"]) * len(env.topology) + 1
        assert (names[0], names[-1]) == (f"{job.id} on {env.topology.cards[0]}", "wait")
        slots.add(min(waiting, SHOWN["shown_jobs"]))
        seen, mask = env.rebuild(0), env.buffers.mask[0]
        assert seen.candidates.tobytes() == env.buffers.candidates[0].tobytes()
        assert seen.request.tobytes() == env.buffers.request[0].tobytes()
        assert seen.mask.tobytes() == mask.tobytes()
        return by_policy(env, job, names)

    class Watched(Allocator):
        def round(self, network: Network, moment: Moment) -> Round:
            decided = super().round(network, moment)
            found.extend((moment.now - began, one.job.name, one.card) for one in decided.decisions)
            return decided

    rehearsal.controller.rounds._allocator = Watched(
        rehearsal.settings, rehearsal.controller.tables, choose, lambda: pairs_of(service.live.get("jobs").policy)
    )
    enter(rehearsal, workload)
    rehearsal.run()
    assert set(rehearsal.ended().values()) == {"finished"}
    assert slots == set(range(1, SHOWN["shown_jobs"] + 1)), "as many jobs are asked about as wait"
    assert [one[1:] for one in found] == [one[1:] for one in expected]
    assert [one[0] for one in found] == pytest.approx([one[0] for one in expected], rel=1e-3, abs=1.0)
