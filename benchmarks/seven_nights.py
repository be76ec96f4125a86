"""Is nightly retraining worth it? Seven consecutive nights on recorded arrivals of four clusters.

    python benchmarks/seven_nights.py --data ../shared/data --out docs/results

Eight consecutive days of each trace (Azure's sample has eight hours: there an hour stands for a day). Night n has the
days before it: *retrained* is trained on all of them, the last fifth being its validation; *frozen* is what the first
night trained, never touched again; the *best rule* is the best of all on episodes spread over the days before; *kept*
is what a gate by the validation alone would have live: the newest student, the one before, or the rule, whichever is
best there. All are judged on the same episodes of the next day, which none of them has seen, paired. Trainings are a
night's: algorithm and settings of ``params.yaml``. Intervals: 95 %, whole stretches of a day drawn
(``pipeline.statistics``). Trainings are kept below ``var/scratch/quality``, nights in the JSON file: it goes on where
it was stopped. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from quality_cases import AZURE, PHILLY_SPEED_UP, RULES_OF_CARDS, Case, Part
from quality_parts import BOOTSTRAP_SEED, SAMPLES, judged, say
from quality_students import student

from pipeline.policies.scorer import Scorer
from pipeline.statistics.bootstrap import Resampler
from pipeline.statistics.estimators import mean, relative_difference
from sched_env import problems, scenarios
from sched_env.functions import trace as function_traces
from sched_env.jobs import trace as job_traces
from sched_env.pods import trace as pod_traces
from sched_env.traces import gpu_jobs
from sched_env.vm import trace as vm_traces
from wire.errors import run_cli

PARAMS = Path(__file__).resolve().parent.parent / "params.yaml"
NIGHTS = 7
DAY_S = 86_400
TRAINED = 0.8
"""Share of the days so far that is trained on; the rest of them validates."""
RULE_STARTS = 64
"""Episodes, spread over the days so far, on which the rule is chosen."""
CUT = " (`--small`: one segment, the rule chosen on 16 episodes, half as many judged a day)"
BITBRAINS, HUAWEI, PHILLY = "bitbrains-vm-5min/rnd-2013-8", "huawei-east-1/events.csv.gz", "gpu-jobs/philly_jobs.csv.gz"


@dataclass(frozen=True)
class World:
    """A recorded week and a day more, as episodes see it."""

    problem: str
    source: str
    scenario: scenarios.Scenario
    trace: Any
    borders: NDArray[np.int64]
    """Row of the trace at which each day begins, and where the last ends."""
    rows: int
    """Rows of an episode, about."""
    episodes: int
    """Judged a day, at most as many as fit without overlap."""
    primary: str
    rules: Mapping[str, scenarios.Scenario]
    shown: tuple[str, ...]
    few: bool = False
    """Whether rules and segments are chosen on fewer episodes, after one segment."""

    def starts(self, first: int, last: int, most: int) -> NDArray[np.int64]:
        """Spread episodes over rows; none reaches beyond the last row."""
        fit = max((last - first) // self.rows, 1)
        return np.linspace(first, max(last - self.rows, first), min(most, fit)).astype(np.int64)

    def part(self, first: int, last: int, most: int) -> Part:
        """Give the episodes of a stretch of rows."""
        starts = self.starts(first, last, most)
        return Part(self.scenario, self.trace, starts, np.arange(starts.size), self.rules)


def huawei(data: Path) -> World:
    """VMs of Huawei-East-1 on five servers from its sixth day on; a request that fits nowhere ends an episode."""
    trace, _ = vm_traces.read(data / HUAWEI)
    borders = np.searchsorted(trace.time, np.arange(5, 6 + NIGHTS + 1) * DAY_S)
    scenario = scenarios.load("vm/recovering", {"servers": 5, "start_min": 0, "start_max": 0})
    return World("vm", "Huawei-East-1", scenario, trace, borders, 600, 24, "placed", {},
                 ("placed", "sla_violation_rate", "cost_usd"))  # fmt: skip


def bitbrains(data: Path) -> World:
    """Bitbrains' VMs as 100 pods on ten nodes, from 5 August on.

    A night's search begins at ``hottest_to_coolest``, the best rule of the sample, and cannot express
    ``best_single_move``.
    """
    scenario = scenarios.load("pods/deploy", {"episode_windows": 24})
    trace = pod_traces.load(data / BITBRAINS, scenario)  # type: ignore[arg-type]
    borders = np.arange(4, 5 + NIGHTS + 1, dtype=np.int64) * (DAY_S // 300)
    return World("pods", "Bitbrains", scenario, trace, borders, 24, 12, "resource_violations", {},
                 ("resource_violations", "sla_violation_rate", "cost_usd"))  # fmt: skip


def azure(data: Path) -> World:
    """Azure's functions on ten nodes; eight hours, each in place of a day."""
    scenario = scenarios.load("functions/serverless", {"horizon": 1000})
    trace = function_traces.load(data / AZURE, scenario)  # type: ignore[arg-type]
    arrival = trace[0].arrival_s
    borders = np.searchsorted(arrival, arrival[0] + np.arange(NIGHTS + 2) * 3600.0)
    return World("functions", "Azure Functions", scenario, trace, borders, 1000, 24, "return", {},
                 ("return", "sla_violation_rate", "cost_usd"))  # fmt: skip


