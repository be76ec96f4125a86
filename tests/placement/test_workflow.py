"""Workflows through the service: a policy made of terms is exported, pushed and places a workflow task by task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.policies.evolution import of_terms
from pipeline.policies.onnx_graph import to_onnx
from sched_env import heuristics, problems
from sched_env.vector import make_vec

PROBLEM = problems.get("workflow")
THRIFTY = [{"late": 1.0, "slack": -1.0}, {"cost": 1.0}, {"late": 1.0}]
WEIGHTS = np.array([-0.9, -0.1, -1e-6])


def body(candidates: dict[str, Any], request: dict[str, float]) -> dict[str, Any]:
    count = len(candidates["price"])
    states = [{name: float(column[n]) for name, column in candidates.items()} for n in range(count)]
    return {
        "problem": "workflow",
        "requests": [{"id": "task", "fields": request}],
        "candidates": [{"name": f"n{n}", "state": state} for n, state in enumerate(states)],
        "top_k": count,
    }


@pytest.mark.parametrize("spec", [PROBLEM.spec, PROBLEM.earlier.spec], ids=["present", "before"])
def test_a_workflow_is_placed_by_the_policy_that_was_pushed(client: Any, workshop: Any, kit: Any, spec: Any) -> None:
    terms = THRIFTY if spec is PROBLEM.spec else [{"path": 1.0, "1": -1.0}, {"cost": 1.0}, {"finish": 1.0}]
    files = workshop.around(spec, to_onnx(of_terms(spec, terms, WEIGHTS, 8), spec))
    answer = kit.push(client, files, counter=1, problem="workflow")
    assert answer.status_code == 200, answer.text

    env = make_vec("workflow/dag", 1, nodes=6, tasks=20, workflows=4)
    env.reset(options={"starts": [1], "park": True})
    chosen = 0
    while env.buffers.active[0]:
        state, request = env.raw_fields(0)
        said = client.post("/v1/place", json=body(state, request)).json()
        assert said["digest"] == kit.digest_of(files)
        assert said["defaulted_features"] == 0
        placement = said["placements"][0]
        assert not placement["fallback"]
        node = int(placement["ranked"][0]["name"][1:])
        scores = heuristics.score("workflow", "thrifty", state, request, env.buffers.mask[0])
        # float32 in the graph, float64 in the rule: the same node, or one as good.
        assert scores[node] >= scores.max() - 1e-5
        chosen += node == scores.argmax()
        env.step(np.array([node]))
    assert chosen >= env.buffers.metrics[0, env.METRICS.index("placed")] - 1
