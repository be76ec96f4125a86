"""A tiny pipeline with real git and real DVC, a stand-in for the service, and registries that are built once."""

from __future__ import annotations

import http.server
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec
import pytest

from pipeline import promote, push
from pipeline.registry import bundles, outcomes, places, runs, signing
from pipeline.registry.chain import ANCHOR, Chain
from pipeline.registry.dvc_objects import members, object_path, outputs
from pipeline.registry.git import Repository
from pipeline.registry.records import path_of, signature_path_of
from wire import records as wire_records
from wire import signatures
from wire.contracts import encode
from wire.contracts.policies import COUNTER_HEADER, RECORD_FILE, RECORD_SIGNATURE_FILE, Policies
from wire.contracts.record import PromotionRecord, record_sha256

STAGES = """
import hashlib, json, pathlib, sys
import yaml
from wire.contracts import encode
from wire.contracts.bundle import Lineage, Manifest, content_digest
from wire.contracts.feature_spec import Feature, FeatureSpec

params = yaml.safe_load(open("params.yaml"))
sha = lambda data: hashlib.sha256(data).hexdigest()

def ingest():
    folder = pathlib.Path("data/raw"); folder.mkdir(parents=True)
    (folder / "windows.txt").write_text("\\n".join(str(i * params["ingest"]["step"]) for i in range(100)))

def export():
    raw = pathlib.Path("data/raw/windows.txt").read_bytes()
    folder = pathlib.Path("data/bundles/functions"); folder.mkdir(parents=True)
    spec = FeatureSpec("functions", 1, (Feature("cpu", "cores", 1.0, "nodes.cpu", 0.0),), ())
    policy = f"weights {params['train']['seed']} {sha(raw)}".encode() * 50
    files = {"policy.onnx": policy, "golden.npz": b"golden" + policy[:20]}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    hashes = {name: sha(data) for name, data in files.items()}
    manifest = Manifest(
        problem="functions", feature_spec=spec, files=hashes, digest=content_digest("functions", spec, hashes),
        algorithm="maskable_ppo", opset=18, params=params, metrics={"return": 1.0},
        lineage=Lineage("", "", "", "2026-11-10T00:00:00Z", "2026-11-15T00:00:00Z"),
    )
    (folder / "manifest.json").write_bytes(encode(manifest))

def gate():
    digest = json.loads(pathlib.Path("data/bundles/functions/manifest.json").read_text())["digest"]
    folder = pathlib.Path("data/gate/functions"); folder.mkdir(parents=True)
    champion = pathlib.Path("champions/functions/digest.txt").read_text().strip() or None
    report = {"outcome": "pass", "reason": "better by 2 %", "digest": digest, "champion_digest": champion, "rules": []}
    (folder / "report.json").write_text(json.dumps(report))
    (folder / "report.html").write_text(f'<h1>{digest}</h1><a href="worst-1.html">replay</a>')
    for number in (1, 2, 10):
        (folder / f"worst-{number}.html").write_text(f"<p>replay {number} of {digest}</p>")
    (folder / "notes.txt").write_text("not for the web")

globals()[sys.argv[1]]()
"""

DVC_YAML = """
stages:
  ingest:
    cmd: python stages.py ingest
    params: [ingest]
    outs: [data/raw]
  export:
    foreach: [functions]
    do:
      cmd: python stages.py export
      deps: [data/raw]
      params: [train]
      outs: [data/bundles/functions]
  gate:
    foreach: [functions]
    do:
      cmd: python stages.py gate
      deps: [data/bundles/functions, champions/functions]
      outs: [data/gate/functions]
"""


def run(*command: str | Path, cwd: Path) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


