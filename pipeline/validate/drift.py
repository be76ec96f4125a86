"""Drift of the request mix: which share of the requests each function has, against the last accepted day."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pandas as pd

from pipeline import settings
from pipeline.errors import DataError
from pipeline.validate.config import ValidateConfig
from pipeline.validate.verdict import Finding, Severity

Mix = dict[str, float]


class Accepted(msgspec.Struct):
    """The request mix of the last day that passed, kept under ``var/`` from run to run."""

    day: str
    mix: Mix


def mix_of(functions: pd.DataFrame) -> Mix:
    """Share of requests by ``cluster/function``; empty when there were none."""
    counts = functions.groupby(functions["cluster"] + "/" + functions["function"])["requests"].sum()
    total = float(counts.sum())
    return {str(name): float(count) / total for name, count in counts.items()} if total > 0 else {}


def distance(one: Mix, other: Mix) -> float:
    """Total variation distance: the share of requests that would have to change function."""
    return sum(abs(one.get(name, 0.0) - other.get(name, 0.0)) for name in one.keys() | other.keys()) / 2


def check_drift(mixes: dict[str, Mix], accepted: Accepted | None, config: ValidateConfig) -> Iterator[Finding]:
    """Compare each day with the one before it that has requests; the first with the last accepted day."""
    before = accepted
    for day, mix in sorted(mixes.items()):
        earlier = before if before is not None and before.day < day else None
        if mix:
            if earlier is not None:
                yield from _compare(earlier, Accepted(day, mix), config)
            before = Accepted(day, mix)
        elif earlier is not None:
            message = f"no requests at all; {earlier.day} had some of {len(earlier.mix)} functions"
            yield Finding("warning", "functions", "request_mix_drift", day, len(earlier.mix), message)


def _compare(then: Accepted, now: Accepted, config: ValidateConfig) -> Iterator[Finding]:
    moved = distance(then.mix, now.mix)
    if moved <= config.drift_warn:
        return
    severity: Severity = "error" if moved > config.drift_fail else "warning"
    changes = {name: abs(now.mix.get(name, 0.0) - then.mix.get(name, 0.0)) for name in now.mix.keys() | then.mix.keys()}
    largest = sorted(changes, key=lambda name: (-changes[name], name))[: config.examples]
    examples: list[dict[str, object]] = [
        {"function": name, "then": round(then.mix.get(name, 0.0), 4), "now": round(now.mix.get(name, 0.0), 4)}
        for name in largest
    ]
    message = f"the request mix moved by {moved:.2f} from {then.day}, expected at most {config.drift_warn}"
    yield Finding(severity, "functions", "request_mix_drift", now.day, len(changes), message, examples)


def accepted_file() -> Path:
    """Where the last accepted day's mix is kept."""
    return settings.var() / "accepted" / "request_mix.json"


def read_accepted(path: Path) -> Accepted | None:
    """Read it; None on a first run."""
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Accepted)
    except msgspec.DecodeError as error:
        raise DataError(
            f"{path}: {error}",
            "the request mix of the last accepted day",
            "delete it: the next day that passes is kept",
        ) from error
