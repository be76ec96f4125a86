"""VMs of huawei-east-1: waits, server hours, and the rest (by number: train < 50,000, test from 70,000 to 110,000).

    python benchmarks/quality_vm.py --data ../shared/data --out docs/results

The policy is ``numa_first_fit`` written for a scorer that sees no order (``quality_cases.NUMA_FIRST_FIT``), exported
and run as the ONNX file that would be served: is it no worse? For waiting ``evolution`` searches its weights further,
on 5 servers; validation on 5 and 20 chooses. The power is told before the result: the fall that would be seen in four
of five such tests, from the spread between queues on validation. Queues do not overlap; each is a block. Gains are
positive when better. Stopped, it goes on where it was. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from quality import BOOTSTRAP_SEED, SAMPLES, folder, say
from quality_cases import NUMA_FIRST_FIT, VM_TERMS, VM_TEST, VM_TRAIN, VM_VALIDATION, Case, Part

from pipeline.policies import algorithms
from pipeline.policies.checkpoint import Row, Trained
from pipeline.policies.evolution import of_terms
from pipeline.policies.onnx_graph import to_onnx
from pipeline.policies.scorer import Scorer, TorchPolicy
from pipeline.policies.training import train
from pipeline.statistics.bootstrap import Resampler
from pipeline.statistics.estimators import mean
from sched_env import problems, scenarios
from sched_env.rollout import run_episodes
from sched_env.vector import make_vec
from sched_env.vm import trace as vm_traces
from wire.errors import run_cli

RULE, SEEDS = "numa_first_fit", 5
SEARCH = {"terms": VM_TERMS, "start": NUMA_FIRST_FIT, "hidden": 16, "envs": 16, "segments": 3, "generations": 4}
QUEUE = {5: 870, 20: 5_000}
"""VMs from the start of one queue to that of the next; longer than nearly all."""
MARGIN = {"placed": 0.005, "cost_usd": 0.005, "wait_s": 0.02}
AIM = 0.06
"""Fall of the wait that is hoped for; a test that would not see it decides nothing."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
REST = (("vm/fading", 5), ("vm/fading", 20), ("vm/recovering", 5), ("vm/recovering", 20))
HOURS = ("vm/recovering-l", "vm/expanding")
PLACEMENTS = 4_000
"""Of an episode whose server hours are counted: everything is placed."""


def world(name: str, **changes: Any) -> scenarios.Scenario:
    """Load a scenario that starts anywhere in the trace."""
    return scenarios.load(name, {"start_min": 0, "start_max": 1_000_000, **changes})


def waiting(servers: int) -> scenarios.Scenario:
    """Load the scenario in which requests wait."""
    return world("vm/recovering", servers=servers, ending="wait")


def figures(scenario: scenarios.Scenario, policy: Any, starts: Ints, trace: Any, metric: str) -> Floats:
    """Run episodes and return a metric."""
    given = TorchPolicy(policy) if isinstance(policy, Scorer) else policy
    return np.array([float(row[metric]) for row in run_episodes(scenario, given, starts, trace=trace)])


def trimmed(values: Floats) -> float:
    """Return the mean without the tenth at each end."""
    cut = int(0.1 * values.size)
    return float(np.sort(values)[cut : values.size - cut].mean())


def searched(trace: Any, creations: Ints, seed: int, **changes: Any) -> Trained:
    """Search once, or read what an earlier run of the same found; validation: waits over the rule's, at both sizes."""
    settings = algorithms.settings("evolution", ("quality_vm.py", SEARCH), **changes)
    scenario = scenarios.load(waiting(5), {"start_max": int(creations[VM_TRAIN - QUEUE[5]])})
    held = {n: creations[np.arange(VM_TRAIN, VM_VALIDATION - QUEUE[n], QUEUE[n])] for n in QUEUE}
    rule = {n: trimmed(figures(waiting(n), RULE, held[n], trace, "wait_s")) for n in QUEUE}

    def validate(policy: Scorer | str) -> Row:
        ours = {n: trimmed(figures(waiting(n), policy, held[n], trace, "wait_s")) for n in QUEUE}
        return {"worse": float(np.mean([np.log(ours[n] / rule[n]) for n in QUEUE]))}

    part = Part(scenario, trace, held[5], np.arange(held[5].size))
    case = Case("vm", (scenario, trace), part, {}, "wait_s", {}, {})
    return train(
        lambda count: make_vec(scenario, count, seed, trace, copy=True),
        "evolution",
        settings,
        seed=seed,
        scratch=folder(case, settings, seed),
        validate=validate,
        objective=lambda row: -row["worse"],
        report=lambda segment, row: say(f"  seed {seed} {changes or ''} segment {segment}: {json.dumps(row)}"),
    )


