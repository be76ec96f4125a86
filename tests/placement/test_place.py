"""``POST /v1/place``: what is answered, and what is refused with a reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from placement import trial
from sched_env import heuristics, problems
from wire import graph, sample_bundle
from wire.contracts.bundle import SCORES_OUTPUT
from wire.contracts.feature_spec import ProblemName
from wire.contracts.place import PlaceResponse

SPEC = problems.spec("functions")


def decode(answer: Any) -> PlaceResponse:
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=PlaceResponse)


def metric(client: Any, line: str) -> float:
    found = [text for text in client.get("/metrics").text.splitlines() if text.startswith(line + " ")]
    return float(found[0].split()[-1]) if found else 0.0


def columns(sent: dict[str, Any]) -> dict[str, Any]:
    names = sent["candidates"][0]["state"]
    return {name: np.array([node["state"][name] for node in sent["candidates"]]) for name in names}


def test_without_a_policy_the_heuristic_answers_and_is_counted(client: Any, kit: Any) -> None:
    sent = kit.body(8, requests=2)
    said = decode(kit.place(client, sent))
    assert said.digest is None
    for placement in said.placements:
        assert placement.fallback
        assert "no policy is live" in placement.reason
        fields = sent["requests"][0]["fields"]
        functions = problems.get("functions")
        mask = functions.build(columns(sent), fields).mask
        scores = heuristics.score("functions", functions.fallback, columns(sent), fields, mask)
        assert placement.ranked[0].name == f"n{scores.argmax()}"
    assert metric(client, 'loadmaster_fallback_decisions_total{problem="functions",reason="no_policy"}') == 2
    assert metric(client, 'loadmaster_decisions_total{problem="functions"}') == 2


def test_answers_are_ranked_best_first_and_cut_to_top_k(live_client: Any, kit: Any) -> None:
    for top_k in (1, 3, 1000):
        placement = decode(kit.place(live_client, kit.body(20) | {"top_k": top_k})).placements[0]
        assert placement.feasible == 20
        assert len(placement.ranked) == min(top_k, 20)
        scores = [entry.score for entry in placement.ranked]
        assert scores == sorted(scores, reverse=True)
        assert "highest score of 20 feasible candidates" in placement.reason


def test_the_order_of_candidates_does_not_change_the_choice(live_client: Any, kit: Any) -> None:
    sent = kit.body(12)
    for index, node in enumerate(sent["candidates"]):
        node["state"]["cpu_deployed"] = index * 0.25
    before = decode(kit.place(live_client, sent)).placements[0].ranked
    sent["candidates"].reverse()
    after = decode(kit.place(live_client, sent)).placements[0].ranked
    assert [entry.name for entry in before] == [entry.name for entry in after]


def test_infeasible_candidates_are_never_ranked(live_client: Any, kit: Any) -> None:
    sent = kit.body(8, cpu=2.5)  # nodes have 4 cores, of which index % 4 are taken
    placement = decode(kit.place(live_client, sent)).placements[0]
    assert {entry.name for entry in placement.ranked} == {"n0", "n1", "n4", "n5"}
    assert placement.feasible == 4


def test_when_nothing_fits_the_answer_says_what_ruled_the_candidates_out(live_client: Any, kit: Any) -> None:
    sent = kit.body(4, cpu=3.5, mem=99.0)
    sent["candidates"][0]["state"]["active"] = 0.0
    placement = decode(kit.place(live_client, sent)).placements[0]
    assert placement.ranked == []
    assert placement.feasible == 0
    assert not placement.fallback
    assert "1 not active, 3 too little cpu, 4 too little mem" in placement.reason
    assert metric(live_client, 'loadmaster_infeasible_requests_total{problem="functions"}') == 1


def test_missing_values_take_their_default_and_are_counted(live_client: Any, kit: Any) -> None:
    full = {name: default for name, (_, default) in problems.get("functions").state_fields.items()}
    asked = {name: default for name, (_, default) in problems.get("functions").request_fields.items()}
    complete = {
        "problem": "functions",
        "requests": [{"id": "r", "fields": asked}],
        "candidates": [{"name": "a", "state": full}, {"name": "b", "state": full | {"price": 2.0}}],
    }
    said = decode(kit.place(live_client, complete))
    assert said.defaulted_features == 0
    sparse = msgspec.json.decode(msgspec.json.encode(complete))
    del sparse["requests"][0]["fields"]["rart"]
    for name in ("warm", "active"):
        del sparse["candidates"][0]["state"][name]
    del sparse["candidates"][1]["state"]["warm"]
    less = decode(kit.place(live_client, sparse))
    assert less.defaulted_features == 4
    assert less.placements[0].ranked == said.placements[0].ranked
    assert metric(live_client, 'loadmaster_defaulted_features_total{problem="functions"}') == 4


def test_an_empty_state_is_all_defaults(live_client: Any, kit: Any) -> None:
    sent = {"problem": "functions", "requests": [{"id": "r", "fields": {}}], "candidates": [{"name": "a", "state": {}}]}
    said = decode(kit.place(live_client, sent))
    fields = problems.get("functions").state_fields, problems.get("functions").request_fields
    assert said.defaulted_features == sum(map(len, fields))
    assert said.placements[0].ranked[0].name == "a"


def test_warm_containers_are_those_of_the_requests_own_function(live_client: Any, kit: Any) -> None:
    def ask(function: str | None, *states: dict[str, float]) -> Any:
        sent = kit.body(2)
        for node, state in zip(sent["candidates"], states, strict=True):
            node["state"] |= state
        sent["requests"][0]["function"] = function
        return decode(kit.place(live_client, sent)).placements[0].ranked

    plain = ask(None, {"warm": 3.0}, {"warm": 0.0})
    assert ask("f", {"warm:f": 3.0, "warm:g": 1.0}, {"warm:g": 7.0}) == plain
    assert ask("f", {"warm": 9.0, "warm:f": 3.0}, {"warm:f": 0.0}) == plain
    assert ask("h", {"warm:f": 3.0}, {}) == ask(None, {}, {})


def test_one_call_equals_many_and_large_calls_are_cut_into_batches(settings: Any, workshop: Any, kit: Any) -> None:
    with kit.running(msgspec.structs.replace(settings, batch_rows=64, max_pairs=10_000)) as client:
        assert kit.push(client, workshop.sample(1), counter=1).status_code == 200
        sent = kit.body(30, requests=7)
        for index, request in enumerate(sent["requests"]):
            request["fields"]["cpu"] = 0.25 * (index + 1)
        together = decode(kit.place(client, sent)).placements
        assert [placement.id for placement in together] == [f"r{index}" for index in range(7)]
        for request, placement in zip(sent["requests"], together, strict=True):
            alone = decode(kit.place(client, sent | {"requests": [request]})).placements[0]
            assert [entry.name for entry in alone.ranked] == [entry.name for entry in placement.ranked]
            np.testing.assert_allclose(
                [entry.score for entry in alone.ranked], [entry.score for entry in placement.ranked], rtol=1e-5
            )
        refused = kit.place(client, kit.body(200, requests=51))
        assert refused.status_code == 413
        assert "split the call" in refused.json()["error"]


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"problem": "ships"}, 422, "problem"),
        ({"problem": "pods", "requests": [{"id": "x", "fields": {"nonsense": 1}}]}, 422, ""),
        ({"requests": []}, 422, "requests"),
        ({"requests": [{"id": "", "fields": {}}]}, 422, "requests"),
        ({"requests": [{"id": "r", "fields": {"cpus": 1}}]}, 422, "unknown fields ['cpus']"),
        ({"requests": [{"id": "r", "fields": {"cpu": -1}}]}, 422, "cpu = -1"),
        ({"requests": [{"id": "r", "fields": {"cpu": "many"}}]}, 422, "fields"),
        ({"requests": [{"id": "r", "fields": {"response_s": 0}}]}, 422, "not finite"),
        ({"candidates": []}, 422, "candidates"),
        ({"candidates": None}, 422, "neither"),
        ({"cluster": "east"}, 422, "both"),
        ({"candidates": None, "cluster": "east"}, 422, "is not watched"),
        ({"candidates": [{"name": "a", "state": {}}, {"name": "a", "state": {}}]}, 422, "'a' is listed twice"),
        ({"candidates": [{"name": "a", "state": {"cpu": 1}}]}, 422, "state fields ['cpu'] are unknown"),
        ({"candidates": [{"name": "a", "state": {"price": -1}}]}, 422, "price = -1"),
        ({"candidates": [{"name": "a", "state": {"warm:f": -1}}]}, 422, "warm:f = -1"),
        ({"candidates": [{"name": "a", "state": {"cpu_capacity": 0}}]}, 422, "'a'"),
        ({"candidates": [{"name": "a", "state": {"price": None}}]}, 422, "state"),
        ({"top_k": 0}, 422, "top_k"),
        ({"surprise": 1}, 422, "surprise"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(
    shared_live: Any, kit: Any, change: dict[str, Any], status: int, said: str
) -> None:
    sent = kit.body(3) | change
    for request in sent["requests"]:
        request.setdefault("function", "f")
    answer = shared_live.post("/v1/place", json=sent)
    assert answer.status_code == status
    assert said in answer.json()["error"]


@pytest.mark.parametrize("state", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(shared_live: Any, state: str) -> None:
    node = '[{"name": "a", "state": {"price": %s}}]' % state  # noqa: UP031 - braces
    text = '{"problem": "functions", "requests": [{"id": "r", "fields": {}}], "candidates": %s}'
    answer = shared_live.post("/v1/place", content=text % node)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"problem": "functions"}', b'{"problem": "\xff"}', b"null"]
)
def test_bodies_that_are_no_request_are_refused(shared_live: Any, content: bytes) -> None:
    answer = shared_live.post("/v1/place", content=content)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"].startswith("body")


NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.integers(-3, 9), st.sampled_from([0, 1e308, 5e-324])
)


def _numbers(names: Iterable[str]) -> st.SearchStrategy[dict[str, float]]:
    return st.dictionaries(st.sampled_from(sorted(names)), NUMBERS)


def _calls(
    problem: ProblemName,
) -> st.SearchStrategy[tuple[ProblemName, list[dict[str, float]], list[dict[str, float]]]]:
    state = {*problems.get(problem).state_fields} | ({"warm:f"} if problem == "functions" else set())
    return st.tuples(
        st.just(problem),
        st.lists(_numbers(state), min_size=1, max_size=5),
        st.lists(_numbers(problems.get(problem).request_fields), min_size=1, max_size=3),
    )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=st.sampled_from(problems.names()).flatmap(_calls))
@example(call=("vm", [{"cpu_capacity": 0.0}], [{}]))  # the heuristic divides by it
def test_whatever_the_numbers_it_is_answered_or_refused(shared_live: Any, call: Any) -> None:
    problem, states, fields = call
    sent = {
        "problem": problem,
        "requests": [{"id": f"r{index}", "fields": asked, "function": "f"} for index, asked in enumerate(fields)],
        "candidates": [{"name": f"n{index}", "state": state} for index, state in enumerate(states)],
    }
    answer = shared_live.post("/v1/place", json=sent)
    if answer.status_code != 422:
        for placement in decode(answer).placements:
            assert len(placement.ranked) == min(placement.feasible, 5)
            assert np.isfinite([entry.score for entry in placement.ranked]).all()


def test_a_body_above_the_cap_is_refused(settings: Any, kit: Any) -> None:
    with kit.running(msgspec.structs.replace(settings, max_body_mib=1)) as client:
        assert client.post("/v1/place", content=b" " * (2 << 20)).status_code == 413


def _nan_above(limit: float) -> bytes:
    """A policy that answers NaN when more than ``limit`` cores are asked for: sqrt(limit - cpu)."""
    model = sample_bundle.graph(SPEC, seed=0, hidden=8)
    graph = model.graph
    graph.initializer.extend(
        [
            numpy_helper.from_array(np.array(limit, np.float32), "limit"),
            numpy_helper.from_array(np.array([0], np.int64), "first_index"),
        ]
    )
    last = graph.node[-1]
    assert last.op_type == "Where"
    assert last.output[0] == SCORES_OUTPUT
    extra = [
        helper.make_node("Gather", ["request", "first_index"], ["cores"], axis=1),
        helper.make_node("Sub", ["limit", "cores"], ["room"]),
        helper.make_node("Sqrt", ["room"], ["root"]),
        helper.make_node("Add", ["score", "root"], ["spoiled"]),
    ]
    nodes = [*graph.node[:-1], *extra, last]
    last.input[1] = "spoiled"
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(model)
    policy: bytes = model.SerializeToString()
    return policy


@pytest.fixture
def no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a policy in whose fault the trial would have met: what the trial misses is still held at every decision."""
    monkeypatch.setattr(trial, "run", lambda *_: None)