def philly(data: Path) -> World:
    """Philly's jobs of one card on nine cards, 20 times as dense, from its 26th day on (before, there are few)."""
    jobs = gpu_jobs.read_philly(data / PHILLY, skip_bad=True)
    day = (jobs.submitted_s - jobs.submitted_s[(jobs.gpus == 1) & (jobs.duration_s > 60)].min()) // DAY_S
    week = np.flatnonzero((day >= 25) & (day < 25 + NIGHTS + 1))
    cut = replace(jobs, **{name: getattr(jobs, name)[week] for name in ("submitted_s", "duration_s", "gpus", "cluster",
                                                                        "cancel_s")})  # fmt: skip
    profiles = data / "cpn-gpu-profiles" / job_traces.COLOCATIONS
    load = job_traces.recorded_workload(cut, profiles, rows=week.size, seed=3, speed_up=PHILLY_SPEED_UP)
    arrival = load.jobs.arrival_s
    borders = np.searchsorted(arrival, np.arange(NIGHTS + 2) * DAY_S / PHILLY_SPEED_UP)
    pairs = {"choice": "pair", "shown_jobs": 64, "queue_order": "shortest"}
    plain = scenarios.load("jobs/testbed", {"episode_jobs": 100})
    return World("jobs", "Philly", scenarios.load("jobs/testbed", {"episode_jobs": 100, **pairs}), load, borders, 100,
                 24, "mean_completion_s", dict.fromkeys(RULES_OF_CARDS, plain),
                 ("mean_completion_s", "makespan_s", "oom"))  # fmt: skip


