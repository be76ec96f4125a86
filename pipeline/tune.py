"""Search an algorithm's settings: trials that learn badly are stopped early (Optuna, median pruning).

    loadmaster tune --env fading --alg dqn --trials 20 --set segments=8
    loadmaster tune --problem functions --alg maskable_ppo --trials 50 --timeout-s 3600

Each trial is a training as ``loadmaster train`` does it, judged on the same validation episodes. The study is kept
under var/tune and goes on where it stopped when the command is given again. The best settings are written as a file
that ``loadmaster train --alg`` takes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pipeline.files import write_atomic
from pipeline.policies import algorithms
from pipeline.policies.checkpoint import Row
from pipeline.policies.settings import ALIASES
from pipeline.settings import var
from pipeline.train import chosen, learn, task_options
from wire.command import Verb, seed_option
from wire.errors import ConfigError, run_cli

if TYPE_CHECKING:
    import optuna

Range = tuple[float, float]
SPACE: dict[str, Range | list[Any]] = {
    "learning_rate": (3e-4, 2e-2),
    "reward_scale": (0.1, 10.0),
    "gamma": [0.9, 0.95, 0.99],
    "hidden": [16, 32, 64],
    "batch": [64, 128, 256, 512],
    "epochs": [2, 4, 8],
    "gae_lambda": [0.8, 0.95, 1.0],
    "entropy": (1e-4, 3e-2),
    "updates": [1, 2, 4, 8],
    "tau": (5e-3, 0.3),
    "temperature": (1e-2, 0.5),
    "target_entropy": [0.1, 0.2, 0.3, 0.5],
    "mixers": [8, 16, 32],
}
"""Setting -> from, to (searched on a log scale), or the choices. An algorithm is searched over those that it has."""
STARTUP_TRIALS = 5
"""Trials that are never stopped early: what is the median of, before there are any?"""


def suggest(trial: optuna.Trial, fields: tuple[str, ...], fixed: set[str]) -> dict[str, Any]:
    """Draw the settings of a trial, but for those that the user has fixed."""
    drawn: dict[str, Any] = {}
    for name, space in SPACE.items():
        if name not in fields or name in fixed:
            continue
        if isinstance(space, tuple):
            drawn[name] = trial.suggest_float(name, *space, log=True)
        else:
            drawn[name] = trial.suggest_categorical(name, space)
    return drawn


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    task_options(parser)
    seed_option(parser, "the draws of settings, and every trial's training")
    parser.add_argument("--trials", type=int, default=20, help="trainings to add to the study (default: %(default)s)")
    parser.add_argument("--timeout-s", type=float, help="begin no trial after so many seconds")


def run(options: argparse.Namespace) -> int:
    """Add trials to the study and write its best settings."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise ConfigError("tune needs optuna", fix="pip install 'loadmaster[train]'") from error
    task, algorithm, layers = chosen(options)
    algorithms.settings(algorithm, *layers)  # a mistake in the layers is said before anything is made
    if options.trials < 1:
        raise ConfigError(f"--trials {options.trials}", "at least 1")
    fields = algorithms.ALGORITHMS[algorithm].settings.__struct_fields__
    fixed = {ALIASES.get(key, key) for _, layer in layers[-2:] for key in layer}
    folder = var() / "tune" / (options.problem or task.scenario.name)
    folder.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: optuna.Trial) -> float:
        settings = algorithms.settings(algorithm, *layers, **suggest(trial, fields, fixed))

        def report(segment: int, row: Row) -> None:
            trial.report(task.objective(row), segment)
            if trial.should_prune():
                raise optuna.TrialPruned

        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _, description = learn(
                task, algorithm, settings, options.seed, Path(scratch), report=report, device=options.device
            )
        return description.objective

    study = optuna.create_study(
        study_name=f"{algorithm} {sorted(fixed)}",
        storage=f"sqlite:///{folder / algorithm}.db",
        load_if_exists=True,
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=options.seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=1),
    )
    study.optimize(objective, n_trials=options.trials, timeout=options.timeout_s, callbacks=[_say])
    finished = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    if not finished:
        raise ConfigError("no trial was finished", fix="give it more --trials or a longer --timeout-s")
    best = folder / f"{algorithm}.yaml"
    write_atomic(best, yaml.safe_dump(study.best_params, sort_keys=True).encode())
    stopped = len(study.get_trials(states=(optuna.trial.TrialState.PRUNED,)))
    found = {"best": study.best_value, "trial": study.best_trial.number, "settings": study.best_params}
    sys.stdout.write(f"{len(finished)} trials finished, {stopped} stopped early\n{json.dumps(found)}\n")
    sys.stdout.write(f"loadmaster train {_what(options)} --alg {best}\n")
    return 0


def _what(options: argparse.Namespace) -> str:
    return f"--problem {options.problem}" if options.problem else f"--env {options.env}"


def _say(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    value = "" if trial.value is None else f" {trial.value:.6g}"
    sys.stdout.write(f"trial {trial.number} {trial.state.name.lower()}{value} {json.dumps(trial.params)}\n")
    sys.stdout.flush()
    del study


main = Verb("python -m pipeline.tune", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