@pytest.mark.usefixtures("no_trial")
def test_a_policy_that_answers_nan_is_replaced_for_that_request_alone(client: Any, workshop: Any, kit: Any) -> None:
    files = workshop.around(SPEC, _nan_above(2.0))
    assert kit.push(client, files, counter=1).status_code == 200
    sent = kit.body(4, requests=3)
    sent["requests"][1]["fields"]["cpu"] = 3.0
    said = decode(kit.place(client, sent))
    assert [placement.fallback for placement in said.placements] == [False, True, False]
    assert "NaN" in said.placements[1].reason
    assert said.placements[1].ranked
    assert said.digest == kit.digest_of(files)
    assert metric(client, 'loadmaster_fallback_decisions_total{problem="functions",reason="nan"}') == 1


@pytest.mark.usefixtures("no_trial")
def test_a_policy_over_its_deadline_is_replaced_and_does_not_block_the_next(
    settings: Any, workshop: Any, kit: Any
) -> None:
    slow = sample_bundle.graph(SPEC, seed=0, hidden=768).SerializeToString()
    with kit.running(msgspec.structs.replace(settings, deadline_ms=1.0)) as client:
        assert kit.push(client, workshop.around(SPEC, slow), counter=1).status_code == 200
        for _ in range(5):
            said = decode(kit.place(client, kit.body(5000)))
            assert said.placements[0].fallback
            assert "no scores within 1 ms" in said.placements[0].reason
            assert client.get("/healthz").status_code == 200
        assert metric(client, 'loadmaster_fallback_decisions_total{problem="functions",reason="deadline"}') == 5


