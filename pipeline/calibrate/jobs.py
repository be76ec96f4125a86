"""``jobs``: how cards are shared, how long a start takes, and the test windows replayed beside what was measured.

Run times by model and type of card are learned with the dataset, from every job that had ended. Here is what only the
order of events tells: how many jobs a card ever had at once (where it was one, cards are exclusive, and so they are in
the simulator: nobody has seen how jobs slow each other down there), how much slower they were together, and how long
after its submission a job began that found its card free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline import windows
from pipeline.contracts.calibration import Calibration, Value
from pipeline.contracts.evaluation import Backtest, Promise
from pipeline.datasets import Workload as Split
from pipeline.datasets.jobs import AT_ONCE_S, COLOCATION, load
from pipeline.datasets.lives import overlaps
from pipeline.datasets.responses import NORMAL_95
from pipeline.statistics.estimators import Floats
from sched_env import scenarios
from sched_env.jobs import pairs
from sched_env.jobs.scenario import CpnScenario
from sched_env.jobs.tables import JobTrace, RuntimeTable
from sched_env.jobs.vector import CpnVectorEnv
from sched_env.jobs.workload import Workload
from sched_env.rollout import Policy, chooser
from sched_env.vector import make_vec
from wire.contracts.window import WINDOW_SECONDS

EXCLUSIVE = "max_jobs_per_card"
MOST_GAIN = 10.0
"""Steeper than this is extrapolation from few jobs."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, where values are normal."""


def fit(
    folder: Path, span: windows.Span, make: Callable[[Mapping[str, Any] | None], scenarios.Scenario]
) -> Calibration:
    """Fit what the record of the train windows tells."""
    found = load(folder, span.start, span.end)
    jobs = found.jobs
    known = np.flatnonzero((jobs.card >= 0) & (jobs.ended_s > jobs.began_s))
    most, shared = together(jobs, known)
    values = [
        Value(EXCLUSIVE, "jobs", float(most), float(most), float(most), known.size, "measured")
        if known.size
        else Value(EXCLUSIVE, "jobs", 1.0, None, None, 0, "assumed", "ends of jobs, with node and runtime_s")
    ]
    overrides: dict[str, int | float | str | list[float]] = {EXCLUSIVE: int(values[0].value)}
    if cast(CpnScenario, make(overrides)).max_jobs_per_card > 1:
        values.append(_gain(found, known, shared))
    values.append(_dispatch(jobs, known, cast(CpnScenario, make(None)).dispatch_s))
    overrides["dispatch_s"] = round(values[-1].value, 3)
    return Calibration("jobs", span.start.isoformat(), span.end.isoformat(), overrides, values, {})


def together(jobs: JobTrace, known: NDArray[np.int64]) -> tuple[int, Floats]:
    """Return the most jobs that a card had at once (at most three), and how many each job had beside it on average."""
    most, beside = 1, np.zeros(known.size)
    for card in np.unique(jobs.card[known]):
        mine = np.flatnonzero(jobs.card[known] == card)
        begin, end = jobs.began_s[known[mine]], jobs.ended_s[known[mine]]
        overlap = np.minimum(end[:, None], end) - np.maximum(begin[:, None], begin)
        overlap[overlap <= AT_ONCE_S] = 0.0
        beside[mine] = overlap.sum(axis=1) / (end - begin) - 1.0
        at_once = ((begin[:, None] >= begin) & (begin[:, None] < end - AT_ONCE_S)).sum(axis=1)
        most = max(most, int(at_once.max()))
    return min(most, 3), beside


def _gain(found: Workload, known: NDArray[np.int64], beside: Floats) -> Value:
    """How much slower jobs were together, over how much slower they are taken to be."""
    jobs, seconds = found.jobs, cast(RuntimeTable, found.runtime).seconds
    type_of = found.topology.card_type[jobs.card[known]]
    alone, one = (seconds[jobs.model[known], type_of, k, 0] for k in (0, 1))
    slower = (one / alone - 1.0) * beside
    usual = (jobs.ended_s - jobs.began_s)[known] / (jobs.epochs[known] * alone) - 1.0
    shared = (beside > 0.0) & np.isfinite(slower)
    if shared.sum() < 3:
        needs = "jobs that share a card: without, set max_jobs_per_card: 1"
        return Value(COLOCATION, "x the model's slowdown", 1.0, None, None, int(shared.sum()), "assumed", needs)
    gain = float(usual[shared].sum() / slower[shared].sum())
    error = float(np.sqrt(((usual - gain * slower)[shared] ** 2).sum()) / slower[shared].sum())
    low, high = (float(np.clip(gain + sign * NORMAL_95 * error, 0.0, MOST_GAIN)) for sign in (-1.0, 1.0))
    gain = float(np.clip(gain, 0.0, MOST_GAIN))
    return Value(COLOCATION, "x the model's slowdown", gain, low, high, int(shared.sum()), "estimated")


