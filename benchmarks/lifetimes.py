"""Server hours by expected lives: the stage's own model, the environment's own rule ``least_extension``.

huawei-east-1: the model is fitted anew every 10,000 VMs on all that came before, as they were known then, written as
a graph and asked for the next 10,000 at their creation; what the stage's gate says each time stands beside it.
Validation is VMs 50,000-70,000, the test 70,000-110,000. ``known`` and ``noisy`` are told the lives themselves, the
latter with an error of so much in their logarithm. Every stretch of 5,000 VMs begins with empty servers and is one
pair with first fit; intervals (95 %) are over stretches. ``whole`` is one path through the test VMs.

``runners`` are generated clusters where lives hang on flavour and hour, as those of CI runners and batch jobs do:
three parts of five are fitted on, one judges the model, one the placing; a cluster is one pair.

    python benchmarks/lifetimes.py --out docs/results
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.datasets import lifetimes
from pipeline.lifetime_model import gate, model, store
from pipeline.lifetime_model.figures import figures, pinball, rows
from pipeline.lifetime_model.seen import Lives
from pipeline.statistics.bootstrap import Resampler
from pipeline.statistics.estimators import mean
from sched_env import heuristics
from sched_env.vector import make_vec
from sched_env.vm import trace as traces
from sched_env.vm.events import creation_of
from sched_env.vm.huawei import events_of
from sched_env.vm.synthetic import FLAVOURS, arrivals
from sched_env.vm.tables import VmTrace
from wire.errors import run_cli

FIRST, VALIDATION, TEST, REFIT = 50_000, 70_000, 110_000, 10_000
STRETCH = 5_000
NOISE = (0.25, 0.5, 1.0)
SCENARIOS = ("vm/recovering-l", "vm/expanding")
RUNNER_CLUSTERS, RUNNER_VMS, RUNNER_LOAD = 8, 40_000, 2.0
RUNNER_LIVES_S = (600.0, 86_400.0)
"""Between which the typical life of a flavour in a quarter of the day is drawn, evenly in its logarithm."""
RUNNER_SPREADS = (0.4, 0.1)
"""Of the logarithm of lives of one flavour in one quarter."""


def lives_of(trace: VmTrace) -> Lives:
    """Return the lives of all creations, in order, as they turned out."""
    made = np.flatnonzero(trace.kind == 0)
    origin = creation_of(trace)
    end = np.full(len(trace), np.inf)
    gone = np.flatnonzero(origin >= 0)
    end[origin[gone]] = trace.time[gone]
    begin, last = trace.time[made], float(trace.time[-1])
    ended = np.isfinite(end[made])
    life = np.where(ended, end[made], last) - begin
    return Lives(trace.cpu[made], trace.mem[made], begin, life, ended, last - begin)


def known_at(lives: Lives, first: int, stop: int, now_s: float) -> Lives:
    """Return VMs as they were known at a moment: who lived on then had not ended."""
    part = lives.only(np.arange(first, stop))
    left = now_s - part.created_s
    return part._replace(life_s=np.minimum(part.life_s, left), ended=part.ended & (part.life_s <= left), left_s=left)


def refitted(lives: Lives, fitted: model.Fitted, folder: Path, first: int, stop: int) -> np.ndarray:
    """Return what a model, written as a graph and opened as the service would, expects of some VMs."""
    store.write(folder, lives.only(np.arange(first)), fitted, {})
    opened = lifetimes.opened(folder)
    assert opened is not None
    return lifetimes.expectations(opened, *(column[first:stop] for column in lives[:3]))


def nights(lives: Lives, folder: Path) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Fit every 10,000 VMs; returns expectations by arm, and what the gate said of each fit."""
    told = {name: np.zeros((len(lives.life_s), 3)) for name in ("model", "plain")}
    said = []
    for first in range(FIRST, TEST, REFIT):
        stop = first + REFIT
        before = known_at(lives, 0, first, float(lives.created_s[first]))
        for name, fitted in (("model", model.fit(before)), ("plain", model.plain(before))):
            told[name][first:stop] = refitted(lives, fitted, folder / name, first, stop)
        # As a night measures: fitted up to 10,000 VMs ago, judged on those since.
        then, judged = first - REFIT, known_at(lives, first - REFIT, first, float(lives.created_s[first]))
        older = known_at(lives, 0, then, float(lives.created_s[then]))
        answers = [fitted.predict(rows(judged)) for fitted in (model.fit(older), model.plain(older))]
        verdict = gate.judge(judged, *(pinball(judged, answer) for answer in answers))
        ahead = known_at(lives, first, stop, float(lives.created_s[-1]))
        after = figures(ahead, model.fit(before).predict(rows(ahead)))
        spread = float(np.log1p(ahead.life_s).std())
        said.append({"first": first, "ships": verdict.ships, "why": verdict.why, **verdict.measured,
                     "next": after, "log_spread_of_lives": spread})  # fmt: skip
    return told, said


