"""Fidelity on public traces, for what each of them measures; a part of ``benchmarks/fidelity.py``.

None of these traces tells where its work was placed, so nothing can be replayed whole. What is tried is the part of the
simulator that such a trace can contradict: calibrated on its first part, what does it say of the rest?
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import windows
from pipeline.clean.command import clean
from pipeline.clean.config import CleanConfig
from pipeline.contracts.evaluation import Promise
from pipeline.datasets import functions
from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.sources.traces import TracesConfig
from sched_env import scenarios
from sched_env.functions import azure
from sched_env.jobs.profiles import Measured, ProfileFit
from sched_env.rollout import run_episodes
from sched_env.traces.cpn import read_colocations

RULES = ("oracle_greedy", "warm_first", "least_allocated", "best_fit", "worst_fit", "first_fit", "round_robin")
NORMAL_95 = 1.96
FOLDS, DAYS_BEFORE = 5, 3


def cleaned(format_: str, paths: list[Path], work: Path) -> Path:
    """Take a trace through ingest and clean."""
    config = TracesConfig(format=format_, paths=[str(path) for path in paths], skip_bad=True)  # type: ignore[arg-type]
    ingest(IngestConfig(source="traces", traces=config), Range(), work / "raw")
    clean(work / "raw", work / "windows", CleanConfig())
    return work / "windows"


def colocations(data: Path) -> tuple[list[Promise], str]:
    """Run times of jobs that share a card: every set of models predicted from the other sets, a fifth at a time."""
    rows = read_colocations(data / "cpn-gpu-profiles" / "colocation_profiles.csv", skip_bad=True)
    sets: dict[tuple[str, tuple[str, ...]], list[Measured]] = defaultdict(list)
    for row in range(len(rows.gpu)):
        models = [(str(name), float(s)) for name, s in zip(rows.model[row], rows.seconds[row], strict=True) if name]
        if models:
            names, seconds = zip(*models, strict=True)
            card = str(rows.gpu[row])
            sets[card, tuple(sorted(names))].append(Measured(card, names, seconds))
    cards = sorted({key[0] for key in sets})
    known = sorted({name for key in sets for name in key[1]})
    shared = sorted(key for key in sets if len(key[1]) > 1)
    order = np.random.default_rng(0).permutation(len(shared))
    said: list[float] = []
    seen: list[float] = []
    for fold in range(FOLDS):
        kept = {shared[index] for index in order[fold::FOLDS]}
        fit = ProfileFit([each for key, found in sets.items() if key not in kept for each in found], cards, known)
        for each in (each for key in kept for each in sets[key]):
            said += fit(each.card_type, each.models)
            seen += each.seconds
    predicted, measured = np.array(said), np.array(seen)
    figures = [
        Promise.of("seconds an iteration, mean", float(predicted.mean()), float(measured.mean())),
        Promise.of("seconds an iteration, median", float(np.median(predicted)), float(np.median(measured))),
        Promise.of("seconds an iteration, p95", *(float(np.quantile(some, 0.95)) for some in (predicted, measured))),
    ]
    off = np.abs(predicted / measured - 1.0)
    note = (
        f"{measured.size} jobs in {len(shared)} sets of two or three, none of which the fit has seen; half of all jobs "
        f"are within {np.median(off):.1%}, nine of ten within {np.quantile(off, 0.9):.0%}. A set that was measured is "
        "taken as measured"
    )
    return figures, note


def bitbrains(data: Path) -> tuple[list[Promise], str]:
    """Use of VMs over what they hold: every day by the three days before, as a night would fit it."""
    files = sorted((data / "bitbrains-vm-5min" / "rnd-2013-8").glob("*.csv.gz"))[::4]
    names = {"cpu": "cores", "mem": "gib"}
    columns = [f"{name}_{what}_{unit}" for name, unit in names.items() for what in ("capacity", "used_mean")]
    with tempfile.TemporaryDirectory(prefix="fidelity-") as work:
        folder = cleaned("bitbrains", files, Path(work))
        span = windows.span(folder)
        rows = windows.frame_of(folder, "nodes", span.start, span.end, ["node", *columns]).dropna()
    day = (rows["window_start"] - rows["window_start"].min()).dt.days
    figures, stale = [], []
    for name, unit in names.items():
        held, used = f"{name}_capacity_{unit}", f"{name}_used_mean_{unit}"
        said = seen = 0.0
        for today in range(DAYS_BEFORE, int(day.max()) + 1):
            before, now = rows[(day >= today - DAYS_BEFORE) & (day < today)], rows[day == today]
            sums = before.groupby("node")[[held, used]].sum()
            share = (sums[used] / sums[held]).where(sums[held] > 0)
            mine = now.assign(share=now["node"].map(share)).dropna(subset=["share"])
            said += float((mine[held] * mine["share"]).sum())
            seen += float(mine[used].sum())
        early, late = (rows[part] for part in (day < 0.6 * day.max(), day >= 0.75 * day.max()))
        sums = early.groupby("node")[[held, used]].sum()
        old = float((late[held] * late["node"].map(sums[used] / sums[held])).sum() / late[used].sum() - 1.0)
        stale.append(f"{unit} {old:+.0%}")
        each = rows["window_start"].nunique()
        figures.append(Promise.of(f"used_{unit}", said / each, seen / each))
    return figures, (
        f"{len(files)} of 100 VMs of August 2013, {len(rows):,} windows. Use grew: one share, fitted on the first "
        f"60 % of the month, is off by {', '.join(stale)} in its last quarter"
    )


def genai(data: Path) -> tuple[list[Promise], str]:
    """Latencies of single requests: standard and spread of each model from the first part, the rest predicted."""
    with tempfile.TemporaryDirectory(prefix="fidelity-") as work:
        folder = cleaned("alibaba_genai", [data / "alibaba-genai-pods" / "lora_request_trace.csv.gz"], Path(work))
        span = windows.span(folder)
        parts = windows.splits(span.start, span.end)
        columns = ["function", "requests", "response_mean_s", "response_p95_s"]
        fit, test = (
            windows.frame_of(folder, "functions", part.start, part.end, columns).dropna()
            for part in (parts.train, parts.test)
        )
    fit, test = fit[fit["requests"] > 0], test[test["requests"] > 0]
    sums = (fit["requests"] * fit["response_mean_s"]).groupby(fit["function"]).sum()
    standard = sums / fit.groupby("function")["requests"].sum()
    known = test[test["function"].isin(standard.index)]
    calls, usual = known["requests"].to_numpy(float), known["function"].map(standard).to_numpy(float)
    said = float((calls * usual).sum() / calls.sum())
    seen = float((calls * known["response_mean_s"].to_numpy(float)).sum() / calls.sum())
    note = (
        f"{int(calls.sum()):,} of {int(test['requests'].sum()):,} test requests are of a model that the first part "
        "has; pods hold a card each, so nobody contends, and the simulator says the standard of the model"
    )
    return [Promise.of("response_s, mean", said, seen)], note


def azure_functions(data: Path, horizons: tuple[int, ...] = (128, 1000), episodes: int = 64) -> dict[str, Any]:
    """All calls arrive, and rules rank as on the trace that is read directly."""
    where = data / "azure-functions-2019"
    direct, _ = azure.read(where)
    with tempfile.TemporaryDirectory(prefix="fidelity-") as work:
        folder = cleaned("azure_functions", sorted(where.glob("*.csv.gz")), Path(work))
        span = windows.span(folder)
        trace, nodes = functions.load(folder, span.start, span.end)
        tables = []
        for horizon in horizons:
            scenario = scenarios.load("functions/serverless", {"horizon": horizon})
            starts = np.linspace(0, min(len(trace), len(direct)) - horizon - 1, episodes).astype(int)
            returns = {
                (name, rule): _returns(scenario, rule, starts, (rows, nodes))
                for name, rows in (("windows", trace), ("direct", direct))
                for rule in RULES
            }  # fmt: skip
            tables.append({"horizon": horizon, **_ranked(returns)})
    return {"calls": int(trace.requests.sum()), "direct_calls": int(direct.requests.sum()), "tables": tables}


def _returns(scenario: scenarios.Scenario, rule: str, starts: Any, trace: Any) -> Any:
    return np.array([one["return"] for one in run_episodes(scenario, rule, starts, trace=trace)])


def _ranked(returns: dict[tuple[str, str], Any]) -> dict[str, Any]:
    """Rank rules on both sides; pairs count whose paired difference is apart from 0 on both."""
    mean = {key: float(values.mean()) for key, values in returns.items()}
    turned, apart = [], 0
    for number, one in enumerate(RULES):
        for other in RULES[number + 1 :]:
            signs = []
            for name in ("windows", "direct"):
                gap = returns[name, one] - returns[name, other]
                width = NORMAL_95 * float(gap.std(ddof=1)) / np.sqrt(gap.size)
                signs.append(0 if abs(gap.mean()) <= width else int(np.sign(gap.mean())))
            apart += 0 not in signs
            if signs[0] * signs[1] < 0:
                turned.append(f"{one} / {other}")
    best = {name: max(RULES, key=lambda rule: mean[name, rule]) for name in ("windows", "direct")}
    rows = {rule: [round(mean[name, rule], 3) for name in ("windows", "direct")] for rule in RULES}
    return {"best": best, "returns": rows, "pairs_apart": apart, "pairs_turned": turned}