def compared(ours: Floats, theirs: Floats, higher: float, blocks: Ints | None = None) -> dict[str, Any]:
    """Hold episodes against a rule's: gain over the rule's mean, with its interval; no blocks: each is one."""
    none, own = np.zeros(ours.size, np.intp), np.arange(ours.size) if blocks is None else blocks
    resampler = Resampler(none, own, samples=SAMPLES, seed=BOOTSTRAP_SEED)
    found = resampler.estimate(mean(higher * (ours - theirs) / theirs.mean()))
    shown = {"rule": float(theirs.mean()), "ours": float(ours.mean()), "episodes": int(ours.size)}
    shown["blocks"] = int(np.unique(own).size)
    return shown | {"gain": found.value, "interval": [found.lower, found.upper]}


def power(trace: Any, creations: Ints) -> dict[str, Any]:
    """Say what fall of the mean wait a test would see in four of five cases, from first_fit on validation."""
    found = {}
    for n, length in QUEUE.items():
        held = creations[np.arange(VM_TRAIN, VM_VALIDATION - length, length)]
        rule, other = (figures(waiting(n), name, held, trace, "wait_s") for name in (RULE, "first_fit"))
        spread = float(np.std((other - rule) / rule.mean(), ddof=1))
        queues = len(range(VM_VALIDATION, VM_TEST - length, length))
        found[str(n)] = {"queues": queues, "spread": spread, "seen": float(2.8 * spread / np.sqrt(queues))}
    # Both sizes pooled, each half of the result.
    found["pooled"] = {"seen": float(np.sqrt(sum(found[str(n)]["seen"] ** 2 for n in QUEUE)) / len(QUEUE))}
    return found


def measure(data: Path, seeds: int) -> dict[str, Any]:
    """Measure all three."""
    began, better = time.process_time(), problems.get("vm").better
    trace = data / "huawei-east-1" / "events.csv.gz"
    table = vm_traces.load(trace, waiting(5))  # type: ignore[arg-type]
    creations = np.flatnonzero(np.asarray((table[0] if isinstance(table, tuple) else table).kind) == 0).astype(np.int64)
    result: dict[str, Any] = {"power": power(trace, creations), "wait": {}, "rest": {}, "hours": {}}
    say(json.dumps(result["power"]))
    found = [searched(trace, creations, seed) for seed in range(seeds)]
    result["curves"] = [each.curve for each in found]
    spec = problems.spec("vm")
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "policy.onnx"
        file.write_bytes(to_onnx(of_terms(spec, VM_TERMS, np.array(NUMA_FIRST_FIT), 16), spec))
        for n in QUEUE:
            held = creations[np.arange(VM_VALIDATION, VM_TEST - QUEUE[n], QUEUE[n])]
            rule = figures(waiting(n), RULE, held, trace, "wait_s")
            for name, ours in {
                "searched": np.mean(
                    [figures(waiting(n), each.scorer, held, trace, "wait_s") for each in found], axis=0
                ),
                "exported": figures(waiting(n), str(file), held, trace, "wait_s"),
            }.items():
                row = compared(ours, rule, better("wait_s"))
                row["trimmed"] = 1.0 - trimmed(ours) / trimmed(rule)
                result["wait"][f"{n} servers, {name}"] = row
        for name, n in REST:
            numbers = np.linspace(VM_VALIDATION, VM_TEST - QUEUE[n], 24).astype(int)
            held = creations[numbers]
            ours, rule = (figures(world(name, servers=n), each, held, trace, "placed") for each in (str(file), RULE))
            # An episode ends after about as many VMs as it placed; those that overlap hang together.
            blocks = (numbers - numbers[0]) // int(rule.mean())
            result["rest"][f"{name}, {n} servers"] = compared(ours, rule, better("placed"), blocks)
        for name in HOURS:
            held = creations[np.arange(VM_VALIDATION, VM_TEST, PLACEMENTS)]
            scenario = world(name, horizon=PLACEMENTS)
            ours, rule = (figures(scenario, each, held, trace, "cost_usd") for each in (str(file), RULE))
            result["hours"][name] = compared(ours, rule, better("cost_usd"))
            result["hours"][name]["placed"] = float(figures(scenario, str(file), held, trace, "placed").mean())
    result |= {"seeds": seeds, "cpu_s": round(time.process_time() - began, 1),
               "load_average": round(os.getloadavg()[0], 1)}  # fmt: skip
    return result


