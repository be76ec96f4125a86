"""How numbers, and the way back, are written: the same in JSON reasons, Markdown, HTML, ``explain`` and approvals."""

from __future__ import annotations

import math

from pipeline.contracts.gate import Bounds
from pipeline.statistics.bootstrap import Estimate

RATE = "_rate"
"""Metrics whose name ends so are shares of requests: shown in per cent, compared in percentage points."""


def bounds(estimate: Estimate) -> Bounds:
    """Put an estimate into the report; infinite bounds become null, which JSON can carry."""
    return Bounds(estimate.value, _finite(estimate.lower), _finite(estimate.upper))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def percent(value: float | None) -> str:
    """A relative difference with its sign: ``+1.23 %``."""
    if value is None:
        return "unbounded"
    return f"{100.0 * value + 0.0:+.2f} %"


def number(value: float | None) -> str:
    """Four significant digits without needless zeros or exponents."""
    if value is None:
        return "unbounded"
    if value == 0.0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def value(metric: str, level: float) -> str:
    """A metric's level: rates in per cent, everything else as a number."""
    return f"{100.0 * level:.3g} %" if metric.endswith(RATE) else number(level)


def difference(metric: str, change: float | None, base: float = 0.0) -> str:
    """A signed difference: rates in percentage points, others as a share of ``base``, or in their unit without one."""
    if change is None:
        return "unbounded"
    if metric.endswith(RATE):
        return f"{100.0 * change + 0.0:+.3f} points"
    return percent(change / abs(base)) if base else signed(change)


def signed(change: float) -> str:
    """A number with its sign."""
    return ("+" if change >= 0.0 else "") + number(change)


def interval(estimate: Bounds, *, metric: str | None = None, base: float = 0.0) -> str:
    """``+1.23 % [+0.40 %, +2.06 %]``; with a metric, as its differences are written."""
    values = (estimate.estimate, estimate.lower, estimate.upper)
    middle, low, high = (percent(item) if metric is None else difference(metric, item, base) for item in values)
    return f"{middle} [{low}, {high}]"


def short(digest: str | None) -> str:
    """A digest a person can compare by eye."""
    if digest is None:
        return "none"
    scheme, _, rest = digest.rpartition(":")
    return f"{scheme}:{rest[:12]}" if scheme else rest[:12]


def way_back(problem: str, champion_digest: str | None) -> str:
    """What the person on call does to undo a promotion.

    Args:
        problem: Whose policy was promoted.
        champion_digest: What was live before it; None: no policy was.
    """
    if champion_digest is None:
        return (
            f"This is the first policy: loadmaster mode heuristic --problem {problem} lets the rule answer again, "
            "mode policy gives it back."
        )
    return (
        f"Trigger the DAG rollback in Airflow with problem {problem}: it asks, pushes and verifies. Without Airflow: "
        f"loadmaster registry rollback --problem {problem} --url (the placement service) --approver (your name) "
        f"--reason (why). The service goes back to {short(champion_digest)}; nothing is retrained, it is recorded."
    )
