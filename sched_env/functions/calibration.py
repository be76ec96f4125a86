"""Calibration bounds of the two parts of the reward, from a run of the random policy.

``python -m sched_env.functions.calibration --scenario functions/serverless`` prints them; ``--out FILE`` writes them as
JSON, whose keys are scenario keys. They are fixed before training and travel with the scenario: bounds that move
while a policy learns make its reward mean something else every day.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from sched_env import heuristics, scenarios
from sched_env.functions.scenario import ServerlessScenario
from sched_env.functions.state import R1, R2
from sched_env.functions.vector import make
from wire.command import Verb, seed_option
from wire.errors import ConfigError, run_cli

HIGH_PERCENTILE = 95.0
"""The upper bound: beyond it lie cold starts of the shortest calls, which would squeeze everything else together."""
ENVIRONMENTS = 64
DECIMALS = 3


def calibrate(
    scenario: str | scenarios.Scenario, *, trace: Any = None, steps: int = 1024, seed: int = 0, **overrides: Any
) -> dict[str, list[float]]:
    """Run the random policy and return ``{"r1_range": [low, high], "r2_range": [low, high]}``.

    Args:
        scenario: Whose nodes, trace and response model to use; its own bounds do not matter.
        trace: As in ``make_vec``.
        steps: Decisions in each of 64 environments.
        seed: Names the start points and the policy's draws.
        overrides: Scenario keys to replace.
    """
    loaded = scenarios.load(scenario, overrides)
    if not isinstance(loaded, ServerlessScenario):
        raise ConfigError(f"scenario {loaded.name!r} has no calibration", "a scenario of kind serverless")
    env = make(loaded, ENVIRONMENTS, seed=seed, trace=trace)
    env.reset(seed=seed)
    rule = heuristics.batch("random_feasible", env, seed)
    seen = np.empty((steps, ENVIRONMENTS, 2))
    for step in range(steps):
        env.step(rule())
        seen[step] = env.state.last[:, [R1, R2]]
    low = seen.min(axis=(0, 1))
    high = np.percentile(seen, HIGH_PERCENTILE, axis=(0, 1))
    names = ("r1_range", "r2_range")
    return {name: [round(float(low[k]), DECIMALS), round(float(high[k]), DECIMALS)] for k, name in enumerate(names)}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--scenario", default="functions/serverless")
    parser.add_argument("--steps", type=int, default=1024)
    seed_option(parser, "the random placements")
    parser.add_argument("--out", type=Path, help="write the bounds here instead of printing them")


def run(options: argparse.Namespace) -> int:
    """Measure, and write or print."""
    text = json.dumps(calibrate(options.scenario, steps=options.steps, seed=options.seed)) + "\n"
    if options.out is None:
        sys.stdout.write(text)
        return 0
    temporary = options.out.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(options.out)
    return 0


main = Verb("python -m sched_env.functions.calibration", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
