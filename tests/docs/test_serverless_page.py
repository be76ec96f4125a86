"""docs/serverless.md: its Python blocks run as they are printed, only with fewer training steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "serverless.md"
SHORTER = {
    "100_000": "2_048",
    "n_eval_episodes=10": "n_eval_episodes=1",
    "range(1_000)": "range(250)",
    "horizon=1000": "horizon=100",
}


@pytest.mark.filterwarnings("ignore:.*unconventional shape.*", "ignore:You are trying to run PPO on the GPU")
def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    import torch

    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    code = "\n".join(blocks)
    for long, short in SHORTER.items():
        assert long in code, f"the page no longer says {long}: change this test with it"
        code = code.replace(long, short)
    exec(compile(code, str(PAGE), "exec"), {"__name__": "page"})
    assert (tmp_path / "runs" / "serverless" / "ppo.zip").exists()
    printed = capsys.readouterr().out
    assert "Discrete(10)" in printed
    assert "mean return -" in printed
    assert "'sla_violation_rate'" in printed