def noisy(lives: Lives, noise: float) -> np.ndarray:
    """Return lives told with an error."""
    drawn = np.random.default_rng(0).normal(0.0, 1.0, len(lives.life_s))
    found: np.ndarray = np.maximum(lives.life_s * np.exp(noise * drawn), 1.0)[:, None]
    return found


def play(scenario: str, trace: VmTrace, told: np.ndarray | None, rule: str, starts: np.ndarray, vms: int) -> np.ndarray:
    """Place so many VMs from each start by a rule; [starts, (server hours, placed)]."""
    if told is not None:
        expected = np.zeros((len(trace), told.shape[1]))
        expected[trace.kind == 0] = told
        trace = dataclasses.replace(trace, expected=expected)
    env: Any = make_vec(scenario, len(starts), 0, trace=trace, horizon=vms)
    env.reset(options={"starts": starts, "park": True})
    choose = heuristics.batch(rule, env)
    while env.buffers.active.any():
        env.step(choose())
    found: np.ndarray = env.buffers.metrics[:, [env.METRICS.index(name) for name in ("cost_usd", "placed")]].copy()
    return found


def compared(
    scenario: str, trace: VmTrace, arms: dict[str, np.ndarray | None], starts: np.ndarray, vms: int
) -> list[dict[str, Any]]:
    """Play every arm; server hours against first fit, paired by stretch."""
    base = play(scenario, trace, None, "first_fit", starts, vms)
    found = []
    for name, told in arms.items():
        rule = "numa_first_fit" if name == "numa_first_fit" else "least_extension"
        one = play(scenario, trace, told, rule, starts, vms)
        change = one[:, 0] / base[:, 0] - 1.0
        blocks = Resampler(np.zeros(len(starts), np.intp), np.arange(len(starts)), samples=2_000, seed=0)
        interval = blocks.estimate(mean(change))
        found.append(
            {"rule": name, "server_hours": float(one[:, 0].sum()), "percent": 100.0 * interval.value,
             "lower": 100.0 * interval.lower if len(starts) > 1 else None,
             "upper": 100.0 * interval.upper if len(starts) > 1 else None,
             "placed": float(one[:, 1].sum()), "placed_by_first_fit": float(base[:, 1].sum())}
        )  # fmt: skip
    return found


