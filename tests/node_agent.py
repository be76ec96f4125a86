"""A test agent that plays kubelet: each pod bound to its node runs as a local process, with the pod's environment.

It serves the pod's log where a kubelet would, reports the phase, obeys deletions, and can lose its node: the processes
die, nothing is reported, and nobody answers for the node any more. No container, no image, no isolation: a mounted
folder is a temporary one, told by the environment.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import ssl
import subprocess
import threading
import time
import urllib.error
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.placement.kube.control_plane import ControlPlane

POLL_S = 0.3


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Running:
    """One pod as a process."""

    def __init__(self, pod: dict[str, Any], folder: Path) -> None:
        self.name, self.namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        self.uid, self.pod, self.folder = pod["metadata"]["uid"], pod, folder
        self.lines: list[str] = []
        self.ended = threading.Event()
        self.process: subprocess.Popen[str] | None = None
        self.reason = ""

    def kill(self, number: int = signal.SIGKILL, reason: str = "") -> None:
        self.reason = reason or self.reason
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number)


class NodeAgent:
    """Plays one node with GPUs."""

    def __init__(self, plane: ControlPlane, name: str, folder: Path, path: str, **amounts: str) -> None:
        self.plane, self.name, self.folder, self.path = plane, name, folder, path
        self.pods: dict[str, Running] = {}
        self.started: list[str] = []
        self.gone = threading.Event()
        folder.mkdir(parents=True)
        self._serve_logs()
        labels = {"nvidia.com/gpu.present": "true", "kubernetes.io/hostname": name}
        taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
        plane.call("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}, "spec": {"taints": [taint]}})
        self._status(amounts)
        self._lease(create=True)
        for work in (self._beat, self._look):
            threading.Thread(target=work, daemon=True).start()

    def lose(self) -> None:
        """Lose the node, at once: power off."""
        self.gone.set()
        self.server.shutdown()
        self.server.server_close()
        for one in self.pods.values():
            one.kill()
            one.ended.set()

    def _status(self, amounts: dict[str, str]) -> None:
        conditions = [
            {"type": kind, "status": "True" if kind == "Ready" else "False", "reason": "TestAgent"}
            for kind in ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
        ]
        for one in conditions:
            one["lastHeartbeatTime"] = one["lastTransitionTime"] = now()[:19] + "Z"
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.server.server_address[1]}},
        }
        path = f"/api/v1/nodes/{self.name}/status"
        self.plane.call("PATCH", path, {"status": status}, kind="merge-patch+json")

    def _lease(self, *, create: bool = False) -> None:
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 10, "renewTime": now()}
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        if create:
            self.plane.call("POST", leases, {"metadata": {"name": self.name}, "spec": spec})
        else:
            self.plane.call("PATCH", f"{leases}/{self.name}", {"spec": spec}, kind="merge-patch+json")

    def _beat(self) -> None:
        while not self.gone.wait(2):
            try:
                self._lease()
            except OSError:
                continue  # the API server is away: later

    def _look(self) -> None:
        asked = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}"
        while not self.gone.wait(POLL_S):
            said = self.plane.get(asked)
            for pod in (said or {}).get("items", ()):
                known = self.pods.get(pod["metadata"]["uid"])
                if pod["metadata"].get("deletionTimestamp"):
                    self._end(pod, known)
                elif known is None and pod["status"].get("phase") == "Pending":
                    one = self.pods[pod["metadata"]["uid"]] = Running(pod, self.folder / pod["metadata"]["uid"])
                    threading.Thread(target=self._run, args=(one,), daemon=True).start()

    def _end(self, pod: dict[str, Any], known: Running | None) -> None:
        if known is not None and not known.ended.is_set():
            known.kill(signal.SIGTERM, "Deleted")
            if not known.ended.wait(3):
                known.kill(signal.SIGKILL, "Deleted")
                known.ended.wait(5)
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        try:
            self.plane.call("DELETE", path, body)
        except urllib.error.HTTPError as error:
            if error.code not in (404, 409):
                raise

    def _environment(self, container: dict[str, Any], namespace: str, folder: Path) -> dict[str, str]:
        found = {"PATH": self.path, "HOME": str(folder)}
        for source in container.get("envFrom", ()):
            secret = self.plane.call("GET", f"/api/v1/namespaces/{namespace}/secrets/{source['secretRef']['name']}")
            found |= {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}
        found |= {one["name"]: one.get("value", "") for one in container.get("env", ()) if "valueFrom" not in one}
        mounts = {one["mountPath"] for one in container.get("volumeMounts", ())} - {"/tmp"}
        for path in mounts:
            found = {name: value.replace(path, str(folder)) for name, value in found.items()}
        return found

    def _run(self, one: Running) -> None:
        (container,) = one.pod["spec"]["containers"]
        one.folder.mkdir(parents=True)
        environment = self._environment(container, one.namespace, one.folder)
        began = now()
        self.started.append(one.name)
        self._report(one, {"running": {"startedAt": began[:19] + "Z"}}, "Running")
        one.process = subprocess.Popen(
            [*container.get("command", ()), *container.get("args", ())], env=environment, cwd=one.folder, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        for line in one.process.stdout or ():
            one.lines.append(f"{now()} {line}" if line.endswith("\n") else f"{now()} {line}\n")
        code = one.process.wait()
        shutil.rmtree(one.folder, ignore_errors=True)
        if self.gone.is_set():
            return
        ended = {
            "exitCode": code if code >= 0 else 128 - code,
            "reason": one.reason or ("Completed" if code == 0 else "Error"),
            "message": "".join(one.lines[-3:])[-500:] if code else "",
            "startedAt": began[:19] + "Z",
            "finishedAt": now()[:19] + "Z",
        }
        evicted = one.reason == "Evicted"
        self._report(one, {"terminated": ended}, "Succeeded" if code == 0 else "Failed", "Evicted" if evicted else "")
        one.ended.set()  # only now may a reader of the log see its end

    def _report(self, one: Running, state: dict[str, Any], phase: str, reason: str = "") -> None:
        up = phase == "Running"
        status = {
            "phase": phase,
            "startTime": now()[:19] + "Z",
            "conditions": [{"type": "Ready", "status": str(up)}, {"type": "ContainersReady", "status": str(up)}],
            "containerStatuses": [
                {"name": one.pod["spec"]["containers"][0]["name"], "image": "none", "imageID": "", "ready": up,
                 "started": up, "restartCount": 0, "state": state, "containerID": f"agent://{one.uid}"}
            ],
        }  # fmt: skip
        path = f"/api/v1/namespaces/{one.namespace}/pods/{one.name}/status"
        for _ in range(20):
            try:
                said = {"status": status | ({"reason": reason} if reason else {})}
                self.plane.call("PATCH", path, said, kind="merge-patch+json")
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return
                time.sleep(0.5)
            except OSError:
                time.sleep(0.5)
            else:
                return

    def _serve_logs(self) -> None:
        agent = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                split = urlsplit(self.path)
                _, kind, namespace, name, _container = split.path.split("/")
                asked = parse_qs(split.query)
                found = [one for one in agent.pods.values() if (one.namespace, one.name) == (namespace, name)]
                if kind != "containerLogs" or not found:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self._follow(found[-1], follow="follow" in asked, stamps="timestamps" in asked)

            def _follow(self, one: Running, *, follow: bool, stamps: bool) -> None:
                sent = 0
                while True:
                    ended = one.ended.is_set()
                    for line in one.lines[sent:]:
                        data = (line if stamps else line.partition(" ")[2]).encode()
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                        sent += 1
                    self.wfile.flush()
                    if agent.gone.is_set():
                        self.close_connection = True
                        return
                    if ended or not follow:
                        self.wfile.write(b"0\r\n\r\n")
                        return
                    time.sleep(0.2)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        key, certificate = self.folder / "key.pem", self.folder / "cert.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
             "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
            check=True, capture_output=True,
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
