"""A real Prometheus for each cluster of a played network, and the exporter it scrapes (as node-exporter and DCGM).

What it says of a node is what others keep busy plus what the jobs there take, as the driver knows it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from cpn_clusters import free_port

from placement.cpn.topology import Network

GIB, MIB_PER_GIB = 2.0**30, 1024.0

Taken = Callable[[], dict[str, tuple[float, float, float]]]
"""Card -> cores, GiB of memory and of GPU memory that its running jobs take now."""


class Exporter:
    """Serves the metrics of a cluster's nodes."""

    def __init__(self, cluster: str, network: Network, taken: Taken) -> None:
        self._cluster, self._network, self._taken = cluster, network, taken
        self._idle: dict[str, float] = {}
        self._at = time.monotonic()
        self._lock = threading.Lock()
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = exporter.text().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self.server.server_address[1])
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def text(self) -> str:
        """Return what a scrape finds."""
        taken, table, lines = self._taken(), self._network.table, []
        with self._lock:
            now = time.monotonic()
            for n, name in enumerate(table.nodes):
                cluster, node = name.split("/")
                if cluster != self._cluster:
                    continue
                here = [amounts for card, amounts in taken.items() if card.startswith(f"{name}/")]
                busy = min(float(table.node_cpu_used[n]) + sum(one[0] for one in here) / float(table.node_cpu[n]), 1.0)
                self._idle[node] = self._idle.get(node, 1000.0) + (now - self._at) * (1.0 - busy)
                total = float(table.node_mem[n]) * GIB
                free = total - sum(one[1] for one in here) * GIB
                lines += [
                    f'node_cpu_seconds_total{{instance="{node}:9100",cpu="0",mode="idle"}} {self._idle[node]:.9f}',
                    f'node_memory_MemTotal_bytes{{instance="{node}:9100"}} {total:.0f}',
                    f'node_memory_MemAvailable_bytes{{instance="{node}:9100"}} {free:.0f}',
                ]
                lines += [
                    f'DCGM_FI_DEV_FB_USED{{Hostname="{node}",gpu="{card.number}"}} '
                    f"{taken.get(card.name, (0.0, 0.0, 0.0))[2] * MIB_PER_GIB:.1f}"
                    for card in self._network.cards.values()
                    if (card.cluster, card.node) == (cluster, node)
                ]
            self._at = now
        return "\n".join(lines) + "\n"


class Prometheus:
    """A Prometheus that scrapes one exporter every second."""

    def __init__(self, cluster: str, network: Network, taken: Taken, folder: Path) -> None:
        self._folder = folder / f"prometheus-{cluster}"
        self._folder.mkdir(parents=True)
        self.exporter = Exporter(cluster, network, taken)
        self.port = free_port()
        target = {"targets": [f"127.0.0.1:{self.exporter.port}"]}
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [
                {"job_name": "nodes", "honor_labels": True, "static_configs": [target]},
            ],
        }
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it."""
        program = shutil.which("prometheus")
        if program is None:
            raise SystemExit("no Prometheus: scripts/install-test-tools.sh installs one")
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    program, f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}", f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log, stderr=log,
            )  # fmt: skip

    def nodes_seen(self, before_s: float) -> int:
        """Return of how many nodes it already had a scrape so many seconds ago."""
        query = f'count(node_cpu_seconds_total{{mode="idle"}} offset {before_s:.0f}s)'
        try:
            address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
            with urllib.request.urlopen(address, timeout=10) as answer:
                found = json.loads(answer.read())["data"]["result"]
        except OSError:  # it is still starting
            return 0
        return int(float(found[0]["value"][1])) if found else 0

    def kill(self) -> None:
        """Kill it: it is silent until it is started again."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    def stop(self) -> None:
        """End it and its exporter."""
        self.kill()
        self.exporter.server.shutdown()
