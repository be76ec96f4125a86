"""How long must an episode be for the ranking of the rules to stay? Writes docs/results/horizon.{json,md}.

Every rule plays episodes of several lengths, begun evenly over a trace so that they overlap as little as there is room
for; rules are compared on the same episodes, with paired 95 % intervals (Student's t). A pair of rules is *certain* at
a length when the interval of its difference leaves 0 out. The first place is right from a length on when there, and at
every longer one, no rule comes first that is certainly worse than the best at the longest; the whole ranking, when no
pair that is certain at the longest is certainly the other way round. Long episodes are few on a short trace: then
little is certain, which the count of certain pairs says.

The sample's train windows (needs ``data/windows``: ``dvc repro clean``; calibrated where ``calibrate`` has been) and,
with ``--data``, Azure's arrivals on the ten nodes of ``functions/serverless``. The last line is a JSON object.

    python benchmarks/horizon.py --data ../shared/data
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from pipeline.datasets import get, workload
from sched_env import problems, scenarios
from sched_env.functions import trace as function_traces
from sched_env.rollout import run_episodes
from wire.errors import run_cli

LENGTHS: dict[str, tuple[str, tuple[int, ...]]] = {
    "functions": ("horizon", (64, 128, 256, 384, 512, 1024, 2048)),
    "vm": ("horizon", (96, 192, 384, 768)),
    "pods": ("episode_windows", (6, 12, 24, 48)),
    "jobs": ("episode_jobs", (15, 30, 60, 120)),
}
"""Problem -> the scenario's key of an episode's length, and the lengths. A workflow's episode is the workflow."""
SLOW = {"gavel_lp"}
"""Rules that solve a program at every decision, left out."""
EPISODES, CONFIDENCE = 48, 0.95
AZURE = "azure-functions-2019"
OUT = Path("docs/results/horizon.json")


class Played(NamedTuple):
    """All rules at one length."""

    names: list[str]
    scores: NDArray[np.float64]
    """[rule, episode], more is better."""

    @property
    def order(self) -> list[str]:
        """The rules, best first."""
        return [self.names[k] for k in np.argsort(-self.scores.mean(axis=1), kind="stable")]

    def better(self, one: str, two: str) -> int:
        """Return 1 if the first is certainly better, -1 if certainly worse, else 0."""
        gain = self.scores[self.names.index(one)] - self.scores[self.names.index(two)]
        half = float(student.ppf(0.5 + CONFIDENCE / 2, gain.size - 1)) * gain.std(ddof=1) / np.sqrt(gain.size)
        return int(gain.mean() > half) - int(gain.mean() < -half)


def play(problem: str, scenario: scenarios.Scenario, trace: Any, length: int) -> Played | None:
    """Play every rule at a length; None where the trace has no room for two episodes."""
    value, key = problems.get(problem), LENGTHS[problem][0]
    cut = scenarios.load(scenario, {key: length, "start_min": 0, "start_max": 0})
    rows = get(problem).starts(trace, cut)
    count = min(EPISODES, int(rows.size // length) + 1)
    if rows.size < 2 or count < 2:
        return None
    starts, metric = rows[np.linspace(0, rows.size - 1, count).astype(np.int64)], value.primary(cut)
    names = [rule for rule in value.heuristics if rule not in SLOW]
    scores = [[float(row[metric]) for row in run_episodes(cut, rule, starts, trace=trace)] for rule in names]
    return Played(names, value.better(metric) * np.array(scores))


def compare(played: dict[int, Played]) -> dict[str, Any]:
    """Find the lengths from which the first place and the ranking stay."""
    longest = played[max(played)]
    certain = [pair for pair in itertools.permutations(longest.names, 2) if longest.better(*pair) > 0]
    best = longest.order[0]
    rows = {}
    for length, here in sorted(played.items()):
        first = here.order[0]
        rows[length] = {
            "episodes": here.scores.shape[1],
            "means": {name: round(float(here.scores[here.names.index(name)].mean()), 4) for name in here.order},
            "tied_with_first": [name for name in here.order[1:] if here.better(first, name) == 0],
            "first_is_right": longest.better(best, first) <= 0,
            "reversed": [list(pair) for pair in certain if here.better(*pair) < 0],
        }
    return {
        "lengths": rows,
        "certain_pairs": len(certain),
        "first_from": _from({length: bool(row["first_is_right"]) for length, row in rows.items()}),
        "ranking_from": _from({length: not row["reversed"] for length, row in rows.items()}),
    }


def _from(holds: dict[int, bool]) -> int:
    """Return the shortest length at which, and at every longer one, it holds; at the longest it does by definition."""
    return min(length for length in holds if all(holds[longer] for longer in holds if longer >= length))


def page(results: dict[str, Any]) -> str:
    """Lay the results out for people."""
    lines = ["# How long an episode must be", "", "Made by `python benchmarks/horizon.py --data ../shared/data`. "
             "Figures are the problem's own metric, turned so that more is better, best rule first; *reversed*: pairs "
             "that are certain (95 %, paired) at the longest length and certainly reversed here.", ""]  # fmt: skip
    for title, found in results.items():
        lines += [f"## {title}", "", f"{found['certain_pairs']} pairs of rules are certain at the longest length. "
                  f"The first place is right from **{found['first_from']}** on, the whole ranking from "
                  f"**{found['ranking_from']}** ({found['key']}).", "",
                  "| length | episodes | first three | not certainly worse than the first | reversed |",
                  "| --- | --- | --- | --- | --- |"]  # fmt: skip
        for length, row in found["lengths"].items():
            three = ", ".join(f"{name} {mean:,.4g}" for name, mean in list(row["means"].items())[:3])
            pairs = ", ".join(f"{one} > {two}" for one, two in row["reversed"][:3])
            more = f" and {len(row['reversed']) - 3} more" if len(row["reversed"]) > 3 else ""
            ties = ", ".join(row["tied_with_first"]) or "–"
            lines.append(f"| {length} | {row['episodes']} | {three} | {ties} | {pairs + more or '–'} |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the public traces")
    parser.add_argument("--problem", action="append", choices=tuple(LENGTHS))
    parser.add_argument("--out", type=Path, default=OUT, help="what is there is kept (default: %(default)s)")
    options = parser.parse_args()
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    cases: dict[str, tuple[str, scenarios.Scenario, Any]] = {}
    for problem in options.problem or LENGTHS:
        data = workload(problem, "train")
        cases[f"{problem}, the sample's train windows"] = (problem, data.scenario, data.trace)
        if problem == "functions" and options.data:
            world = scenarios.load("functions/serverless")
            arrivals = function_traces.load(options.data / AZURE, world)  # type: ignore[arg-type]
            cases["functions, Azure's arrivals on ten nodes"] = (problem, world, arrivals)
    for title, (problem, scenario, trace) in cases.items():
        key, lengths = LENGTHS[problem]
        began = time.process_time()
        played = {length: found for length in lengths if (found := play(problem, scenario, trace, length))}
        results[title] = {"key": key, **compare(played), "cpu_s": round(time.process_time() - began, 1)}
        print(f"{title}: first place right from {results[title]['first_from']} on", flush=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(page(json.loads(options.out.read_text())))
    froms = ("first_from", "ranking_from")
    print(json.dumps({title: {name: found[name] for name in froms} for title, found in results.items()}))
    return 0


if __name__ == "__main__":
    run_cli(main)
