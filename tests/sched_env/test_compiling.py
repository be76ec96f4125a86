"""``loadmaster compile``: what it has compiled, nobody waits for again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(240)
def test_what_was_compiled_is_not_compiled_again(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sched_env.compiling", "--problem", "workflow"]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr for _ in range(2)
    )
    assert "compiling sched_env.workflow.kernels._advance" in first
    assert "compiling" not in second
    assert "first step of workflow after" in second
