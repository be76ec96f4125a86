"""A load that shifts: is it seen, is it worth training early, and does the new policy pass against the old one?

    python benchmarks/shifted.py --data ../shared/data --out docs/results
    python benchmarks/shifted.py --data ../shared/data --out docs/results --shifts smaller,longer,… --seeds 1

Azure's arrivals on ten nodes, as ``quality_cases.py`` cuts them, shifted from the end of the train part on. Of each:

1. *Seen*: the calls in a real Prometheus, looked at by ``watch_live``'s own code (``shifted_watch.py``). The days
   before the shift are repeats of the recorded eight hours with a drawn level: assumed.
2. *Retrained*: what is live is trained before the shift, the early night on half of the validation part, shifted, and
   chosen on the other half.
3. *Judged*: both on the test part, shifted too, beside the rules, by the gate's own code (``shifted_gate.py``); a
   verdict a training seed.

The three shifts that are measured by default were chosen among those of the table below after a look at one seed on the
test part. A shift that is not asked for stays as it is in the JSON file. Last line: JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import shifted_gate
import shifted_page
import shifted_watch
from quality_cases import AZURE, HORIZON, TRAIN, VALIDATION, Case, Part
from quality_parts import compare, judged, say, spent_since
from quality_students import student

from pipeline.gate.episodes import CHALLENGER, CHAMPION
from pipeline.policies.scorer import Scorer
from sched_env import problems, scenarios
from sched_env.functions import trace as function_traces
from sched_env.functions.tables import FunctionTrace
from wire import sample_bundle
from wire.errors import ConfigError, legal, run_cli

NAMES = ("return", "sla_violation_rate", "cost_usd")
SETTINGS = {"decisions": 40, "states": 12_000, "segments": 2}
Change = Callable[[FunctionTrace, int], FunctionTrace]


def often(factor: float) -> Change:
    """Let everything that comes from a row on come so many times as often."""

    def change(trace: FunctionTrace, first: int) -> FunctionTrace:
        at, moment = trace.arrival_s, trace.arrival_s[first]
        return dataclasses.replace(trace, arrival_s=np.where(at < moment, at, moment + (at - moment) / factor))

    return change


def times(**factors: float) -> Change:
    """Multiply columns from a row on."""

    def change(trace: FunctionTrace, first: int) -> FunctionTrace:
        changed = {name: getattr(trace, name).copy() for name in factors}
        for name, column in changed.items():
            column[first:] = column[first:] * factors[name]
        return dataclasses.replace(trace, **changed)

    return change


class Shift(NamedTuple):
    """What changes."""

    words: str
    change: Change


SHIFTS = {
    "quarter": Shift("calls fall to a quarter: a customer leaves", often(0.25)),
    "larger": Shift("instances request twice the cpu and memory, and use what they used", times(cpu=2.0, mem=2.0)),
    "doubled": Shift("every function calls twice as often", often(2.0)),
    "smaller": Shift("instances request half the cpu and memory, and use what they used", times(cpu=0.5, mem=0.5)),
    "four_times": Shift("every function calls four times as often", often(4.0)),
    "longer": Shift("instances live four times as long, and answer four times the calls",
                    times(duration_s=4.0, requests=4.0)),
    "more_io": Shift("instances use four times the network and disk", times(net=4.0, disk=4.0)),
}  # fmt: skip
DEFAULT = ("quarter", "larger", "doubled")


class World(NamedTuple):
    """The trace, and the rows at which it is cut."""

    scenario: scenarios.Scenario
    trace: FunctionTrace
    nodes: Any
    first: int
    """The shift, and the end of what the old policy learned from."""
    second: int
    """The end of what the new one learned from; what follows is the test part."""

    def part(self, begin: int, end: int, count: int, table: FunctionTrace) -> Part:
        """Spread episodes over rows."""
        starts = np.linspace(begin, end - HORIZON, count).astype(np.int64)
        return Part(self.scenario, (table, self.nodes), starts, (starts - starts[0]) // HORIZON)

    def case(self, begin: int, cut: int, end: int, table: FunctionTrace) -> Case:
        """Train up to ``cut``, and choose on what follows."""
        train = scenarios.load(self.scenario, {"start_min": begin, "start_max": cut - HORIZON})
        validation = self.part(cut, end, 24, table)
        return Case("functions", (train, (table, self.nodes)), validation, {}, "return", {}, SETTINGS)


def world(data: Path) -> World:
    """Read the trace."""
    scenario = scenarios.load("functions/serverless", {"horizon": HORIZON})
    trace, nodes = function_traces.load(data / AZURE, scenario)  # type: ignore[arg-type]
    return World(scenario, trace, nodes, int(TRAIN * len(trace)), int(VALIDATION * len(trace)))


def measure(name: str, of: World, old: list[Scorer], folder: Path) -> dict[str, Any]:
    """See, train and judge one shift."""
    began, shifted = time.process_time(), SHIFTS[name].change(of.trace, of.first)
    after = of.case(of.first, (of.first + of.second) // 2, of.second, shifted)
    test = of.part(of.second, len(shifted), 1, shifted)
    live = [shifted_gate.ship(each, folder / f"old-{seed}", test) for seed, each in enumerate(old)]
    record = sample_bundle.record(live[0].files, counter=1, previous_digest=None)
    moment_s = float(of.trace.arrival_s[of.first])
    seen = shifted_watch.seen(of.trace, shifted, of.nodes, moment_s, record, folder / "watch")
    say(f"{name}: seen after {', '.join(str(one['minutes']) for one in seen)} minutes")

    validated = {rule: judged(after.validation, rule, NAMES) for rule in problems.get("functions").heuristics}
    best = max(validated, key=lambda rule: float(validated[rule]["return"].mean()))
    trained = [student(after, seed) for seed in range(len(old))]
    court = shifted_gate.Court(test, of.second)
    verdicts, ours, theirs = [], [], []
    for seed, (each, _) in enumerate(trained):
        new = shifted_gate.ship(each.scorer, folder / f"new-{seed}", test)
        found = court.verdict(new, live[seed], court.champion(live[seed]))
        verdicts.append(shifted_gate.shown(found))
        say(f"{name}, seed {seed}: {found.report.outcome}: {found.report.reason}")
        episodes = found.episodes
        ours.append(shifted_gate.figures(episodes, CHALLENGER, NAMES))
        theirs.append(shifted_gate.figures(episodes, CHAMPION, NAMES))
    # What export would take of a night that trained them all.
    validation = [max(row["return"] for row in each.curve) for each, _ in trained]
    rule, blocks = shifted_gate.figures(episodes, best, NAMES), shifted_gate.blocks(episodes)
    before = {metric: np.mean([one[metric] for one in theirs], axis=0) for metric in NAMES}
    return {
        "words": SHIFTS[name].words,
        "seeds": len(old),
        "seen": seen,
        "best_rule": best,
        "block_s": court.longest_s,
        "figures": {
            "new against old": compare("functions", blocks, ours, before),
            "new against the best rule": compare("functions", blocks, ours, rule),
            "old against the best rule": compare("functions", blocks, theirs, rule),
        },
        "verdicts": verdicts,
        "passed": sum(one["outcome"] == "pass" for one in verdicts),
        "validation": validation,
        "best_rule_on_validation": float(validated[best]["return"].mean()),
        "exported": int(np.argmax(validation)),
        "cpu_s_a_training": [round(spent, 1) for _, spent in trained],
        **spent_since(began),
    }


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shifts", default=",".join(DEFAULT), help=f"some of {', '.join(SHIFTS)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the public traces")
    parser.add_argument("--out", type=Path, help="folder for shifted.json and shifted.md")
    options = parser.parse_args()
    asked = options.shifts.split(",")
    if strange := [name for name in asked if name not in SHIFTS]:
        raise ConfigError(f"there is no shift {strange[0]!r}", legal(SHIFTS))
    of = world(options.data)
    learned = of.case(0, int(0.8 * of.first), of.first, of.trace)
    old = [student(learned, seed)[0].scorer for seed in range(options.seeds)]
    measured: dict[str, Any] = {}
    for name in asked:
        with tempfile.TemporaryDirectory() as folder:
            measured[name] = measure(name, of, old, Path(folder))
    if options.out:
        file = options.out / "shifted.json"
        kept = json.loads(file.read_text()).get("shifts", {}) if file.exists() else {}
        every = {**kept, **measured}
        result = {"shifts": {name: every[name] for name in SHIFTS if name in every}}
        file.write_text(json.dumps(result, indent=1) + "\n")
        (options.out / "shifted.md").write_text(shifted_page.page(result["shifts"]))
    short = {
        name: {
            "seen_after_minutes": [one["minutes"] for one in found["seen"]],
            "return_new_against_old": found["figures"]["new against old"]["return"]["gain"],
            "passed": found["passed"],
            "seeds": found["seeds"],
        }
        for name, found in measured.items()
    }
    say(json.dumps(short))
    return 0


if __name__ == "__main__":
    run_cli(main)
