"""Makespan and cost of recorded workflows: rules, HEFT with its slack reclaimed, and weights found for a trade-off.

    python benchmarks/quality_workflow.py --data ../shared/data --out docs/results

Splits: ``quality_cases.workflow``. Every figure is over HEFT's on the same workflow, then averaged; intervals are 95 %,
whole blocks (instances of one kind and size) drawn. ``evolution`` searches the weights of a few terms from those of the
best rule on, for each weight of time against cost; validation chooses. A search whose draws are ranked at random is the
control. Hypervolumes: the area that a set of (makespan, cost) points dominates up to the worst of all rules, as a share
of the rectangle between that and the best of each. Stopped, it goes on where it was. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from quality import BOOTSTRAP_SEED, SAMPLES, folder, hypervolume, judged, say
from quality_cases import THRIFTY, WORKFLOW_BETAS, WORKFLOW_TERMS, Case, Part, workflow

from pipeline.policies import algorithms
from pipeline.policies.checkpoint import Row, Trained
from pipeline.policies.scorer import Scorer
from pipeline.policies.training import train
from pipeline.statistics.bootstrap import Resampler
from pipeline.statistics.estimators import mean
from sched_env import heuristics, problems
from sched_env.vector import make_vec
from sched_env.workflow.reclaim import reclaimed
from wire.errors import run_cli

if TYPE_CHECKING:
    from sched_env.workflow.vector import WorkflowVectorEnv

SEEDS = 2
METRICS = ["makespan_s", "cost_usd"]
SEARCH = {"terms": WORKFLOW_TERMS, "start": THRIFTY, "hidden": 8, "envs": 48, "segments": 3, "generations": 4}
Floats = NDArray[np.float64]


def points(part: Part, policy: Any) -> Floats:
    """[workflows, 2]: makespan and cost under a policy."""
    found = judged(part, policy, METRICS)
    return np.stack([found[name] for name in METRICS], axis=1)


def reclaimed_points(part: Part, rule: str) -> Floats:
    """The same of a rule's plans with their slack reclaimed."""
    env = cast("WorkflowVectorEnv", make_vec(part.scenario, part.starts.size, 0, part.trace))
    choose = heuristics.batch(rule, env)
    env.reset(options={"starts": part.starts, "park": True})
    while env.buffers.active.any():
        env.step(choose())
    plans = [reclaimed(env, row) for row in range(part.starts.size)]
    return np.array([[plan.makespan_s, plan.usd] for plan in plans])


def searched(case: Case, beta: float, seed: int, **changes: Any) -> Trained:
    """Search once, or read what an earlier run of the same found."""
    scenario, trace = case.train
    settings = algorithms.settings("evolution", ("quality_workflow.py", SEARCH), **changes)

    def validate(policy: Scorer | str) -> Row:
        return {"return": float(judged(case.validation, policy, ["return"])["return"].mean())}

    return train(
        lambda count: make_vec(scenario, count, seed, trace, copy=True),
        "evolution",
        settings,
        seed=seed,
        scratch=folder(case, settings, seed),
        validate=validate,
        objective=lambda row: row["return"],
        report=lambda segment, row: say(
            f"  beta {beta} seed {seed} {changes or ''} segment {segment}: {json.dumps(row)}"
        ),
    )


