"""Lives that were seen: of the VMs of a span of windows, or from a file; some had not ended when it did."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.datasets.vm import recorded
from pipeline.errors import DataError
from pipeline.windows import Span
from sched_env.vm.lives import SECONDS_A_DAY

Floats = NDArray[np.float64]
COLUMNS = ("cpu", "mem", "created_s", "life_s", "ended")


class Lives(NamedTuple):
    """One entry a VM."""

    cpu: Floats
    """Cores."""
    mem: Floats
    """GiB."""
    created_s: Floats
    """Seconds from some midnight (UTC)."""
    life_s: Floats
    """Of one that has not ended, how long it had lived when the span ended."""
    ended: NDArray[np.bool_]
    left_s: Floats
    """From its creation to the end of the span: what could be seen of its life."""

    def only(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Self:
        """Return some of them."""
        return self._replace(**{name: column[chosen] for name, column in self._asdict().items()})


def of_span(folder: Path, span: Span) -> Lives:
    """Return the lives that began in a span of windows; nothing from after it is seen."""
    rows = recorded(folder, span.start, span.end)
    rows = rows[~rows["before"].astype(bool)]  # how long the others had lived already is not known
    midnight = span.start.replace(hour=0, minute=0, second=0, microsecond=0)
    begin, end = rows["begin_s"].to_numpy(np.float64), rows["end_s"].to_numpy(np.float64)
    return Lives(
        cpu=rows["cpu"].to_numpy(np.float64),
        mem=rows["mem"].to_numpy(np.float64),
        created_s=begin + (span.start - midnight).total_seconds(),
        life_s=end - begin,
        ended=rows["ended"].to_numpy(bool),
        left_s=(span.end - span.start).total_seconds() - begin,
    )


def read(path: Path) -> Lives:
    """Read a CSV of ``cpu, mem, created_s, life_s, ended`` (1, or 0: not yet); times from some midnight (UTC)."""
    table = pd.read_csv(path)
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing or table.empty:
        found = f"{path} has no column {', '.join(missing)}" if missing else f"{path} has no rows"
        raise DataError(found, f"a CSV of {', '.join(COLUMNS)}")
    columns = [table[name].to_numpy(np.float64) for name in COLUMNS]
    wrong = ~np.all([np.isfinite(column) for column in columns], axis=0) | (columns[3] < 0)
    if wrong.any():
        raise DataError(f"{path}, line {int(wrong.argmax()) + 2}: not a life", "finite numbers, life_s 0 or more")
    cpu, mem, created_s, life_s, ended = columns
    last = float((created_s + life_s).max())
    return Lives(cpu, mem, created_s, life_s, ended > 0.5, last - created_s)


def days(lives: Lives) -> float:
    """Return the days over which they began."""
    return float(np.ptp(lives.created_s) / SECONDS_A_DAY) if lives.created_s.size else 0.0