@pytest.fixture(scope="session")
def pipeline_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with three stages, as a user's would be."""
    root = tmp_path_factory.mktemp("source")
    (root / "stages.py").write_text(STAGES)
    (root / "dvc.yaml").write_text(DVC_YAML)
    (root / "params.yaml").write_text("ingest: {step: 7}\ntrain: {seed: 0}\n")
    (root / "champions" / "functions").mkdir(parents=True)
    (root / "champions" / "functions" / "digest.txt").write_text("")
    (root / ".gitignore").write_text("/data/\n")
    (root / ".dvc").mkdir()
    (root / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    (root / ".dvc" / ".gitignore").write_text("/config.local\n/tmp\n/cache\n")
    run("git", "init", "--quiet", "--initial-branch=main", cwd=root)
    run("git", "add", "-A", cwd=root)
    run("git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "-m", "pipeline", cwd=root)
    return root


class Night:
    """Runs the tiny pipeline in clones of their own, as ``workspace`` and the stages do."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository

    def __call__(self, run_id: str, *, seed: int, champion: str | None = None) -> Path:
        home = Path(os.environ["LOADMASTER_VAR"])
        clone = places.workspace(run_id, home)
        clone.parent.mkdir(parents=True, exist_ok=True)
        run("git", "clone", "--quiet", "--shared", self.repository, clone, cwd=home)
        (clone / ".dvc" / "config.local").write_text(
            # Relative to this file, so that the whole of var/ can be copied.
            "[cache]\n    dir = ../../../dvc/cache\n[core]\n    remote = embedded\n"
            f"['remote \"embedded\"']\n    url = {os.environ.get('LOADMASTER_DVC_REMOTE') or '../../../dvc/remote'}\n"
        )
        params = (clone / "params.yaml").read_text().replace("seed: 0", f"seed: {seed}")
        (clone / "params.yaml").write_text(params)
        (clone / "champions" / "functions" / "digest.txt").write_text(champion or "")
        run(sys.executable, "-m", "dvc", "repro", "--quiet", cwd=clone)
        return clone


@pytest.fixture(scope="session")
def night(pipeline_repository: Path) -> Night:
    return Night(pipeline_repository)


class FakeService:
    """Answers as the placement service does: token, signature, precondition, rising counter."""

    def __init__(self) -> None:
        self.policies: dict[str, dict[str, object] | None] = {}
        self.pushes: list[dict[str, str]] = []
        self.answer_with: tuple[int, dict[str, str]] | None = None
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/v1/overview":
                    self._send(200, {"timeline": {"functions": [{"decisions": 9, "fallbacks": 1, "p99_ms": 2.5}]}})
                    return
                # Held to the contract, so that the stand-in cannot drift from the service.
                blank = {"previous_digest": None, "loaded_at": None, "fallback": "least_allocated"}
                shown = {problem: blank | entry if entry else None for problem, entry in service.policies.items()}
                said = msgspec.convert({"policies": shown}, Policies)
                self._send(200, msgspec.to_builtins(said))

            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._send(*service.take(self.path.rsplit("/", 1)[1], dict(self.headers), body))

            def do_POST(self) -> None:
                problem = self.path.split("/")[3]
                live = service.policies[problem]
                assert live is not None
                service.policies[problem] = {
                    "digest": live["previous_digest"],
                    "counter": int(self.headers[COUNTER_HEADER]),
                    "previous_digest": live["digest"],
                    "loaded_at": "2026-11-16T10:00:00+00:00",
                }
                self._send(200, {})

            def _send(self, code: int, document: object) -> None:
                data = json.dumps(document).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, problem: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, object]]:
        self.pushes.append(headers)
        if self.answer_with:
            return self.answer_with  # type: ignore[return-value]
        keys = Path(os.environ["LOADMASTER_VAR"], "keys")
        if headers.get("Authorization") != f"Bearer {(keys / 'push-token').read_text().strip()}":
            return 403, {"error": "wrong push token"}
        live = self.policies.get(problem)
        if headers.get("If-None-Match") == "*" and live:
            return 412, {"error": "something is live"}
        if "If-Match" in headers and (not live or headers["If-Match"] != f'"{live["digest"]}"'):
            return 412, {"error": "another policy is live"}
        with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(body), mode="r:") as archive:
            archive.extractall(folder, filter="data")
            proof = [Path(folder, name) for name in (RECORD_FILE, RECORD_SIGNATURE_FILE)]
            record, signature = (path.read_bytes() for path in proof)
            wire_records.verify(record, signature, signatures.trusted(keys / "trusted"), source=RECORD_FILE)
            counter = int(json.loads(record)["counter"])
            if live and counter <= int(str(live["counter"])):
                return 412, {"error": "counter already seen"}
            for path in proof:
                path.unlink()
            signatures.verify(Path(folder), keys / "trusted", keys / "revoked.json")
            digest = json.loads(Path(folder, "manifest.json").read_text())["digest"]
        entry: dict[str, object] = {
            "digest": digest,
            "counter": counter,
            "previous_digest": live["digest"] if live else None,
            "loaded_at": f"2026-11-16T00:00:0{counter}+00:00",
            "fallback": "least_allocated",
        }
        self.policies[problem] = entry
        return 200, {"problem": problem, **entry}


@pytest.fixture
def service() -> Iterator[FakeService]:
    fake = FakeService()
    yield fake
    fake.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty var/ of our own."""
    folder = tmp_path / "var"
    folder.mkdir()
    _enter(monkeypatch, folder)
    return folder


@pytest.fixture(scope="session")
def finished_nights(tmp_path_factory: pytest.TempPathFactory, night: Night) -> Path:
    """Build once: runs "one" and "two", judged and recorded, nothing promoted."""
    folder = tmp_path_factory.mktemp("nights") / "var"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as monkeypatch:
        _enter(monkeypatch, folder)
        for seed, run_id in enumerate(("one", "two"), start=1):
            runs.record_run(night(run_id, seed=seed), run_id)
    return folder


@pytest.fixture
def nights(finished_nights: Path, home: Path) -> Path:
    """A var/ with the runs "one" and "two" waiting for a decision; returns the folder of the runs."""
    shutil.copytree(finished_nights, home, symlinks=True, dirs_exist_ok=True)
    return home / "runs"


def _enter(monkeypatch: pytest.MonkeyPatch, folder: Path, *, remotes: Path | None = None) -> None:
    monkeypatch.setenv("LOADMASTER_VAR", str(folder))
    for name in (
        "LOADMASTER_SIGNING_KEY",
        "LOADMASTER_PUSH_TOKEN_FILE",
        "LOADMASTER_REGISTRY",
        "LOADMASTER_DVC_REMOTE",
    ):
        monkeypatch.delenv(name, raising=False)
    if remotes:
        monkeypatch.setenv("LOADMASTER_REGISTRY", str(remotes / "registry.git"))
        monkeypatch.setenv("LOADMASTER_DVC_REMOTE", str(remotes / "dvc"))


def go_live(clone: Path, run_id: str, service: FakeService) -> PromotionRecord:
    """Record, approve, push and verify."""
    runs.record_run(clone, run_id)
    promote.promote("functions", run_id=run_id, approver="ada", reason="looks good")
    push.push("functions", service.url)
    return outcomes.confirm("functions", service.url)


HISTORY_RUNS = ("scheduled__2026-11-14T02:00:00+00:00", "scheduled__2026-11-15T02:00:00+00:00", "manual__third")


@pytest.fixture(scope="session")
def finished_history(tmp_path_factory: pytest.TempPathFactory, night: Night) -> Path:
    """Build once: two promotions that went live, a rejection, a roll-back; remotes outside of var/."""
    root = tmp_path_factory.mktemp("history")
    (root / "var").mkdir()
    (root / "remotes").mkdir()
    run("git", "init", "--quiet", "--bare", root / "remotes" / "registry.git", cwd=root)
    fake = FakeService()
    with pytest.MonkeyPatch.context() as monkeypatch:
        _enter(monkeypatch, root / "var", remotes=root / "remotes")
        first = go_live(night(HISTORY_RUNS[0], seed=1), HISTORY_RUNS[0], fake)
        second = go_live(night(HISTORY_RUNS[1], seed=2, champion=first.digest), HISTORY_RUNS[1], fake)
        runs.record_run(night(HISTORY_RUNS[2], seed=3, champion=second.digest), HISTORY_RUNS[2])
        promote.reject("functions", run_id=HISTORY_RUNS[2], approver="bob", reason="not on a Friday")
        fake.policies["functions"] = {"digest": first.digest, "counter": 3, "previous_digest": second.digest,
                                      "loaded_at": "2026-11-16T09:00:00+00:00"}  # fmt: skip
        outcomes.reconcile("functions", fake.url)
    fake.close()
    return root


@pytest.fixture
def history(finished_history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the finished history to play with: ``var`` and ``remotes``."""
    target = tmp_path / "copy"
    shutil.copytree(finished_history, target, symlinks=True)
    _enter(monkeypatch, target / "var", remotes=target / "remotes")
    return target


@pytest.fixture
def dvc_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare tests with many promotions the start of a Python for each DVC command; ``history`` was made without."""
    from dvc.cli import main

    def dvc(root: Path, *arguments: str) -> None:
        before = Path.cwd()
        os.chdir(root)
        try:
            assert main(list(arguments)) == 0
        finally:
            os.chdir(before)

    monkeypatch.setattr(bundles, "dvc", dvc)
    monkeypatch.setattr(runs, "_push_data", lambda run_dir: dvc(run_dir, "push", "--quiet"))


@pytest.fixture
def forget_run() -> Callable[[str], None]:
    """Makes a run unrecorded again."""

    def forget(name: str) -> None:
        for repository in (Repository(Path(places.registry_remote())), Repository(places.registry_mirror())):
            for ref in repository.refs("refs/heads/runs", "refs/remotes/origin/runs"):
                if ref.endswith(f"/{name}"):
                    repository.run("update-ref", "-d", ref)

    return forget


@pytest.fixture
def judge_again(nights: Path, forget_run: Callable[[str], None]) -> Callable[..., None]:
    """Changes what the gate says of a run, and records that as if it had never said anything else."""

    def judge(name: str, **changes: object) -> None:
        path = nights / name / "data" / "gate" / "functions" / "report.json"
        text = json.dumps(json.loads(path.read_text()) | changes)
        path.unlink()  # a hard link into the cache, as a workspace has
        path.write_text(text)
        bundles.dvc(nights / name, "commit", "--force", "--quiet")
        forget_run(name)
        runs.record_run(nights / name, name)

    return judge


@pytest.fixture
def live() -> Callable[[Path, str, FakeService], PromotionRecord]:
    return go_live


class Attack:
    """A registry in the hands of somebody who can write every file of it, and what they need to know about it."""

    def __init__(self, root: Path) -> None:
        self.root, self.var = root, root / "var"
        self.remote = Repository(root / "remotes" / "registry.git")
        chain = Chain.open()
        self.records, self.head = chain.records, str(chain.commit)
        self.live = self.records[5].digest  # rolled back to the bundle of record 0
        self.other = self.records[2].digest

    # The branch -----------------------------------------------------------------------------------------------------
    def files(self) -> dict[str, bytes]:
        return self.remote.files(self.head)

    def replace(self, files: dict[str, bytes | None], *, forget: bool = True) -> None:
        """Rewrite the branch with one new root commit a record, as a careful forger would; None removes a file."""
        everything = self.files() | {k: v for k, v in files.items() if v is not None}
        for path, content in files.items():
            if content is None:
                everything.pop(path, None)
        parent = None
        rest = {path: data for path, data in everything.items() if not path.startswith("records/")}
        for number in range(20):
            mine = {p: everything[p] for p in (path_of(number), signature_path_of(number)) if p in everything}
            if mine:
                parent = self.remote.commit(
                    rest | mine, f"record {number}\n", parent=parent, when="2026-11-16T00:00:00Z"
                )
        self.set_head(str(parent), forget=forget)

    def add_commit(self, files: dict[str, bytes]) -> None:
        """Put one more commit on the branch."""
        self.set_head(self.remote.commit(files, "more\n", parent=self.head, when="2026-11-16T00:00:00Z"), forget=False)

    def set_head(self, commit: str, *, forget: bool) -> None:
        self.remote.run("update-ref", "refs/heads/promotions", commit)
        if forget:  # the victim has never seen the branch before, so only its content can give the forger away
            Repository(places.registry_mirror()).run("update-ref", "-d", ANCHOR)

    def edit(self, sequence: int, **changes: object) -> dict[str, bytes | None]:
        """One record changed, hash and all; the signature is the old one."""
        record = msgspec.structs.replace(self.records[sequence], **changes)
        return {path_of(sequence): encode(record)}

    def forge(self, sequence: int, **changes: object) -> dict[str, bytes | None]:
        """One record changed and every later one chained and signed anew, with the real key."""
        files: dict[str, bytes | None] = {}
        before = self.records[sequence].previous_record_sha256
        for record in self.records[sequence:]:
            mine = changes if record.sequence == sequence else {}
            new = msgspec.structs.replace(record, **{"previous_record_sha256": before, **mine})
            before = record_sha256(new)
            files[path_of(record.sequence)] = encode(new)
            files[signature_path_of(record.sequence)] = signing.sign_bytes(encode(new))
        return files

    # Bundles and data -----------------------------------------------------------------------------------------------
    def bundle(self, digest: str | None = None) -> Path:
        return places.bundle(digest or self.live)

    def object(self, name: str, store: str = "cache") -> Path:
        """The DVC object of a file of the live bundle."""
        pointer = self.files()[bundles.pointer_of(self.live)]
        md5 = members(outputs(pointer, source="")[0].md5)[name]
        return object_path(self.var / "dvc" / "cache" if store == "cache" else self.root / "remotes" / "dvc", md5)

    def data_object(self) -> Path:
        lock = self.remote.files(self.records[0].git_commit, "dvc.lock")["dvc.lock"]
        raw = next(out for out in outputs(lock, source="") if out.path == "data/raw")
        return object_path(self.root / "remotes" / "dvc", members(raw.md5)["windows.txt"])

    def store(self, **changes: object) -> Path:
        """The service's store, as it should be but for ``changes`` of its pointer."""
        folder = self.var / "store" / "functions"
        for digest in (self.live, self.other):
            shutil.copytree(self.bundle(digest), folder / "bundles" / self.bundle(digest).name)
        pointer = {"digest": self.live, "counter": 3, "previous_digest": self.other, "loaded_at": "", "schema": 1}
        (folder / "live.json").write_text(json.dumps(pointer | changes))
        return folder


@pytest.fixture
def attack(history: Path) -> Attack:
    return Attack(history)


@pytest.fixture
def real_service() -> Callable[[], AbstractContextManager[str]]:
    """Runs the placement service itself, with the keys and the store of this var/."""
    pytest.importorskip("uvicorn")
    pytest.importorskip("placement.app")
    return _real_service


@contextmanager
def _real_service() -> Iterator[str]:
    """Run the service on a free port, with the keys and the store of this var/."""
    import uvicorn

    from placement import app
    from placement.settings import load

    server = uvicorn.Server(uvicorn.Config(app.create_app(load()), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not server.started and time.monotonic() < until:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
