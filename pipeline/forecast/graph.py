"""A forecast as an ONNX graph of plain arithmetic (``wire.graph``): known columns times weights, added up, at least 0.

Variances are made the same way, of the swing and of the square of the last window.

Column by column, not as one product of matrices: the sum of a row is then the same bits in a batch of any size, so the
migrator's handful of pods and the pods of all windows are answered alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.forecast.methods import LAST, Fitted
from pipeline.onnx_writer import Writer
from sched_env.pods.forecast import COLUMNS, EXPECTED, KNOWN, ROWS, SWING
from sched_env.pods.foresight import AHEAD


def to_onnx(fitted: Fitted) -> bytes:
    """Write a forecast: rows [B, columns] -> [B, 8], as ``sched_env.pods.foresight.AHEAD``."""
    w = Writer()

    def added_up(terms: list[str], weights: Any) -> str:
        total = ""
        for column in np.flatnonzero(weights) if np.any(weights) else [0]:
            term = terms[column]
            if weights[column] != 1.0:
                term = w("Mul", term, w.constant([weights[column]], np.float32))
            total = w("Add", total, term) if total else term
        return total

    sums = []
    for k, (weights, spreads) in enumerate(zip(*fitted, strict=True)):
        known = [w("Gather", ROWS, w.constant([k * len(KNOWN) + at], np.int64), axis=1) for at in range(len(KNOWN))]
        last = known[KNOWN.index(LAST)]
        parts = [known[KNOWN.index(SWING)], w("Mul", last, last)]
        sums += [added_up(known, own) for own in weights] + [added_up(parts, own) for own in spreads]
    least = w("Max", w("Concat", *sums, axis=1), w.constant([0.0], np.float32))
    return w.table("forecast", (ROWS, len(COLUMNS)), (EXPECTED, len(AHEAD)), ("Identity", least), {})
