"""Pods are moved on a real API server: room first, PDBs always, once, and by one replica."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from placement.kube.clusters import connect, watch_cluster
from placement.kube.config import ClusterSettings, MigratorSettings, PrometheusSettings
from placement.kube.lease import Lease
from placement.kube.migrator import Migrator, Report
from placement.kube.rest import Rest
from placement.migrate import asking
from tests.placement.kube.control_plane import ControlPlane
from tests.placement.kube.playing import PlayedPrometheus, playing

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]

GIB = 2.0**30
CORES = 0.6
"""That every pod uses: six of them make a node of four cores too hot, five do not."""


class Town:
    """A cluster, its Prometheus and a placement service with its extender."""

    def __init__(self, kube: ControlPlane, prometheus: PlayedPrometheus, url: str, file: Path) -> None:
        self.kube, self.prometheus, self.url, self.file = kube, prometheus, url, file

    def pods(self) -> dict[str, str]:
        """Name -> node, of those that run."""
        return {
            one["metadata"]["name"]: one["spec"]["nodeName"]
            for one in self.kube.pods()
            if one["status"].get("phase") == "Running" and not one["metadata"].get("deletionTimestamp")
        }

    def running(self, count: int) -> dict[str, str]:
        self.kube.until(lambda: len(self.pods()) >= count, f"{count} pods to run")
        return self.pods()

    @contextmanager
    def migrator(self, **settings: Any) -> Iterator[tuple[Migrator, list[Report]]]:
        prom = PrometheusSettings(
            self.prometheus.url, every_s=0.2, window_s=30, step_s=5, queries=PlayedPrometheus.QUERIES
        )  # fmt: skip
        cluster = ClusterSettings(kubeconfig=str(self.kube.kubeconfig), prometheus=prom)
        given = MigratorSettings("lab", **{"apply": True, "min_age_s": 1, "budget": 0.5} | settings)
        client = connect("lab", cluster)
        watched = watch_cluster("lab", cluster, client)
        lease = Lease(client, "default", "loadmaster-migrator-lab", f"test-{time.monotonic_ns()}")
        reports: list[Report] = []
        migrator = Migrator(Rest(client), watched, lease, given, asking(self.url), reports.append)
        for part in (*watched.watches, watched.usage, lease):
            part.start()  # type: ignore[union-attr]
        try:
            self.kube.until(lambda: watched.whole() and watched.usage_silent_s() < 5 and lease.leading, "it to see")
            yield migrator, reports
        finally:
            lease.stop()
            watched.stop()


@pytest.fixture
def town(kube: ControlPlane, settings: Any, kit: Any, tmp_path: Path) -> Iterator[Town]:
    """Six Deployments of one pod each on the only node there was, and then two nodes more."""
    kube.start_kubelet()
    kube.start_controllers()
    kube.add_placeholder_class()
    kube.add_nodes(["a"])
    file = tmp_path / "clusters.yaml"
    with playing() as prometheus:
        prom = {"url": prometheus.url, "every_s": 0.2, "window_s": 30, "step_s": 5, "queries": PlayedPrometheus.QUERIES}
        file.write_text(json.dumps({
            "clusters": {"lab": {"kubeconfig": str(kube.kubeconfig), "prometheus": prom}},
            "extender": {"cluster": "lab"},
            "migrator": {"cluster": "lab", "min_age_s": 1, "budget": 0.5},
        }))  # fmt: skip
        chosen = msgspec.structs.replace(settings, clusters_file=file)
        with kit.listening(chosen) as url, httpx.Client(base_url=url, timeout=60):
            kube.start_scheduler({
                "urlPrefix": f"{url}/extender", "prioritizeVerb": "prioritize", "weight": 100, "enableHTTPS": False,
                "httpTimeout": "5s", "nodeCacheCapable": True, "ignorable": True,
            })  # fmt: skip
            here = Town(kube, prometheus, url, file)
            for index in range(6):
                kube.add_deployment(f"web-{index}", 1, cpu="500m", memory="1Gi")
            here.running(6)
            kube.add_nodes(["b", "c"])
            prometheus.series = {
                "pod_cpu": lambda: {f"default/{name}": (lambda _: CORES) for name in here.pods()},
                "pod_mem": lambda: {f"default/{name}": (lambda _: 0.5 * GIB) for name in here.pods()},
                "node_cpu": lambda: _by_node(here, CORES),
                "node_mem": lambda: _by_node(here, 0.5 * GIB),
            }
            time.sleep(2)  # older than min_age_s
            yield here


def _by_node(town: Town, each: float) -> dict[str, Any]:
    counts = Counter(town.pods().values())
    return {name: (lambda _, count=counts[name]: count * each) for name in ("a", "b", "c")}


def test_a_hot_node_is_relieved_reserve_first_and_dry_runs_change_nothing(town: Town) -> None:
    before = town.pods()
    assert set(before.values()) == {"a"}
    # What the command would do, as one line.
    environ = os.environ | {"LOADMASTER_CLUSTERS_FILE": str(town.file)}
    command = [sys.executable, "-m", "placement.migrate", "--once", "--url", town.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environ)
    assert done.returncode == 0, done.stderr
    dry = json.loads(done.stdout)
    assert (dry["applied"], [move["outcome"] for move in dry["moves"]]) == (False, ["would_move"])
    assert town.pods() == before
    with town.migrator() as (migrator, reports):
        report = migrator.cycle()
        assert [(move.outcome, move.source, move.landed == move.target) for move in report.moves] == [
            ("moved", "a", True)
        ], report
        assert Counter(town.running(6).values())["a"] == 5
        # The one that moved is new; the node is calm: nothing happens again.
        time.sleep(1.5)
        again = migrator.cycle()
        assert (again.stressed, again.moves) == ([], [])
        assert len(reports) == 2
    names = [one["metadata"]["name"] for one in town.kube.pods()]
    assert not [name for name in names if name.startswith("loadmaster-hold")], "no placeholder stays"


def test_a_pdb_is_never_broken_and_the_refused_pod_is_left_alone_for_a_while(town: Town) -> None:
    for index in range(6):
        town.kube.add_budget(f"web-{index}", min_available=1)
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/web-5"
    town.kube.until(lambda: town.kube.call("GET", path)["status"].get("currentHealthy") == 1, "the PDB to be counted")
    before = town.pods()
    with town.migrator() as (migrator, _):
        report = migrator.cycle()
        assert [move.outcome for move in report.moves] == ["refused_by_pdb"]
        assert town.pods() == before
        again = migrator.cycle()
        assert again.skipped["a move of it was refused a while ago"] == 1
        assert not {move.pod for move in again.moves} & {move.pod for move in report.moves}
    assert town.pods() == before


def test_nobody_is_moved_on_stale_eyes_or_without_room_or_by_another_replica(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = town.pods()
    with town.migrator(reserve_s=0.5) as (migrator, _):
        # Young pods stay, and a clock of ours that is a day ahead makes nobody older.
        chosen, real = migrator._settings, time.time
        migrator._settings = msgspec.structs.replace(chosen, min_age_s=3600)
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda: real() + 86400.0)
            assert migrator.cycle().skipped == {"it is too young": 6}
        migrator._settings = chosen
        usage = migrator._watched.usage
        assert usage is not None
        town.prometheus.mood = "dead"
        heard, usage._heard = usage._heard, -1000.0
        assert migrator.cycle().passed_over.startswith("Prometheus has been silent")
        usage._heard = heard
        town.prometheus.mood = "well"
        usage.ask()
        # The scheduler is gone: the placeholder is never bound, and the pod stays.
        town.kube.kill("kube-scheduler")
        assert [move.outcome for move in migrator.cycle().moves] == ["no_room"]
        assert town.pods() == before
        migrator._refused.clear()
        # Two replicas believe they may act: the one that no longer leads stops before it changes anything.
        migrator._lease._renewed = None
        migrator._lease._stopped.set()
        assert migrator.cycle().passed_over.endswith("another replica leads")
    assert town.pods() == before
    assert not [one for one in town.kube.pods() if one["metadata"]["name"].startswith("loadmaster-hold")]


@pytest.mark.soak
def test_a_second_replica_takes_over_within_twenty_seconds_of_a_kill(town: Town, recovery: Any) -> None:
    environ = os.environ | {"LOADMASTER_CLUSTERS_FILE": str(town.file)}
    command = [sys.executable, "-m", "placement.migrate", "--url", town.url]
    replicas = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ) for _ in range(2)
    ]
    try:
        path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/loadmaster-migrator-lab"

        def holder() -> str:
            found = town.kube.get(path)
            return found["spec"].get("holderIdentity", "") if found else ""

        town.kube.until(lambda: holder() != "", "a leader")
        first = holder()
        time.sleep(5)  # the other one has seen it renewed
        leader = next(one for one in replicas if first.endswith(f"-{one.pid}"))
        began = time.monotonic()
        leader.send_signal(signal.SIGKILL)
        town.kube.until(lambda: holder() not in ("", first), "another leader", 40)
        took = time.monotonic() - began
        recovery("migrator's leader killed", "another replica leads", took)
        assert took <= 20.0
    finally:
        for one in replicas:
            one.kill()
            one.wait(30)
