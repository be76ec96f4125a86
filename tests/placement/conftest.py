"""Signed bundles, a service with its own folders, and the pushes tests make."""

from __future__ import annotations

import io
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.testclient import TestClient

from placement.app import create_app
from placement.server import config
from placement.settings import Settings
from sched_env import problems
from wire import sample_bundle, signatures
from wire.contracts import encode
from wire.contracts.bundle import MANIFEST_FILE, SIGNATURE_FILE, Column, ModelSpec, Verdict
from wire.contracts.feature_spec import FeatureSpec
from wire.contracts.policies import RECORD_FILE, RECORD_SIGNATURE_FILE
from wire.contracts.record import PromotionRecord
from wire.errors import ContractError
from wire.records import RecordSignature

TOKEN = "a-token-for-tests-of-32-characters"
Files = dict[str, bytes]
PASSED = Verdict("pass", "a sample")


def make_key(folder: Path, name: str) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
    public.write_bytes(key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


class Workshop:
    """Makes bundles and records as ``promote`` would: signed by a trusted key, or by a stranger's."""

    last: Workshop

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.private, self.public = make_key(folder, "trusted")
        self.stranger, _ = make_key(folder, "stranger")
        self._cache: dict[int, Files] = {}
        Workshop.last = self

    def sign(self, files: Mapping[str, bytes], key: Path | None = None) -> Files:
        scratch = self.folder / f"bundle-{time.monotonic_ns()}"
        scratch.mkdir()
        for name, data in files.items():
            (scratch / name).write_bytes(data)
        signatures.sign(scratch, key or self.private)
        return {path.name: path.read_bytes() for path in scratch.iterdir()}

    def sample(self, seed: int) -> Files:
        """Return a signed sample bundle; the same seed gives the same bytes."""
        if seed not in self._cache:
            spec = problems.spec("functions")
            self._cache[seed] = self.sign(sample_bundle.build(spec, seed=seed, hidden=8, gate=PASSED))
        return dict(self._cache[seed])

    def proof(self, record: PromotionRecord, key: Path | None = None) -> Files:
        """Return a record and its signature, as they travel in a push."""
        private, data = key or self.private, encode(record)
        loaded = serialization.load_pem_private_key(private.read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        raw = loaded.sign(data, ec.ECDSA(hashes.SHA256()))
        signature = RecordSignature.of(signatures.key_id(private.with_suffix(".pub")), raw)
        return {RECORD_FILE: data, RECORD_SIGNATURE_FILE: encode(signature)}

    def promoted(
        self, files: Files, *, counter: int, live: str | None, key: Path | None = None, **changes: Any
    ) -> Files:
        """Return a bundle with the record that promotes it; ``changes`` replace fields of the record."""
        record = sample_bundle.record(files, counter=counter, previous_digest=live, **changes)
        return files | self.proof(record, key)

    def around(self, spec: FeatureSpec, policy: bytes, **changes: Any) -> Files:
        """Return a signed bundle around a policy of the test's own."""
        return self.sign(sample_bundle.assemble(spec, policy, **{"gate": PASSED} | changes))

    def trust(self, settings: Settings) -> None:
        settings.trusted_keys_dir.mkdir(parents=True, exist_ok=True)
        (settings.trusted_keys_dir / "trusted.pub").write_bytes(self.public.read_bytes())
        listed = msgspec.json.encode([signatures.key_id(self.public)])
        (settings.trusted_keys_dir / signatures.LISTED).write_bytes(listed)


def digest_of(files: Files) -> str:
    digest: str = msgspec.json.decode(files[MANIFEST_FILE])["digest"]
    return digest


def tar(files: Mapping[str, bytes], change: Callable[[tarfile.TarInfo], None] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if change is not None:
                change(info)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def push(
    client: httpx.Client,
    body: Files | bytes,
    *,
    counter: int = 0,
    live: str | None = None,
    token: str | None = TOKEN,
    problem: str = "functions",
    **headers: str,
) -> httpx.Response:
    """Push a bundle the way the pipeline does; ``live`` is the digest believed to be live.

    Files without a record get the one that promotes them; bytes, and files with one, are sent as they are.
    """
    sent = {"If-None-Match": "*"} if live is None else {"If-Match": f'"{live}"'}
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    if not isinstance(body, bytes):
        if RECORD_FILE not in body and MANIFEST_FILE in body:
            body = promoted(body, counter=counter, live=live)
        body = tar(body)
    return client.put(f"/v1/policies/{problem}", content=body, headers=sent | headers)


def promoted(files: Files, *, counter: int, live: str | None) -> Files:
    """Add the record that promotes a bundle; one whose manifest cannot be read gets that of another."""
    try:
        return Workshop.last.promoted(files, counter=counter, live=live)
    except ContractError:
        whole = Workshop.last.sample(1)
        added = Workshop.last.promoted(whole, counter=counter, live=live)
        return files | {name: added[name] for name in (RECORD_FILE, RECORD_SIGNATURE_FILE)}


def nodes(count: int, **state: float) -> list[dict[str, Any]]:
    base = {"cpu_capacity": 4.0, "mem_capacity": 16.0, "cpu_deployed": 0.0, "mem_deployed": 0.0}
    return [{"name": f"n{index}", "state": base | {"cpu_deployed": index % 4} | state} for index in range(count)]


def body(count: int = 4, requests: int = 1, **fields: float) -> dict[str, Any]:
    """Return a /v1/place body."""
    asked = [{"id": f"r{index}", "fields": {"cpu": 0.5, "mem": 1.0} | fields} for index in range(requests)]
    return {"problem": "functions", "requests": asked, "candidates": nodes(count)}


def place(client: httpx.Client, sent: dict[str, Any] | None = None) -> httpx.Response:
    return client.post("/v1/place", json=sent or body())


def flip_byte(data: bytes, at: float = 0.5) -> bytes:
    index = int(len(data) * at)
    return data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]


@contextmanager
def running(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings)) as client:
        yield client


@contextmanager
def listening(settings: Settings) -> Iterator[str]:
    """Run the service on a real socket; yields its address."""
    server = uvicorn.Server(config(settings))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=20)


