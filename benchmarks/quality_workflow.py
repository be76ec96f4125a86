"""The section ``workflow`` of ``quality.py``: rules, HEFT with its slack reclaimed, and weights found for a trade-off.

Splits: ``quality_cases.workflow``. Every figure is over HEFT's on the same workflow, then averaged; intervals are 95 %,
whole blocks (instances of one kind and size) drawn. ``evolution`` searches the weights of a few terms from those of the
best rule on, for each weight of time against cost; validation chooses. A search whose draws are ranked at random is the
control. Hypervolumes: the area that a set of (makespan, cost) points dominates up to the worst of all rules, as a share
of the rectangle between that and the best of each.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from quality_cases import WORKFLOW_BETAS, Case, Part, workflow
from quality_parts import (
    BOOTSTRAP_SEED,
    SAMPLES,
    Floats,
    Shown,
    compute,
    front_rows,
    fronts,
    judged,
    say,
    spent_since,
    table,
    taught,
)

from pipeline.policies.checkpoint import Row, Trained
from pipeline.policies.scorer import Scorer
from pipeline.statistics.bootstrap import Resampler
from pipeline.statistics.estimators import mean
from sched_env import heuristics, problems
from sched_env.vector import make_vec
from sched_env.workflow.reclaim import reclaimed

if TYPE_CHECKING:
    from sched_env.workflow.vector import WorkflowVectorEnv

METRICS = ["makespan_s", "cost_usd"]


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


def searched(case: Case, seed: int, **changes: Any) -> tuple[Trained, float]:
    """Search once, or read what an earlier run of the same found."""

    def validate(policy: Scorer | str) -> Row:
        return {"return": float(judged(case.validation, policy, ["return"])["return"].mean())}

    return taught(case, seed, validate, lambda row: row["return"], **changes)


def measure(_name: str, data: Path, seeds: int) -> dict[str, Any]:
    """Search for every beta and seed, and judge everything on the tests."""
    began = time.process_time()
    cases = {beta: workflow(data, beta=beta) for beta in WORKFLOW_BETAS}
    searches = {beta: [searched(case, seed) for seed in range(seeds)] for beta, case in cases.items()}
    thriftiest = WORKFLOW_BETAS[0]  # where most is to be found, so where luck would show
    control, _ = searched(cases[thriftiest], 0, shuffled=True)
    result: dict[str, Any] = {
        "curves": {str(beta): [each.curve for each, _ in found] for beta, found in searches.items()},
        "seeds": seeds,
        "cpu_s_a_training": [round(spent, 1) for found in searches.values() for _, spent in found],
        "tests": {},
    }
    case = cases[thriftiest]
    for title, part in {"validation": case.validation, **case.tests}.items():
        heft, blocks = points(part, "heft"), part.blocks
        resampler = Resampler(np.zeros(blocks.size, np.intp), blocks, samples=SAMPLES, seed=BOOTSTRAP_SEED)
        rules = {rule: points(part, rule) / heft for rule in problems.get("workflow").heuristics}
        rules |= {f"{rule}, slack reclaimed": reclaimed_points(part, rule) / heft for rule in ("heft", "thrifty")}
        # Axes: beta, seed, workflow, metric.
        ours = np.array([[points(part, each.scorer) / heft for each, _ in found] for found in searches.values()])
        rows = rules | {f"searched, beta {beta}": each.mean(axis=0) for beta, each in zip(searches, ours, strict=True)}
        rows["searched, ranked at random"] = points(part, control.scorer) / heft
        estimates = {
            name: [resampler.estimate(mean(each[:, column] - 1.0)) for column in range(2)]
            for name, each in rows.items()
        }
        sets = {"searched weights, mean of seeds": ours.mean(axis=1)}
        sets |= {f"searched weights, seed {seed}": ours[:, seed] for seed in range(seeds)}
        found = fronts(
            {name: each.T[None] for name, each in rules.items()},
            {name: each.transpose(0, 2, 1) for name, each in sets.items()},
            blocks,
        )
        result["tests"][title] = found | {
            "workflows": int(blocks.size),
            "blocks": int(np.unique(blocks).size),
            "rows": {
                name: {metric: [each.value, each.lower, each.upper] for metric, each in zip(METRICS, both, strict=True)}
                for name, both in estimates.items()
            },
        }
        say(f"workflow, {title}: {found['above']}")
    return result | spent_since(began)


def shown(_name: str, result: dict[str, Any]) -> list[Shown]:
    """Say which targets are met."""
    lines = []
    for title, found in result["tests"].items():
        if title != "validation":
            lines += front_rows(f"workflow, {title}, makespan and cost", found)
    return lines


def page(_name: str, result: dict[str, Any]) -> list[str]:
    """Lay the results out for people."""
    lines = ["WfInstances on four nodes; each figure is over HEFT's on the same workflow, negative is better, 95 % "
             f"intervals over whole blocks (one kind and size). {compute(result)}"]  # fmt: skip
    for title, found in result["tests"].items():
        volumes, rows = dict(found["hypervolume"]), []
        for name, row in found["rows"].items():
            cells = [f"{100 * value:+.2f} % [{100 * low:.2f}, {100 * high:.2f}]" for value, low, high in row.values()]
            rows.append([name, *cells, f"{volumes.pop(name):.4f}" if name in volumes else ""])
        rows += [[f"*{name}*", "", "", f"{volume:.4f}"] for name, volume in volumes.items()]
        lines += ["", f"## {title} ({found['workflows']} workflows, {found['blocks']} blocks)"]
        lines += table(["", "makespan", "cost", "hypervolume"], rows)
    lines += ["Return on validation by segment, seed by seed:", ""]
    for beta, curves in result["curves"].items():
        shown_curves = "; ".join(" → ".join(f"{row['return']:.4f}" for row in curve) for curve in curves)
        lines.append(f"- beta {beta}: {shown_curves}")
    return lines