def test_a_choice_of_an_infeasible_candidate_is_vetoed_and_counted(client: Any, workshop: Any, kit: Any) -> None:
    model = sample_bundle.graph(SPEC, seed=0, hidden=8)
    golden = sample_bundle.golden_vectors(SPEC, model.SerializeToString())
    # Masks when asked for little, as its golden vectors do; scores the infeasible highest when asked for more.
    constants = {"big": np.array(1.5, np.float32), "zero": np.array([0], np.int64), "prize": np.array(50, np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    model.graph.node[-1].output[0] = "honest"
    model.graph.node.extend(
        [
            helper.make_node("Gather", ["request", "zero"], ["cores"], axis=1),
            helper.make_node("Greater", ["cores", "big"], ["greedy"]),
            helper.make_node("Where", ["mask", "honest", "prize"], ["dishonest"]),
            helper.make_node("Where", ["greedy", "dishonest", "honest"], [SCORES_OUTPUT]),
        ]
    )
    files = workshop.around(SPEC, model.SerializeToString(), golden=golden)
    assert kit.push(client, files, counter=1).status_code == 200
    placement = decode(kit.place(client, kit.body(8, cpu=2.5))).placements[0]
    assert {entry.name for entry in placement.ranked} == {"n0", "n1", "n4", "n5"}
    assert not placement.fallback
    assert metric(client, 'loadmaster_vetoes_total{problem="functions"}') == 1


def test_an_explained_answer_names_a_change_that_really_turns_it(live_client: Any, kit: Any) -> None:
    sent = kit.body(6) | {"explain": True}
    said = decode(kit.place(live_client, sent)).placements[0]
    why = said.explanation
    assert why is not None
    assert [why.winner.name, why.runner_up.name] == [entry.name for entry in said.ranked[:2]]
    assert [why.winner.score, why.runner_up.score] == [entry.score for entry in said.ranked[:2]]
    observed = problems.get("functions").build(columns(sent), sent["requests"][0]["fields"])
    names = [feature.name for feature in SPEC.candidate]
    for explained in (why.winner, why.runner_up):
        row = [candidate["name"] for candidate in sent["candidates"]].index(explained.name)
        assert explained.features == pytest.approx(dict(zip(names, observed.candidates[row], strict=True)))
    # The policy itself is asked again with the change made.
    policy = live_client.app.state.service.live.get("functions").policy
    assert policy is not None
    rows = {candidate["name"]: row for row, candidate in enumerate(sent["candidates"])}
    winner, other = rows[why.winner.name], rows[why.runner_up.name]
    for change in why.runner_up_wins_if:
        changed = observed.candidates.copy()
        changed[other, names.index(change.feature)] = change.instead
        scores = graph.scores(policy.session, changed[None], observed.request[None], observed.mask[None])[0]
        assert scores[other] > scores[winner]
    assert decode(kit.place(live_client, kit.body(6))).placements[0].explanation is None


def test_a_heuristic_explains_with_features_alone_and_one_candidate_needs_no_explanation(client: Any, kit: Any) -> None:
    why = decode(kit.place(client, kit.body(4) | {"explain": True})).placements[0].explanation
    assert why is not None
    assert why.runner_up_wins_if == []
    assert decode(kit.place(client, kit.body(1) | {"explain": True})).placements[0].explanation is None


def test_more_than_can_be_explained_at_once_is_refused(client: Any, kit: Any) -> None:
    answer = kit.place(client, kit.body(300, requests=100) | {"explain": True})
    assert (answer.status_code, "to explain" in answer.json()["error"]) == (413, True)