def runners(seed: int, spread: float) -> VmTrace:
    """Generate VMs whose lives hang on flavour and quarter of the day, as those of CI runners and batch jobs do."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(len(FLAVOURS), RUNNER_VMS, p=FLAVOURS[:, 2] / FLAVOURS[:, 2].sum())
    arrival = arrivals(RUNNER_VMS, rng, RUNNER_LOAD)
    low, high = (float(np.log(life_s)) for life_s in RUNNER_LIVES_S)
    typical = np.exp(rng.uniform(low, high, (len(FLAVOURS), 4)))
    life = typical[kind, (arrival // 21_600).astype(int) % 4] * np.exp(rng.normal(0.0, spread, RUNNER_VMS))
    cpu, mem = FLAVOURS[kind, 0], FLAVOURS[kind, 1]
    return events_of(np.arange(RUNNER_VMS), cpu, mem, arrival, arrival + np.floor(life) + 1.0)


def rows_of(trace: VmTrace, first: int, stop: int) -> np.ndarray:
    """Return the trace rows at which stretches of VMs begin."""
    made = np.flatnonzero(trace.kind == 0)
    found: np.ndarray = made[np.arange(first, stop, STRETCH)]
    return found


def huawei(folder: Path, scratch: Path) -> dict[str, Any]:
    """Both scenarios on the public trace."""
    trace, _ = traces.read(folder / "events.csv.gz")
    lives = lives_of(trace)
    told, said = nights(lives, scratch)
    arms: dict[str, np.ndarray | None] = {"numa_first_fit": None, **told, "known": noisy(lives, 0.0)}
    arms |= {f"noisy {noise:g}": noisy(lives, noise) for noise in NOISE}
    result: dict[str, Any] = {"nights": said}
    made = np.flatnonzero(trace.kind == 0)
    for scenario in SCENARIOS:
        for name, first, stop in (("validation", FIRST, VALIDATION), ("test", VALIDATION, TEST)):
            starts = rows_of(trace, first, stop)
            result[f"{scenario} {name}"] = compared(scenario, trace, arms, starts, STRETCH)
        whole = made[[VALIDATION]]
        result[f"{scenario} whole"] = compared(scenario, trace, arms, whole, TEST - VALIDATION)
    return result


def where_known(scratch: Path, spread: float) -> dict[str, Any]:
    """Generated clusters, each through fit, gate, graph and placing; pairs are clusters."""
    said, hours = [], []
    for seed in range(RUNNER_CLUSTERS):
        trace = runners(seed, spread)
        lives = lives_of(trace)
        cut, stop = RUNNER_VMS * 3 // 5, RUNNER_VMS * 4 // 5
        train, judged = (
            known_at(lives, first, last, float(lives.created_s[last])) for first, last in ((0, cut), (cut, stop))
        )
        fitted, one = model.fit(train), model.plain(train)
        verdict = gate.judge(judged, *(pinball(judged, each.predict(rows(judged))) for each in (fitted, one)))
        told = np.zeros((RUNNER_VMS, 3))
        told[stop:] = refitted(lives, fitted, scratch / "runners", stop, RUNNER_VMS)
        arms: dict[str, np.ndarray | None] = {"numa_first_fit": None, "model": told, "known": noisy(lives, 0.0)}
        arms |= {f"noisy {noise:g}": noisy(lives, noise) for noise in NOISE}
        start = np.flatnonzero(trace.kind == 0)[[stop]]
        hours.append(compared("vm/recovering-l", trace, arms, start, RUNNER_VMS - stop))
        said.append({"ships": verdict.ships, "why": verdict.why, **verdict.measured,
                     "figures": figures(judged, fitted.predict(rows(judged)))})  # fmt: skip
    return {"nights": said, "vm/recovering-l": [_together(one) for one in zip(*hours, strict=True)]}


def _together(clusters: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """Return the row of one arm over all clusters."""
    change = np.array([row["percent"] for row in clusters])
    found = Resampler(np.zeros(len(change), np.intp), np.arange(len(change)), samples=2_000, seed=0).estimate(
        mean(change)
    )
    added = {name: sum(row[name] for row in clusters) for name in ("server_hours", "placed", "placed_by_first_fit")}
    return {"rule": clusters[0]["rule"], "percent": found.value, "lower": found.lower, "upper": found.upper, **added}


def table(found: list[dict[str, Any]]) -> list[str]:
    """One comparison for people."""
    lines = ["| lives | server hours | against first fit | placed |", "| --- | --- | --- | --- |"]
    for row in found:
        interval = "" if row["lower"] is None else f" [{row['lower']:+.1f}, {row['upper']:+.1f}]"
        short = row["placed"] / row["placed_by_first_fit"] - 1.0
        placed = f"{row['placed']:,.0f}" + (f" ({100 * short:+.2f} %)" if short else "")
        lines.append(f"| {row['rule']} | {row['server_hours']:,.0f} | {row['percent']:+.2f} %{interval} | {placed} |")
    return [*lines, ""]


def page(result: dict[str, Any], command: str) -> str:
    """The tables for people."""
    about = [" ".join(part.split()) for part in str(__doc__).split("\n\n")[:3]]
    lines = ["# Lives of VMs, and server hours by them", "", f"Made by `{command}`; nothing here is timed.", ""]
    lines += [line for part in about for line in (part, "")]
    for name, found in result["huawei"].items():
        if name == "nights":
            continue
        lines += [f"## huawei-east-1, {name}", "", *table(found)]
    lines += ["## What the gate said, every 10,000 VMs", ""]
    lines += ["| from VM | ships | pinball loss against one distribution for all | next 10,000: log rmse | spread "
              "| between 10 % and 90 % |", "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    lines += [
        f"| {row['first']:,} | {'yes' if row['ships'] else 'no'} | {100 * row['against_plain']:+.1f} % "
        f"[{100 * row['lower']:+.1f}, {100 * row['upper']:+.1f}] | {row['next']['log_rmse']:.2f} | "
        f"{row['log_spread_of_lives']:.2f} | {100 * row['next']['between_10_and_90']:.0f} % |"
        for row in result["huawei"]["nights"]
    ]
    for spread, known in result["runners"].items():
        shipped = sum(row["ships"] for row in known["nights"])
        lost = 100 * np.mean([row["against_plain"] for row in known["nights"]])
        off = np.mean([row["figures"]["log_rmse"] for row in known["nights"]])
        lines += ["", f"## Runners: lives hang on flavour and hour, and are spread by {spread:g} otherwise", "",
                  f"Shipped in {shipped} of {len(known['nights'])} clusters; pinball loss against one distribution for "
                  f"all {lost:+.1f} %, log rmse {off:.2f}.", "", *table(known["vm/recovering-l"])[:-1]]  # fmt: skip
    lines += [""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=Path("../shared/data/huawei-east-1"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        result = {"huawei": huawei(options.trace, Path(scratch)),
                  "runners": {spread: where_known(Path(scratch), spread) for spread in RUNNER_SPREADS},

                  "load_average": os.getloadavg()[0]}  # fmt: skip
    if options.out:
        (options.out / "lifetimes.json").write_text(json.dumps(result, indent=1) + "\n")
        (options.out / "lifetimes.md").write_text(page(result, "python benchmarks/lifetimes.py --out docs/results"))
    print(json.dumps(result))


if __name__ == "__main__":
    run_cli(main)
