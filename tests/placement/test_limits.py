"""One caller who proves nothing must not stall, kill or flood the service; each case here once did."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from placement import connections

LINE = 700
"""Bytes of the longest refusal."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, workshop: Any, kit: Any) -> Iterator[tuple[str, int]]:
    """A listening service whose limits of time are short."""
    made = kit.settings_in(tmp_path_factory.mktemp("limits"), workshop)
    made = msgspec.structs.replace(made, header_timeout_s=1, body_timeout_s=2, max_connections=20, large_calls=2)
    with kit.listening(made) as url:
        host, port = url.removeprefix("http://").split(":")
        yield host, int(port)


def url_of(address: tuple[str, int]) -> str:
    return f"http://{address[0]}:{address[1]}"


def asking(candidates: list[dict[str, Any]], requests: int = 1, **more: Any) -> bytes:
    asked = [{"id": f"r{index}", "fields": {}} for index in range(requests)]
    return json.dumps({"problem": "functions", "requests": asked, "candidates": candidates} | more).encode()


def work(client: Any, body: bytes) -> tuple[Any, float]:
    """Send a body; returns the answer and the CPU seconds of this process, which is the service's too."""
    before = time.process_time()
    answer = client.post("/v1/place", content=body)
    return answer, time.process_time() - before


def test_candidates_with_an_unknown_field_each_are_refused_in_the_time_they_take_to_read(shared_live: Any) -> None:
    body = asking([{"name": f"n{index}", "state": {f"u{index}": 1.0}} for index in range(12_000)])
    answer, seconds = work(shared_live, body)
    assert answer.status_code == 422
    assert "and" in answer.json()["error"] or "u0" in answer.json()["error"]
    assert len(answer.content) <= LINE
    assert seconds < 3  # 13.7 s before


def test_a_late_unknown_field_is_found_too(shared_live: Any, kit: Any) -> None:
    candidates = [*kit.nodes(100), {"name": "last", "state": {"cpu_capacity": 1, "a": 1, "b": 1, "c": 1}}]
    answer = shared_live.post("/v1/place", content=asking(candidates))
    assert (answer.status_code, "['a', 'b', 'c']" in answer.json()["error"]) == (422, True)


@pytest.mark.parametrize("key", ["x" * 1_000_000, "x\n" * 1000, '\\u0000"' * 500])
def test_what_a_client_sent_never_comes_back_as_more_than_a_line(shared_live: Any, key: str) -> None:
    bodies = [
        asking([{"name": "a", "state": {key: 1}}]),
        asking([{"name": "a", "state": {}}], **{key: 1}),
        asking([{"name": "a", "state": {}, key: 1}]),
        json.dumps({"problem": key, "requests": [{"id": "r", "fields": {}}], "candidates": []}).encode(),
        json.dumps(
            {"problem": "vm", "requests": [{"id": "r", "fields": {key: 1}}], "candidates": [{"name": "a", "state": {}}]}
        ).encode(),
        json.dumps({"problem": "vm", "requests": [{"id": "r", "fields": {}}], "cluster": key}).encode(),
    ]
    for body in bodies:
        answer = shared_live.post("/v1/place", content=body)
        assert answer.status_code in (400, 422)
        assert len(answer.content) < 6 * LINE
        assert "\n" not in answer.json()["error"]
        assert len(answer.json()["error"]) <= LINE
    for path in (f"/v1/policies/{'p' * 5000}", "/" + "q" * 5000, f"/web/{'w' * 5000}"):
        assert len(shared_live.get(path).content) <= LINE


def test_many_functions_and_many_candidates_are_refused_by_their_numbers(shared_live: Any) -> None:
    requests = [{"id": f"r{index}", "fields": {}, "function": f"f{index}"} for index in range(1024)]
    candidates = [{"name": f"n{index}", "state": {}} for index in range(20_000)]
    body = json.dumps({"problem": "functions", "requests": requests, "candidates": candidates}).encode()
    answer, seconds = work(shared_live, body)
    assert (answer.status_code, "20000 candidates" in answer.json()["error"]) == (413, True)
    assert seconds < 1


