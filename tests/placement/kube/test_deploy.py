"""The manifests of watching, extending and migrating: a real API server takes them, and they give no right too many."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from placement.kube import config
from placement.settings import Settings
from tests.placement.kube.control_plane import ControlPlane
from tests.servers import free_port

DEPLOY = Path(__file__).parents[3] / "deploy"


def documents(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((DEPLOY / name).read_text()) if one]


def test_the_clusters_file_of_the_manifests_is_one_and_moves_nothing() -> None:
    found = config.load(DEPLOY / "clusters.yaml")
    assert found.migrator is not None
    assert found.migrator.apply is False
    assert found.extender is not None


def test_the_patch_sets_only_settings_that_exist_and_mounts_what_they_name() -> None:
    [patch] = documents("watching-patch.yaml")
    pod = patch["spec"]["template"]["spec"]
    known = {f"LOADMASTER_{name.upper()}" for name in Settings.__struct_fields__}
    mounts = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    for entry in pod["containers"][0]["env"]:
        assert entry["name"] in known
        assert any(entry["value"].startswith(mount) for mount in mounts)


def test_the_migrator_runs_without_rights_on_its_node() -> None:
    [deployment] = [one for one in documents("migrator.yaml") if one["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    [container] = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    [made] = [one for one in documents("migrator.yaml") if one["kind"] == "PriorityClass"]
    settings = config.MigratorSettings("home")
    assert made["metadata"]["name"] == settings.placeholder_priority_class
    assert (made["value"] < 0, made["preemptionPolicy"]) == (True, "Never")


def test_the_scheduler_looks_at_the_certificate_and_shows_its_own() -> None:
    [scheduler] = documents("extender.yaml")
    [extender] = scheduler["extenders"]
    assert extender["enableHTTPS"]
    assert extender["tlsConfig"].keys() == {"caFile", "certFile", "keyFile"}
    assert (extender["nodeCacheCapable"], extender["ignorable"], extender["weight"]) == (True, True, 100)
    assert (scheduler["percentageOfNodesToScore"], "filterVerb" in extender) == (100, False)


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)


@pytest.mark.kube
@pytest.mark.timeout(600)
def test_a_real_cluster_takes_the_manifests_and_only_the_scheduler_gets_in(kube: ControlPlane, tmp_path: Path) -> None:
    environ = os.environ | {"KUBECONFIG": str(kube.kubeconfig)}

    def kubectl(*arguments: str) -> str:
        command = [str(kube.bin / "kubectl"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=120)
        assert done.returncode == 0 or arguments[:2] == ("auth", "can-i"), done.stderr
        return done.stdout.strip()

    kubectl("create", "namespace", "loadmaster")
    kubectl("apply", "--validate=strict", "-n", "loadmaster", "-f", str(DEPLOY / "placement.yaml"))
    for name in ("watching.yaml", "migrator.yaml"):
        kubectl("apply", "--validate=strict", "-f", str(DEPLOY / name))
    kubectl("-n", "loadmaster", "patch", "deployment", "placement", "--patch-file", str(DEPLOY / "watching-patch.yaml"))
    found = kubectl("-n", "loadmaster", "get", "deployment", "placement", "-o", "yaml")
    volumes = {one["name"] for one in yaml.safe_load(found)["spec"]["template"]["spec"]["volumes"]}
    assert {"store", "keys", "push-token", "clusters", "tls"} <= volumes, "the patch adds, and takes nothing away"

    def may(account: str, verb: str, what: str, namespace: str = "") -> bool:
        resource, _, part = what.partition("/")
        asked = ["auth", "can-i", verb, resource, f"--subresource={part}"]
        asked += ["-n", namespace] if namespace else ["-A"]
        return kubectl(*asked, "--as", f"system:serviceaccount:loadmaster:{account}") == "yes"

    assert may("placement", "watch", "pods")
    assert not may("placement", "create", "pods/eviction")
    assert not may("placement", "patch", "pods"), "gates are off in these manifests"
    assert may("migrator", "create", "pods/eviction")
    assert may("migrator", "update", "leases", "loadmaster")
    assert not may("migrator", "update", "leases", "kube-system")
    for account in ("placement", "migrator"):
        for verb, what in (
            ("list", "secrets"),
            ("create", "pods/exec"),
            ("update", "nodes"),
            ("create", "pods/binding"),
        ):
            assert not may(account, verb, what), (account, verb, what)

    # The second door: the scheduler comes in with its certificate, nobody comes in without one.
    openssl(tmp_path, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt",
            "-days", "1", "-subj", "/CN=test")  # fmt: skip
    for who, name in (("service", "IP:127.0.0.1"), ("scheduler", "DNS:kube-scheduler")):
        openssl(tmp_path, "req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{who}.key", "-out", f"{who}.csr",
                "-subj", f"/CN={who}")  # fmt: skip
        (tmp_path / f"{who}.ext").write_text(f"subjectAltName={name}")
        openssl(tmp_path, "x509", "-req", "-in", f"{who}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-days", "1",
                "-CAcreateserial", "-extfile", f"{who}.ext", "-out", f"{who}.crt")  # fmt: skip
    kube.add_nodes([f"n{index}" for index in range(4)])
    file = tmp_path / "clusters.yaml"
    file.write_text(f"clusters: {{lab: {{kubeconfig: {kube.kubeconfig}}}}}\nextender: {{cluster: lab}}\n")
    port, door = free_port(), free_port()
    given = {
        "LOADMASTER_VAR": str(tmp_path / "var"), "LOADMASTER_CLUSTERS_FILE": str(file),
        "LOADMASTER_TLS_CERT_FILE": str(tmp_path / "service.crt"),
        "LOADMASTER_TLS_KEY_FILE": str(tmp_path / "service.key"),
        "LOADMASTER_TLS_CLIENT_CA_FILE": str(tmp_path / "ca.crt"),
    }  # fmt: skip
    command = [sys.executable, "-m", "placement", "--port", str(port), "--tls-port", str(door), "--log-level", "error"]
    service = subprocess.Popen(command, env=os.environ | given)
    try:
        kube.until(lambda: _metric(port, 'kind="nodes"') == 4, "the service to watch")
        stranger = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        with pytest.raises((ssl.SSLError, urllib.error.URLError, ConnectionError, OSError)):
            urllib.request.urlopen(f"https://127.0.0.1:{door}/healthz", timeout=10, context=stranger).read()
        [scheduler] = documents("extender.yaml")
        extender = scheduler["extenders"][0] | {
            "urlPrefix": f"https://127.0.0.1:{door}/extender", "httpTimeout": "5s",
            "tlsConfig": {key: str(tmp_path / name) for key, name in (
                ("caFile", "ca.crt"), ("certFile", "scheduler.crt"), ("keyFile", "scheduler.key"))},
        }  # fmt: skip
        kube.start_scheduler(extender)
        kube.add_pods([f"p{index}" for index in range(6)])
        kube.until(lambda: all(one["spec"].get("nodeName") for one in kube.pods()), "the pods to be bound")
        assert _metric(port, "loadmaster_decisions_total") == 6.0
    finally:
        service.kill()
        service.wait(30)


def _metric(port: int, part: str) -> float:
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    except OSError:
        return -1.0
    return next((float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if part in line and line[0] != "#"), 0.0)