def measure(data: Path, seeds: int) -> dict[str, Any]:
    """Search for every beta and seed, and judge everything on the tests."""
    began = time.process_time()
    cases = {beta: workflow(data, beta=beta) for beta in WORKFLOW_BETAS}
    students = {beta: [searched(case, beta, seed) for seed in range(seeds)] for beta, case in cases.items()}
    thriftiest = WORKFLOW_BETAS[0]  # where most is to be found, so where luck would show
    control = searched(cases[thriftiest], thriftiest, 0, shuffled=True)
    result: dict[str, Any] = {
        "curves": {str(beta): [each.curve for each in found] for beta, found in students.items()},
        "tests": {},
    }
    case = cases[thriftiest]
    for title, part in {"validation": case.validation, **case.tests}.items():
        heft, blocks = points(part, "heft"), part.blocks
        resampler = Resampler(np.zeros(blocks.size, np.intp), blocks, samples=SAMPLES, seed=BOOTSTRAP_SEED)

        def row(found: Floats, heft: Floats = heft, resampler: Resampler = resampler) -> dict[str, Any]:
            share = found / heft
            both = [resampler.estimate(mean(share[:, column] - 1.0)) for column in range(2)]
            return {name: [each.value, each.lower, each.upper] for name, each in zip(METRICS, both, strict=True)}

        table = {rule: row(points(part, rule)) for rule in problems.get("workflow").heuristics}
        table |= {f"{rule}, slack reclaimed": row(reclaimed_points(part, rule)) for rule in ("heft", "thrifty")}
        for beta, found in students.items():
            table[f"searched, beta {beta}"] = row(np.mean([points(part, each.scorer) for each in found], axis=0))
        table["searched, ranked at random"] = row(points(part, control.scorer))
        result["tests"][title] = {
            "workflows": int(blocks.size),
            "blocks": int(np.unique(blocks).size),
            "rows": table,
            "hypervolume": volumes(table),
        }
    result["seeds"] = seeds
    result["cpu_s"] = round(time.process_time() - began, 1)
    result["load_average"] = round(os.getloadavg()[0], 1)
    return result


def volumes(table: dict[str, Any]) -> dict[str, float]:
    """Share of the rectangle that each rule, all rules, and the searched weights dominate."""
    at = {name: np.array([[row[metric][0] for metric in METRICS]]) for name, row in table.items()}
    searched_at = [at.pop(name) for name in [*at] if name.startswith("searched, beta")]
    at.pop("searched, ranked at random")
    everything = np.concatenate([*at.values(), *searched_at])
    worst = np.concatenate([at[name] for name in at if name != "random_feasible"]).max(axis=0)
    area = float(np.prod(worst - everything.min(axis=0)))
    sets = at | {"all rules": np.concatenate([*at.values()]), "searched weights": np.concatenate(searched_at)}
    sets["rules and searched weights"] = everything
    return {name: hypervolume(found, worst) / area for name, found in sets.items()}


def page(result: dict[str, Any]) -> str:
    """Lay the results out for people."""
    lines = ["# Workflows: makespan and cost", "", "Made by `python benchmarks/quality_workflow.py --data "
             "../shared/data --out docs/results`; splits: `benchmarks/quality_cases.py`. WfInstances on four nodes; "
             "each figure is over HEFT's on the same workflow, 95 % intervals over whole blocks (one kind and size). "
             f"{result['seeds']} seeds a search; judging took {result['cpu_s']:.0f} s of CPU time beside other "
             f"work (load average {result['load_average']})."]  # fmt: skip
    for title, found in result["tests"].items():
        lines += ["", f"## {title} ({found['workflows']} workflows, {found['blocks']} blocks)", "",
                  "| | makespan | cost | hypervolume |", "| --- | --- | --- | --- |"]  # fmt: skip
        for name, row in found["rows"].items():
            cells = [f"{100 * value:+.2f} % [{100 * low:.2f}, {100 * high:.2f}]" for value, low, high in row.values()]
            volume = found["hypervolume"].get(name)
            lines.append(f"| {name} | {' | '.join(cells)} | {'' if volume is None else f'{volume:.4f}'} |")
        for name in ("all rules", "searched weights", "rules and searched weights"):
            lines.append(f"| *{name}* | | | {found['hypervolume'][name]:.4f} |")
    if "note" in result:
        lines += ["", result["note"]]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the public traces")
    parser.add_argument("--out", type=Path, help="folder for quality_workflow.json and quality_workflow.md")
    options = parser.parse_args()
    result = measure(options.data, options.seeds)
    if options.out:
        file = options.out / "quality_workflow.json"
        if file.exists() and "note" in (before := json.loads(file.read_text())):
            result["note"] = before["note"]
        file.write_text(json.dumps(result, indent=1) + "\n")
        file.with_suffix(".md").write_text(page(result))
    say(json.dumps({title: found["hypervolume"] for title, found in result["tests"].items()}))
    return 0


if __name__ == "__main__":
    run_cli(main)
