"""The image and the manifests keep the safety rules of docs/service.md."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from placement.settings import Settings, load
from sched_env import problems

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "placement.yaml").read_text()))
    return {document["kind"]: document for document in documents}


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (ROOT / "docker" / "placement.Dockerfile").read_text()


def test_the_pod_has_no_more_rights_than_it_needs(manifests: dict[str, Any]) -> None:
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"]
        assert not rights["allowPrivilegeEscalation"]
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
    assert not {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"} & manifests.keys()


def test_one_replica_hands_the_folder_store_over(manifests: dict[str, Any]) -> None:
    spec = manifests["Deployment"]["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_the_network_policy_names_who_may_ask_and_lets_nothing_out(manifests: dict[str, Any]) -> None:
    policy = manifests["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []
    for rule in policy["ingress"]:
        assert all(peer.get("podSelector", {}).get("matchLabels") for peer in rule["from"])
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind in ("NetworkPolicy", "Service"):
        spec = manifests[kind]["spec"]
        selector = spec["podSelector"]["matchLabels"] if kind == "NetworkPolicy" else spec["selector"]
        assert selector.items() <= labels.items()


def test_the_manifests_set_only_settings_that_exist(manifests: dict[str, Any]) -> None:
    container = manifests["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    environ = {entry["name"]: entry["value"] for entry in container["env"]}
    known = {f"LOADMASTER_{name.upper()}" for name in Settings.__struct_fields__} | {"LOADMASTER_VAR"}
    assert environ.keys() <= known
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    settings = load(environ)
    assert str(settings.store_dir.parent) in mounts
    assert mounts[str(settings.trusted_keys_dir)]["readOnly"]
    assert mounts[str(settings.push_token_file.parent)]["readOnly"]


def test_the_image_runs_as_nobody_and_says_whether_it_is_well(dockerfile: str) -> None:
    assert re.search(r"^ARG BASE=", dockerfile, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) == {"${BASE}"}
    assert re.search(r"^USER 10001:10001$", dockerfile, re.MULTILINE)
    assert "HEALTHCHECK" in dockerfile
    assert "-c constraints.txt" in dockerfile
    assert not re.search(r"\btorch\b(?!,)|COPY \. ", dockerfile)


def test_the_image_holds_what_the_service_imports(dockerfile: str) -> None:
    copied = set(re.findall(r"^COPY (\w+) \1$", dockerfile, re.MULTILINE))
    assert copied == {"wire", "sched_env", "placement"}


def test_the_serving_extra_carries_neither_kernels_nor_environments() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]

    def packages(extra: str) -> set[str]:
        found = set()
        for requirement in extras[extra]:
            name, _, inner = re.split(r"[<>=; ]", requirement)[0].rstrip("]").partition("[")
            found |= {name} if name != "loadmaster" else set().union(*map(packages, inner.split(",")))
        return found

    core = {re.split(r"[<>=; ]", requirement)[0] for requirement in project["dependencies"]}
    absent = {"numba", "gymnasium", "fastapi", "torch", "pandas", "dvc", "apache-airflow"}
    assert not (core | packages("serve")) & absent
    assert {"numba", "gymnasium"} <= packages("train") & packages("data")
    assert set().union(*map(packages, extras.keys() - {"spark"})) == packages("all")


def test_placements_of_every_problem_are_answered_without_kernels_or_environments(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SIMULATION],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", "LOADMASTER_VAR": str(tmp_path)},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {f"{name}:200" for name in problems.names()}


WITHOUT_SIMULATION = """
import math, sys
for name in ("numba", "gymnasium", "scipy", "fastapi", "pydantic"):
    sys.modules[name] = None  # importing it fails, as in the image
from starlette.testclient import TestClient
from placement.app import create_app
from sched_env import problems

def plain(fields):
    return {name: default or 1.0 for name, (_, default) in fields.items() if math.isfinite(default) and default >= 0}

with TestClient(create_app()) as client:
    for name in problems.names():
        problem = problems.get(name)
        states = [{"name": str(index), "state": plain(problem.state_fields)} for index in range(3)]
        asked = [{"id": "r", "fields": plain(problem.request_fields)}]
        body = {"problem": name, "requests": asked, "candidates": states}
        answer = client.post("/v1/place", json=body)
        print(f"{name}:{answer.status_code}", answer.text if answer.status_code != 200 else "")
"""