def settings_in(folder: Path, workshop: Workshop) -> Settings:
    keys = folder / "keys"
    made = Settings(
        store_dir=folder / "store",
        trusted_keys_dir=keys / "trusted",
        revoked_keys_file=keys / "revoked.json",
        push_token_file=keys / "push-token",
        log_dir=folder / "log",
        deadline_ms=2000.0,  # the machine is shared; tests of the deadline set their own
    )
    workshop.trust(made)
    made.push_token_file.write_text(TOKEN + "\n")
    made.push_token_file.chmod(0o600)
    return made


class Kit:
    """The helpers above, for tests that take one fixture instead of many imports."""

    TOKEN, SIGNATURE_FILE = TOKEN, SIGNATURE_FILE
    digest_of, tar, push, promoted, body, nodes, place, flip_byte, running, listening, settings_in = map(
        staticmethod, (digest_of, tar, push, promoted, body, nodes, place, flip_byte, running, listening, settings_in)
    )


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    return Kit


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture(scope="session")
def runtime_model() -> tuple[ModelSpec, bytes, bytes]:
    """A further model for a bundle: spec, graph, golden vectors."""
    columns = (Column("gib", "GiB"), Column("epochs", "count"), Column("co_runners", "count"))
    return sample_bundle.model(columns, output="seconds", unit="seconds")


@pytest.fixture
def settings(tmp_path: Path, workshop: Workshop) -> Settings:
    return settings_in(tmp_path, workshop)


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    with running(settings) as started:
        yield started


@pytest.fixture(scope="session")
def shared_live(tmp_path_factory: pytest.TempPathFactory, workshop: Workshop) -> Iterator[TestClient]:
    """A service with sample 1 live, counter 1, for all tests whose point is that nothing changes."""
    with running(settings_in(tmp_path_factory.mktemp("shared"), workshop)) as started:
        assert push(started, workshop.sample(1), counter=1).status_code == 200
        yield started


@pytest.fixture
def live_client(client: TestClient, workshop: Workshop) -> TestClient:
    """A service with sample 1 live, counter 1."""
    answer = push(client, workshop.sample(1), counter=1)
    assert answer.status_code == 200, answer.text
    return client


@pytest.fixture
def within() -> Callable[[Callable[[], bool]], None]:
    """Wait until something is so, for as long as a busy machine may need."""

    def wait(is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < end, "it did not become so"
            time.sleep(0.1)

    return wait
