"""The recipe for stock agents in docs/environments.md, as it is printed, for fewer steps."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


def test_stock_agents_learn_as_the_page_says():
    pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    import torch

    torch.set_num_threads(1)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "A2C" in block]
    assert "100_000" in block
    names: dict[str, object] = {"__name__": "page"}
    exec(compile(block.replace("100_000", "64"), str(PAGE), "exec"), names)
    assert names["model"].num_timesteps >= 64  # type: ignore[attr-defined]
    assert {*names["model"].observation_space.spaces} == {*names["env"].observation_space.spaces}  # type: ignore[attr-defined]
