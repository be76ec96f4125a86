"""What a controller's store says of its jobs: how it went, what waited and why, and how good predictions were."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from placement.cpn.records import Attempt, Job
from placement.cpn.states import ENDED, UPSTREAM


def figures(jobs: Sequence[Job], attempts: Sequence[Attempt], prices: dict[str, float] | None = None) -> dict[str, Any]:
    """Return the figures of the simulator's sheet, from what happened.

    Args:
        jobs: All jobs.
        attempts: All their attempts.
        prices: Card -> USD an hour; without them there is no cost.
    """
    ended = [job for job in jobs if job.ended_at is not None]
    began = min((job.submitted_at for job in jobs), default=0.0)
    waits: dict[str, float] = defaultdict(float)
    submitted = {job.id: job.submitted_at for job in jobs}
    last_end: dict[str, float] = {}
    for one in sorted(attempts, key=lambda one: one.number):
        since = last_end.get(one.job, submitted.get(one.job, one.decided_at))
        waits[one.job] += max(one.decided_at - since, 0.0)
        last_end[one.job] = one.ended_at if one.ended_at is not None else one.decided_at
    errors = [
        abs(one.predicted_end - (one.ended_at or 0.0)) / ((one.ended_at or 0.0) - one.decided_at)
        for one in attempts
        if one.outcome == "finished"
        and one.predicted_end is not None
        and one.ended_at is not None
        and one.ended_at > one.decided_at
    ]
    starts = [one.started_at - one.arrives_at for one in attempts if one.started_at is not None]
    wait = np.array([waits.get(job.id, 0.0) for job in jobs]) if jobs else np.zeros(1)
    late = [
        job for job in ended if job.deadline_s is not None and (job.ended_at or 0.0) - job.submitted_at > job.deadline_s
    ]
    found: dict[str, Any] = {
        "jobs": len(jobs),
        "states": dict(Counter(job.state for job in jobs)),
        "lists": {name: sum(job.state in states for job in jobs) for name, states in UPSTREAM.items()},
        "makespan_s": max((job.ended_at or 0.0 for job in ended), default=began) - began,
        "mean_completion_s": float(np.mean([(job.ended_at or 0.0) - job.submitted_at for job in ended]))
        if ended
        else 0.0,
        "mean_wait_s": float(wait.mean()),
        "max_wait_s": float(wait.max()),
        "oom": sum(one.outcome == "oom" for one in attempts),
        "retries": sum(max(job.failures - (job.state == "failed"), 0) for job in jobs),
        "outcomes": dict(Counter(one.outcome or "open" for one in attempts)),
        "late": len(late),
        "startup_s": float(np.mean(starts)) if starts else 0.0,
        "prediction_error_median": float(np.median(errors)) if errors else None,
        "prediction_error_p90": float(np.quantile(errors, 0.9)) if errors else None,
    }
    if prices is not None:
        found["card_hours"], found["card_usd"] = _card_use(attempts, prices)
    return found


def _card_use(attempts: Sequence[Attempt], prices: dict[str, float]) -> tuple[float, float]:
    """Return the hours in which cards held a job, and what they cost; together held hours count once."""
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in attempts:
        if one.ended_at is not None:
            spans[one.card].append((one.decided_at, one.ended_at))
    hours = usd = 0.0
    for card, held in spans.items():
        until = -np.inf
        for begin, end in sorted(held):
            own = max(end - max(begin, until), 0.0) / 3600.0
            hours, usd = hours + own, usd + own * prices.get(card, 1.0)
            until = max(until, end)
    return hours, usd


def text(jobs: Sequence[Job], attempts: Sequence[Attempt]) -> str:
    """Write the report for people."""
    about = figures(jobs, attempts)
    lines = [
        f"{about['jobs']} jobs: " + ", ".join(f"{count} {state}" for state, count in sorted(about["states"].items())),
        f"makespan {about['makespan_s'] / 60:.1f} min, mean completion {about['mean_completion_s']:.0f} s, "
        f"mean wait {about['mean_wait_s']:.0f} s, longest wait {about['max_wait_s']:.0f} s",
        f"out of memory {about['oom']}, retries {about['retries']}, after their deadline {about['late']}, "
        f"from data there to running {about['startup_s']:.1f} s",
    ]
    if about["prediction_error_median"] is not None:
        lines.append(
            f"ends were predicted within {100 * about['prediction_error_median']:.1f} % (median), "
            f"{100 * about['prediction_error_p90']:.1f} % (nine of ten)"
        )
    reasons = Counter(one.waited_for for one in attempts if one.waited_for)
    if reasons:
        lines += ["", "What kept jobs in line, mostly:"]
        lines += [f"  {count:4d} jobs: {why}" for why, count in reasons.most_common(5)]
    first = {one.job: one for one in attempts if one.number == 1}
    waited = sorted(
        ((first[job.id].decided_at - job.submitted_at, job, first[job.id]) for job in jobs if job.id in first),
        key=lambda entry: entry[0],
        reverse=True,
    )
    if waited and waited[0][0] > 0:
        lines += ["", "Waited longest:"]
        lines += [
            f"  {wait:8.0f} s  {job.name} ({job.model}, {job.gpu_mem_gib:.1f} GiB) for {one.card}: "
            f"{one.waited_for or 'its turn'}"
            for wait, job, one in waited[:5]
        ]
    bad = [job for job in jobs if job.state in ENDED and job.state != "finished"]
    if bad:
        lines += ["", "Did not finish:"]
        lines += [f"  {job.name}: {job.state}, {job.reason[:120]}" for job in bad[:20]]
    by_card: dict[str, list[Attempt]] = defaultdict(list)
    for one in attempts:
        by_card[one.card].append(one)
    lines += ["", "By card:"]
    for card, ours in sorted(by_card.items()):
        busy = sum((one.ended_at or one.decided_at) - one.decided_at for one in ours)
        lines.append(f"  {card}: {len(ours)} attempts, {busy / 3600:.2f} job hours")
    return "\n".join(lines) + "\n"
