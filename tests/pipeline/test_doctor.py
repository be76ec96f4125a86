"""A minute with a Prometheus: what it tells, what is missing, what could be trained, before any night."""

import contextlib
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.doctor import main
from wire.errors import ConfigError

ROOT = Path(__file__).parents[2]


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = found
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def stack_now(tmp_path_factory):
    """Three hours of a kube-prometheus-stack that end now, in a real Prometheus."""
    sources = module(ROOT / "tests" / "pipeline" / "sources" / "conftest.py")
    if not (sources.shutil.which("prometheus") and sources.shutil.which("promtool")):
        pytest.skip("prometheus and promtool are not installed (scripts/install-test-tools.sh)")
    start = int(time.time()) // 300 * 300 - 2 * 3600
    stack = module(ROOT / "benchmarks" / "kube_stack.py").Stack(start, 2.0, 60)
    folder = tmp_path_factory.mktemp("now")
    stack.write(folder / "stack.om")
    with contextlib.ExitStack() as opened:
        yield stack, opened.enter_context(sources.running_prometheus(folder, folder / "stack.om"))


@pytest.mark.prometheus
def test_todays_data_need_not_wait_for_midnight(stack_now, tmp_path):
    stack, address = stack_now
    command = [sys.executable, "-m", "wire.cli", "doctor", "--prometheus", address, "--hours", "2", "--json"]
    environment = {"LOADMASTER_VAR": str(tmp_path / "var"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["things"]["nodes"] == len(stack.machines)
    assert report["things"]["active nodes"] == len(stack.machines) - 1
    assert report["things"]["workloads"] == 10
    assert report["things"]["functions with requests"] == 2
    assert report["things"]["cards"] == 2
    assert report["groups"][-1] == "nginx"
    ready = {name: [need["what"] for need in needs if not need["there"]] for name, needs in report["problems"].items()}
    assert ready == {"functions": [], "pods": [], "vm": [], "jobs": [], "workflow": []}
    assert report["history_days"] == 0
    assert report["quarantined"] == {}
    assert any("1 USD" in line for line in report["invented"])
    assert not any("machines that Kubernetes does not know" in line for line in report["unmapped"])


@pytest.mark.prometheus
def test_words_for_people_say_what_to_add(stack_now, tmp_path, monkeypatch, capsys):
    _, address = stack_now
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    assert (
        main(["--prometheus", address, "--hours", "1", "--matchers", 'job!~"ingress.*|nvidia.*|kube-state-metrics"'])
        == 1
    )
    said = capsys.readouterr().out
    assert (
        "functions: needs pods on nodes (kube-state-metrics); requests of workloads (Knative, OpenFaaS, Istio" in said
    )
    assert "no pod_info: kube-state-metrics" in said
    assert "5 nodes" in said, "machines are known without kube-state-metrics too"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--hours", "0"], "--hours is 0"),
        (["--header", "x"], "--header is 'x'"),
        (["--prometheus", "host:9090"], "url is"),
    ],
)
def test_wrong_flags_are_one_clear_line(more, message):
    with pytest.raises(ConfigError, match=message):
        main(["--prometheus", "http://localhost:1", *more])