def test_warm_columns_cost_what_is_said_not_functions_times_candidates() -> None:
    from placement.state import from_candidates
    from wire.contracts.place import Candidate

    candidates = [Candidate(f"n{index}", {"warm:f1": 2.0} if index == 7 else {}) for index in range(4000)]
    functions = [f"f{index}" for index in range(1000)]
    before = time.process_time()
    state = from_candidates("functions", candidates, functions)
    assert time.process_time() - before < 0.5
    assert list(state.warm) == ["f1"]
    assert (state.warm["f1"][7], state.warm["f1"].sum()) == (2.0, 2.0)


def test_a_small_body_does_not_make_a_huge_answer(shared_live: Any) -> None:
    candidates = [{"name": f"n{index}" + "x" * 200, "state": {}} for index in range(1000)]
    answer = shared_live.post("/v1/place", content=asking(candidates, requests=1024, top_k=1000))
    assert (answer.status_code, "top_k" in answer.json()["error"]) == (413, True)


def test_values_are_counted_before_they_are_decoded(shared_live: Any) -> None:
    body = b'{"candidates":[{"name":"a","state":{' + b'"":1,' * 2_000_000
    answer, seconds = work(shared_live, body)
    assert (answer.status_code, "values" in answer.json()["error"]) == (413, True)
    assert seconds < 1


def test_a_body_that_nests_without_end_is_refused(shared_live: Any) -> None:
    for body in (b"[" * 1_000_000, b'{"a":' * 100_000, b'{"problem":' + b"[" * 100_000):
        assert shared_live.post("/v1/place", content=body).status_code in (400, 422)


def test_large_calls_are_answered_as_small_ones_are(shared_live: Any, kit: Any) -> None:
    small, large = (
        shared_live.post("/v1/place", content=asking(kit.nodes(300) + extra, top_k=3)).json()
        for extra in ([], [{"name": f"full{index}", "state": {"cpu_capacity": 1, "mem_capacity": 1, "cpu_deployed": 1,
                                                           "mem_deployed": 1, "active": 0}} for index in range(19_000)])
    )  # fmt: skip
    assert large["placements"][0]["feasible"] == small["placements"][0]["feasible"]
    assert [entry["name"] for entry in large["placements"][0]["ranked"]] == [
        entry["name"] for entry in small["placements"][0]["ranked"]
    ]


def test_an_answer_comes_while_a_large_body_is_read(address: tuple[str, int], kit: Any) -> None:
    body = asking([{"name": f"n{index}", "state": {"cpu_capacity": 4.0 + index}} for index in range(20_000)], top_k=1)
    stop, waits = threading.Event(), []

    def ask_for_health() -> None:
        with httpx.Client(base_url=url_of(address)) as client:
            while not stop.is_set():
                started = time.perf_counter()
                assert client.get("/healthz").status_code == 200
                waits.append(time.perf_counter() - started)

    thread = threading.Thread(target=ask_for_health)
    thread.start()
    with httpx.Client(base_url=url_of(address), timeout=60) as client:
        answers = [client.post("/v1/place", content=body).status_code for _ in range(3)]
    stop.set()
    thread.join()
    assert answers == [200, 200, 200]
    assert max(waits) < 2


def test_more_large_calls_than_there_are_places_for_get_503(address: tuple[str, int]) -> None:
    head = b"POST /v1/place HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n\r\n"
    waiting = []
    for _ in range(2):
        waiting.append(socket.create_connection(address))
        waiting[-1].sendall(head)
    time.sleep(0.3)
    with httpx.Client(base_url=url_of(address)) as client:
        refused = client.post("/v1/place", content=b" " * 4_000_000)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert client.get("/healthz").status_code == 200
    for connection in waiting:
        assert b"408" in connection.recv(4096)
        connection.close()


