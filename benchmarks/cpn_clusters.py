"""Real API servers on one etcd, with played GPU nodes: what benchmarks of the job controller run against.

Every cluster is a real kube-apiserver (its own prefix in one etcd), with kwok for its nodes and, where it has to
choose them, a real kube-scheduler. What a cluster does with a Job beyond keeping it is played by a driver: it makes the
pod, lets it run on the node and card that the controller pinned it to (or that the scheduler found), as fast as the
co-location profiles say beside whoever runs there, and ends it. It remembers what it was asked for, so that it can say
at the end whether anything ran twice. Nothing here is part of the product.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sched_env.jobs.tables import RuntimeTable

TOKEN = "bench-admin-token"
JOB, ATTEMPT = "loadmaster.dev/job", "loadmaster.dev/attempt"
KWOK_STAGES = """
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-initialize}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select( .type == "Ready" ) | .status', operator: 'NotIn', values: ["True"]}
  next:
    statusTemplate: |
      {{ $now := Now }}
      conditions:
      - {type: Ready, status: "True", reason: KubeletReady, message: fake, lastHeartbeatTime: {{ $now | Quote }}, lastTransitionTime: {{ $now | Quote }}}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-of-nobody}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: '.metadata.annotations["loadmaster.dev/played-by-kwok"]', operator: Exists}
  next:
    statusTemplate: |
      phase: Running
