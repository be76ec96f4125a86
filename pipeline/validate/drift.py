"""Drift of the request mix: which share of the requests each function has, against the last accepted day.

The last accepted day is an input of the stage and its successor an output, each a file that ``dvc.yaml`` names: a night
does not depend on what an earlier one left behind unseen. ``pipeline.workspace`` hands the one on to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeline.errors import DataError
from pipeline.files import write_atomic
from pipeline.validate.config import ValidateConfig
from pipeline.validate.verdict import Finding, Severity

if TYPE_CHECKING:
    import pandas as pd

Mix = dict[str, float]

ACCEPTED = Path("accepted/request_mix.json")
"""The last accepted day before this run: what its first day is compared with."""
ACCEPTED_NOW = "request_mix.json"
"""The last accepted day after this run, in the folder of the verdict: the next run's :data:`ACCEPTED`."""


class Accepted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request mix of the last day that passed."""

    day: str
    """Empty: no day has passed yet."""
    mix: Mix


NOTHING = Accepted("", {})


def mix_of(functions: pd.DataFrame) -> Mix:
    """Share of requests by ``cluster/function``; empty when there were none."""
    counts = functions.groupby(functions["cluster"] + "/" + functions["function"])["requests"].sum()
    total = float(counts.sum())
    return {str(name): float(count) / total for name, count in counts.items()} if total > 0 else {}


def distance(one: Mix, other: Mix) -> float:
    """Total variation distance: the share of requests that would have to change function."""
    return sum(abs(one.get(name, 0.0) - other.get(name, 0.0)) for name in one.keys() | other.keys()) / 2


def check_drift(mixes: dict[str, Mix], accepted: Accepted, config: ValidateConfig) -> Iterator[Finding]:
    """Compare each day with the one before it that has requests; the first with the last accepted day."""
    before = accepted
    for day, mix in sorted(mixes.items()):
        comparable = NOTHING.day < before.day < day
        if mix:
            if comparable:
                yield from _compare(before, Accepted(day, mix), config)
            before = Accepted(day, mix)
        elif comparable:
            message = f"no requests at all; {before.day} had some of {len(before.mix)} functions"
            yield Finding("warning", "functions", "request_mix_drift", day, len(before.mix), message)


def newly_accepted(mixes: dict[str, Mix], accepted: Accepted) -> Accepted:
    """Return the last accepted day after days that passed; days long past, cleaned again, do not become it."""
    known = max((day for day, mix in mixes.items() if mix), default=NOTHING.day)
    return Accepted(known, mixes[known]) if known > NOTHING.day and known >= accepted.day else accepted


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


def read_accepted(path: Path) -> Accepted:
    """Read a last accepted day; on a first run there is none."""
    if not path.exists():
        return NOTHING
    try:
        return msgspec.json.decode(path.read_bytes(), type=Accepted)
    except msgspec.DecodeError as error:
        raise DataError(
            f"{path}: {error}",
            "the request mix of the last accepted day",
            "git checkout it, or delete it: the next day that passes is kept",
        ) from error


def hand_on(validations: Iterable[Path], target: Path) -> None:
    """Write the latest day that earlier runs accepted where the next run looks for it, if there is a later one.

    Args:
        validations: Folders of verdicts; those without an accepted day are passed over.
        target: :data:`ACCEPTED` of the next run.
    """
    found = [read_accepted(folder / ACCEPTED_NOW) for folder in validations]
    latest = max(found, key=lambda accepted: accepted.day, default=NOTHING)
    if latest.day > read_accepted(target).day:
        write_atomic(target, document(latest))


def document(accepted: Accepted) -> bytes:
    """Format a last accepted day so that a change of it is a readable diff."""
    return msgspec.json.format(msgspec.json.encode(accepted), indent=2) + b"\n"
