"""Benchmark Jobs: the template filled in, the program run small on the CPU, its log read back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sched_env.jobs.fingerprints import benchmark_job, parse, template
from wire.errors import ConfigError, TraceError

ROOT = Path(__file__).parents[3]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}  # on a busy machine torch's threads wait for each other, spinning
TEMPLATE = ROOT / "deploy" / "benchmark-job.yaml"


def line(name: str, **changes: object) -> str:
    about = {"benchmark": name, "device": "cuda", "card": "A100", "size": "full", "fits": True, "seconds": 0.5}
    return json.dumps(about | changes)


def log(*lines: str) -> str:
    return "\n".join(["a driver's warning", '{"not": "ours"}', *lines])


def test_the_template_becomes_a_job_that_holds_one_card_and_has_no_rights() -> None:
    job = benchmark_job(template(TEMPLATE), name="bench-a", node="node-1", card=3, image="workload@sha256:0")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert job["metadata"]["name"] == "bench-a"
    assert job["spec"]["backoffLimit"] == 0
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "node-1"}
    assert container["args"] == ["benchmark", "--seconds", "600"]
    assert {"name": "CUDA_VISIBLE_DEVICES", "value": "3"} in container["env"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"name": "Bad_Name"}, "lower-case"), ({"node": 'x"}, y: {'}, "plain word"), ({"card": -1}, "index from 0")],
)
def test_what_would_break_the_yaml_is_refused(changes: dict[str, object], said: str) -> None:
    given = {"name": "bench", "node": "n", "card": 0, "image": "i", **changes}
    with pytest.raises(ConfigError, match=said):
        benchmark_job(template(TEMPLATE), **given)  # type: ignore[arg-type]


def test_a_template_with_other_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="OTHER"):
        benchmark_job("${OTHER}", name="bench", node="n", card=0, image="i")
    with pytest.raises(ConfigError, match="benchmark-job"):
        template(tmp_path / "none.yaml")


def test_a_log_becomes_a_fingerprint_and_what_does_not_fit_is_left_out() -> None:
    found = parse(log(line("resnet50"), line("yolov8m", seconds=0.25), line("llama3", fits=False, seconds=0.0)))
    assert found.card == "A100"
    assert found.seconds == {"resnet50": 0.5, "yolov8m": 0.25}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([line("resnet50"), line("yolov8m")], "no line of llama3"),
        ([line("resnet50"), line("yolov8m", card="P100"), line("llama3")], "one card"),
        ([line(name, size="small") for name in ("resnet50", "yolov8m", "llama3")], "no fingerprint"),
        ([line("resnet50", seconds=0.0), line("yolov8m"), line("llama3")], "above 0"),
        ([line(name, fits=False) for name in ("resnet50", "yolov8m", "llama3")], "one at least"),
    ],
)
def test_a_log_that_is_no_fingerprint_is_refused(lines: list[str], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        parse(log(*lines))


def test_the_program_measures_every_model_on_the_cpu() -> None:
    command = [sys.executable, ROOT / "docker" / "workload.py"]
    arguments = ["benchmark", "--size", "small", "--seconds", "0.05", "--device", "cpu"]
    ran = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=100, check=True, env=ONE_THREAD
    )
    lines = [json.loads(text) for text in ran.stdout.splitlines()]
    assert [each["benchmark"] for each in lines] == ["resnet50", "yolov8m", "llama3"]
    assert all(each["fits"] and each["seconds"] > 0 and each["steps"] >= 3 for each in lines)
    full = "\n".join(json.dumps(each | {"size": "full"}) for each in lines)
    assert parse(full).card == "cpu"


def test_what_does_not_fit_the_memory_is_reported_and_the_others_are_measured_in_full_size() -> None:
    command = ["prlimit", f"--as={8 * 2**30}", sys.executable, ROOT / "docker" / "workload.py"]
    arguments = ["benchmark", "--seconds", "0.1", "--device", "cpu"]
    ran = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=300, check=True, env=ONE_THREAD
    )
    found = parse(ran.stdout)
    assert found.card == "cpu"
    assert found.seconds.keys() == {"resnet50", "yolov8m"}, "eight billion weights take 32 GB"
    assert found.seconds["yolov8m"] > found.seconds["resnet50"] > 0


def test_full_networks_have_the_parameters_of_those_they_are_named_after() -> None:
    code = (
        "import torch, workload\n"
        "with torch.device('meta'):\n"
        "    for name, make in workload.MODELS.items():\n"
        "        print(name, sum(p.numel() for p in make(False)[0].parameters()))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env=ONE_THREAD,
        cwd=ROOT / "docker",
    )
    found = {name: float(count) for name, count in (text.split() for text in ran.stdout.splitlines())}
    assert found["resnet50"] == pytest.approx(25.6e6, rel=0.01)
    assert found["yolov8m"] == pytest.approx(25.9e6, rel=0.1)
    assert found["llama3"] == pytest.approx(8.03e9, rel=0.01)
