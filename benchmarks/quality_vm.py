"""The section ``vm`` of ``quality.py``, on huawei-east-1: waits, server hours, and the rest.

The policy is ``numa_first_fit`` written for a scorer that sees no order (``quality_cases.NUMA_FIRST_FIT``), exported
and run as the ONNX file that would be served: is it no worse? For waiting ``evolution`` searches its weights further,
on 5 servers; validation on 5 and 20 chooses. The power is told before the result: the fall that would be seen in four
of five such tests, from the spread between queues on validation. Queues do not overlap; each is a block.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from quality_cases import (
    NUMA_FIRST_FIT,
    VM_HOURS,
    VM_PLACEMENTS,
    VM_QUEUE,
    VM_REST,
    VM_SEARCH,
    VM_TERMS,
    VM_TEST,
    VM_TRAIN,
    VM_VALIDATION,
    Case,
    Part,
)
from quality_parts import (
    Floats,
    Ints,
    Shown,
    compare,
    compute,
    interval,
    judged,
    percent,
    say,
    spent_since,
    table,
    taught,
)

from pipeline.policies.checkpoint import Row, Trained
from pipeline.policies.evolution import of_terms
from pipeline.policies.onnx_graph import to_onnx
from pipeline.policies.scorer import Scorer
from sched_env import problems, scenarios
from sched_env.vm import trace as vm_traces

RULE = "numa_first_fit"
MARGIN = {"placed": 0.005, "cost_usd": 0.005, "wait_s": 0.02}
AIM = 0.06
"""Fall of the wait that is hoped for; a test that would not see it decides nothing."""


def world(name: str, **changes: Any) -> scenarios.Scenario:
    """Load a scenario that starts anywhere in the trace."""
    return scenarios.load(name, {"start_min": 0, "start_max": 1_000_000, **changes})


def waiting(servers: int) -> scenarios.Scenario:
    """Load the scenario in which requests wait."""
    return world("vm/recovering", servers=servers, ending="wait")


def queues(trace: Any, creations: Ints, servers: int, first: int, last: int) -> Part:
    """Cut queues that do not overlap out of VMs of these numbers."""
    starts = creations[np.arange(first, last - VM_QUEUE[servers], VM_QUEUE[servers])]
    return Part(waiting(servers), trace, starts, np.arange(starts.size))


def waits(part: Part, policy: Any) -> Floats:
    """Seconds waited in each queue."""
    return judged(part, policy, ["wait_s"])["wait_s"]


def trimmed(values: Floats) -> float:
    """Return the mean without the tenth at each end."""
    cut = int(0.1 * values.size)
    return float(np.sort(values)[cut : values.size - cut].mean())


def searched(trace: Any, creations: Ints, seed: int) -> tuple[Trained, float]:
    """Search once, or read what an earlier run of the same found; validation: waits over the rule's, at both sizes."""
    scenario = scenarios.load(waiting(5), {"start_max": int(creations[VM_TRAIN - VM_QUEUE[5]])})
    held = {n: queues(trace, creations, n, VM_TRAIN, VM_VALIDATION) for n in VM_QUEUE}
    rule = {n: trimmed(waits(part, RULE)) for n, part in held.items()}

    def validate(policy: Scorer | str) -> Row:
        return {"worse": float(np.mean([np.log(trimmed(waits(held[n], policy)) / rule[n]) for n in VM_QUEUE]))}

    validation = Part(scenario, trace, held[5].starts, held[5].blocks)
    case = Case("vm", (scenario, trace), validation, {}, "wait_s", {}, VM_SEARCH, algorithm="evolution")
    return taught(case, seed, validate, lambda row: -row["worse"])


def power(trace: Any, creations: Ints) -> dict[str, Any]:
    """Say what fall of the mean wait a test would see in four of five cases, from first_fit on validation."""
    found = {}
    for n in VM_QUEUE:
        held = queues(trace, creations, n, VM_TRAIN, VM_VALIDATION)
        rule, other = waits(held, RULE), waits(held, "first_fit")
        spread = float(np.std((other - rule) / rule.mean(), ddof=1))
        count = queues(trace, creations, n, VM_VALIDATION, VM_TEST).starts.size
        found[str(n)] = {"queues": count, "spread": spread, "seen": float(2.8 * spread / np.sqrt(count))}
    # Both sizes pooled, each half of the result.
    found["pooled"] = {"seen": float(np.sqrt(sum(found[str(n)]["seen"] ** 2 for n in VM_QUEUE)) / len(VM_QUEUE))}
    return found