def read_all(connection: socket.socket) -> bytes:
    connection.settimeout(20)
    content = b""
    try:
        while data := connection.recv(65536):
            content += data
    except ConnectionResetError:
        pass
    return content


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 1_000_000, b"431"),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 20_000 + b"\r\n", b"431"),
        (b"GET /" + b"y" * 1_000_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", b"431"),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\n", b"408"),
        (b"POST /v1/place HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf", b"408"),
        (b"POST /v1/place HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf", b"408"),
        (b"\r\n\r\n", b"408"),
        (b"", b"408"),
        (b"no such protocol\r\n\r\n", b"400"),
    ],
    ids=["header", "headers", "path", "half headers", "half body", "half chunk", "blank", "silent", "other protocol"],
)
def test_requests_that_are_too_long_or_never_end_are_closed(
    address: tuple[str, int], sent: bytes, status: bytes
) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(sent)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


def test_a_client_that_does_not_take_its_answer_is_let_go(address: tuple[str, int]) -> None:
    candidates = [{"name": "n" * 240 + f"{index:05d}", "state": {}} for index in range(900)]
    body = asking(candidates, requests=5, top_k=900)
    head = b"POST /v1/place HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address)
        connection.sendall(head + body)
        connection.sendall((head + body) * 3)
        time.sleep(15)  # the service waits for 2, and may have more to do
        assert len(read_all(connection)) < 4 * 900 * 5 * 245


def test_requests_far_ahead_of_their_answers_are_refused(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 500)
        assert b"429" in read_all(connection)


def test_idle_connections_make_room_for_new_ones(address: tuple[str, int]) -> None:
    held = [socket.create_connection(address) for _ in range(60)]
    with httpx.Client(base_url=url_of(address)) as client:
        for _ in range(5):
            assert client.get("/healthz").status_code == 200
    for connection in held:
        connection.close()


def test_no_path_and_no_method_answer_in_another_shape(shared_live: Any) -> None:
    for method, path, status in (
        ("GET", "/nowhere", 404),
        ("GET", "/v1/policies/", 404),
        ("GET", "/web/../secret", 404),
        ("DELETE", "/v1/place", 405),
        ("POST", "/", 405),
        ("PATCH", "/openapi.json", 405),
        ("GET", "/v1/policies/functions/rollback", 405),
    ):
        answer = shared_live.request(method, path, follow_redirects=False)
        assert answer.status_code == status, (method, path, answer.text)
        assert list(answer.json()) == ["error", "live_digest", "live_counter"]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"X-Request-Id: mine\r\n",
        b"X-Request-Id: two words\r\n",
        b"Connection: close\r\n",
        b"Expect: 100-continue\r\n",
    ],
    ids=["plain", "named", "named badly", "closing", "asking to go on"],
)
@pytest.mark.parametrize("body", [asking([{"name": "a", "state": {}}]), b"{"], ids=["answer", "refusal"])
def test_an_answer_in_one_write_is_what_uvicorn_would_have_sent(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch, sent: bytes, body: bytes
) -> None:
    def told() -> tuple[str, dict[str, str], dict[str, Any]]:
        head = b"POST /v1/place HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n" % (len(body), sent)
        with socket.create_connection(address, timeout=5) as connection:
            connection.sendall(head + body)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            content = json.loads(answer.read())
        headers = {name.lower(): value for name, value in answer.getheaders()}
        drawn = {"date", "x-request-id", "content-length"} - ({"x-request-id"} if b"mine" in sent else set())
        assert int(headers["content-length"]) > 0
        changing = {"decision_us": 0.0} if "decision_us" in content else {}
        return (
            f"{answer.version} {answer.status} {answer.reason}",
            {name: "drawn" if name in drawn else value for name, value in headers.items()},
            content | changing,
        )

    at_once = told()
    monkeypatch.setattr(connections, "_answer", lambda *_: False)
    assert told() == at_once


def test_answers_in_one_write_keep_their_connection_and_their_order(address: tuple[str, int]) -> None:
    bodies = [asking([{"name": f"n{number}", "state": {}}]) for number in range(8)]
    head = b"POST /v1/place HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(address, timeout=5) as connection, connection.makefile("rb") as answers:
        connection.sendall(b"".join(head % len(body) + body for body in bodies))  # all ahead of their answers
        for number in range(len(bodies)):
            lines = list(iter(answers.readline, b"\r\n"))
            assert lines[0].startswith(b"HTTP/1.1 200")
            [length] = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")]
            assert f'"n{number}"'.encode() in answers.read(length)