"""  # noqa: E501
"""Nodes are kwok's; a stage of pods that never applies keeps its own ones away from the driver's pods."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """One API server."""

    token = TOKEN

    def __init__(self, name: str, programs: Path, folder: Path, etcd: str) -> None:
        self.name, self._programs, self.folder, self._etcd = name, programs, folder / name, etcd
        self.folder.mkdir(parents=True)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        key = self.folder / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        subprocess.run(
            ["openssl", "rsa", "-in", key, "-pubout", "-out", self.folder / "sa.pub"], check=True, capture_output=True
        )
        (self.folder / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.folder / "apiserver.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    self._programs / "kube-apiserver", f"--etcd-servers={self._etcd}", f"--etcd-prefix=/{self.name}",
                    "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={self.port}",
                    f"--cert-dir={self.folder / 'certs'}", "--service-cluster-ip-range=10.96.0.0/16",
                    f"--service-account-key-file={self.folder / 'sa.pub'}",
                    f"--service-account-signing-key-file={self.folder / 'sa.key'}",
                    "--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=RBAC",
                    f"--token-auth-file={self.folder / 'tokens.csv'}", "--endpoint-reconciler-type=none",
                    "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
                ],
                stdout=log, stderr=log,
            )  # fmt: skip
        until = time.monotonic() + 180
        while time.monotonic() < until:
            try:
                if Api(self).call("GET", "/api/v1/namespaces/default"):
                    return
            except (OSError, http.client.HTTPException, KeyError, ssl.SSLError):
                time.sleep(0.3)
        raise TimeoutError(f"{self.name}: the API server does not come up, see {self.folder}")

    def kill(self) -> None:
        """Kill it; etcd keeps what it had."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(30)
            self.process = None

    def beside(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program of the cluster."""
        with (self.folder / f"{program}.log").open("ab") as log:
            return subprocess.Popen([self._programs / program, *arguments], stdout=log, stderr=log)

    def start_kwok(self) -> subprocess.Popen[bytes]:
        """Let kwok keep the nodes ready; pods are the driver's."""
        path = self.folder / "kwok.yaml"
        path.write_text(KWOK_STAGES)
        return self.beside(
            "kwok", "--kubeconfig", str(self.kubeconfig()), "--config", str(path), "--manage-all-nodes=true",
            "--node-lease-duration-seconds=40", f"--server-address=127.0.0.1:{free_port()}",
        )  # fmt: skip

    def start_scheduler(self) -> subprocess.Popen[bytes]:
        """Start the cluster's own scheduler."""
        path, config = self.folder / "scheduler.yaml", str(self.kubeconfig())
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "clientConnection": {"kubeconfig": config},
                    "leaderElection": {"leaderElect": False},
                }
            )
        )
        return self.beside(
            "kube-scheduler", "--config", str(path), f"--secure-port={free_port()}", "--bind-address=127.0.0.1",
            "--cert-dir", str(self.folder / "scheduler-certs"), f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
        )  # fmt: skip

    def kubeconfig(self) -> Path:
        """Write its kubeconfig."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": self.name,
                    "cluster": {
                        "server": f"https://127.0.0.1:{self.port}",
                        "certificate-authority": str(self.folder / "certs" / "apiserver.crt"),
                    },
                }
            ],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": "admin"}}],
            "current-context": self.name,
        }
        path = self.folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path


class Api:
    """Calls of one server over one connection; not for two threads."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection: http.client.HTTPSConnection | None = None

    def connect(self, timeout_s: float = 30.0) -> http.client.HTTPSConnection:
        """Open a connection."""
        context = ssl.create_default_context(cafile=str(self._server.folder / "certs" / "apiserver.crt"))
        return http.client.HTTPSConnection("127.0.0.1", self._server.port, context=context, timeout=timeout_s)

    def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        """Call once, or again on a new connection when the old one was closed; KeyError: the server says no."""
        for attempt in range(2):
            if self._connection is None:
                self._connection = self.connect()
            try:
                headers = {"Authorization": f"Bearer {self._server.token}", "Content-Type": kind}
                self._connection.request(method, path, None if body is None else json.dumps(body), headers)
                answer = self._connection.getresponse()
                said = answer.read()
            except (OSError, http.client.HTTPException):
                self._connection.close()
                self._connection = None
                if attempt:
                    raise
                continue
            if answer.status >= 400:
                raise KeyError(f"{answer.status} {said[:200]!r}")
            return json.loads(said)
        return None

    def insist(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        """Call until the server answers; None when it says no (gone, or there already)."""
        while True:
            try:
                return self.call(method, path, body, kind)
            except KeyError as error:
                if str(error).strip("'\"").startswith(("404", "409")):
                    return None
                time.sleep(0.3)
            except (OSError, http.client.HTTPException):
                time.sleep(0.3)


@dataclass
class Play:
    """A pod of ours."""

    cluster: str
    name: str
    pod: str
    job: str
    attempt: int
    card: str
    model: str
    epochs: float
    left: float
    starts_at: float
    fails_at: float | None
    """Epochs left at which it fails."""
    takes: tuple[float, float, float]
    """Cores, GiB of memory and of GPU memory."""
    running: bool = False
    over: bool = False
    ran_from: float = 0.0


@dataclass
class Driver:
    """Plays what happens to Jobs in all clusters.

    Args:
        servers: The clusters.
        table: Run times.
        card_types: Card -> type.
        now: The controller's clock.
        startup_s: From the Job to the running pod, on that clock.
        scale: Seconds of that clock in one of the wall's.
        fails: (job title, attempt) -> share of its epochs after which it fails; None: it does not.
    """

    servers: dict[str, Server]
    table: RuntimeTable
    card_types: dict[str, str]
    now: Callable[[], float]
    startup_s: float
    scale: float
    """Seconds of that clock in one of the wall's."""
    fails: Callable[[str, int], float | None]
    namespace: str = "default"
    """Runs beside each other have each its own."""
    plays: dict[str, Play] = field(default_factory=dict)
    made: Counter[str] = field(default_factory=Counter)
    """Kubernetes Job -> how often one of that name was made."""
    finished: Counter[str] = field(default_factory=Counter)
    """Job -> how often it ran to its end."""
    ran_s: dict[tuple[str, int], float] = field(default_factory=dict)
    """Job and attempt -> how long it really ran: what a controller sees begins and ends later."""
    unbound_s: dict[tuple[str, int], float] = field(default_factory=dict)
    """Job and attempt -> how long the cluster's own scheduler had no node for it: it waited, and took no card."""
    together: list[str] = field(default_factory=list)
    """Jobs of which two attempts ran at once: must stay empty."""
    stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin to play."""
        self._lock, self._wake, self._settled = threading.RLock(), threading.Event(), self.now()
        for name in self.servers:
            threading.Thread(target=self._follow, args=(name,), daemon=True).start()
        threading.Thread(target=self._run, daemon=True).start()

    def _follow(self, cluster: str) -> None:
        """List and watch Jobs."""
        path, seen = f"/apis/batch/v1/namespaces/{self.namespace}/jobs", set[str]()
        while not self.stopped.is_set():
            try:
                api = Api(self.servers[cluster])
                found = api.call("GET", path)
                there = {item["metadata"]["name"] for item in found["items"]}
                for item in found["items"]:
                    if item["metadata"]["name"] not in seen:
                        seen.add(item["metadata"]["name"])
                        self._job(cluster, item)
                for name in [one.name for one in list(self.plays.values()) if one.cluster == cluster]:
                    if name not in there:
                        self._gone(name)
                connection = Api(self.servers[cluster]).connect(timeout_s=300.0)
                version = found["metadata"]["resourceVersion"]
                headers = {"Authorization": f"Bearer {self.servers[cluster].token}"}
                connection.request("GET", f"{path}?watch=1&resourceVersion={version}", headers=headers)
                answer = connection.getresponse()
                while not self.stopped.is_set():
                    line = answer.readline()
                    if not line:
                        break
                    event = json.loads(line)
                    name = event["object"].get("metadata", {}).get("name", "")
                    if event["type"] == "ADDED" and name not in seen:
                        seen.add(name)
                        self._job(cluster, event["object"])
                    elif event["type"] == "DELETED":
                        self._gone(name)
            except (OSError, http.client.HTTPException, KeyError, ValueError):
                time.sleep(0.2)

    def _job(self, cluster: str, item: dict[str, Any]) -> None:
        labels, notes = item["metadata"].get("labels", {}), item["metadata"].get("annotations", {})
        name, template = item["metadata"]["name"], item["spec"]["template"]
        if JOB not in labels:
            return
        self.made[name] += 1
        env = {one["name"]: one.get("value", "") for one in template["spec"]["containers"][0].get("env", [])}
        node = (template["spec"].get("nodeSelector") or {}).get("kubernetes.io/hostname", "")
        amounts = template["spec"]["containers"][0]["resources"]["requests"]
        epochs = float(notes["epoch"])
        share = self.fails(notes.get("title", ""), int(labels[ATTEMPT]))
        play = Play(
            cluster, name, f"{name}-pod", labels[JOB], int(labels[ATTEMPT]),
            f"{cluster}/{node}/gpu{env.get('CUDA_VISIBLE_DEVICES', '')}", notes["model_name"], epochs, epochs,
            self.now() + self.startup_s, None if share is None else epochs * (1.0 - share),
            (_cores(amounts["cpu"]), _mib(amounts["memory"]) / 1024.0, float(notes["gpu_memory_mb"]) / 1024.0),
        )  # fmt: skip
        pod = {
            "metadata": {
                "name": play.pod,
                "labels": {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": name},
                "ownerReferences": [
                    {
                        "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": item["metadata"]["uid"],
                        "controller": True,
                    }
                ],
            },
            "spec": {**template["spec"], **({"nodeName": node} if node else {})},
        }  # fmt: skip
        Api(self.servers[cluster]).insist("POST", f"/api/v1/namespaces/{self.namespace}/pods", pod)
        if node:
            self._enter(play)
        else:
            threading.Thread(target=self._when_bound, args=(play,), daemon=True).start()

    def _when_bound(self, play: Play) -> None:
        """Wait until the cluster's own scheduler has found a node, and take a card there that nobody has."""
        api, path = Api(self.servers[play.cluster]), f"/api/v1/namespaces/{self.namespace}/pods/{play.pod}"
        no_room_from: float | None = None
        while not self.stopped.is_set():
            found = api.insist("GET", path)
            if found is None:
                return
            node = found["spec"].get("nodeName")
            if no_room_from is None and any(
                one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable"
                for one in found["status"].get("conditions", ())
            ):
                no_room_from = self.now()
            if node:
                if no_room_from is not None:
                    self.unbound_s[play.job, play.attempt] = self.now() - no_room_from
                with self._lock:
                    taken = {one.card for one in self.plays.values() if not one.over}
                    cards = [name for name in self.card_types if name.startswith(f"{play.cluster}/{node}/")]
                    play.card = next((name for name in cards if name not in taken), cards[0])
                    play.starts_at = self.now() + self.startup_s
                    self._enter(play)
                return
            time.sleep(0.05)

    def taken(self) -> dict[str, tuple[float, float, float]]:
        """Return what running jobs take of each card and its node: cores, GiB, GiB of GPU memory."""
        found: dict[str, tuple[float, float, float]] = {}
        with self._lock:
            for one in self.plays.values():
                if one.running and not one.over:
                    before = found.get(one.card, (0.0, 0.0, 0.0))
                    found[one.card] = tuple(a + b for a, b in zip(before, one.takes, strict=True))  # type: ignore[assignment]
        return found

    def _enter(self, play: Play) -> None:
        name = play.name
        with self._lock:
            if any(one.job == play.job and one.running and not one.over for one in self.plays.values()):
                self.together.append(name)
            self.plays[name] = play
        self._wake.set()

    def _gone(self, name: str) -> None:
        with self._lock:
            self._settle()
            play = self.plays.pop(name, None)
        if play is not None:
            path = f"/api/v1/namespaces/{self.namespace}/pods/{play.pod}?gracePeriodSeconds=0"
            Api(self.servers[play.cluster]).insist("DELETE", path)
            self._wake.set()

    def _pace(self, play: Play) -> float:
        names = self.table.model_names
        others = [
            names.index(one.model) + 1
            for one in self.plays.values()
            if one is not play and one.card == play.card and one.running and not one.over
        ] + [0, 0]
        kind = self.table.card_types.index(self.card_types[play.card])
        return float(self.table.seconds[names.index(play.model), kind, others[0], others[1]])

    def _settle(self) -> None:
        now = self.now()
        paces = {name: self._pace(one) for name, one in self.plays.items() if one.running and not one.over}
        for name, pace in paces.items():
            self.plays[name].left -= (now - self._settled) / pace
        self._settled = now

    def _run(self) -> None:
        apis = {name: Api(server) for name, server in self.servers.items()}
        while not self.stopped.is_set():
            self._wake.clear()
            changed: list[tuple[Play, dict[str, Any]]] = []
            with self._lock:
                self._settle()
                soonest = self._settled + 60.0
                for one in self.plays.values():
                    if one.over:
                        continue
                    if not one.running and one.starts_at <= self._settled:
                        one.running, one.ran_from = True, self._settled
                        changed.append((one, {"phase": "Running", "startTime": _utc()}))
                    elif one.running and one.left - (one.fails_at or 0.0) <= 1e-9 * one.epochs:
                        one.over = True
                        changed.append((one, _ended(one.fails_at is not None)))
                        if one.fails_at is None:
                            self.finished[one.job] += 1
                            self.ran_s[one.job, one.attempt] = self._settled - one.ran_from
                for one in self.plays.values():
                    if not one.over:
                        due = one.starts_at
                        if one.running:
                            due = self._settled + max(one.left - (one.fails_at or 0.0), 0.0) * self._pace(one)
                        soonest = min(soonest, due)
            for one, status in changed:
                path = f"/api/v1/namespaces/{self.namespace}/pods/{one.pod}/status"
                apis[one.cluster].insist("PATCH", path, {"status": status}, "application/merge-patch+json")
            if not changed:
                self._wake.wait(min(max((soonest - self.now()) / self.scale, 0.001), 1.0))


def _cores(text: str) -> float:
    return float(text[:-1]) / 1000.0 if text.endswith("m") else float(text)


def _mib(text: str) -> float:
    return float(text[:-2]) * (1024.0 if text.endswith("Gi") else 1.0)


def _utc() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _ended(failed: bool) -> dict[str, Any]:
    end = {"exitCode": 1 if failed else 0, "finishedAt": _utc(), "reason": "Error" if failed else "Completed"}
    container = {
        "name": "main", "image": "work", "imageID": "", "ready": False, "restartCount": 0, "state": {"terminated": end},
    }  # fmt: skip
    return {"phase": "Failed" if failed else "Succeeded", "containerStatuses": [container]}


def start_etcd(programs: Path, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    client, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    with (folder / "etcd.log").open("ab") as log:
        process = subprocess.Popen(
            [
                programs / "etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}", "--unsafe-no-fsync",
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
    return process, client


def programs_folder() -> Path:
    """Return the folder of the Kubernetes programs."""
    folder = os.environ.get("KUBE_ASSETS") or os.environ.get("KUBEBUILDER_ASSETS")
    unpack = Path(__file__).parents[2] / "shared" / "kube" / "unpack"
    if not folder and unpack.exists():
        folder = subprocess.check_output([unpack], text=True).strip()
    if not folder or not (Path(folder) / "kube-apiserver").exists():
        raise SystemExit(
            "no Kubernetes: set KUBE_ASSETS or KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver"
        )
    return Path(folder)
