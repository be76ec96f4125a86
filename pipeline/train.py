"""Train one policy.

    loadmaster train --problem functions --algorithm maskable_ppo --seed 0    on the windows of data/
    loadmaster train --problem jobs --algorithm default                       the night's: params.yaml says which
    loadmaster train --env fading --alg dqn                                   on a scenario, as VMAgent's users type it
    loadmaster train --env my/fading.yaml --alg my/algs/dqn.yaml --set segments=8

On windows it learns from the train split, keeps the weights that did best on the validation split within the gate's
guardrails, and never sees the test split; the result is what ``export`` chooses from. On a scenario it learns from the
scenario's own trace, from start points drawn by the seed, and is judged from others; weights, curve and policy.onnx go
to --out. A training that was killed goes on at its last segment, with the same result to the bit.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from tqdm import tqdm

from pipeline import paths
from pipeline.champion_policy import champion_policy
from pipeline.datasets import code_of, workload
from pipeline.files import replaced_folder, write_atomic
from pipeline.gate.config import Config as GateConfig
from pipeline.policies import algorithms
from pipeline.policies.checkpoint import Row, Trained
from pipeline.policies.onnx_graph import to_onnx
from pipeline.policies.scorer import Scorer, TorchPolicy
from pipeline.policies.settings import Common
from pipeline.policies.training import train
from pipeline.settings import load, var
from sched_env import problems, scenarios
from sched_env.rollout import parse_overrides, run_episodes
from sched_env.vector import make_vec
from wire import closure
from wire.command import Verb, seed_option
from wire.contracts.bundle import POLICY_FILE
from wire.contracts.feature_spec import FeatureSpec
from wire.errors import run_cli

DEFAULT = "default"
"""Stands for the algorithm that ``params.yaml`` gives a problem: ``dvc.yaml`` has no other way to a problem's own."""
WEIGHTS_FILE, DESCRIPTION_FILE, CURVE_FILE = "policy.pt", "policy.json", "curve.csv"
SHOWN = ("return", "sla_violation_rate", "cost_usd")
"""Beside the metric that decides, on every learning curve."""
SMALLEST = 1e-9
"""Margin of what must be 0."""
VALIDATION_SEED, VALIDATION_EPISODES = 1_000_003, 32
"""Start points that judge a training on a scenario; no training's seed is so large."""
HEADROOM = 0.5
"""Share of a guardrail's margin that may be used on the validation windows. The gate holds the upper bound of an
interval to it, on windows that come later."""


class TrainConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section ``train.<problem>``."""

    validation_traces: int
    """Start points of the validation windows that choose among checkpoints, and among seeds at export."""
    default: str = "expert"
    """The algorithm of the night, which is trained under the name ``default``."""
    expert: dict[str, Any] = {}
    evolution: dict[str, Any] = {}
    maskable_ppo: dict[str, Any] = {}
    ppo: dict[str, Any] = {}
    a2c: dict[str, Any] = {}
    dqn: dict[str, Any] = {}
    sac: dict[str, Any] = {}
    qmix: dict[str, Any] = {}
    """What differs from the algorithm's own file (``pipeline/policies/<algorithm>.yaml``)."""


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


class Task(NamedTuple):
    """What is learned, and how it is judged."""

    problem: str
    scenario: scenarios.Scenario
    trace: Any
    judge: Callable[[Any], Row]
    """A policy's mean figures on episodes that are not trained on."""
    identity: tuple[object, ...]
    """Everything the result depends on but algorithm, seed and code."""

    limits: Mapping[str, tuple[float, float]] = {}
    """Guarded metric -> the most that it may be on those episodes, and the margin that was added for it."""
    usual: float = 1.0
    """Size of the primary metric there: what one margin beyond a limit costs."""

    @property
    def shown(self) -> tuple[str, ...]:
        """The metric that decides, and those beside it."""
        primary = problems.get(self.problem).primary(self.scenario)
        return tuple(dict.fromkeys((primary, *SHOWN, *self.limits)))

    def objective(self, row: Row) -> float:
        """Say how good such figures are; more is better.

        What lies beyond a guardrail is priced so high that no gain makes up for it, and less beyond is better: among
        the weights of a training the best within all guardrails is chosen, without one the nearest to them.
        """
        beyond = sum(max(row[name] - most, 0.0) / margin for name, (most, margin) in self.limits.items())
        return problems.get(self.problem).better(self.shown[0]) * row[self.shown[0]] - beyond * self.usual


