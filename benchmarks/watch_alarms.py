"""How often watch_live cries wolf, and how soon it sees a shift: simulated weeks of every problem's signals.

    python benchmarks/watch_alarms.py --out docs/results

Each trial: fourteen reference days, then a month nobody has shifted, looked at every quarter of an hour (2,688 looks):
alarms are false. Then the same month with a shift at a random moment: minutes until the alarm. The load has a daily
and a weekly rhythm, noise that lasts for hours (autocorrelated), busier and calmer days, and series that differ.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

from pipeline.watch import drift, load

STEP_S = 300
REFERENCE_DAYS, WATCHED_DAYS = 14, 28
WORLDS = {
    # problem: series, share of the daily rhythm, spread of days, persistence and size of the noise
    "vm": {"series": 12, "rhythm": 0.3, "days": 0.08, "last": 0.97, "noise": 0.15},
    "pods": {"series": 20, "rhythm": 0.4, "days": 0.10, "last": 0.95, "noise": 0.20},
    "functions": {"series": 16, "rhythm": 0.6, "days": 0.15, "last": 0.90, "noise": 0.30},
    "workflow": {"series": 8, "rhythm": 0.5, "days": 0.15, "last": 0.90, "noise": 0.35},
    "jobs": {"series": 10, "rhythm": 0.2, "days": 0.20, "last": 0.98, "noise": 0.30},
}
SHIFTS_A_TRIAL = 4
"""Moments a trial at which each shift is tried."""
SHIFTS = {"load x2": 2.0, "load x1.5": 1.5, "load x0.5": 0.5}


def world(rng: np.random.Generator, spec: dict[str, float]) -> drift.Floats:
    """Return a signal [steps, series] over reference and watched days."""
    steps = (REFERENCE_DAYS + WATCHED_DAYS) * drift.DAY_S // STEP_S
    at = np.arange(steps) * STEP_S
    daily = 1 + spec["rhythm"] * np.sin(2 * np.pi * at / drift.DAY_S)
    weekend = np.where((at // drift.DAY_S) % 7 >= 5, 1 - spec["rhythm"] / 3, 1.0)
    day = np.exp(rng.normal(0, spec["days"], REFERENCE_DAYS + WATCHED_DAYS))[at // drift.DAY_S]
    series = int(spec["series"])
    noise = np.empty((steps, series))
    noise[0] = rng.normal(0, spec["noise"], series)
    kicks = rng.normal(0, spec["noise"] * np.sqrt(1 - spec["last"] ** 2), (steps, series))
    for step in range(1, steps):
        noise[step] = spec["last"] * noise[step - 1] + kicks[step]
    level = np.exp(rng.normal(0, 0.5, series))
    return (daily * weekend * day)[:, None] * level * np.exp(noise)


def alarms(
    values: drift.Floats, known: drift.Reference, usual: load.Usual, begin: int, end: int, *, first: bool = False
) -> dict[str, list[int]]:
    """Steps at which an alarm begins, by what raised it: two looks in a row, then silence for a day."""
    per_look, per_slot, per_span = (span // STEP_S for span in (load.STEP_S, drift.SLOT_S, load.SPAN_S))
    found: dict[str, list[int]] = {"psi": [], "load": [], "both": []}
    row, quiet = dict.fromkeys(found, 0), dict.fromkeys(found, 0)
    for step in range(begin - begin % per_look, end, per_look):
        now_s, seen_now = step * STEP_S, values[step - per_slot : step]
        at = np.arange(step - per_span, step, dtype=np.float64) * STEP_S
        index = drift.look(known, now_s, {str(name): seen_now[:, name] for name in range(seen_now.shape[1])})
        change = load.look(
            usual, now_s, {str(n): (at, values[step - per_span : step, n]) for n in range(values.shape[1])}
        )
        beyond = {"psi": index is not None and index.beyond, "load": change is not None and change.beyond}
        for kind, is_beyond in beyond.items():
            row[kind] = row[kind] + 1 if is_beyond else 0
        row["both"] = max(row["psi"], row["load"])
        for kind, steps in found.items():
            if row[kind] >= drift.LOOKS and step >= quiet[kind]:
                steps.append(step)
                quiet[kind] = step + drift.DAY_S // STEP_S
        if first and found["both"]:
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began, cpu, rows = time.monotonic(), time.process_time(), {}
    first = REFERENCE_DAYS * drift.DAY_S // STEP_S
    for place, (problem, spec) in enumerate(WORLDS.items()):
        false = {"psi": 0, "load": 0, "both": 0}
        delays: dict[str, list[float | None]] = {name: [] for name in SHIFTS}
        for trial in range(options.trials):
            rng = np.random.default_rng([options.seed, place, trial])
            values = world(rng, spec)
            at = np.arange(first, dtype=np.float64) * STEP_S
            series = {str(name): (at, values[:first, name]) for name in range(values.shape[1])}
            known, usual = drift.reference(series), load.learn(series)
            assert known is not None
            assert usual is not None
            for kind, steps in alarms(values, known, usual, first, len(values)).items():
                false[kind] += len(steps)
            for name, factor in [*SHIFTS.items()] * SHIFTS_A_TRIAL:
                shift = first + int(rng.integers(0, 20 * drift.DAY_S // STEP_S))
                moved = values.copy()
                moved[shift:] *= factor
                found = alarms(moved, known, usual, shift, shift + 2 * drift.DAY_S // STEP_S, first=True)["both"]
                delays[name].append((found[0] - shift) * STEP_S / 60 if found else None)
        rows[problem] = {
            "weeks": 4 * options.trials,
            "false_alarms": false,
            "false_alarms_per_four_weeks": round(false["both"] / options.trials, 3),
            "detection": {
                name: {
                    "within_an_hour": round(sum(d is not None and d <= 60 for d in found) / len(found), 3),
                    "median_minutes": float(np.median([d if d is not None else 2880 for d in found])),
                    "missed_in_two_days": sum(d is None for d in found),
                }
                for name, found in delays.items()
            },
        }
        print(problem, json.dumps(rows[problem]), flush=True)
    result = {
        "benchmark": "watch_alarms", "trials": options.trials, "seed": options.seed,
        "headroom": {"psi": drift.HEADROOM, "load": load.HEADROOM}, "problems": rows,
        "cpu_s": round(time.process_time() - cpu, 1), "wall_s": round(time.monotonic() - began, 1),
        "load_average": os.getloadavg()[0],
    }  # fmt: skip
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "watch_alarms.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