def _dispatch(jobs: JobTrace, known: NDArray[np.int64], default: float) -> Value:
    """How long after its submission a job began whose card was free by then: the median."""
    order = known[np.lexsort((jobs.began_s[known], jobs.card[known]))]
    same = np.append(False, jobs.card[order[1:]] == jobs.card[order[:-1]])
    before = np.append(-np.inf, jobs.ended_s[order[:-1]])
    free = same & (before <= jobs.arrival_s[order])
    delay = (jobs.began_s - jobs.arrival_s)[order[free]]
    if delay.size < 3:
        needs = "ends of jobs with runtime_s: when they began"
        return Value("dispatch_s", "s", default, None, None, int(delay.size), "assumed", needs)
    middle = float(np.median(delay))
    width = NORMAL_95 * MEDIAN_ERROR * float(delay.std(ddof=1)) / float(np.sqrt(delay.size))
    return Value("dispatch_s", "s", middle, max(middle - width, 0.0), middle + width, int(delay.size), "estimated")


def check(data: Split, _folder: Path, policy: Policy, name: str) -> tuple[Backtest, pd.DataFrame]:
    """Replay a split under a policy: completion, waiting, card hours and bill, beside what was measured.

    Of the jobs whose end is known, on both sides: the others, at the end of the span, have nothing to be held against.
    """
    start, end = (datetime.fromisoformat(time) for time in (data.start, data.end))
    whole = cast(Workload, data.trace)
    told = np.flatnonzero((whole.jobs.card >= 0) & (whole.jobs.ended_s > whole.jobs.began_s))
    inside = told[whole.jobs.arrival_s[told] >= 0.0]
    if inside.size < 2:
        reason = "less than two jobs of the windows have begun and ended in them"
        return Backtest(name, data.start, data.end, [], skipped=reason), pd.DataFrame()
    jobs = JobTrace(
        **{
            column: getattr(whole.jobs, column)[told]
            for column in JobTrace.__dataclass_fields__
            if column != "model_names" and getattr(whole.jobs, column).size
        },
        model_names=whole.jobs.model_names,
    )
    first = int(np.searchsorted(jobs.arrival_s, 0.0))
    spec = getattr(policy, "spec", None)  # what was recorded, and policies of cards, place the job that is offered
    choice = "pair" if spec is not None and spec.version == pairs.SPEC.version else "card"
    scenario = scenarios.load(data.scenario, {"episode_jobs": len(jobs) - first, "horizon": 0, "choice": choice})
    env = cast(CpnVectorEnv, make_vec(scenario, 1, 0, whole._replace(jobs=jobs)))
    began = play(env, policy, first)
    now = float(jobs.arrival_s[first])
    counted = np.flatnonzero(np.isfinite(began) & ((np.arange(len(jobs)) >= first) | (jobs.began_s > now)))
    metrics = dict(zip(env.METRICS, env.buffers.metrics[0].tolist(), strict=True))
    completion = (jobs.ended_s - np.maximum(jobs.arrival_s, now))[counted]
    held = _covered_s(jobs, now, len(whole.topology))
    usd = float((held * whole.topology.card_usd_per_hour).sum()) / 3600.0
    measured = {
        "mean_completion_s": float(completion.mean()),
        "card_hours": float(held.sum()) / 3600.0,
        "cost_usd": usd,
    }
    figures = [Promise.of(metric, metrics[metric], value) for metric, value in measured.items()]
    count = int((end - start).total_seconds()) // WINDOW_SECONDS
    both = pd.DataFrame({"window_start": [start + timedelta(seconds=WINDOW_SECONDS * k) for k in range(count)]})
    run = (jobs.ended_s - jobs.began_s)[counted]
    both["predicted_running_jobs"] = _running(began[counted], began[counted] + run, len(both))
    both["measured_running_jobs"] = _running(jobs.began_s[counted], jobs.ended_s[counted], len(both))
    return Backtest(name, data.start, data.end, figures), both


def play(env: CpnVectorEnv, policy: Policy, first: int) -> Floats:
    """Play the queue from a row on; returns when each job was placed, NaN where it was not."""
    choose = chooser(env, policy)
    began = np.full(len(env.trace), np.nan)
    env.reset(options={"starts": [first], "park": True})
    while env.buffers.active[0]:
        action = choose(None)
        placed = env.choice(0, int(action[0]))
        if placed.place >= 0:
            began[placed.key] = float(env.buffers.time_s[0])
        env.step(action)
    return began


def _covered_s(jobs: JobTrace, since: float, cards: int) -> Floats:
    """Return the seconds from a time on in which each card was recorded to hold a job."""
    held = np.zeros(cards)
    order = np.argsort(jobs.began_s, kind="stable")
    reached = np.full(held.size, since)
    for row in order.tolist():
        c = jobs.card[row]
        held[c] += max(jobs.ended_s[row] - max(jobs.began_s[row], reached[c]), 0.0)
        reached[c] = max(reached[c], jobs.ended_s[row])
    return held


def _running(begin: Floats, end: Floats, count: int) -> Floats:
    """Return how many jobs ran in each window, on average."""
    _, window, seconds = overlaps(np.maximum(begin, 0.0), np.maximum(end, 1e-9))
    inside = window < count
    return np.bincount(window[inside], seconds[inside] / WINDOW_SECONDS, count).astype(np.float64)
