"""A body is read by the decoder of its problem or by the general one: which of both must not be seen."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from placement import asked
from placement.errors import PlaceRefusedError
from placement.settings import Settings
from placement.state import from_candidates
from sched_env import problems

SETTINGS = Settings()


def drawn(rng: random.Random) -> bytes:
    """Draw a body; one in two has something that is refused."""
    problem = rng.choice(problems.names())
    fields = list(problems.get(problem).state_fields)
    usual = fields if rng.random() < 0.3 else rng.sample(fields, rng.randint(0, len(fields)))
    strange: list[Any] = [-1, 1e400, True, "x", None] if rng.random() < 0.1 else []
    candidates = []
    for index in range(rng.randint(1, 6)):
        said = usual if rng.random() < 0.8 else rng.sample(fields, rng.randint(0, len(fields)))
        state = {name: rng.choice([0, 1, 0.5, 10 * rng.random(), *strange]) for name in said}
        state |= {"warm:f": 2} if rng.random() < 0.05 else {}
        state |= {"oops": 1} if rng.random() < 0.02 else {}
        candidates.append({"name": f"n{index if rng.random() < 0.98 else 0}", "state": state})
    request: dict[str, Any] = {"id": "a", "fields": {}} | ({"function": "f"} if rng.random() < 0.3 else {})
    body: dict[str, Any] = {"problem": problem, "requests": [request], "candidates": candidates}
    for change in ({"cluster": "x"}, {"candidates": None}, {"extra": 1}, {"top_k": 0}, {"problem": "nope"}):
        body |= change if rng.random() < 0.05 else {}
    items = list(body.items())
    rng.shuffle(items)
    text = json.dumps(dict(items)).replace("Infinity", "1e999").encode()
    return text[:-3] if rng.random() < 0.02 else text


def generally(body: bytes) -> asked.Asked:
    call = asked.decode(body)
    if call.candidates is None:
        return asked.Asked(call, None)
    asked.check_work(call, len(call.candidates), SETTINGS)
    functions = {entry.function for entry in call.requests if entry.function is not None}
    state = from_candidates(call.problem, call.candidates, functions)
    return asked.Asked(msgspec.structs.replace(call, candidates=None), state)


def said(read: Any, body: bytes) -> tuple[Any, ...]:
    try:
        found = read(body)
    except PlaceRefusedError as error:
        return error.status, str(error)
    state, call = found.state, (type(found.call), msgspec.json.encode(found.call))
    if state is None:
        return call
    columns = {name: column.tobytes() for name, column in state.columns.items()}
    warm = {name: column.tobytes() for name, column in state.warm.items()}
    return *call, state.problem, state.names, columns, warm, state.defaulted


@pytest.mark.parametrize("seed", range(4))
def test_both_ways_say_the_same_to_the_bit(seed: int) -> None:
    rng = random.Random(seed)
    answers = 0
    for _ in range(200):
        body = drawn(rng)
        expected = said(generally, body)
        assert said(lambda sent: asked.read(sent, SETTINGS), body) == expected, body
        answers += not isinstance(expected[0], int)
    assert 50 < answers < 150, "some are answered, some refused"


def test_a_guess_that_is_no_problem_any_more_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "_latest", "gone")
    body = json.dumps(
        {"problem": "vm", "requests": [{"id": "a", "fields": {}}], "candidates": [{"name": "n", "state": {}}]}
    )
    assert asked.read(body.encode(), SETTINGS).call.problem == "vm"
    assert asked._latest == "vm"
