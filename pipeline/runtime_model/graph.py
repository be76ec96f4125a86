"""The runtime model as an ONNX graph of plain arithmetic: the service takes no other operators (``wire.graph``).

All trees take one step at a time (gather feature and threshold of the node, compare, gather the child), so that the
graph is as deep as the deepest tree and no larger. The pool is sorted with TopK, quantiles are found by running sums.
The catalogue travels in the graph's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from pipeline.onnx_writer import Writer
from pipeline.runtime_model.forest import Forest
from pipeline.runtime_model.model import COVERED, NARROWEST, OWN_LOG_S, Fitted
from sched_env.jobs.catalogue import LONG_S
from sched_env.jobs.predictor import CATALOGUE, COLUMNS, CROWDING, MEASURED, ROWS, SECONDS


def to_onnx(fitted: Fitted, measured: Mapping[str, float]) -> bytes:
    """Write the model: rows [B, columns] -> seconds [B, 3]."""
    w = Writer()
    spread = _pool(w, fitted.forest)
    ordered = _sorted(w, spread, fitted.forest.values.shape[1] * len(fitted.forest.root))
    weights = w("Exp", w("Neg", ordered))
    ones = w("Add", w("Mul", ordered, w.constant(0.0, np.float32)), w.constant(1.0, np.float32))
    tail = (1.0 - COVERED) / 2.0
    middle = _quantile(w, ordered, weights, 0.5)
    low, high = (_quantile(w, ordered, ones, share) for share in (tail, 1.0 - tail))
    width = w("Max", w("Sub", high, low), w.constant(NARROWEST, np.float32))
    own = w("Gather", ROWS, w.constant([OWN_LOG_S], np.int64), axis=1)
    crowding = w("Gather", ROWS, w.constant([CROWDING], np.int64), axis=1)
    short, long = (w.constant(margin, np.float32) for margin in fitted.margins)
    margin = w("Mul", width, w("Where", w("Greater", own, w.constant(np.log(LONG_S), np.float32)), long, short))
    lower = w("Min", w("Sub", low, margin), middle)
    upper = w("Max", w("Add", high, margin), middle)
    logs = w("Add", w("Concat", middle, lower, upper, axis=1), w("Add", own, crowding))
    told = {CATALOGUE: fitted.catalogue.encode(), MEASURED: json.dumps(measured, sort_keys=True)}
    return w.table("runtime", (ROWS, len(COLUMNS)), (SECONDS, 3), ("Exp", logs), told)


def _pool(w: Writer, forest: Forest) -> str:
    """All rows walk down all trees at once."""
    # One small table of nodes; a leaf points to itself, so that shallow trees wait for deep ones.
    feature, threshold = w.constant(forest.feature, np.int64), w.constant(forest.threshold, np.float32)
    left, right = (w.constant(side, np.int32) for side in (forest.left, forest.right))
    batch = w("Shape", ROWS, start=0, end=1)
    shape = w("Concat", batch, w.constant([len(forest.root)], np.int64), axis=0)
    at = w("Expand", w.constant(forest.root[None, :], np.int32), shape)
    for _ in range(forest.depth):
        value = w("GatherElements", ROWS, w("Gather", feature, at), axis=1)
        goes_left = w("LessOrEqual", value, w("Gather", threshold, at))
        at = w("Where", goes_left, w("Gather", left, at), w("Gather", right, at))
    kept = w("Gather", w.constant(forest.values, np.float32), w("Gather", w.constant(forest.leaf, np.int32), at))
    flat = w("Concat", batch, w.constant([-1], np.int64), axis=0)
    return str(w("Reshape", kept, flat))


def _sorted(w: Writer, pool: str, answers: int) -> str:
    ordered, _ = w("TopK", pool, w.constant([answers], np.int64), axis=1, largest=0, sorted=1, outputs=2)
    return str(ordered)


def _quantile(w: Writer, ordered: str, weights: str, share: float) -> str:
    """Return [B, 1]: the first answer at which the running sum of weights reaches the share."""
    below = w("CumSum", weights, w.constant(1, np.int64))
    whole = w("ReduceSum", weights, w.constant([1], np.int64), keepdims=1)
    short = w("Less", below, w("Mul", whole, w.constant(share, np.float32)))
    at = w("ReduceSum", w("Cast", short, to=7), w.constant([1], np.int64), keepdims=1)
    last = w("Sub", w("Shape", ordered, start=1, end=2), w.constant([1], np.int64))
    return str(w("GatherElements", ordered, w("Min", at, last), axis=1))
