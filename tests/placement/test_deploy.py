"""The image and the manifests keep the safety rules of docs/service.md."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from placement.settings import Settings, load
from sched_env import problems
from wire import sample_bundle
from wire.contracts import encode

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
    assert not re.search(r"\btorch\b(?!,)|COPY \. ", dockerfile)


def test_everything_that_the_image_installs_has_a_hash(dockerfile: str) -> None:
    installs = re.findall(r"pip install [^&]*", dockerfile.replace("\\\n", " "))
    assert len(installs) == 3
    assert all("--require-hashes" in one or "--no-index" in one for one in installs)
    assert "--no-build-isolation --no-index" in dockerfile
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    for name in ("serve", "serve-sim", "build"):
        text = (ROOT / "docker" / f"requirements-{name}.txt").read_text().replace("\\\n", " ")
        for line in text.strip().splitlines():
            package, version = re.match(r"([\w.-]+)==([^\s;]+)", line).groups()  # type: ignore[union-attr]
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", line), package
            assert pinned.get(package, version) == version, f"run docker/lock.sh: {package}"
        assert "://" not in text


def test_the_list_covers_what_the_serving_extra_asks_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {
        re.split(r"[<>=; ]", one)[0] for one in [*extras["dependencies"], *extras["optional-dependencies"]["serve"]]
    }
    for name in ("serve", "serve-sim"):
        listed = set(
            re.findall(r"^([\w.-]+)==", (ROOT / "docker" / f"requirements-{name}.txt").read_text(), re.MULTILINE)
        )
        assert {one.lower() for one in asked} <= listed
        assert not listed & {"torch", "pandas", "dvc", "apache-airflow"}


def test_the_build_context_holds_no_state_and_no_secrets(dockerfile: str) -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    copied = set(re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE))
    for source in " ".join(copied).replace("${REQUIREMENTS}", "serve").split():
        assert source in let_in or Path(source).match("docker/requirements-*.txt"), source
    assert not {name for name in let_in if name.split("/")[0] in {"var", "data", ".git", "champions", "tests"}}


@pytest.mark.parametrize(
    ("release", "base", "code"),
    [
        ("0", "python:3.13", 0),
        ("1", "python:3.13@sha256:" + "a" * 64, 0),
        ("1", "python:3.13", 2),
        ("1", "python:latest@sha256:", 2),
        ("1", "python@sha256:" + "a" * 63, 2),
        ("1", "python@sha256:" + "g" * 64, 2),
        ("1", "a" * 64, 2),
        ("1", "", 2),
        ("1", "$(touch owned)@sha256:", 2),
    ],
)
def test_a_release_is_built_on_a_base_named_by_its_digest(
    dockerfile: str, tmp_path: Path, release: str, base: str, code: int
) -> None:
    assert 'check-base.sh "${RELEASE}" "${BASE}"' in dockerfile
    command = ["sh", str(ROOT / "docker" / "check-base.sh"), release, base]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, list(tmp_path.iterdir())) == (code, []), done.stderr


def test_a_revocation_reaches_a_deployed_service_by_the_documented_way(
    settings: Settings, workshop: Any, kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service sees what the ConfigMap holds: the files of var/keys/trusted, and nothing else of that machine."""
    manifest = (ROOT / "deploy" / "placement.yaml").read_text()
    assert "create configmap placement-keys --from-file=var/keys/trusted --dry-run" in manifest
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    from pipeline.registry import signing

    def deploy() -> None:
        shutil.rmtree(settings.trusted_keys_dir)
        shutil.copytree(signing.trusted_folder(), settings.trusted_keys_dir)

    def signed(seed: int, counter: int, live: str | None) -> dict[str, bytes]:
        key = signing.private_key()
        plain = {name: data for name, data in workshop.sample(seed).items() if name != kit.SIGNATURE_FILE}
        files = workshop.sign(plain, key)
        record = encode(sample_bundle.record(files, counter=counter, previous_digest=live))
        return files | {"record.json": record, "record.sig": signing.sign_bytes(record)}

    one, two = signed(1, 1, None), signed(2, 2, kit.digest_of(workshop.sample(1)))
    deploy()
    with kit.running(settings) as client:
        assert kit.push(client, one).is_success
        assert kit.push(client, two, live=kit.digest_of(one)).is_success
        signing.revoke(signing.current_key_id(), "lost laptop", last_record=None)
        deploy()
        back = client.post("/v1/policies/functions/rollback", headers={"Authorization": f"Bearer {kit.TOKEN}"})
        assert (back.status_code, "not trusted any more" in back.json()["error"]) == (422, True)
        anew = signed(1, 3, kit.digest_of(two))  # the key that took its place is on the list
        deploy()
        assert kit.push(client, anew, live=kit.digest_of(two)).is_success


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
    assert set().union(*map(packages, extras.keys() - {"spark", "xgboost"})) == packages("all")


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
from wire import sample_bundle
from wire.contracts import encode

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


def test_the_workload_image_is_torch_and_one_script_from_a_hashed_list_as_nobody() -> None:
    text = (ROOT / "docker" / "workload.Dockerfile").read_text()
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    assert "--require-hashes -r requirements-workload.txt" in text
    assert re.findall(r"^COPY (.*)", text, re.MULTILINE) == [
        "docker/check-base.sh docker/requirements-workload.txt ./",
        "docker/workload.py ./",
    ]
    listed = (ROOT / "docker" / "requirements-workload.txt").read_text()
    assert re.search(r"^torch==", listed, re.MULTILINE)
    assert listed.count("--hash=sha256:") >= len(re.findall(r"^\S+==", listed, re.MULTILINE))
