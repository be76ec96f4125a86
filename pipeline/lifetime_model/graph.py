"""The lifetime model as an ONNX graph of plain arithmetic: the service takes no other operators (``wire.graph``).

Group, quarter and age are found by comparing, and together name a row of one table: the same bits as in numpy.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pipeline.lifetime_model.model import AGES_S, LEAST_LEFT_S, QUARTERS_H, Fitted
from pipeline.onnx_writer import Writer
from sched_env.vm.lives import COLUMNS, QUANTILES, ROWS, SECONDS


def to_onnx(fitted: Fitted, told: Mapping[str, str]) -> bytes:
    """Write the model: rows [B, columns] -> seconds left [B, quantiles]."""
    w, count = Writer(), len(fitted.flavours)
    cpu, mem, hour, age = (
        w("Gather", ROWS, w.constant([place], np.int64), axis=1) for place in range(len(COLUMNS))
    )  # each [B, 1]
    same = w(
        "And",
        w("Equal", cpu, w.constant(fitted.flavours[None, :, 0], np.float32)),
        w("Equal", mem, w.constant(fitted.flavours[None, :, 1], np.float32)),
    )
    # Of at most one flavour: counted from the end, so that of none is the last group.
    from_end = w("Mul", w("Cast", same, to=7), w.constant(count - np.arange(count)[None, :], np.int64))
    along = w.constant([1], np.int64)
    group = w("Sub", w.constant(count, np.int64), w("ReduceSum", from_end, along, keepdims=0))
    quarter, place = (
        w("ReduceSum", w("Cast", w("GreaterOrEqual", port, w.constant(above[None, 1:], np.float32)), to=7), along,
          keepdims=0)
        for port, above in ((hour, QUARTERS_H), (age, AGES_S))
    )  # fmt: skip
    row = w("Add", w("Mul", group, w.constant(QUARTERS_H.size, np.int64)), quarter)
    row = w("Add", w("Mul", row, w.constant(AGES_S.size, np.int64)), place)
    kept = w("Gather", w.constant(fitted.tables.reshape(-1, len(QUANTILES)), np.float32), row)
    since = w("Sub", age, w("Gather", w.constant(AGES_S[:, None], np.float32), place))
    left = w("Max", w("Sub", kept, since), w.constant(LEAST_LEFT_S, np.float32))
    return w.table("lifetime", (ROWS, len(COLUMNS)), (SECONDS, len(QUANTILES)), ("Identity", left), told)
