"""Shadow and canary: proved like a push, tried beside what is live, left when they do worse."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from placement import canary as command
from placement.arms import Arm, takes
from placement.guard import Guard
from placement.live import Live
from placement.outcomes import Outcomes
from placement.store import Canary, Pointer
from sched_env import problems
from wire.contracts.bundle import MASKED_SCORE
from wire.contracts.place import Placement

SPEC = problems.spec("functions")
AUTHORISED = {"Authorization": "Bearer a-token-for-tests-of-32-characters"}


def stage(client: Any, workshop: Any, kit: Any, seed: int, where: str, **headers: str) -> httpx.Response:
    live = kit.digest_of(workshop.sample(1))
    files = workshop.promoted(workshop.sample(seed), counter=2, live=live)
    sent = AUTHORISED | {"If-Match": f'"{live}"'} | headers
    answer: httpx.Response = client.put(f"/v1/policies/functions/{where}", content=kit.tar(files), headers=sent)
    return answer


def canary(client: Any, workshop: Any, kit: Any, share: str = "0.5") -> None:
    answer = stage(client, workshop, kit, 2, "canary", **{"X-Loadmaster-Share": share})
    assert answer.status_code == 200, answer.text


def answers(client: Any, kit: Any, count: int) -> dict[str, list[str]]:
    """Ask with many names; returns digest -> names that it answered."""
    found: dict[str, list[str]] = {}
    for number in range(count):
        sent = kit.body(6)
        sent["requests"][0]["id"] = f"pod-{number}"
        found.setdefault(kit.place(client, sent).json()["digest"], []).append(f"pod-{number}")
    return found


def lines(settings: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (settings.log_dir / "audit.jsonl").read_text().splitlines()]


def test_a_canary_takes_its_share_by_the_hash_of_the_request(live_client: Any, workshop: Any, kit: Any) -> None:
    canary(live_client, workshop, kit, "0.25")
    found = answers(live_client, kit, 80)
    one, two = (kit.digest_of(workshop.sample(seed)) for seed in (1, 2))
    assert found[two] == [f"pod-{n}" for n in range(80) if takes(f"pod-{n}", 0.25)]
    assert set(found) == {one, two}
    assert 5 < len(found[two]) < 40
    shown = live_client.get("/v1/policies").json()["policies"]["functions"]
    assert (shown["digest"], shown["counter"]) == (one, 1)
    assert (shown["canary"]["digest"], shown["canary"]["share"]) == (two, 0.25)
    assert "loadmaster_tried_policy" in live_client.get("/metrics").text


def test_the_canary_goes_live_with_the_counter_of_its_record(
    live_client: Any, workshop: Any, kit: Any, settings: Any
) -> None:
    canary(live_client, workshop, kit)
    answer = live_client.post("/v1/policies/functions/canary/advance", headers=AUTHORISED)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert (said["digest"], said["counter"], said["canary_digest"]) == (kit.digest_of(workshop.sample(2)), 2, None)
    assert len(answers(live_client, kit, 10)) == 1
    assert live_client.post("/v1/policies/functions/rollback", headers=AUTHORISED).status_code == 200
    assert [line["action"] for line in lines(settings)] == ["push", "canary", "advance", "rollback"]


def test_a_restart_keeps_canary_and_shadow(settings: Any, workshop: Any, kit: Any) -> None:
    with kit.running(settings) as client:
        assert kit.push(client, workshop.sample(1), counter=1).status_code == 200
        canary(client, workshop, kit)
        assert stage(client, workshop, kit, 3, "shadow").status_code == 200
    with kit.running(settings) as client:
        shown = client.get("/v1/policies").json()["policies"]["functions"]
        assert shown["canary"]["digest"] == kit.digest_of(workshop.sample(2))
        assert shown["shadow_digest"] == kit.digest_of(workshop.sample(3))
        assert len(answers(client, kit, 20)) == 2
        for what in ("canary", "shadow"):
            assert client.delete(f"/v1/policies/functions/{what}", headers=AUTHORISED).status_code == 200
        assert len(answers(client, kit, 20)) == 1
        again = client.delete("/v1/policies/functions/canary", headers=AUTHORISED)
        assert again.status_code == 412
        assert "has no canary" in again.json()["error"]


@pytest.mark.parametrize("share", ["", "0", "-1", "0.9", "nan", "inf", "x"])
def test_a_share_that_is_none_is_refused(shared_live: Any, workshop: Any, kit: Any, share: str) -> None:
    answer = stage(shared_live, workshop, kit, 2, "canary", **({"X-Loadmaster-Share": share} if share else {}))
    assert answer.status_code == 422, answer.text
    assert "X-Loadmaster-Share" in answer.json()["error"]


def test_without_proof_or_token_nothing_is_tried(shared_live: Any, workshop: Any, kit: Any) -> None:
    live = kit.digest_of(workshop.sample(1))
    for where in ("shadow", "canary"):
        share = {"X-Loadmaster-Share": "0.1", "If-Match": f'"{live}"'}
        bare = kit.tar(workshop.sample(2))
        answer = shared_live.put(f"/v1/policies/functions/{where}", content=bare, headers=AUTHORISED | share)
        assert answer.status_code == 422
        assert "record" in answer.json()["error"]
        assert shared_live.put(f"/v1/policies/functions/{where}", content=bare, headers=share).status_code == 401
        assert shared_live.put(f"/v1/policies/functions/{where}", content=bare, headers=AUTHORISED).status_code in {
            412,
            422,
        }
    assert shared_live.get("/v1/policies").json()["policies"]["functions"]["canary"] is None


def test_a_shadow_scores_beside_and_decides_nothing(live_client: Any, workshop: Any, kit: Any, within: Any) -> None:
    assert stage(live_client, workshop, kit, 2, "shadow").status_code == 200
    assert set(answers(live_client, kit, 12)) == {kit.digest_of(workshop.sample(1))}

    def scored() -> bool:
        text = live_client.get("/metrics").text
        found = [line for line in text.splitlines() if line.startswith("loadmaster_shadow_decisions_total")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found) == 12 and 'outcome="failed"' not in text

    within(scored)
    assert live_client.post("/v1/policies/functions/rollback", headers=AUTHORISED).status_code == 412, "nothing before"


def broken() -> bytes:
    """A policy that answers NaN as soon as a request asks for more than 100 cores, which no golden vector does."""
    cells = {"hundred": np.array([100.0], np.float32), "nan": np.array([np.nan], np.float32)}
    cells["masked"] = np.array([MASKED_SCORE], np.float32)
    nodes = [
        helper.make_node("ReduceSum", ["candidates", "last"], ["sums"], keepdims=0),
        helper.make_node("Gather", ["request", "first"], ["cpu"], axis=1),
        helper.make_node("Greater", ["cpu", "hundred"], ["asks"]),
        helper.make_node("Where", ["asks", "nan", "sums"], ["all"]),
        helper.make_node("Where", ["mask", "all", "masked"], ["scores"]),
    ]
    shapes = {
        "candidates": ["batch", "n", len(SPEC.candidate)],
        "request": ["batch", len(SPEC.request)],
        "mask": ["batch", "n"],
    }
    kinds = {"candidates": TensorProto.FLOAT, "request": TensorProto.FLOAT, "mask": TensorProto.BOOL}
    initial = [helper.make_tensor(name, TensorProto.FLOAT, [1], value) for name, value in cells.items()]
    initial += [helper.make_tensor("last", TensorProto.INT64, [1], [2])]
    initial += [helper.make_tensor("first", TensorProto.INT64, [1], [0])]
    graph = helper.make_graph(
        nodes,
        "broken",
        [helper.make_tensor_value_info(name, kinds[name], shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", "n"])],
        initial,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def test_a_canary_whose_answers_fail_is_left_by_the_service_itself(
    settings: Any, workshop: Any, kit: Any, within: Any
) -> None:
    quick = msgspec.structs.replace(settings, guard_every_s=0.1)
    live = kit.digest_of(workshop.sample(1))
    with kit.running(quick) as client:
        assert kit.push(client, workshop.sample(1), counter=1).status_code == 200
        bad = workshop.around(SPEC, broken(), opset=18)
        files = workshop.promoted(bad, counter=2, live=live)
        sent = AUTHORISED | {"If-Match": f'"{live}"', "X-Loadmaster-Share": "0.5"}
        answer = client.put("/v1/policies/functions/canary", content=kit.tar(files), headers=sent)
        assert answer.status_code == 200, answer.text
        numbers = iter(range(10**6))

        def left() -> bool:
            for _ in range(40):
                big = kit.body(4, cpu=101.0)
                big["requests"][0]["id"] = f"pod-{next(numbers)}"
                for node in big["candidates"]:
                    node["state"]["cpu_capacity"] = 512.0
                placed = kit.place(client, big)
                assert placed.status_code == 200
                assert placed.json()["placements"][0]["ranked"], "somebody always answers"
            return client.get("/v1/policies").json()["policies"]["functions"]["canary"] is None

        within(left)
        shown = client.get("/v1/policies").json()["policies"]["functions"]
        assert (shown["digest"], shown["returned"]["digest"]) == (live, kit.digest_of(bad))
        assert "fallback rate" in shown["returned"]["reason"]
        again = client.put("/v1/policies/functions/canary", content=kit.tar(files), headers=sent)
        assert again.status_code == 423, "the cool-down"
        assert 'loadmaster_flips_total{kind="return",problem="functions"} 1.0' in client.get("/metrics").text
    last = lines(settings)[-2]
    assert (last["action"], last["token"], last["digest"]) == ("return", "the service", live)


class Alone:
    """A guard without a service: what answers is set by hand, what it leaves is noted."""

    def __init__(self, settings: Any, canary: bool = True, **changes: Any) -> None:
        self.left: list[tuple[str, str, str]] = []
        trying = Canary("sha256:two", 2, 0.5, "2026-01-01T00:00:00+00:00") if canary else None
        pointer = Pointer("sha256:one", 1, "sha256:zero", datetime.now(UTC).isoformat(), canary=trying)
        policies = [type("P", (), {"digest": f"sha256:{name}"})() for name in ("one", "zero", "two")]
        self.live = Live(pointer, policies[0], policies[1], canary=policies[2] if canary else None)
        changed = msgspec.structs.replace(settings, guard_every_s=1e6, **changes)
        self.guard = Guard(changed, lambda _: self.live, lambda *said: self.left.append(said))
        self.settings, self._rng = changed, np.random.default_rng(0)
        self.guard._compared["functions"] = ("sha256:one", "sha256:two" if canary else None)

    def answer(self, count: int, rates: dict[str, float], slow: dict[str, float] | None = None) -> None:
        for number in range(count):
            for name, rate in rates.items():
                arm = self.live._canary_arm if name == "canary" else self.live._live_arm
                assert isinstance(arm, Arm)
                one = Placement(f"{name}-{number}", [], 1, "", bool(self._rng.random() < rate))
                late = self._rng.random() < (slow or {}).get(name, 0.0)
                self.guard.decided("functions", arm, [one], 1.0 if late else 1e-4)


@pytest.fixture
def alone(settings: Any) -> Iterator[Any]:
    made: list[Alone] = []

    def make(**changes: Any) -> Alone:
        made.append(Alone(settings, **changes))
        return made[-1]

    yield make
    for one in made:
        one.guard.close()


def test_equal_arms_are_left_alone_however_often_one_looks(alone: Any) -> None:
    one = alone()
    for _ in range(60):
        one.answer(20, {"live": 0.1, "canary": 0.1})
        one.guard.look()
    assert one.left == []


@pytest.mark.parametrize("what", ["fallback", "slow"])
def test_a_worse_canary_is_left_with_the_reason(alone: Any, what: str) -> None:
    one = alone()
    for _ in range(60):
        rates = {"live": 0.02, "canary": 0.3}
        one.answer(20, rates if what == "fallback" else dict.fromkeys(rates, 0.0), rates if what == "slow" else None)
        one.guard.look()
        if one.left:
            break
    (problem, digest, reason) = one.left[0]
    assert (problem, digest) == ("functions", "sha256:two")
    assert f"canary's {what} rate" in reason


def test_a_new_policy_that_fails_too_often_is_left_for_the_one_before(alone: Any) -> None:
    one = alone(canary=False)
    for _ in range(60):
        one.answer(20, {"live": 0.6})
        one.guard.look()
    assert one.left[0][:2] == ("functions", "sha256:one")
    calm = alone(canary=False, probation_s=0)
    calm.answer(500, {"live": 0.6})
    calm.guard.look()
    assert calm.left == []


class Prometheus(BaseHTTPRequestHandler):
    answer: bytes = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(type(self).answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def prometheus() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Prometheus)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def vector(values: dict[str, Any]) -> bytes:
    rows = [{"metric": {"uid": uid}, "value": [0, str(value)]} for uid, value in values.items()]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}}).encode()


def test_objectives_come_from_prometheus_joined_by_pod_uid(alone: Any, prometheus: str) -> None:
    one = alone(prometheus_url=prometheus, sla_query="pod_sla_violated", sla_after_s=0.0, sla_every_s=1e-9)
    one.answer(300, {"live": 0.0, "canary": 0.0})
    met = {f"live-{number}": 0 for number in range(300)} | {f"canary-{number}": number % 2 for number in range(300)}
    Prometheus.answer = vector(met | {"nobody's": 1})
    one.guard.look()
    assert one.left[0][:2] == ("functions", "sha256:two")
    assert "canary's sla rate" in one.left[0][2]


@pytest.mark.parametrize(
    "said", [b"", b"<html>", b"[]", b'{"status":"error"}', vector({"live-0": "NaN", "live-1": 7, "live-2": -1})]
)
def test_a_prometheus_that_lies_says_nothing(settings: Any, prometheus: str, said: bytes) -> None:
    asked = msgspec.structs.replace(
        settings, prometheus_url=prometheus, sla_query="x", sla_after_s=0.0, sla_every_s=1e-9
    )
    outcomes = Outcomes(asked)
    outcomes.expect([f"live-{number}" for number in range(3)], ("functions", "sha256:one"))
    Prometheus.answer = said
    assert list(outcomes.ask()) == []
    gone = Outcomes(msgspec.structs.replace(asked, prometheus_url="http://127.0.0.1:9"))
    gone.expect(["live-0"], ("functions", "sha256:one"))
    assert list(gone.ask()) == []
    assert gone.failures == 1


def test_the_command_shows_advances_and_ends(
    settings: Any, workshop: Any, kit: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOADMASTER_PUSH_TOKEN_FILE", str(settings.push_token_file))
    with kit.listening(settings) as url, httpx.Client(base_url=url, timeout=60) as client:
        kit.push(client, workshop.sample(1), counter=1)
        canary(client, workshop, kit)
        assert command.main(["--url", url]) == 0
        assert "answers 50%" in capsys.readouterr().out
        assert command.main(["end", "--problem", "functions", "--url", url]) == 0
        assert "canary none" in capsys.readouterr().out
        canary(client, workshop, kit)
        assert command.main(["advance", "--problem", "functions", "--url", url]) == 0
        assert f"{kit.digest_of(workshop.sample(2))} answers, counter 2" in capsys.readouterr().out
