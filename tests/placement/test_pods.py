"""Migrations through the service: an environment's own decisions, asked over HTTP."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from placement.decision_log import FILE_NAME
from placement.ranking import feature_hash
from sched_env import heuristics, problems
from sched_env.observation import Observation
from sched_env.pods.env import DeployEnv
from wire import sample_bundle
from wire.contracts.bundle import Verdict


@pytest.fixture(scope="module")
def decisions() -> list[tuple[dict[str, Any], dict[str, float], int, Observation]]:
    """Raw fields of some decisions, the pod's present node, and what the kernels made of it."""
    env, rng, found = DeployEnv(6, foresight=True), np.random.default_rng(0), []
    env.reset(seed=1)
    for _ in range(12):
        seen = env.many.observe()
        observed = Observation(seen["candidates"][0], seen["request"][0], seen["mask"][0])
        found.append((*env.raw_fields(), env.offered[1], observed))
        env.step(rng.choice(np.flatnonzero(env.action_masks())))
    return found


def body(candidates: dict[str, Any], request: dict[str, float]) -> dict[str, Any]:
    count = len(candidates["here"])
    states = [{name: float(column[n]) for name, column in candidates.items()} for n in range(count)]
    return {
        "problem": "pods",
        "requests": [{"id": "pod", "fields": request}],
        "candidates": [{"name": f"n{n}", "state": state} for n, state in enumerate(states)],
        "top_k": count,
    }


def test_without_a_policy_pods_go_where_the_highest_use_is_lowest(client: Any, decisions: Any) -> None:
    for candidates, request, _, observed in decisions:
        answer = client.post("/v1/place", json=body(candidates, request))
        assert answer.status_code == 200, answer.text
        said = answer.json()
        assert said["defaulted_features"] == 0
        placement = said["placements"][0]
        assert placement["fallback"]
        assert "hottest_to_coolest answered" in placement["reason"]
        scores = heuristics.score("pods", "hottest_to_coolest", candidates, request, observed.mask)
        assert placement["ranked"][0]["name"] == f"n{scores.argmax()}"
        assert placement["feasible"] == observed.mask.sum()


def test_a_pod_without_a_node_goes_to_the_coolest(client: Any) -> None:
    nodes = [{"name": "a", "state": {"cpu_max": 9.0}}, {"name": "b", "state": {"cpu_max": 4.0}}]
    sent = {"problem": "pods", "requests": [{"id": "p", "fields": {"mem": 2.0}}], "candidates": nodes}
    assert client.post("/v1/place", json=sent).json()["placements"][0]["ranked"][0]["name"] == "b"


def test_when_no_node_can_take_it_memory_is_named(client: Any) -> None:
    nodes = [{"name": "a", "state": {"mem_deployed": 9.0, "cpu_shares": 99.0}}]
    sent = {"problem": "pods", "requests": [{"id": "p", "fields": {"mem": 20.0}}], "candidates": nodes}
    reason = client.post("/v1/place", json=sent).json()["placements"][0]["reason"]
    assert reason == "no candidate is feasible: 1 too little mem"


def test_a_pushed_policy_sees_the_very_bits_it_saw_in_training(
    settings: Any, workshop: Any, kit: Any, decisions: Any
) -> None:
    files = workshop.sign(
        sample_bundle.build(problems.spec("pods"), seed=3, hidden=8, gate=Verdict("pass", "a sample"))
    )
    with kit.running(settings) as client:
        answer = kit.push(client, files, counter=1, problem="pods")
        assert answer.status_code == 200, answer.text
        for candidates, request, _, observed in decisions:
            placement = client.post("/v1/place", json=body(candidates, request)).json()["placements"][0]
            assert not placement["fallback"]
            assert {entry["name"] for entry in placement["ranked"]} == {f"n{n}" for n in np.flatnonzero(observed.mask)}
    logged = [json.loads(line)["features"] for line in (settings.log_dir / FILE_NAME).read_text().splitlines()]
    assert logged == [feature_hash(observed) for *_, observed in decisions]
