import base64
import contextlib
import threading
import urllib.request
from datetime import UTC, date, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pipeline.errors import SourceError
from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.sources.prometheus import PrometheusConfig
from pipeline.sources.prometheus_http import Client
from pipeline.sources.prometheus_server import Basic, Patience, Server, Tls
from wire.errors import ConfigError

QUICK = Patience(attempts=3, backoff_seconds=0.1)
DAY = date(2026, 1, 5)
HASH_OF_S3CRET = "$2b$05$abcdefghijklmnopqrstuuLK7U1u6pVRmL7L1BBM2aS35PSZnDXlK"
NOON = int(datetime(2026, 1, 5, 12, tzinfo=UTC).timestamp())
TEXT = f"""# TYPE kube_node_status_condition unknown
kube_node_status_condition{{node="n1",condition="Ready",status="true"}} 1 {NOON}
# EOF
"""


def server(**more):
    return Server(**{"name": "prod", "url": "http://localhost", **more})


def test_bearer_and_basic_show_who_we_are_and_files_are_read_anew(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("one\n")
    bearer = server(bearer_file=str(tmp_path / "token"))
    assert bearer.credentials() == {"Authorization": "Bearer one"}
    (tmp_path / "token").write_text("two\n")
    assert bearer.credentials() == {"Authorization": "Bearer two"}
    monkeypatch.setenv("PROM_PASSWORD", "пароль:2")
    [text] = server(basic=Basic("ann", password_env="PROM_PASSWORD")).credentials().values()
    assert base64.b64decode(text.split()[1]).decode() == "ann:пароль:2"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"url": "prometheus:9090"}, "url is 'prometheus:9090'"),
        ({"url": "http:///api"}, "url is 'http:///api'"),
        ({"url": "http://host/?tenant=a"}, "tenant=a"),
        ({"url": "http://ann:secret@host"}, "url holds a user or password.*basic"),
        ({"name": " "}, "is no name"),
        ({"bearer_env": "A", "basic": Basic("ann", password_env="B")}, "bearer_env and basic; expected one of"),
        ({"bearer_env": "A", "bearer_file": "b"}, "bearer_file and bearer_env; expected one of"),
        ({"headers": {"authorization": "Bearer secret"}}, "headers.authorization; expected one of bearer_file"),
        ({"headers": {"X-Scope-OrgID": "a\nb"}}, "header 'X-Scope-OrgID'"),
    ],
)
def test_odd_addresses_and_secrets_in_the_settings_are_refused(bad, message):
    with pytest.raises(ConfigError, match=message) as refused:
        server(**bad)
    assert "secret" not in str(refused.value).replace("no secret in", "")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"bearer_env": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE is empty or not set"),
        ({"bearer_file": "/no/such/token"}, "/no/such/token: No such file"),
        ({"bearer_file": "empty"}, "empty is empty"),
        ({"bearer_file": "words"}, "not one word of plain ASCII"),
        ({"bearer_file": "binary"}, "binary is not text"),
        ({"basic": Basic("ann")}, "password of ann of prod: no place"),
        ({"basic": Basic("ann", "words", "B")}, "two places"),
    ],
)
def test_a_secret_that_is_none_is_named_by_its_place_before_any_question(tmp_path, monkeypatch, bad, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "words").write_text("hush\nhush")
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    with pytest.raises(ConfigError, match=message) as refused:
        Client(server(**bad), QUICK)
    assert "hush" not in str(refused.value)


def test_a_key_without_its_certificate_and_patience_for_nothing_are_refused():
    with pytest.raises(ConfigError, match="cert_file is missing"):
        Tls(key_file="x")
    for name in Patience.__struct_fields__:
        with pytest.raises(ConfigError, match=f"patience.{name} is 0"):
            Patience(**{name: 0})


def test_another_tenant_is_other_data():
    same = [server(headers={"X-Scope-OrgID": "a"}), server(headers={"X-Scope-OrgID": "a"}, bearer_env="A")]
    assert same[0].identity() == same[1].identity()
    others = [server(headers={"X-Scope-OrgID": "b"}), server(basic=Basic("b", "f")), server(matchers='cluster="b"')]
    assert len({str(one.identity()) for one in [same[0], *others]}) == 4
    assert "OrgID" not in str(same[0].identity())


@contextlib.contextmanager
def behind_a_token(address, token):
    """Pass questions on to a Prometheus when they bring the token, as an authenticating proxy does."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Authorization"] != f"Bearer {token}":
                self.send_error(401)
                return
            kind = {"Content-Type": self.headers["Content-Type"]}
            with urllib.request.urlopen(urllib.request.Request(address + self.path, body, kind)) as answer:
                data = answer.read()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}"
    finally:
        proxy.shutdown()
        proxy.server_close()


@pytest.mark.prometheus
def test_clusters_behind_certificates_passwords_and_tokens_land_together(serve_prometheus, certificates, tmp_path):
    for name in ("east", "west"):
        (tmp_path / name).mkdir()
    (tmp_path / "day.om").write_text(TEXT)
    (tmp_path / "web.yml").write_text(
        f"tls_server_config: {{cert_file: {certificates}/server.pem, key_file: {certificates}/server.key,\n"
        f"  client_auth_type: RequireAndVerifyClientCert, client_ca_file: {certificates}/ca.pem}}\n"
        f"basic_auth_users: {{ann: {HASH_OF_S3CRET}}}\n"
    )
    for name in ("s3cret", "wrong"):
        (tmp_path / name).write_text(f"{name}\n")
    tls = Tls(*(str(certificates / name) for name in ("ca.pem", "client.pem", "client.key")))

    def land(east, west):
        config = PrometheusConfig([east, west], ("kube_state_metrics",), step_seconds=60, events=False, patience=QUICK)
        return ingest(IngestConfig("prometheus", prometheus=config), Range(DAY, DAY), tmp_path / "raw")

    with (
        serve_prometheus(tmp_path / "east", tmp_path / "day.om", tmp_path / "web.yml") as guarded,
        serve_prometheus(tmp_path / "west", tmp_path / "day.om") as plain,
        behind_a_token(plain, "s3cret") as proxied,
    ):
        url = guarded.replace("http:", "https:")
        password, token = Basic("ann", str(tmp_path / "s3cret")), str(tmp_path / "s3cret")
        east = Server("east", url, basic=password, tls=tls)
        west = Server("west", proxied, bearer_file=token)
        for stranger in (
            Server("east", url, basic=Basic("ann", str(tmp_path / "wrong")), tls=tls),
            Server("west", proxied, bearer_file=str(tmp_path / "wrong")),
        ):
            with pytest.raises(SourceError, match=r"HTTP 401.*credentials"):
                land(*((stranger, west) if stranger.name == "east" else (east, stranger)))
        manifest = land(east, west)
    assert [(part.cluster, part.rows) for part in manifest.partitions] == [("east", 1), ("west", 1)]