def page(result: dict[str, Any]) -> str:
    """Lay the results out for people."""
    lines = ["# VMs: waiting, server hours, the rest", "", "Made by `python benchmarks/quality_vm.py --data "
             "../shared/data --out docs/results`; huawei-east-1 by number of the VM: train below 50,000, validation to "
             "70,000, test to 110,000. Gains over `numa_first_fit`, positive when better, 95 % intervals, over blocks "
             f"that do not overlap. {result['seeds']} seeds a search; judging took {result['cpu_s']:.0f} s of CPU time "
             f"beside other work (load average {result['load_average']}).", "", "## Power of the test of waiting",
             "", "| servers | queues | spread of a queue's difference | fall that is seen in four of five |",
             "| --- | --- | --- | --- |"]  # fmt: skip
    for name, row in result["power"].items():
        lines.append(f"| {name} | {row.get('queues', '')} | {100 * row['spread']:.0f} % | {100 * row['seen']:.0f} % |"
                     if "queues" in row else f"| pooled | | | {100 * row['seen']:.0f} % |")  # fmt: skip
    for title, part, metric in (("Waiting, seconds", "wait", "wait_s"), ("Placed", "rest", "placed"),
                                ("Server hours, everything placed", "hours", "cost_usd")):  # fmt: skip
        lines += ["", f"## {title}", "", "| | episodes, blocks | rule | ours | gain | 95 % | trimmed | margin | |",
                  "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
        for name, row in result[part].items():
            low, high = row["interval"]
            margin = MARGIN[metric]
            met = "non-inferior" if low > -margin else ("worse" if high < -margin else "inconclusive")
            if part == "wait" and result["power"]["pooled"]["seen"] > AIM:  # whatever one lucky queue says
                met = "inconclusive"
            cut = f"{100 * row['trimmed']:+.1f} %" if "trimmed" in row else ""
            lines.append(
                f"| {name} | {row['episodes']}, {row['blocks']} | {row['rule']:,.6g} | {row['ours']:,.6g} "
                f"| **{100 * row['gain']:+.2f} %** | [{100 * low:.2f}, {100 * high:.2f}] | {cut} "
                f"| {100 * margin:g} % | {met} |"
            )
    if "note" in result:
        lines += ["", result["note"]]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the public traces")
    parser.add_argument("--out", type=Path, help="folder for quality_vm.json and quality_vm.md")
    options = parser.parse_args()
    result = measure(options.data, options.seeds)
    if options.out:
        file = options.out / "quality_vm.json"
        if file.exists() and "note" in (before := json.loads(file.read_text())):
            result["note"] = before["note"]
        file.write_text(json.dumps(result, indent=1) + "\n")
        file.with_suffix(".md").write_text(page(result))
    say(json.dumps({part: {name: round(row["gain"], 4) for name, row in result[part].items()}
                    for part in ("wait", "rest", "hours")}))  # fmt: skip
    return 0


if __name__ == "__main__":
    run_cli(main)