def on_windows(problem: str, config: TrainConfig) -> Task:
    """Learn from the train windows, judged on the validation windows."""
    data, held_out = (workload(problem, split).at_present_load() for split in ("train", "validation"))
    starts = held_out.starts(config.validation_traces)
    judge = judging(held_out.scenario, held_out.trace, starts=starts)
    reference = champion_policy(problem, held_out.scenario) or problems.get(problem).fallback
    limits, usual = guarded(problem, held_out.scenario, judge(reference))
    identity = (config.validation_traces, limits, data.fingerprint())
    return Task(problem, data.scenario, data.trace, judge, identity, limits, usual)


def guarded(problem: str, scenario: scenarios.Scenario, usual: Row) -> tuple[dict[str, tuple[float, float]], float]:
    """Return the limits of a task and the size of its primary metric, by the figures of the gate's reference.

    That is the champion, and the fallback until there is one.
    """
    value = problems.get(problem).seen(scenario)
    primary = value.primary(scenario)
    limits = _limits(load("gate", GateConfig), value.guardrails(scenario), primary, usual)
    return limits, abs(usual[primary]) or 1.0


def _limits(rules: GateConfig, own: Iterable[str], primary: str, usual: Row) -> dict[str, tuple[float, float]]:
    """Return what the gate will allow over its reference."""
    found = {
        name: (usual[name] + HEADROOM * margin.of(usual[name]), max(margin.of(usual[name]), SMALLEST))
        for name, margin in rules.margins(own, primary).items()
        if name in usual and name not in rules.switched_off
    }
    return found | {name: (0.0, SMALLEST) for name in rules.zero if name in usual and name not in rules.switched_off}


def on_scenario(scenario: scenarios.Scenario, episodes: int = VALIDATION_EPISODES, seed: int = VALIDATION_SEED) -> Task:
    """Learn from a scenario's own trace, judged from start points that another seed draws."""
    judge = judging(scenario, None, seed=seed, episodes=episodes)
    return Task(scenario.problem, scenario, None, judge, (scenario, episodes, seed))


def judging(scenario: scenarios.Scenario, trace: Any, **episodes: Any) -> Callable[[Any], Row]:
    """Return what says the mean figures of a policy, a scorer or a rule on these episodes."""

    def judge(policy: Any) -> Row:
        """Run the episodes greedily, as the policy will be used."""
        given = TorchPolicy(policy) if isinstance(policy, Scorer) else policy
        rows = run_episodes(scenario, given, trace=trace, **episodes)
        numbers = [name for name, value in rows[0].items() if isinstance(value, int | float)]
        return {name: sum(float(row[name]) for row in rows) / len(rows) for name in numbers}

    return judge


def scratch_folder(task: Task, algorithm: str, seed: int, settings: Common) -> Path:
    """Name the place of the checkpoint by everything the training depends on; other data or code, another folder."""
    code = closure.fingerprint(__name__, *code_of(task.problem))
    digest = hashlib.sha256(repr((settings, task.identity, code)).encode())
    return var() / "scratch" / "train" / f"{task.problem}-{algorithm}-{seed}-{digest.hexdigest()[:16]}"


def learn(
    task: Task,
    algorithm: str,
    settings: Common,
    seed: int,
    scratch: Path,
    *,
    report: Callable[[int, Row], None] = lambda _segment, _row: None,
    **further: Any,
) -> tuple[Trained, Description]:
    """Train on a task; ``further`` goes to :func:`pipeline.policies.training.train`."""
    shown = task.shown
    trained = train(
        lambda count: make_vec(task.scenario, count, seed, task.trace, copy=True),
        algorithm,
        settings,
        seed=seed,
        scratch=scratch,
        validate=lambda scorer: {name: value for name, value in task.judge(scorer).items() if name in shown},
        objective=task.objective,
        report=report,
        **further,
    )
    best = max(trained.curve, key=task.objective)
    figures = {name: best[name] for name in shown}
    return trained, Description(task.problem, algorithm, seed, settings.hidden, task.objective(best), figures)


def write(folder: Path, trained: Trained, description: Description, *, spec: FeatureSpec | None = None) -> None:
    """Write weights, description and curve, and the ONNX graph where its spec is given; all or nothing."""
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
        if spec is not None:
            (unfinished / POLICY_FILE).write_bytes(to_onnx(trained.scorer, spec))


