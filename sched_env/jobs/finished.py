"""What finished jobs teach: their times as profiles for the next fit, and how far the predictions were off.

A controller calls :func:`write_profiles` with what has ended (the file is an input of ``pipeline.runtime_model``), and
:meth:`ErrorTrack.observe` for each job; ``drift`` is the figure to watch.
"""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from sched_env.jobs.predictor import Prediction
from sched_env.jobs.runtime import MOST_ON_A_CARD
from wire.errors import TraceError

LAST_JOBS = 200
"""Errors are those of so many jobs: enough for a median, few enough to see a change within a day."""
FEWEST_JOBS = 20
"""Below this there is no drift to speak of."""
COLUMNS = (
    *("gpu", "timestamp", "cpu_usage", "mem_total", "mem_available", "gpu_util", "gpu_mem_free", "gpu_mem_used"),
    *(f"{name}{slot}" for slot in (1, 2, 3) for name in ("model", "averagetime")),
    *("Total_Flops", "Flops1", "Flops2", "Flops3"),
)
"""Of the public co-location profiles."""


class Ended(NamedTuple):
    """Jobs that shared a card, the same ones from begin to end of the measurement."""

    time_s: float
    """Since the epoch, UTC."""
    card_type: str
    models: tuple[str, ...]
    seconds: tuple[float, ...]
    """An iteration of each."""
    cpu: float = float("nan")
    """Share of the node's cores in use, 0 to 1; NaN: not collected."""
    gpu: float = float("nan")
    mem_gib: float = float("nan")
    """GPU memory in use."""


def write_profiles(ended: Iterable[Ended]) -> str:
    """Return finished jobs as a profiles file, header included."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for one in ended:
        wrong = len(one.models) != len(one.seconds) or not 1 <= len(one.models) <= MOST_ON_A_CARD
        if wrong or not all(np.isfinite(time) and time > 0 for time in one.seconds):
            found = f"{len(one.models)} models took {one.seconds} s"
            raise TraceError(found, f"a positive time for each of 1 to {MOST_ON_A_CARD} models")
        row = {"gpu": one.card_type, "timestamp": datetime.fromtimestamp(one.time_s, UTC).strftime("%Y/%m/%d %H:%M")}
        measured = {"cpu_usage": one.cpu, "gpu_util": 100.0 * one.gpu, "gpu_mem_used": 1024.0 * one.mem_gib}
        row |= {name: f"{value:.6g}" for name, value in measured.items() if np.isfinite(value)}
        for slot, (model, seconds) in enumerate(zip(one.models, one.seconds, strict=True), start=1):
            row |= {f"model{slot}": model, f"averagetime{slot}": f"{seconds:.9g}"}
        writer.writerow(row)
    return out.getvalue()


class ErrorTrack:
    """Errors of the last predictions, beside those that the model was shipped with.

    Args:
        expected: ``RuntimePredictor.measured``: ``median_ape`` and ``coverage90`` in per cent.
        last: How many jobs count.
    """

    def __init__(self, expected: dict[str, float], last: int = LAST_JOBS) -> None:
        self._expected = expected
        self._errors: deque[tuple[float, bool]] = deque(maxlen=last)

    def observe(self, predicted: Prediction, job: int, seconds: float) -> None:
        """Count one finished job: the prediction of its set, its place in it, and the seconds an iteration it took."""
        if predicted.source == "unknown":  # nothing was promised
            return
        error = 100.0 * abs(predicted.seconds[job] - seconds) / seconds
        self._errors.append((error, predicted.lower_s[job] <= seconds <= predicted.upper_s[job]))

    def figures(self) -> dict[str, float]:
        """Return ``mape``, ``median_ape``, ``coverage90`` (per cent), ``jobs`` and ``drift``.

        ``drift`` is the median error over the one that the model was shipped with: 1 is as promised. NaN until there
        are enough jobs, or when nothing was promised.
        """
        if not self._errors:
            return {"jobs": 0.0, "drift": float("nan")}
        errors = np.array([error for error, _ in self._errors])
        promised = self._expected.get("median_ape", 0.0)
        enough = errors.size >= FEWEST_JOBS and promised > 0
        return {
            "jobs": float(errors.size),
            "mape": float(errors.mean()),
            "median_ape": float(np.median(errors)),
            "coverage90": 100.0 * float(np.mean([inside for _, inside in self._errors])),
            "drift": float(np.median(errors)) / promised if enough else float("nan"),
        }
