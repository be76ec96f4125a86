"""People are told over real sockets: a webhook and a mail server of a few lines each."""

import http.server
import json
import socketserver
import threading

import pytest

from pipeline import notify
from wire.errors import ConfigError

MESSAGE = notify.Message("approval", "vm waits\r\nBcc: evil@example.org", "SLA -0.3 points", "http://airflow/x")


class Sink(socketserver.StreamRequestHandler):
    """As much of SMTP as a client needs."""

    def handle(self):
        self.wfile.write(b"220 sink\r\n")
        while line := self.rfile.readline():
            word = line.split()[0].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                mail = []
                while (line := self.rfile.readline()) != b".\r\n":
                    mail.append(line)
                self.server.mails.append(b"".join(mail).decode())
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            if word == b"QUIT":
                return


class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *words):
        pass


@pytest.fixture
def serve():
    servers = []

    def start(server, **state):
        vars(server).update(state)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def hook(serve, monkeypatch):
    server = serve(http.server.HTTPServer(("127.0.0.1", 0), Hook), posts=[])
    monkeypatch.setenv("LOADMASTER_NOTIFY_WEBHOOK", f"http://127.0.0.1:{server.server_port}/x")
    return server.posts


@pytest.fixture
def post_office(serve, monkeypatch):
    server = serve(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Sink), mails=[])
    monkeypatch.setenv("LOADMASTER_NOTIFY_SMTP", f"smtp://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("LOADMASTER_NOTIFY_FROM", "loadmaster@example.org")
    monkeypatch.setenv("LOADMASTER_NOTIFY_TO", "ada@example.org, bob@example.org")
    return server.mails


def test_both_ways_carry_subject_body_and_link(hook, post_office):
    assert len(notify.tell(MESSAGE)) == 2
    assert hook[0]["kind"] == "approval"
    assert hook[0]["text"].endswith("http://airflow/x")
    headers, _, body = post_office[0].partition("\r\n\r\n")
    assert "To: ada@example.org, bob@example.org" in headers
    assert "\r\nBcc:" not in headers, "no header of the message's own"
    assert "SLA -0.3 points" in body


def test_one_dead_way_does_not_silence_the_other(hook, monkeypatch):
    monkeypatch.setenv("LOADMASTER_NOTIFY_SMTP", "smtp://127.0.0.1:1")
    monkeypatch.setenv("LOADMASTER_NOTIFY_TO", "ada@example.org")
    monkeypatch.setenv("LOADMASTER_NOTIFY_FROM", "l@example.org")
    with pytest.raises(notify.NotifyError, match="NOTIFY_SMTP"):
        notify.tell(MESSAGE)
    assert len(hook) == 1


def test_nothing_set_up_tells_nobody_and_says_so(monkeypatch, capsys):
    for name in ("WEBHOOK", "SMTP"):
        monkeypatch.delenv(f"LOADMASTER_NOTIFY_{name}", raising=False)
    assert notify.main(["--kind", "late", "--subject", "x"]) == 0
    assert "nobody to tell" in capsys.readouterr().out


def test_a_half_set_up_mail_is_a_clear_error(post_office, monkeypatch):
    monkeypatch.delenv("LOADMASTER_NOTIFY_TO")
    with pytest.raises(ConfigError, match="LOADMASTER_NOTIFY_TO"):
        notify.tell(MESSAGE)
