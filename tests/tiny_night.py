"""The smallest night of a problem that still goes all its way: it learns nothing, and does everything."""

from __future__ import annotations

from typing import Any

TINY = {
    "envs": 4, "rollout_steps": 16, "segments": 1, "rollouts_per_segment": 1, "epochs": 1, "batch": 32, "hidden": 8,
    "teacher_steps": 8, "teacher_epochs": 1,
}  # fmt: skip
TINY_EXPERT = {"envs": 4, "segments": 1, "decisions": 4, "states": 16, "epochs": 1, "batch": 32, "hidden": 8}
TINY_EVOLUTION = {"envs": 4, "segments": 1, "generations": 1, "population": 4}
SHORTER = {
    "functions": {"horizon": 32},
    "vm": {"horizon": 64},
    # A scrape a window shows no peaks: nodes are stressed at a lower threshold.
    "pods": {"overrides": {"episode_windows": 4, "threshold": 0.5}},
    "jobs": {"overrides": {"episode_jobs": 12}},
}


def tiny(problem: str) -> dict[str, dict[str, Any]]:
    """Return what to lay over a problem's parts of ``params.yaml``: section -> settings."""
    return {
        "workload": SHORTER.get(problem, {}),
        "train": {"validation_traces": 4, "maskable_ppo": TINY, "expert": TINY_EXPERT, "evolution": TINY_EVOLUTION},
        "evaluate": {"traces": 12, "block_seconds": 1800.0},
    }
