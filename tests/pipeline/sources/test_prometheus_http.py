import contextlib
import json
import ssl
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import numpy as np
import pytest

from pipeline.errors import SourceError
from pipeline.sources.prometheus_http import Client
from pipeline.sources.prometheus_server import Patience, Server, Tls
from wire.errors import ConfigError

QUICK = Patience(attempts=3, backoff_seconds=0.01, answer_seconds=1.0, connect_seconds=1.0)


def matrix(values, labels=None):
    return {
        "status": "success",
        "data": {"resultType": "matrix", "result": [{"metric": labels or {}, "values": values}]},
    }


GOOD = matrix([[100, "1.5"], [115, "2"], [130, "NaN"], [145, "+Inf"], [160.5, "-Inf"]])


class Fake:
    """A server that plays a script: one step an answer, the last one for ever."""

    def __init__(self, *script):
        self.script, self.asked, self.headers = list(script), [], []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                fake.asked.append((self.path, {key: value[0] for key, value in form.items()}))
                fake.headers.append(dict(self.headers))
                step = fake.script[min(len(fake.asked), len(fake.script)) - 1]
                step(self) if callable(step) else reply(self, 200, step)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def reply(handler, code, body, kind="application/json", **headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    handler.send_response_only(code)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(headers.pop("length", len(data))))
    handler.send_header("Date", headers.pop("Date", formatdate(usegmt=True)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(data)


def step(code, body=b"", kind="application/json", **headers):
    return lambda handler: reply(handler, code, body, kind, **headers)


def error(code, text):
    return step(code, {"status": "error", "errorType": "x", "error": text})


def ask(fake, **server):
    return Client(Server("prod", fake.url, **server), QUICK).range("up", 100, 170, 15)


def test_values_arrive_with_nan_and_infinities():
    with Fake(GOOD) as fake:
        [series], _ = ask(fake)
    np.testing.assert_array_equal(series.time_s, [100, 115, 130, 145, 160.5])
    np.testing.assert_array_equal(series.value, [1.5, 2, np.nan, np.inf, -np.inf])


def test_the_question_carries_query_range_and_step():
    with Fake(GOOD) as fake:
        ask(fake)
        [(path, form)] = fake.asked
    assert path == "/api/v1/query_range"
    assert (form["query"], form["start"], form["end"], form["step"]) == ("up", "100.000", "170.000", "15.000")


@pytest.mark.parametrize(
    "fault",
    [
        error(500, "broken"),
        error(503, "query timed out"),
        step(502, b"<html>bad gateway</html>", "text/html"),
        step(429, b"slow down", "text/plain", Retry_After="0"),
        step(200, json.dumps(GOOD).encode()[:-30]),  # cut off, with a length that agrees
        step(200, json.dumps(GOOD).encode()[:50], length=900),  # cut off on the way
        step(200, b""),
        step(200, b'{"status": "\xff"}'),
        {**GOOD, "isPartial": True},
        lambda handler: handler.connection.close(),
    ],
    ids=["500", "503", "502-html", "429", "cut-json", "cut-body", "empty", "no-text", "partial", "hang-up"],
)
def test_passing_trouble_is_asked_again(fault):
    with Fake(fault, fault, GOOD) as fake:
        [series], _ = ask(fake)
        assert len(series.value) == 5
        assert len(fake.asked) == 3


def test_lasting_trouble_is_an_error_that_says_what_came_last():
    with Fake(error(503, "tsdb is not ready")) as fake:
        with pytest.raises(
            SourceError, match=r"failed 3 times; last: HTTP 503: tsdb is not ready.*what has been fetched"
        ):
            ask(fake)
        assert len(fake.asked) == 3


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (error(400, "parse error: unexpected )"), r"HTTP 400: parse error.*check the query in the metric map"),
        (error(422, "query would load too many samples"), r"HTTP 422: .*too many samples.*lower .*chunk_seconds"),
        (error(400, "exceeded maximum resolution of 11,000 points"), r"lower ingest.prometheus.chunk_seconds"),
        (error(401, "no token"), r"HTTP 401: no token.*credentials"),
        (step(403, b"forbidden", "text/plain"), r"HTTP 403 with text/plain: 'forbidden'.*credentials"),
        (step(200, b"<html>Log in</html>", "text/html"), r"HTTP 200 with text/html.*expected JSON.*check the url"),
        (step(302, b"", "text/html", Location="/login"), r"HTTP 302 to /login"),
        (step(404, b"404 page not found", "text/plain"), r"HTTP 404.*without /api/v1"),
        ({"status": "error", "error": "odd"}, r"refused: HTTP 200: odd"),
        ({"status": "success", "data": {"resultType": "vector", "result": []}}, r"with result vector; expected matrix"),
        ({"status": "success"}, r"without data"),
        (matrix([[100, "1"], [115, "x"]]), r"values that cannot be read"),
        (matrix([[100, "1"], [115]]), r"values that cannot be read"),
        (matrix([[100, 1.0]] * 2 + [["a", "b"]]), r"values that cannot be read"),
        (matrix([[10, "1"]]), r"samples from 10.0 to 10.0; expected 100 to 170"),
        (matrix([[100, "1"], [1e9, "1"], [115, "1"]]), r"samples from 100.0 to 1000000000.0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_wrong_answers_are_errors_at_once(fault, message):
    with Fake(fault) as fake:
        with pytest.raises(SourceError, match=message):
            ask(fake)
        assert len(fake.asked) == 1


@pytest.mark.parametrize("value", [{"value": [100, "x"]}, {}])
def test_a_moment_without_a_number_is_an_error(value):
    answer = {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, **value}]}}
    with Fake(answer) as fake, pytest.raises(SourceError, match=r"the value 'x|the value 'nothing'"):
        Client(Server("prod", fake.url), QUICK).instant("up", 100)


