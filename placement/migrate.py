"""Move pods of a watched cluster, as the ``pods`` policy of a placement service says; dry unless told otherwise.

    loadmaster migrate --once                     # one cycle now: what would be moved, as one line of JSON
    loadmaster migrate                            # every five minutes, with leader election; --apply moves

What is moved, and how far it may go, is in the clusters file (LOADMASTER_CLUSTERS_FILE, section ``migrator``). The
policy is asked over HTTP, so that the process which may evict holds no policy, and the one which holds policies may
not evict.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import urllib3
from numpy.typing import NDArray

from placement.kube import config
from placement.kube.clusters import connect, watch_cluster
from placement.kube.lease import Lease
from placement.kube.migrator import Migrator, Report
from placement.kube.past import Foresee, Past
from placement.kube.plan import Answer, Ask
from placement.kube.rest import Rest
from placement.settings import load
from sched_env.pods import forecast
from sched_env.pods.foresight import AHEAD
from wire.command import Verb
from wire.contracts.models import MOST_ROWS, ModelRequest, ModelResponse
from wire.contracts.place import Candidate, PlacementRequest, PlaceRequest, PlaceResponse
from wire.errors import ConfigError, run_cli

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
SEEN_S = 60.0
"""How long ``--once`` waits for the cluster, Prometheus and the lease."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--url", default="http://127.0.0.1:8100", help="address of the placement service")
    parser.add_argument("--once", action="store_true", help="one cycle now, then end")
    parser.add_argument("--apply", action="store_true", help="move (default: as the clusters file says, which is dry)")
    parser.add_argument("--metrics-port", type=int, help="serve Prometheus metrics on loopback, or on --metrics-host")
    parser.add_argument("--metrics-host", default="127.0.0.1")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))


def run(options: argparse.Namespace) -> int:
    """Migrate until told to stop."""
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    file = config.load(load().clusters_file)
    settings = file.migrator
    if settings is None:
        raise ConfigError("the clusters file has no migrator", "migrator: {cluster: …}", "see docs/kubernetes.md")
    if options.apply:
        settings = msgspec.structs.replace(settings, apply=True)
    client = connect(settings.cluster, file.clusters[settings.cluster])
    watched = watch_cluster(settings.cluster, file.clusters[settings.cluster], client)
    identity = f"{socket.gethostname()}-{os.getpid()}"
    lease = Lease(client, settings.namespace, f"loadmaster-migrator-{settings.cluster}", identity)
    migrator = Migrator(
        Rest(client), watched, lease, settings, asking(options.url), _tell, Past(foreseeing(options.url))
    )
    if options.metrics_port is not None:
        _serve_metrics(options.metrics_host, options.metrics_port, migrator, lease, watched.usage_silent_s)
    stopped = threading.Event()

    def stop(*_: object) -> None:
        stopped.set()
        migrator.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for part in (*watched.watches, watched.usage, lease):
        if part is not None:
            part.start()
    try:
        if options.once:
            return _once(migrator, stopped, lambda: watched.whole() and watched.usage_silent_s() < 60 and lease.leading)
        migrator.run()
        return 0
    finally:
        lease.stop()
        watched.stop()


def _once(migrator: Migrator, stopped: threading.Event, ready: Callable[[], bool]) -> int:
    for _ in range(int(SEEN_S * 10)):
        if ready() or stopped.wait(0.1):
            break
    report = migrator.cycle()
    failed = [move for move in report.moves if move.outcome.startswith("failed")]
    return 1 if report.passed_over or failed else 0


def _tell(report: Report) -> None:
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    sys.stdout.flush()


def asking(url: str) -> Ask:
    """Return how a placement service is asked for one pod."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url is {url!r}", "http://... or https://...")
    http = urllib3.PoolManager(maxsize=1, retries=False, timeout=TIMEOUT_S)
    place, decoder = f"{url.rstrip('/')}/v1/place", msgspec.json.Decoder(PlaceResponse)

    def ask(names: list[str], columns: Mapping[str, NDArray[np.float64]], request: PlacementRequest) -> Answer | None:
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        nodes = [Candidate(name, dict(zip(columns, row, strict=True))) for name, row in zip(names, rows, strict=True)]
        body = msgspec.json.encode(PlaceRequest(problem="pods", requests=[request], candidates=nodes, top_k=1))
        try:
            answer = http.request("POST", place, body=body, headers={"Content-Type": "application/json"})
            said = decoder.decode(answer.data) if answer.status == 200 else None
        except (urllib3.exceptions.HTTPError, msgspec.MsgspecError, OSError) as error:
            log.warning("%s: %s", place, str(error)[:300])
            return None
        if said is None:
            log.warning("%s answered %d: %s", place, answer.status, answer.data[:200])
            return None
        placed = said.placements[0]
        if not placed.ranked:
            return None
        return Answer(placed.ranked[0].name, said.digest, placed.fallback, placed.reason)

    return ask


def foreseeing(url: str) -> Foresee:
    """Return how a placement service is asked what pods will use; one that has no forecast is not complained about."""
    http = urllib3.PoolManager(maxsize=1, retries=False, timeout=TIMEOUT_S)
    model, decoder = f"{url.rstrip('/')}/v1/models/pods/{forecast.NAME}", msgspec.json.Decoder(ModelResponse)

    def some(rows: NDArray[np.float32]) -> list[list[float]] | None:
        body = msgspec.json.encode(ModelRequest({forecast.ROWS: rows.tolist()}))
        try:
            answer = http.request("POST", model, body=body, headers={"Content-Type": "application/json"})
            if answer.status == 200:
                return decoder.decode(answer.data).output
        except (urllib3.exceptions.HTTPError, msgspec.MsgspecError, OSError) as error:
            log.warning("%s: %s", model, str(error)[:300])
            return None
        if answer.status != 404:
            log.warning("%s answered %d: %s", model, answer.status, answer.data[:200])
        return None

    def foresee(rows: NDArray[np.float32]) -> NDArray[np.float64] | None:
        said: list[list[float]] = []
        for first in range(0, len(rows), MOST_ROWS):
            answers = some(rows[first : first + MOST_ROWS])
            if answers is None:
                return None
            said += answers
        found = np.array(said, np.float64)
        if found.shape == (len(rows), len(AHEAD)):
            return found
        log.warning("%s answered %s numbers for %d pods", model, found.shape, len(rows))
        return None

    return foresee


def _serve_metrics(host: str, port: int, migrator: Migrator, lease: Lease, silent_s: Callable[[], float]) -> None:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector

    class Told(Collector):
        def collect(self):  # type: ignore[no-untyped-def]
            moves = CounterMetricFamily("loadmaster_migrations", "Moves by what became of them.", labels=["outcome"])
            for outcome, count in sorted(migrator.outcomes.items()):
                moves.add_metric([outcome.partition(":")[0]], count)
            yield moves
            yield GaugeMetricFamily("loadmaster_migrator_leading", "1 while this replica acts.", float(lease.leading))
            told = "Time since Prometheus last told all of a cluster's use."
            yield GaugeMetricFamily("loadmaster_cluster_usage_silent_seconds", told, silent_s())

    registry = CollectorRegistry()
    registry.register(Told())
    start_http_server(port, host, registry)


main = Verb("loadmaster migrate", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
