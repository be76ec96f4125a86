"""What Prometheus says of others: fresh, settled, and never what our own jobs take."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from placement.cpn.collection import Collection
from placement.cpn.config import CpnSettings
from placement.cpn.records import Job
from placement.cpn.topology import Network, read
from tests.placement.cpn.conftest import topology_text
from tests.placement.cpn.played import Rehearsal

NODE, CARD = "cluster-0/node-0000", "cluster-0/node-0000/gpu0"


class Answers(HTTPServer):
    """Answers queries as Prometheus does, with what a test puts there."""

    def __init__(self) -> None:
        outer = self
        self.cpu: dict[str, float] = {"node-0000": 0.5}
        self.mem_gib: dict[str, float] = {"node-0000": 20.0}
        self.gpu_mib: dict[tuple[str, str], float] = {("node-0000", "0"): 3072.0, ("node-0000", "1"): 0.0}
        self.broken = False
        self.asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)["query"][0]
                outer.asked.append(query)
                body = b"<html>" if outer.broken else json.dumps({"data": {"result": outer.series(query)}}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    def series(self, query: str) -> list[dict[str, Any]]:
        if "node_cpu" in query:
            found = [({"node": node}, value) for node, value in self.cpu.items()]
        elif "node_memory" in query:
            found = [({"node": node}, value * 2**30) for node, value in self.mem_gib.items()]
        elif "DCGM" in query:
            found = [({"Hostname": node, "gpu": gpu}, value) for (node, gpu), value in self.gpu_mib.items()]
        else:
            found = [({}, 3.0)]
        return [{"metric": labels, "value": [0, str(value)]} for labels, value in found]


@pytest.fixture
def prometheus() -> Iterator[Answers]:
    server = Answers()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


class At:
    """A clock that stands still."""

    scale = 1.0

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watched(prometheus: Answers, rehearse: Callable[..., Rehearsal]) -> tuple[Collection, Rehearsal, At]:
    rehearsal = rehearse({"P100": 2}, strategy="fifo_exclusive")
    text = topology_text({"P100": 2}).replace(
        "name: cluster-0", f"name: cluster-0\n    prometheus_url: {url(prometheus)}"
    )
    network = read(text, "test")
    clock = At(rehearsal.world.now)
    collection = Collection(CpnSettings(topology="", settle_s=60.0, stale_s=120.0), clock)  # type: ignore[arg-type]
    collection.follow(lambda: network)
    return collection, rehearsal, clock


def url(server: Answers) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def others(collection: Collection, rehearsal: Rehearsal, clock: At, network: Network | None = None) -> Any:
    return collection.others(network or rehearsal.controller.network, rehearsal.controller.books, clock())


def test_what_is_measured_on_an_idle_network_is_others(
    watched: tuple[Collection, Rehearsal, At], prometheus: Answers
) -> None:
    collection, rehearsal, clock = watched
    collection.collect()
    found = others(collection, rehearsal, clock)
    assert found["cpu"] == {NODE: 0.5}
    assert found["mem_gib"] == {NODE: pytest.approx(20.0)}
    assert found["gpu_gib"][CARD] == pytest.approx(3.0)
    assert "[60s]" in prometheus.asked[0]  # rates over what settles
    shown = collection.shown()["cluster-0"]
    assert shown["series"] == {"cpu": 1, "mem_gib": 1, "gpu_gib": 2, "jobs": 1}
    assert shown["error"] == ""


def test_our_own_jobs_are_the_books_and_while_one_settles_nothing_changes(
    watched: tuple[Collection, Rehearsal, At], prometheus: Answers, submit: Callable[..., Job]
) -> None:
    collection, rehearsal, clock = watched
    collection.collect()
    others(collection, rehearsal, clock)
    job = submit(rehearsal, "one", epochs=100_000)
    rehearsal.run(until_s=rehearsal.world.now + 1.0)
    # Half of it is in the metrics by now: whatever they say, others have what they had.
    prometheus.cpu["node-0000"] = 0.8
    clock.now = rehearsal.world.now + 10.0
    collection.collect()
    assert others(collection, rehearsal, clock)["cpu"][NODE] == 0.5
    prometheus.cpu["node-0000"] = 0.6 + job.cpu_cores / 32.0
    prometheus.gpu_mib["node-0000", "0"] = (4.0 + job.gpu_mem_gib) * 1024.0
    clock.now = rehearsal.world.now + 100.0
    collection.collect()
    found = others(collection, rehearsal, clock)
    assert found["cpu"][NODE] == pytest.approx(0.6)
    assert found["gpu_gib"][CARD] == pytest.approx(4.0)


def test_a_job_that_has_left_is_not_taken_for_somebody_else_while_metrics_still_show_it(
    watched: tuple[Collection, Rehearsal, At], prometheus: Answers, submit: Callable[..., Job]
) -> None:
    collection, rehearsal, clock = watched
    prometheus.gpu_mib["node-0000", "0"] = 0.0
    collection.collect()
    others(collection, rehearsal, clock)
    submit(rehearsal, "one", epochs=1000)
    rehearsal.run()
    prometheus.gpu_mib["node-0000", "0"] = 8192.0
    clock.now = rehearsal.world.now + 5.0
    collection.collect()
    assert others(collection, rehearsal, clock)["gpu_gib"][CARD] == 0.0
    rehearsal.die()
    rehearsal.boot()  # the books after a restart know it too
    rehearsal.tick()
    assert others(collection, rehearsal, clock)["gpu_gib"][CARD] == 0.0
    clock.now = rehearsal.world.now + 65.0
    collection.collect()
    assert others(collection, rehearsal, clock)["gpu_gib"][CARD] == 8.0


def test_what_a_slow_prometheus_says_is_as_old_as_the_question(
    watched: tuple[Collection, Rehearsal, At],
    prometheus: Answers,
    submit: Callable[..., Job],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collection, rehearsal, clock = watched
    collection.collect()
    others(collection, rehearsal, clock)
    submit(rehearsal, "one", epochs=1000)
    rehearsal.run()
    prometheus.cpu["node-0000"] = 0.55  # the job, which has left, is still in part of the rate's window
    at_once = prometheus.series

    def late(query: str) -> list[dict[str, Any]]:
        clock.now += 5.0
        return at_once(query)

    monkeypatch.setattr(prometheus, "series", late)
    clock.now = rehearsal.world.now + 55.0
    collection.collect()
    assert clock.now - rehearsal.world.now == 75.0
    assert others(collection, rehearsal, clock)["cpu"][NODE] == 0.5


def test_what_is_stale_or_no_longer_reported_does_not_count(
    watched: tuple[Collection, Rehearsal, At], prometheus: Answers
) -> None:
    collection, rehearsal, clock = watched
    collection.collect()
    assert others(collection, rehearsal, clock)["cpu"]
    clock.now += 121.0
    assert others(collection, rehearsal, clock) == {"cpu": {}, "mem_gib": {}, "gpu_gib": {}}
    assert collection.found(clock()) == {"cpu": {}, "mem_gib": {}, "gpu_gib": {}}
    collection.collect()
    assert others(collection, rehearsal, clock)["cpu"] == {NODE: 0.5}
    prometheus.broken = True
    collection.collect()
    assert collection.shown()["cluster-0"]["error"]
    assert others(collection, rehearsal, clock)["cpu"] == {NODE: 0.5}  # until it is stale