@pytest.mark.parametrize("skew_s", [0, -3600])
def test_a_date_to_ask_again_counts_by_the_servers_clock(skew_s):
    now = time.time() + skew_s
    busy = step(503, b"", Date=formatdate(now, usegmt=True), Retry_After=formatdate(now + 2, usegmt=True))
    with Fake(busy, GOOD) as fake:
        begun = time.monotonic()
        ask(fake)
    assert 0.9 < time.monotonic() - begun < 10


def test_what_the_server_warns_about_is_said_once(caplog):
    with Fake({**GOOD, "warnings": ["one store is away"]}) as fake:
        client = Client(Server("prod", fake.url), QUICK)
        for _ in range(2):
            _, warnings = client.range("up", 100, 170, 15)
    assert warnings == ["one store is away"]
    assert caplog.text.count("one store is away") == 1


def test_half_answers_are_asked_not_to_be_given():
    with Fake(GOOD) as fake:
        ask(fake)
    assert (fake.asked[0][1]["partial_response"], fake.asked[0][1]["deny_partial_response"]) == ("false", "1")


def test_who_waits_is_freed_when_the_client_stops():
    with Fake(step(503, b"", Retry_After="200")) as fake:
        client = Client(Server("prod", fake.url), QUICK)
        threading.Timer(0.3, client.stop).start()
        begun = time.monotonic()
        with pytest.raises(SourceError, match="stopped"):
            client.range("up", 100, 170, 15)
    assert time.monotonic() - begun < 20


def test_native_histograms_are_refused_with_a_way_out():
    answer = matrix([])
    answer["data"]["result"][0]["histograms"] = [[100, {"count": "1"}]]
    with Fake(answer) as fake, pytest.raises(SourceError, match=r"native histogram.*_bucket"):
        ask(fake)


def test_an_answer_that_trickles_is_given_up_at_the_deadline():
    def trickle(handler):
        reply(handler, 200, b"[", length=1000)
        with contextlib.suppress(OSError):  # the client hangs up
            for _ in range(40):
                time.sleep(0.1)
                handler.wfile.write(b" ")
                handler.wfile.flush()

    patience = Patience(attempts=1, answer_seconds=0.5)
    with Fake(trickle) as fake:
        begun = time.monotonic()
        with pytest.raises(SourceError, match=r"no whole answer within 0.5 s"):
            Client(Server("prod", fake.url), patience).range("up", 0, 1, 1)
        assert time.monotonic() - begun < 3


def test_an_answer_too_large_for_memory_is_refused():
    with (
        Fake(step(200, b" " * (2 << 20))) as fake,
        pytest.raises(SourceError, match=r"larger than 1 MB.*chunk_seconds"),
    ):
        Client(Server("prod", fake.url), Patience(answer_mb=1)).range("up", 0, 1, 1)


def test_nobody_there_is_an_error_after_the_attempts():
    with pytest.raises(SourceError, match="failed 3 times"):
        Client(Server("prod", "http://127.0.0.1:9"), QUICK).range("up", 0, 1, 1)


def test_a_clock_that_differs_is_noticed(caplog):
    with Fake(step(200, GOOD, Date=formatdate(time.time() - 3600, usegmt=True))) as fake:
        client = Client(Server("prod", fake.url), QUICK)
        client.range("up", 100, 170, 15)
    assert client.skew_s == pytest.approx(-3600, abs=5)
    assert "clock differs" in caplog.text


def test_mutual_tls_lets_the_certificate_in_and_nobody_else(certificates):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with Fake(GOOD) as fake:
        fake.server.socket = context.wrap_socket(fake.server.socket, server_side=True)
        url = fake.url.replace("http:", "https:")
        ca, cert, key = (str(certificates / name) for name in ("ca.pem", "client.pem", "client.key"))
        for tls in (Tls(ca, cert, key), Tls(ca, str(certificates / "both.pem"))):
            [series], _ = Client(Server("prod", url, tls=tls), QUICK).range("up", 100, 170, 15)
            assert len(series.value) == 5
        with pytest.raises(SourceError, match=r"TLS|failed 3 times"):
            Client(Server("prod", url, tls=Tls(ca)), QUICK).range("up", 100, 170, 15)
        with pytest.raises(SourceError, match="TLS refused"):
            Client(Server("prod", url), QUICK).range("up", 100, 170, 15)
        with pytest.raises(ConfigError, match="TLS"):
            Client(Server("prod", url, tls=Tls(ca, cert, str(certificates / "none.key"))), QUICK).range(
                "up", 100, 170, 15
            )
