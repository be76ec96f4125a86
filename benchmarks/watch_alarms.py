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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
PER_LOOK, PER_SLOT = load.STEP_S // STEP_S, drift.SLOT_S // STEP_S
CHECKED = 20
"""Looks a trial at which what is computed at once is held against the watch's own code."""
SHIFTS_A_TRIAL = 4
"""Moments a trial at which each shift is tried."""
SHIFTS = {"load x2": 2.0, "load x1.5": 1.5, "load x0.5": 0.5}


class Beyond(NamedTuple):
    """Looks, by the step at which they are made, and which were beyond their limits."""

    looks: NDArray[np.int64]
    psi: NDArray[np.bool_]
    load: NDArray[np.bool_]


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


def beyond(values: drift.Floats, known: drift.Reference, usual: load.Usual, begin: int, end: int) -> Beyond:
    """Hold every look from step ``begin`` to ``end`` against its limits, all at once.

    :func:`check` holds it to what the watch itself does, look by look.
    """
    looks = np.arange(begin - begin % PER_LOOK, end, PER_LOOK)
    now_s = looks.astype(np.float64) * STEP_S
    series = [str(name) for name in range(values.shape[1])]
    # The index of the last half hour.
    middle = now_s - drift.SLOT_S / 2
    near = drift._at(np.asarray(known.profile), middle)
    rows = looks[:, None] + np.arange(-PER_SLOT, 0)
    relative = values[rows] / np.array([known.scales[name] for name in series]) / near[:, None, None]
    edges = np.asarray(known.edges)
    bins = np.searchsorted(edges, relative.reshape(len(looks), -1), side="right")
    counts = np.zeros((len(looks), len(edges) + 1))
    np.add.at(counts, (np.arange(len(looks))[:, None], bins), 1.0)
    slot = (middle % drift.DAY_S // drift.SLOT_S).astype(int)
    shares, limits = np.asarray(known.shares), np.asarray(known.limits)
    ratios = [_psi(counts, shares[one]) / limits[one] for one in (slot, (slot + 1) % drift.SLOTS)]
    # The load beside an hour ago.
    first = looks[0] - load.SPAN_S // STEP_S
    at = np.arange(first, looks[-1], dtype=np.float64) * STEP_S
    table = {name: (at, values[first : looks[-1], place]) for place, name in enumerate(series)}
    quarters = (looks[-1] - first) // PER_LOOK
    levels = load._levels(table, usual.scales, first * float(STEP_S), quarters)
    times = first * STEP_S + (np.arange(quarters) + 0.5) * load.STEP_S
    steps = load._steps(levels - np.asarray(usual.profile)[(times % drift.DAY_S // load.STEP_S).astype(int)])
    last = ((now_s - load.STEP_S / 2) % drift.DAY_S // load.STEP_S).astype(int)
    most = np.maximum(np.asarray(usual.limits)[last], np.asarray(usual.limits)[last - 1])
    return Beyond(looks, np.minimum(*ratios) > 1.0, np.abs(steps[-len(looks) :]) > most)


def _psi(now: drift.Floats, then: drift.Floats) -> drift.Floats:
    one, two = (
        np.maximum(shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-12), drift.SMALLEST)
        for shares in (now, then)
    )
    one, two = one / one.sum(axis=1, keepdims=True), two / two.sum(axis=1, keepdims=True)
    return np.asarray(np.sum((one - two) * np.log(one / two), axis=1))


def check(values: drift.Floats, known: drift.Reference, usual: load.Usual, found: Beyond, places: np.ndarray) -> None:
    """Look as ``watch_live`` does at some of them."""
    for place in places:
        step = int(found.looks[place])
        now_s, span = step * STEP_S, slice(step - load.SPAN_S // STEP_S, step)
        at = np.arange(span.start, span.stop, dtype=np.float64) * STEP_S
        index = drift.look(known, now_s, {str(n): one for n, one in enumerate(values[step - PER_SLOT : step].T)})
        change = load.look(usual, now_s, {str(n): (at, one) for n, one in enumerate(values[span].T)})
        assert index is not None
        assert change is not None
        assert (index.beyond, change.beyond) == (bool(found.psi[place]), bool(found.load[place])), step


def alarms(found: Beyond) -> dict[str, list[int]]:
    """Steps at which an alarm begins, by what raised it: two looks in a row, then silence for a day."""
    psi, change = (one[1:] & one[:-1] for one in (found.psi, found.load))
    begun: dict[str, list[int]] = {}
    for kind, twice in {"psi": psi, "load": change, "both": psi | change}.items():
        begun[kind], quiet = [], 0
        for step in found.looks[1:][twice].tolist():
            if step >= quiet:
                begun[kind].append(step)
                quiet = step + drift.DAY_S // STEP_S
    return begun


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
            seen = beyond(values, known, usual, first, len(values))
            check(values, known, usual, seen, rng.integers(0, len(seen.looks), CHECKED))
            for kind, steps in alarms(seen).items():
                false[kind] += len(steps)
            for name, factor in [*SHIFTS.items()] * SHIFTS_A_TRIAL:
                shift = first + int(rng.integers(0, 20 * drift.DAY_S // STEP_S))
                moved = values[: shift + 2 * drift.DAY_S // STEP_S].copy()
                moved[shift:] *= factor
                found = alarms(beyond(moved, known, usual, shift, len(moved)))["both"]
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
