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
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline import promote, push
from pipeline.contracts.record import PromotionRecord
from pipeline.registering import bundles, outcomes, runs
from sched_env import signatures

STAGES = """
import hashlib, json, pathlib, sys
import yaml
from sched_env.contracts import encode
from sched_env.contracts.bundle import Lineage, Manifest, content_digest
from sched_env.contracts.feature_spec import Feature, FeatureSpec

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
        clone = home / "runs" / run_id.replace(":", "-").replace("+", "-")
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
                self._send(200, {"policies": service.policies})

            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._send(*service.take(self.path.rsplit("/", 1)[1], dict(self.headers), body))

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
        counter = int(headers["X-Loadmaster-Counter"])
        if live and counter <= int(str(live["counter"])):
            return 412, {"error": "counter already seen"}
        with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(body), mode="r:") as archive:
            archive.extractall(folder, filter="data")
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
    """Approve, push and verify."""
    promote.promote("functions", clone, run_id=run_id, approver="ada", reason="looks good")
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
        clone = night(HISTORY_RUNS[2], seed=3, champion=second.digest)
        promote.reject("functions", clone, run_id=HISTORY_RUNS[2], approver="bob", reason="not on a Friday")
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
def live() -> Callable[[Path, str, FakeService], PromotionRecord]:
    return go_live
