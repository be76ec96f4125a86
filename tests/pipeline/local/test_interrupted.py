"""``make run`` after Ctrl-C, or a machine that went down, in the middle of a night: it goes on, and nothing is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.servers import free_port
from tests.standing_night import stand_ins

pytestmark = [pytest.mark.airflow, pytest.mark.soak, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[3]
SLOW_ONCE = """
import pathlib, sys, time
marker = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
if marker and not marker.exists():
    marker.touch()
    time.sleep(600)
"""


@pytest.fixture
def local(tmp_path):
    """A repository whose first ``clean`` does not end by itself, and the environment of a make run in it."""
    repository, marker = stand_ins(tmp_path / "repository"), tmp_path / "begun"
    stages = repository / "stages.py"
    stages.write_text(SLOW_ONCE + stages.read_text())
    text = (repository / "dvc.yaml").read_text()
    (repository / "dvc.yaml").write_text(
        text.replace("stages.py clean data/windows", f"stages.py clean data/windows {marker}")
    )
    who = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", "-C", repository, *who, "commit", "-qam", "slow once"], check=True)
    more = {
        "LOADMASTER_REPO": str(repository), "LOADMASTER_VAR": str(tmp_path / "var"), "PYTHONPATH": str(ROOT),
        "LOADMASTER_SERVICE_PORT": str(free_port()), "LOADMASTER_AIRFLOW_PORT": str(free_port()),
    }  # fmt: skip
    return {**os.environ, **more}, marker, tmp_path / "make-run.log"


def make_run(environment, log):
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.local", "--approve"], env=environment, stdout=output, stderr=output,
            cwd=ROOT, start_new_session=True,
        )  # fmt: skip


def everything(process):
    main = psutil.Process(process.pid)
    return [main, *main.children(recursive=True)]


@pytest.mark.parametrize("how", ["Ctrl-C", "the machine went down"])
def test_an_interrupted_night_goes_on_when_it_is_started_again(local, how):
    environment, marker, log = local
    process = make_run(environment, log)
    deadline = time.monotonic() + 600
    while not marker.exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.5)
    running = everything(process)
    assert len(running) > 4
    if how == "Ctrl-C":
        process.send_signal(signal.SIGINT)
    else:
        for one in running:
            one.kill()
    try:
        process.wait(timeout=120)
    except subprocess.TimeoutExpired:
        for one in everything(process):
            one.kill()
        raise
    _, left = psutil.wait_procs(running, timeout=30)
    assert not [one for one in left if one.status() != psutil.STATUS_ZOMBIE], "no process is left behind"
    again = make_run(environment, log)
    try:
        assert again.wait(timeout=900) == 0, log.read_text()[-4000:]
    finally:
        for one in everything(again) if again.poll() is None else ():
            one.kill()
    said = log.read_text()
    assert said.count("nightly_retrain    ") == 2
    first, second = (line.split()[-1] for line in said.splitlines() if line.startswith("nightly_retrain    "))
    assert first == second, "the night that was under way goes on; no second one is begun"