def small(world: World) -> World:
    """Cut the budget; the page says so."""
    return replace(world, episodes=max(world.episodes // 2, 6), few=True)


def training_of(world: World) -> tuple[str, dict[str, Any]]:
    """Return algorithm and settings of a night."""
    of_problem = yaml.safe_load(PARAMS.read_text())["train"][world.problem]
    algorithm = of_problem.get("default", "expert")
    return algorithm, {**of_problem.get(algorithm, {}), **({"segments": 1} if world.few else {})}


WORLDS: dict[str, Callable[[Path], World]] = {"vm": huawei, "pods": bitbrains, "functions": azure, "jobs": philly}


def case_of(world: World, night: int) -> Case:
    """Cut what a night trains and validates on: the days before it, in time."""
    first, end = int(world.borders[0]), int(world.borders[night])
    cut = first + int(TRAINED * (end - first))
    train = scenarios.load(world.scenario, {"start_min": first, "start_max": max(cut - world.rows, first + 1)})
    validation = world.part(cut, end, 12 if world.few else 32)
    algorithm, settings = training_of(world)
    return Case(world.problem, (train, world.trace), validation, {}, world.primary, {}, settings, algorithm=algorithm)


def a_night(world: World, night: int, seeds: int, kept: list[Any], frozen: list[Scorer]) -> dict[str, Any]:
    """Train, choose and judge one night; ``kept`` and ``frozen`` go on from night to night."""
    better = problems.get(world.problem).better(world.primary)
    case = case_of(world, night)

    def worth(part: Part, policy: Any) -> float:
        return better * float(judged(part, policy, [world.primary])[world.primary].mean())

    before = world.part(
        int(world.borders[0]), int(world.borders[night]), RULE_STARTS // 4 if world.few else RULE_STARTS
    )
    by_rule = {rule: worth(before, rule) for rule in problems.get(world.problem).heuristics}
    best = max(by_rule, key=by_rule.__getitem__)
    trained = [student(case, seed) for seed in range(seeds)]
    students = [each.scorer for each, _ in trained]
    frozen[:] = frozen or students
    kept[:] = [
        max((now, old, best), key=lambda one: worth(case.validation, one))
        for now, old in zip(students, kept or frozen, strict=True)
    ]
    part = world.part(int(world.borders[night]), int(world.borders[night + 1]), world.episodes)
    names = list(world.shown)
    rule = judged(part, best, names)
    arms = {"retrained": students, "frozen": frozen, "kept": kept}
    found = {arm: [judged(part, one, names) for one in policies] for arm, policies in arms.items()}
    none = np.zeros(part.starts.size, np.intp)
    gains = {
        arm: [relative_difference(one[world.primary], rule[world.primary], none, higher=better > 0).tolist()
              for one in policies]
        for arm, policies in found.items()
    }  # fmt: skip
    return {
        "night": night,
        "best_rule": best,
        "episodes": int(part.starts.size),
        "rule": {name: float(rule[name].mean()) for name in names},
        "arms": {arm: {name: float(np.mean([one[name].mean() for one in each])) for name in names}
                 for arm, each in found.items()},
        "gains": gains,
        "kept_is": ["rule" if isinstance(one, str) else "new" if one is now else "old"
                    for one, now in zip(kept, students, strict=True)],
        "cpu_s_a_training": [round(spent, 1) for _, spent in trained],
    }  # fmt: skip


def summed(nights: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum the week up: the gain of each arm over the rule, and of retraining over the frozen policy, paired."""
    blocks = np.arange(sum(one["episodes"] for one in nights))
    none = np.zeros(blocks.size, np.intp)
    resampler = Resampler(none, blocks, samples=SAMPLES, seed=BOOTSTRAP_SEED)
    joined = {arm: np.concatenate([np.mean(one["gains"][arm], axis=0) for one in nights]) for arm in nights[0]["gains"]}
    later = np.concatenate([np.full(one["episodes"], one["night"] > 1) for one in nights])
    found = {}
    for title, values in {**joined, "retrained - frozen": joined["retrained"] - joined["frozen"]}.items():
        estimate = resampler.estimate(mean(values))
        found[title] = {"gain": estimate.value, "interval": [estimate.lower, estimate.upper]}
    if not later.any():
        return found
    rest = Resampler(none[later], blocks[later], samples=SAMPLES, seed=BOOTSTRAP_SEED)
    estimate = rest.estimate(mean((joined["retrained"] - joined["frozen"])[later]))
    found["retrained - frozen"] = {"gain": estimate.value, "interval": [estimate.lower, estimate.upper]}
    return found


def page(results: Mapping[str, Any]) -> str:
    """Lay the results out for people."""
    command = "python benchmarks/seven_nights.py --data ../shared/data --out docs/results"
    command += " --small" if all(found.get("small") for found in results.values()) else ""
    lines = ["# Is nightly retraining worth it?", "",
             f"Made by `{command}`. Seven consecutive "
             "nights on recorded arrivals; every policy is judged on the day after, which none has seen, on the same "
             "episodes. *retrained*: trained every night on all days so far; *frozen*: what the first night trained; "
             "*kept*: the newest student, the one before or the rule, whichever is best on the night's validation (the "
             "last fifth of the days so far); *best rule*: the best of all on 64 episodes spread over the days before. "
             "Gains are relative to the best rule, positive when better; 95 % intervals over episodes. The last column "
             "is paired, nights 2 to 7: in the first night both are the same policy.", "",
             "| arrivals | metric | retrained | frozen | kept | retrained against frozen |",
             "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for problem, found in results.items():
        cells = [_cell(found["week"][arm]) for arm in ("retrained", "frozen", "kept", "retrained - frozen")]
        title = f"{found['source']} ({problem}), {len(found['nights'])} nights"
        lines.append(f"| {title} | {found['primary']} | {' | '.join(cells)} |")
    if any(found.get("small") for found in results.values()):
        lines += [
            "",
            "Trained with a cut budget (`--small`).",
        ]
    for problem, found in results.items():
        metric = found["primary"]
        spent = [value for one in found["nights"] for value in one["cpu_s_a_training"]]
        lines += ["", f"## {problem}: {found['source']}", "",
                  f"{found['about']} Learner `{found['algorithm']}`, {json.dumps(found['settings'])}"
                  f"{CUT if found.get('small') else ''}, {found['seeds']} training "
                  f"seeds, {np.mean(spent):.0f} s of CPU time a training; the machine was shared (load average "
                  f"{found['load_average']}). Figures: {metric}, means over episodes and seeds.", "",
                  "| judged day | episodes | best rule | | retrained | frozen | kept | what was kept |",
                  "| --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
        for one in found["nights"]:
            cells = [f"{one['arms'][arm][metric]:,.4g} ({100 * np.mean(one['gains'][arm]):+.1f} %)"
                     for arm in ("retrained", "frozen", "kept")]  # fmt: skip
            lines.append(
                f"| {one['night'] + 1} | {one['episodes']} | `{one['best_rule']}` | {one['rule'][metric]:,.4g} "
                f"| {' | '.join(cells)} | {', '.join(one['kept_is'])} |"
            )
        others = [name for name in found["nights"][0]["rule"] if name != metric]
        for name in others:
            mean_of = {
                arm: np.mean([one["arms"][arm][name] for one in found["nights"]])
                for arm in ("retrained", "frozen", "kept")
            }
            rule = np.mean([one["rule"][name] for one in found["nights"]])
            lines += ["", f"{name}, mean of the week: rule {rule:.4g}, " +
                      ", ".join(f"{arm} {value:.4g}" for arm, value in mean_of.items()) + "."]  # fmt: skip
    return "\n".join(lines) + "\n"


def _cell(row: Mapping[str, Any]) -> str:
    low, high = (100 * value for value in row["interval"])
    return f"{100 * row['gain']:+.1f} % [{low:.1f}, {high:.1f}]"


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=list(WORLDS), choices=tuple(WORLDS))
    parser.add_argument("--nights", type=int, default=NIGHTS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="one segment, fewer episodes: to try it")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the public traces")
    parser.add_argument("--out", type=Path, help="folder for seven_nights.json and .md; other sections are kept")
    options = parser.parse_args()
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    found = {name: measure(name, options) for name in options.problems}
    say(json.dumps({name: one["week"] for name, one in found.items()}))
    return 0


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Go through the nights of one problem; what is known is written after each."""
    began, world = time.process_time(), WORLDS[name](options.data)
    if options.small:
        world = small(world)
    kept: list[Any] = []
    frozen: list[Scorer] = []
    found: dict[str, Any] = {
        "source": world.source,
        "about": " ".join((WORLDS[name].__doc__ or "").replace("``", "`").split()),
        "primary": world.primary,
        "algorithm": training_of(world)[0],
        "settings": training_of(world)[1],
        "seeds": options.seeds,
        "small": bool(options.small),
        "nights": [],
    }
    for night in range(1, options.nights + 1):
        found["nights"].append(a_night(world, night, options.seeds, kept, frozen))
        found["week"] = summed(found["nights"])
        found["cpu_s"] = round(time.process_time() - began, 1)
        found["load_average"] = round(os.getloadavg()[0], 1)
        last = found["nights"][-1]
        shown = {arm: round(100 * float(np.mean(gains)), 2) for arm, gains in last["gains"].items()}
        say(f"{name}, night {night}: {last['best_rule']} {shown} {found['cpu_s']:.0f} s")
        if options.out:
            save(options.out / "seven_nights.json", name, found)
    return found


def save(file: Path, name: str, found: dict[str, Any]) -> None:
    """Put one problem's section in its place; others may be measured at the same time."""
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        results = {key: before.get(key) if key != name else found for key in WORLDS}
        results = {key: value for key, value in results.items() if value}
        file.write_text(json.dumps(results, indent=1) + "\n")
        file.with_suffix(".md").write_text(page(results))
    file.with_suffix(".lock").unlink(missing_ok=True)


if __name__ == "__main__":
    run_cli(main)