def measure(_name: str, data: Path, seeds: int) -> dict[str, Any]:
    """Measure all three."""
    began = time.process_time()
    trace = data / "huawei-east-1" / "events.csv.gz"
    loaded = vm_traces.load(trace, waiting(5))  # type: ignore[arg-type]
    events = loaded[0] if isinstance(loaded, tuple) else loaded
    creations = np.flatnonzero(np.asarray(events.kind) == 0).astype(np.int64)
    result: dict[str, Any] = {"power": power(trace, creations), "wait": {}, "rest": {}, "hours": {}}
    say(json.dumps(result["power"]))
    found = [searched(trace, creations, seed) for seed in range(seeds)]
    result["curves"] = [each.curve for each, _ in found]
    spec = problems.spec("vm")

    def against(metric: str, part: Part, policies: list[Any]) -> dict[str, Any]:
        rule, ours = judged(part, RULE, [metric]), [judged(part, each, [metric]) for each in policies]
        row = compare("vm", part.blocks, ours, rule)
        row |= row.pop(metric)
        if metric == "wait_s":
            row["trimmed"] = 1.0 - float(np.mean([trimmed(each[metric]) for each in ours])) / trimmed(rule[metric])
        return row

    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "policy.onnx"
        file.write_bytes(to_onnx(of_terms(spec, VM_TERMS, np.array(NUMA_FIRST_FIT), 16), spec))
        exported = str(file)
        for n in VM_QUEUE:
            held = queues(trace, creations, n, VM_VALIDATION, VM_TEST)
            result["wait"][f"{n} servers, searched"] = against("wait_s", held, [each.scorer for each, _ in found])
            result["wait"][f"{n} servers, exported"] = against("wait_s", held, [exported])
        for name, n in VM_REST:
            numbers = np.linspace(VM_VALIDATION, VM_TEST - VM_QUEUE[n], 24).astype(int)
            part = Part(world(name, servers=n), trace, creations[numbers], numbers)
            # An episode ends after about as many VMs as it placed; those that overlap hang together.
            placed = judged(part, RULE, ["placed"])["placed"].mean()
            part = Part(part.scenario, trace, part.starts, (numbers - numbers[0]) // int(placed))
            result["rest"][f"{name}, {n} servers"] = against("placed", part, [exported])
        for name in VM_HOURS:
            starts = creations[np.arange(VM_VALIDATION, VM_TEST, VM_PLACEMENTS)]
            part = Part(world(name, horizon=VM_PLACEMENTS), trace, starts, np.arange(starts.size))
            result["hours"][name] = against("cost_usd", part, [exported])
            result["hours"][name]["placed"] = float(judged(part, exported, ["placed"])["placed"].mean())
    spent = [round(seconds, 1) for _, seconds in found]
    return result | {"seeds": seeds, "cpu_s_a_training": spent, **spent_since(began)}


def verdict(part: str, metric: str, row: dict[str, Any], result: dict[str, Any]) -> str:
    """Say what an interval says of a margin."""
    if part == "wait" and result["power"]["pooled"]["seen"] > AIM:  # whatever one lucky queue says
        return "inconclusive"
    low, high = row["interval"]
    return "non-inferior" if low > -MARGIN[metric] else ("worse" if high < -MARGIN[metric] else "inconclusive")


PARTS = (("Waiting, seconds", "wait", "wait_s"), ("Placed", "rest", "placed"),
         ("Server hours, everything placed", "hours", "cost_usd"))  # fmt: skip


def shown(_name: str, result: dict[str, Any]) -> list[Shown]:
    """Say which targets are met."""
    seen = result["power"]["pooled"]["seen"]
    asked = {"wait": f"trimmed mean below, plain non-inferior (2 %); power of 80 % at {100 * AIM:g} %",
             "rest": "non-inferior (0.5 %)", "hours": "non-inferior (0.5 %)"}  # fmt: skip
    lines = []
    for title, part, metric in PARTS:
        for name, row in result[part].items():
            found = f"{percent(row['gain'], 2)} {interval(row, 2)}"
            if part == "wait":
                found += f", trimmed {percent(row['trimmed'])}; a fall of {100 * seen:.0f} % would be seen"
            is_it = verdict(part, metric, row, result)
            lines.append(Shown(f"vm, {title.lower()}: {name} against `{RULE}`", asked[part], found,
                               "met" if is_it == "non-inferior" else f"**{is_it}**"))  # fmt: skip
    return lines


def page(_name: str, result: dict[str, Any]) -> list[str]:
    """Lay the results out for people."""
    lines = [
        "huawei-east-1 by number of the VM: train below 50,000, validation to 70,000, test to 110,000. Gains over "
        f"`{RULE}`, positive when better, 95 % intervals, over blocks that do not overlap. {compute(result)}",
        "",
        "## Power of the test of waiting",
        *table(
            ["servers", "queues", "spread of a queue's difference", "fall that is seen in four of five"],
            (
                [name, str(row.get("queues", "")), f"{100 * row['spread']:.0f} %" if "spread" in row else "",
                 f"{100 * row['seen']:.0f} %"]
                for name, row in result["power"].items()
            ),
        ),
    ]  # fmt: skip
    for title, part, metric in PARTS:
        lines += [f"## {title}"]
        lines += table(
            ["", "episodes, blocks", "rule", "ours", "gain", "95 %", "worst seed", "trimmed", "margin", ""],
            (
                [name, f"{row['episodes']}, {row['blocks']}", f"{row['rule']:,.6g}", f"{row['ours']:,.6g}",
                 f"**{percent(row['gain'], 2)}**", interval(row, 2), percent(min(row["by_seed"]), 2),
                 percent(row["trimmed"]) if "trimmed" in row else "", f"{100 * MARGIN[metric]:g} %",
                 verdict(part, metric, row, result)]
                for name, row in result[part].items()
            ),
        )  # fmt: skip
    curves = "; ".join(" → ".join(f"{row['worse']:+.3f}" for row in curve) for curve in result["curves"])
    return [*lines, f"Logarithm of the trimmed wait over the rule's on validation, by segment, seed by seed: {curves}."]
