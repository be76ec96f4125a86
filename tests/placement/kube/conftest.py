"""A scripted API server for what a real one does too seldom, and a real one for everything else."""

from __future__ import annotations

import http.server
import json
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from tests.placement.kube import control_plane

CUT = object()
"""Ends a watch in the middle of a line."""


class ScriptedServer:
    """Lists what it is told, and sends the events that a test puts into its queues."""

    def __init__(self) -> None:
        self.items: dict[str, list[dict[str, Any]]] = {"nodes": [], "pods": []}
        self.events: dict[str, queue.Queue[Any]] = {"nodes": queue.Queue(), "pods": queue.Queue()}
        self.refuse: int | None = None
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.version = 100
        scripted = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                split = urlsplit(self.path)
                kind, asked = split.path.rsplit("/", 1)[1], {k: v[0] for k, v in parse_qs(split.query).items()}
                scripted.asked.append((kind, asked))
                if scripted.refuse is not None:
                    self._send(scripted.refuse, {"message": "as told"})
                elif "watch" in asked:
                    self._watch(kind)
                else:
                    start = int(asked.get("continue", 0))
                    page = scripted.items[kind][start : start + int(asked["limit"])]
                    more = start + len(page)
                    metadata = {"resourceVersion": str(scripted.version)}
                    if more < len(scripted.items[kind]):
                        metadata["continue"] = str(more)
                    self._send(200, {"metadata": metadata, "items": page})

            def _send(self, code: int, document: object) -> None:
                data = json.dumps(document).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _watch(self, kind: str) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                while (event := scripted.events[kind].get()) is not None:
                    if event is CUT:
                        self.wfile.write(b"20\r\n" + b'{"type": "ADDED"')
                        self.close_connection = True
                        return
                    line = (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def kubeconfig(self, folder: Path) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.server.server_address[1]}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        path = folder / "scripted.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def close(self) -> None:
        for waiting in self.events.values():
            for _ in range(8):
                waiting.put(None)
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[control_plane.ControlPlane]:
    with control_plane.running(tmp_path / "kube") as plane:
        yield plane


@pytest.fixture
def recovery() -> Callable[[str, str, float], None]:
    """Record how long it took to recover: a line of JSON in the file of LOADMASTER_RECOVERY_FILE, if that is set.

    ``docs/results/faults.md`` is made of them (benchmarks/faults_table.py).
    """
    path = os.environ.get("LOADMASTER_RECOVERY_FILE")

    def record(fault: str, until: str, seconds: float) -> None:
        if path:
            with Path(path).open("a") as file:
                file.write(json.dumps({"fault": fault, "until": until, "seconds": round(seconds, 2)}) + "\n")

    return record
