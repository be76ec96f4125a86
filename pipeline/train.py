"""Train one policy: ``python -m pipeline.train --problem functions --algorithm maskable_ppo --seed 0``.

Learns on the train windows, keeps the weights that did best on the validation windows, and never sees the test
windows. A training that was killed goes on at its last segment, with the same result to the bit.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch
from tqdm import tqdm

from pipeline import paths
from pipeline.datasets import Workload, code_of, workload
from pipeline.files import replaced_folder, write_atomic
from pipeline.policies.ppo import PpoConfig, Trained, train
from pipeline.policies.scorer import Scorer, TorchPolicy
from pipeline.settings import load, var
from sched_env import problems
from sched_env.rollout import run_episodes
from sched_env.vector import PlacementVectorEnv, make_vec
from wire import closure
from wire.command import Verb, problem_option, seed_option
from wire.errors import run_cli

ALGORITHMS = {"maskable_ppo": PpoConfig}
WEIGHTS_FILE, DESCRIPTION_FILE, CURVE_FILE = "policy.pt", "policy.json", "curve.csv"
SHOWN = ("return", "sla_violation_rate", "cost_usd")
"""Beside the metric that decides, on every learning curve."""


class TrainConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``train.<problem>``."""

    validation_traces: int
    """Start points of the validation windows that choose among checkpoints, and among seeds at export."""
    maskable_ppo: PpoConfig


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``policy.json``: what is needed to load the weights and to choose among trainings."""

    problem: str
    algorithm: str
    seed: int
    hidden: int
    objective: float
    """The primary metric on the validation windows, turned so that more is better: the best of a problem's trainings
    is exported."""
    validation: dict[str, float]


def validator(held_out: Workload, traces: int, shown: Sequence[str]) -> Callable[[Scorer], dict[str, float]]:
    """Return the function that scores a network on the validation windows, greedily, as it will be used."""
    starts = held_out.starts(traces)

    def validate(scorer: Scorer) -> dict[str, float]:
        episodes = run_episodes(held_out.scenario, TorchPolicy(scorer), starts, trace=held_out.trace)
        return {name: sum(float(episode[name]) for episode in episodes) / len(episodes) for name in shown}

    return validate


def scratch_folder(problem: str, algorithm: str, seed: int, config: TrainConfig, data: Workload) -> Path:
    """Name the place of the checkpoint by everything the training depends on; other data or code, another folder."""
    code = closure.fingerprint(__name__, *code_of(problem))
    digest = hashlib.sha256(repr((config, data.fingerprint(), code)).encode())
    return var() / "scratch" / "train" / f"{problem}-{algorithm}-{seed}-{digest.hexdigest()[:16]}"


def write(folder: Path, trained: Trained, description: Description) -> None:
    """Write weights, description and curve, all or nothing."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=sorted({key for row in trained.curve for key in row}))
    writer.writeheader()
    writer.writerows(trained.curve)
    weights = io.BytesIO()
    torch.save(trained.scorer.state_dict(), weights)
    with replaced_folder(folder) as unfinished:
        (unfinished / WEIGHTS_FILE).write_bytes(weights.getvalue())
        (unfinished / DESCRIPTION_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(description), indent=2))
        (unfinished / CURVE_FILE).write_text(text.getvalue())


def read(folder: Path) -> tuple[Description, dict[str, torch.Tensor]]:
    """Read a training's description and weights; never a pickle."""
    description = msgspec.json.decode((folder / DESCRIPTION_FILE).read_bytes(), type=Description)
    return description, torch.load(folder / WEIGHTS_FILE, weights_only=True)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    problem_option(parser, problems.names())
    parser.add_argument("--algorithm", choices=tuple(ALGORITHMS), required=True)
    seed_option(parser, "the training; equal seeds give equal weights", default=None)


def run(options: argparse.Namespace) -> int:
    """Train one policy."""
    problem, algorithm, seed = options.problem, options.algorithm, options.seed
    config = load(f"train.{problem}", TrainConfig)
    data, held_out = workload(problem, "train"), workload(problem, "validation")
    value = problems.get(problem)
    primary = value.primary(data.scenario)
    sign, shown = value.better(primary), tuple(dict.fromkeys((primary, *SHOWN)))

    def make_env(count: int) -> PlacementVectorEnv:
        return make_vec(data.scenario, count, seed, data.trace, copy=True)

    def objective(row: dict[str, float]) -> float:
        return sign * row[primary]

    ppo: PpoConfig = getattr(config, algorithm)
    with tqdm(total=ppo.segments, unit="segment", desc=f"train {problem} {seed}", disable=None) as bar:

        def report(segment: int, row: dict[str, float]) -> None:
            bar.update(segment - bar.n)
            bar.set_postfix({name: f"{row[name]:.3f}" for name in shown})
            if bar.disable:
                sys.stdout.write(f"segment {segment}/{ppo.segments} " + json.dumps(row) + "\n")
                sys.stdout.flush()

        trained = train(
            make_env,
            ppo,
            seed=seed,
            scratch=scratch_folder(problem, algorithm, seed, config, data),
            validate=validator(held_out, config.validation_traces, shown),
            objective=objective,
            report=report,
        )
    best = max(trained.curve, key=objective)
    validation = {name: best[name] for name in shown}
    description = Description(problem, algorithm, seed, ppo.hidden, objective(best), validation)
    write(paths.POLICIES / problem / f"{algorithm}-{seed}", trained, description)
    numbers = paths.metrics_of("train", problem, algorithm, str(seed))
    write_atomic(numbers, json.dumps(validation, indent=2).encode() + b"\n")
    return 0


main = Verb("python -m pipeline.train", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
