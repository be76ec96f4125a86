"""Lives that were seen: of the VMs of a span of windows, or from a file; some had not ended when it did."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.vm import recorded
from pipeline.windows import Span
from sched_env.traces import reader
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
    wanted = {name: name for name in COLUMNS}
    found = reader.read_columns(path, reader.read_text(path), wanted, _wrong).values
    created_s, life_s = found["created_s"], found["life_s"]
    last = float((created_s + life_s).max())
    return Lives(found["cpu"], found["mem"], created_s, life_s, found["ended"] > 0.0, last - created_s)


def _wrong(column: Mapping[str, Floats]) -> dict[str, NDArray[np.bool_]]:
    return {
        "cpu or mem is not above 0": ~((column["cpu"] > 0.0) & (column["mem"] > 0.0)),
        "life_s is below 0": ~(column["life_s"] >= 0.0),
        "ended is neither 1 nor 0": ~np.isin(column["ended"], (0.0, 1.0)),
    }


def days(lives: Lives) -> float:
    """Return the days over which they began."""
    return float(np.ptp(lives.created_s) / SECONDS_A_DAY) if lives.created_s.size else 0.0
