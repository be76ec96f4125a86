"""A forecast as an ONNX graph of plain arithmetic (``wire.graph``): known columns times weights, added up, at least 0.

Variances are made the same way, of the swing and of the square of the last window.

Column by column, not as one product of matrices: the sum of a row is then the same bits in a batch of any size, so the
migrator's handful of pods and the pods of all windows are answered alike.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.forecast.methods import LAST, Fitted
from sched_env.pods.forecast import COLUMNS, EXPECTED, KNOWN, ROWS, SWING
from sched_env.pods.foresight import AHEAD
from wire.graph import OPSET

GOLDEN_SIZES = (1, 2, 7, 64)


def to_onnx(fitted: Fitted) -> bytes:
    """Write a forecast: rows [B, columns] -> [B, 8], as ``sched_env.pods.foresight.AHEAD``."""
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    constants: list[Any] = [numpy_helper.from_array(np.zeros(1, np.float32), "zero")]

    def constant(value: Any, dtype: type[np.generic]) -> str:
        constants.append(numpy_helper.from_array(np.asarray([value], dtype), f"c{len(constants)}"))
        return str(constants[-1].name)

    def node(operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"n{len(nodes)}"
        nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def added_up(terms: list[str], weights: Any) -> str:
        total = ""
        for column in np.flatnonzero(weights) if np.any(weights) else [0]:
            term = terms[column]
            if weights[column] != 1.0:
                term = node("Mul", term, constant(weights[column], np.float32))
            total = node("Add", total, term) if total else term
        return total

    sums = []
    for k, (weights, spreads) in enumerate(zip(*fitted, strict=True)):
        known = [node("Gather", ROWS, constant(k * len(KNOWN) + at, np.int64), axis=1) for at in range(len(KNOWN))]
        last = known[KNOWN.index(LAST)]
        parts = [known[KNOWN.index(SWING)], node("Mul", last, last)]
        sums += [added_up(known, own) for own in weights] + [added_up(parts, own) for own in spreads]
    together = node("Concat", *sums, axis=1)
    nodes.append(helper.make_node("Max", [together, "zero"], [EXPECTED], name=EXPECTED))
    graph = helper.make_graph(
        nodes,
        "forecast",
        [helper.make_tensor_value_info(ROWS, TensorProto.FLOAT, ["B", len(COLUMNS)])],
        [helper.make_tensor_value_info(EXPECTED, TensorProto.FLOAT, ["B", len(AHEAD)])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def golden(session: Any, known: NDArray[np.float32]) -> bytes:
    """Record rows and the graph's answers at several sizes."""
    arrays: dict[str, NDArray[Any]] = {"sizes": np.array(GOLDEN_SIZES)}
    for size in GOLDEN_SIZES:
        some = known[np.random.default_rng(size).integers(len(known), size=size)]
        arrays[f"{ROWS}_{size}"] = some
        arrays[f"{EXPECTED}_{size}"] = session.run([EXPECTED], {ROWS: some})[0]
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()