def read(folder: Path) -> tuple[Description, dict[str, torch.Tensor]]:
    """Read a training's description and weights; never a pickle."""
    description = msgspec.json.decode((folder / DESCRIPTION_FILE).read_bytes(), type=Description)
    return description, torch.load(folder / WEIGHTS_FILE, weights_only=True)


def task_options(parser: argparse.ArgumentParser) -> None:
    """Declare what is learned and by which algorithm; ``tune`` takes the same."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--problem", choices=tuple(problems.names()), help="learn from the windows of data/")
    what.add_argument("--env", metavar="SCENARIO", help=f"{', '.join(scenarios.names())}, or a YAML file")
    known = ", ".join(algorithms.ALGORITHMS)
    parser.add_argument(
        "--algorithm",
        "--alg",
        required=True,
        metavar="NAME",
        help=f"{known}, or a YAML file; with --problem also {DEFAULT}: what {paths.PARAMS} names for it",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="replace an algorithm's setting"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto: a GPU where there is one")


def chosen(options: argparse.Namespace) -> tuple[Task, str, list[tuple[str, Mapping[str, Any]]]]:
    """Return the task, the algorithm and the layers over its settings that the options name."""
    layers: list[tuple[str, Mapping[str, Any]]] = []
    if options.problem:
        config = load(f"train.{options.problem}", TrainConfig)
        algorithm, values = algorithms.named(config.default if options.algorithm == DEFAULT else options.algorithm)
        task = on_windows(options.problem, config)
        layers.append((f"{paths.PARAMS}: train.{options.problem}.{algorithm}", getattr(config, algorithm)))
    else:
        algorithm, values = algorithms.named(options.algorithm)
        task = on_scenario(scenarios.load(options.env))
    return task, algorithm, [*layers, (options.algorithm, values), ("--set", parse_overrides(options.set))]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    task_options(parser)
    seed_option(parser, "the training; equal seeds give equal weights")
    parser.add_argument(
        "--tensorboard", type=Path, metavar="FOLDER", help="TensorBoard's files (default: below var/tensorboard)"
    )
    parser.add_argument("--out", type=Path, help="with --env: where the result goes (default: below var/trainings)")


def run(options: argparse.Namespace) -> int:
    """Train one policy."""
    task, algorithm, layers = chosen(options)
    settings, seed = algorithms.settings(algorithm, *layers), options.seed
    scratch = scratch_folder(task, algorithm, seed, settings)
    with tqdm(total=settings.looks, unit="segment", desc=f"{algorithm} {task.problem} {seed}", disable=None) as bar:

        def report(segment: int, row: Row) -> None:
            bar.update(segment - bar.n)
            bar.set_postfix({name: f"{row[name]:.3f}" for name in task.shown})
            if bar.disable:
                sys.stdout.write(f"segment {segment}/{settings.looks} " + json.dumps(row) + "\n")
                sys.stdout.flush()

        trained, description = learn(
            task,
            algorithm,
            settings,
            seed,
            scratch,
            report=report,
            device=options.device,
            # Named as the checkpoint is: a training that goes on writes on, another night's stands beside it.
            tensorboard=options.tensorboard or var() / "tensorboard" / scratch.name,
        )
    if options.problem:
        name = DEFAULT if options.algorithm == DEFAULT else algorithm
        write(paths.POLICIES / task.problem / f"{name}-{seed}", trained, description)
        numbers = paths.metrics_of("train", task.problem, name, str(seed))
        write_atomic(numbers, json.dumps(description.validation, indent=2).encode() + b"\n")
        return 0
    out = options.out or var() / "trainings" / task.scenario.name / f"{algorithm}-{seed}"
    write(out, trained, description, spec=problems.get(task.problem).seen(task.scenario).spec)
    _compare(task, {algorithm: description.validation}, out)
    return 0


def _compare(task: Task, found: dict[str, Row], out: Path) -> None:
    """Say how the result stands beside chance and beside the problem's fallback."""
    for rule in dict.fromkeys(("random_feasible", problems.get(task.problem).fallback)):
        found[rule] = task.judge(rule)
    for name, row in found.items():
        sys.stdout.write(f"{name:>20}  " + "  ".join(f"{key} {row[key]:.6g}" for key in task.shown) + "\n")
    sys.stdout.write(f"{out / POLICY_FILE}: try it with loadmaster rollout --scenario {task.scenario.name} --policy\n")


main = Verb("python -m pipeline.train", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
