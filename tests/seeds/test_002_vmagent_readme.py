"""002, VMAgent's README: its files and its command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sched_env import scenarios

FADING = """N: 5
cpu: 40 
mem: 90
allow_release: False
"""  # noqa: W291 - as it is printed there, the blank at the end of a line too
DQN = """mac: 'vectormac'
learner: 'q_learner'
agent: 'DQNAgent'
"""


def test_quick_examples_config_fading_yaml(tmp_path):
    path = tmp_path / "config" / "fading.yaml"
    path.parent.mkdir()
    path.write_text(FADING)
    loaded = scenarios.load(str(path))
    assert (loaded.problem, loaded.name, loaded.servers, loaded.half_cpu_cores) == ("vm", "fading", 5, 40.0)
    assert (loaded.half_mem_gib, loaded.releases) == (90.0, False)


@pytest.mark.parametrize(
    ("name", "deletion", "expansion"),
    [
        ("fading", False, False), ("recovering", True, False), ("expanding", True, True), ("expand", True, True),
        ("recovering-L", True, False),
    ],
)  # fmt: skip
def test_scenarios_and_baselines(name, deletion, expansion):
    loaded = scenarios.load(name)
    assert (loaded.releases, loaded.growing_servers > 0) == (deletion, expansion)
    assert (loaded.servers >= 50) == name.endswith("-L")


@pytest.mark.soak
def test_quick_examples_train_py(tmp_path):
    """``python train.py --env=fading --alg=dqn``; shorter."""
    pytest.importorskip("torch")
    (tmp_path / "dqn.yaml").write_text(DQN)
    command = [sys.executable, "-m", "pipeline.train", "--env=fading", f"--alg={tmp_path / 'dqn.yaml'}"]
    short = ["--set", "segments=1", "--set", "rollouts_per_segment=2", "--out", str(tmp_path / "out")]
    done = subprocess.run([*command, *short], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert any((tmp_path / "out").iterdir())
