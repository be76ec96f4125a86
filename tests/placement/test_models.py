"""``POST /v1/models/{problem}/{name}``: rows for a model of the live bundle, and every way of asking wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from sched_env import problems
from wire.contracts.models import MOST_ROWS, ModelResponse

SPEC = problems.spec("functions")
PATH = "/v1/models/functions/runtime"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, workshop: Any, kit: Any, runtime_model: Any) -> Iterator[Any]:
    """A service whose live bundle carries a runtime model of three columns."""
    files = workshop.around(SPEC, workshop.sample(1)["policy.onnx"], models={"runtime": runtime_model})
    with kit.running(kit.settings_in(tmp_path_factory.mktemp("models"), workshop)) as started:
        assert kit.push(started, files, counter=1).status_code == 200
        yield started


def ask(client: Any, rows: Any, path: str = PATH) -> Any:
    return client.post(path, json={"inputs": {"rows": rows}})


def refused(answer: Any, status: int, said: str) -> None:
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]


def test_the_answer_has_the_bits_of_the_live_bundles_model(live: Any) -> None:
    rows = np.random.default_rng(0).exponential(50.0, (700, 3)).astype(np.float32)
    answer = ask(live, rows.tolist())
    assert answer.status_code == 200, answer.text
    told = msgspec.json.decode(answer.content, type=ModelResponse)
    policy = live.app.state.service.live.get("functions").policy
    assert (told.digest, told.unit) == (policy.digest, "seconds")
    expected = policy.models["runtime"]({"rows": rows})
    np.testing.assert_array_equal(np.array(told.output, np.float32), expected.reshape(700, -1), strict=True)


def test_a_model_that_the_live_bundle_has_not_is_named_with_those_that_it_has(live: Any) -> None:
    refused(
        ask(live, [[1, 1, 1]], "/v1/models/functions/lifetime"), 404, "no model 'lifetime'; expected one of runtime"
    )
    refused(ask(live, [[1, 1, 1]], "/v1/models/vm/lifetime"), 404, "no policy is live for vm")
    refused(ask(live, [[1, 1, 1]], "/v1/models/ships/lifetime"), 404, "problem 'ships' is unknown")


def test_rows_of_another_width_are_refused_with_the_columns(live: Any) -> None:
    refused(ask(live, [[1, 1, 1], [1, 1]]), 400, "row 1 of input 'rows' has 2 numbers; expected 3: gib (GiB), epochs")


def test_inputs_of_another_name_are_refused(live: Any) -> None:
    refused(live.post(PATH, json={"inputs": {"lines": [[1, 1, 1]]}}), 400, "inputs are ['lines']; expected exactly")


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [("NaN", 400, "finite numbers"), ("1e39", 400, "gib = 1e+39; expected a finite"), ("1e999", 422, "out of range")],
)
def test_numbers_that_are_not_finite_are_refused(live: Any, number: str, status: int, said: str) -> None:
    refused(live.post(PATH, content=f'{{"inputs": {{"rows": [[{number}, 1, 1]]}}}}'), status, said)


def test_a_call_has_at_most_so_many_rows(live: Any) -> None:
    assert ask(live, [[1, 1, 1]] * MOST_ROWS).status_code == 200
    refused(ask(live, [[1, 1, 1]] * (MOST_ROWS + 1)), 413, f"{MOST_ROWS + 1} rows; expected at most {MOST_ROWS}")


def test_a_body_that_is_no_request_is_refused(live: Any) -> None:
    refused(live.post(PATH, json={"inputs": {"rows": []}}), 422, "a ModelRequest")
    refused(live.post(PATH, content=b"rows"), 400, "JSON in UTF-8")
