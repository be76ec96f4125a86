"""What is deployed: rules that promtool accepts and tests, dashboards over metrics that exist, manifests that build."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = sorted(path.parent.name for path in DEPLOY.glob("overlays/*/kustomization.yaml"))


def built(overlay):
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    command = ["kubectl", "kustomize", "--load-restrictor", "LoadRestrictionsNone", str(DEPLOY / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of(documents, kind, name):
    return next(one for one in documents if (one["kind"], one["metadata"]["name"]) == (kind, name))


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "command",
    [
        ["check", "rules", "recording.yaml", "alerts.yaml"],
        ["test", "rules", "tests.yaml"],
        ["check", "config", "prometheus.yaml"],
    ],
)
def test_promtool_accepts_and_tests_the_rules(command):
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed (scripts/install-test-tools.sh)")
    done = subprocess.run(
        ["promtool", *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_and_says_what_to_do():
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]
    alerts = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    tested = yaml.safe_load((DEPLOY / "prometheus" / "tests.yaml").read_text())["tests"]
    fired = {one["alertname"] for test in tested for one in test["alert_rule_test"] if one.get("exp_alerts")}
    assert fired == set(alerts), "each has a case in which it fires"
    assert all(rule["annotations"]["action"] for rule in alerts.values())


def test_dashboards_and_alerts_ask_for_metrics_that_exist():
    from pipeline.watch import page
    from placement.metrics import Metrics

    known = {sample.name for metric in Metrics().registry.collect() for sample in metric.samples}
    ours = {metric.name for metric in Metrics().registry.collect()}
    known |= ours | {f"{name}_total" for name in ours} | {f"{name}_bucket" for name in ours}
    known |= set(re.findall(r"loadmaster_watch_\w+", page.metrics([]))) | {"loadmaster_watch"}
    recorded = set(re.findall(r"record: (\S+)", (DEPLOY / "prometheus" / "recording.yaml").read_text()))
    for path in [*DEPLOY.glob("grafana/*.json"), DEPLOY / "prometheus" / "alerts.yaml", ROOT / "watch.yaml"]:
        text = path.read_text()
        if path.suffix == ".json":
            queries = "\n".join(target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"])
        else:
            queries = "\n".join(re.findall(r"expr: .*|\S+: loadmaster:.*", text))
        assert set(re.findall(r"loadmaster_\w+", queries)) <= known, path.name
        assert set(re.findall(r"loadmaster:[\w:]+", queries)) <= recorded, path.name


@pytest.mark.parametrize("name", ["service", "pipeline", "cluster"])
def test_a_dashboard_has_panels_with_units_and_a_source_to_choose(name):
    board = json.loads((DEPLOY / "grafana" / f"{name}.json").read_text())
    assert board["templating"]["list"][0]["type"] == "datasource"
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places) >= 6
    assert all(panel["targets"] and panel["fieldConfig"]["defaults"]["unit"] for panel in board["panels"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_runs_as_root_and_no_secret_is_written_down(overlay):
    for document in built(overlay):
        assert document["kind"] != "Secret"
        pod = document.get("spec", {}).get("template", {}).get("spec")
        if pod:
            assert pod["securityContext"]["runAsNonRoot"]
            assert not pod["automountServiceAccountToken"]
            for container in pod["containers"]:
                assert container["securityContext"]["readOnlyRootFilesystem"]
                assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)


def test_replicas_share_a_store_and_two_stay_when_nodes_go():
    documents = built("replicas")
    deployment = of(documents, "Deployment", "placement")
    assert deployment["spec"]["replicas"] == 3
    assert deployment["spec"]["strategy"]["type"] == "RollingUpdate"
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert "LOADMASTER_STORE_URL" in {entry["name"] for entry in container["env"]}
    store = next(v for v in deployment["spec"]["template"]["spec"]["volumes"] if v["name"] == "store")
    assert set(store) == {"name", "emptyDir"}
    assert not [one for one in documents if one["kind"] == "PersistentVolumeClaim"]
    assert of(documents, "PodDisruptionBudget", "placement")["spec"]["minAvailable"] == 2


def test_accounts_of_the_pipeline_share_nothing():
    documents = built("pipeline")
    for name in ("loadmaster-stage", "loadmaster-signer"):
        assert of(documents, "ServiceAccount", name)["automountServiceAccountToken"] is False
    bound = [subject["name"] for one in documents if one["kind"] == "RoleBinding" for subject in one["subjects"]]
    assert bound == ["loadmaster-airflow"]
    verbs = of(documents, "Role", "loadmaster-airflow")["rules"]
    assert not [rule for rule in verbs if "secrets" in rule["resources"] or "*" in rule["verbs"]]


def test_the_compose_file_is_whole():
    document = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
    assert set(document["services"]) >= {"postgres", "s3", "airflow-api", "airflow-scheduler", "placement", "grafana"}
    for name, service in document["services"].items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name


def test_docker_compose_takes_the_file_and_misses_no_secret_silently(tmp_path):
    if not shutil.which("docker-compose"):
        pytest.skip("docker-compose is not installed (apt-get install docker-compose)")
    (tmp_path / "empty").touch()  # not what this machine's docker/.env says
    asked = sorted(set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker" / "compose.yaml").read_text())))

    def config(names):
        command = ["docker-compose", "-f", "docker/compose.yaml", "--env-file", str(tmp_path / "empty"), "config"]
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **dict.fromkeys(names, "told")}
        return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)

    whole = config(asked)
    assert whole.returncode == 0, whole.stderr
    services = yaml.safe_load(whole.stdout)["services"]
    assert services["airflow-scheduler"]["depends_on"]["airflow-api"]["condition"] == "service_healthy"
    for service in services.values():
        for volume in service.get("volumes", []):
            source = Path(str(volume).split(":")[0])
            assert not source.is_absolute() or source.exists(), f"{source} is mounted and is not there"
    for name in asked:
        lacking = config([one for one in asked if one != name])
        assert lacking.returncode != 0, f"{name} is not asked for"


@pytest.mark.kube
@pytest.mark.timeout(600)
def test_the_real_api_server_takes_every_overlay(tmp_path):
    from tests.placement.kube import control_plane

    with control_plane.running(tmp_path / "kube") as plane:
        kubectl = [str(plane.bin / "kubectl"), f"--kubeconfig={plane.kubeconfig}"]
        subprocess.run([*kubectl, "create", "namespace", "loadmaster"], check=True, capture_output=True)
        for overlay in OVERLAYS:
            manifests = yaml.safe_dump_all(built(overlay))
            # By the server's own schema and admission, with nothing kept.
            done = subprocess.run(
                [*kubectl, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"],
                input=manifests, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{overlay}: {done.stderr}"
            assert "Warning" not in done.stderr


@pytest.mark.kube
@pytest.mark.timeout(600)
def test_the_job_controller_can_do_its_work_with_the_rights_of_the_manifests_and_nothing_more(tmp_path):
    from kubernetes.client import ApiException
    from kubernetes.config import new_client_from_config

    from placement.cpn.gateway import KubeGateway
    from placement.kube.lease import Lease
    from tests.placement.kube import control_plane

    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "one", "labels": {}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}}},
    }  # fmt: skip
    with control_plane.running(tmp_path / "kube") as plane:
        kubectl = [str(plane.bin / "kubectl"), f"--kubeconfig={plane.kubeconfig}"]

        def run(*arguments):
            done = subprocess.run([*kubectl, *arguments], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        def as_account(name, namespace):
            config = yaml.safe_load(plane.kubeconfig.read_text())
            config["users"][0]["user"] = {"token": run("-n", namespace, "create", "token", name)}
            path = tmp_path / f"{name}.kubeconfig"
            path.write_text(yaml.safe_dump(config))
            return new_client_from_config(str(path))

        def refused(client, path):
            with pytest.raises(ApiException) as error:
                KubeGateway(client, "jobs").get(path)
            return error.value.status == 403

        run("create", "namespace", "loadmaster")
        run("apply", "--validate=strict", "-n", "loadmaster", "-f", str(DEPLOY / "placement.yaml"))
        run("apply", "--validate=strict", "-f", str(DEPLOY / "jobs.yaml"), "-f", str(DEPLOY / "jobs-cluster.yaml"))
        run("-n", "loadmaster", "patch", "deployment", "placement", "--patch-file", str(DEPLOY / "jobs-patch.yaml"))
        pod = yaml.safe_load(run("-n", "loadmaster", "get", "deployment", "placement", "-o", "yaml"))["spec"][
            "template"
        ]
        assert {"store", "log", "keys", "jobs"} <= {volume["name"] for volume in pod["spec"]["volumes"]}

        worker = as_account("loadmaster-jobs", "jobs")
        gateway = KubeGateway(worker, "jobs")
        assert gateway.ping() == {}, "namespace, Jobs and nodes are there for it"
        gateway.create(job)
        assert gateway.find("one")["metadata"]["name"] == "one"
        assert gateway.log("one") == "", "it may look for the pod, and there is none"
        gateway.remove("one")
        for path in ("/api/v1/namespaces/jobs/secrets", "/api/v1/pods", "/apis/batch/v1/namespaces/default/jobs"):
            assert refused(worker, path), path

        service = as_account("placement", "loadmaster")
        lease = Lease(service, "loadmaster", "loadmaster-cpn", "me")
        for _ in range(2):  # made, then renewed
            lease.attempt()
            assert lease.leading
        assert refused(service, "/apis/coordination.k8s.io/v1/namespaces/loadmaster/leases/another")
        assert refused(service, "/apis/batch/v1/namespaces/jobs/jobs"), "the service itself makes no Jobs at home"


def test_the_service_and_airflow_name_one_log_for_the_shadow_and_the_canary():
    documents = built("one")
    pod = of(documents, "Deployment", "placement")["spec"]["template"]["spec"]
    told = {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"]}
    values = yaml.safe_load((DEPLOY / "airflow" / "values.yaml").read_text())
    asked = {entry["name"]: entry["value"] for entry in values["env"]}
    assert asked["LOADMASTER_LOG_DIR"] == told["LOADMASTER_LOG_DIR"]
    claim = next(volume for volume in pod["volumes"] if volume["name"] == "log")["persistentVolumeClaim"]["claimName"]
    assert of(documents, "PersistentVolumeClaim", claim)["spec"]["accessModes"] == ["ReadWriteMany"]
    [volume] = values["scheduler"]["extraVolumes"]
    [mount] = values["scheduler"]["extraVolumeMounts"]
    assert volume["persistentVolumeClaim"] == {"claimName": claim, "readOnly": True}
    assert (mount["name"], mount["readOnly"]) == (volume["name"], True)
    assert told["LOADMASTER_LOG_DIR"].startswith(mount["mountPath"])
