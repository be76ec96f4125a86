"""A forecast as an ONNX graph of plain arithmetic (``wire.graph``): known columns times weights, added up, at least 0.

Column by column, not as one product of matrices: the sum of a row is then the same bits in a batch of any size, so the
migrator's handful of pods and the pods of all windows are answered alike.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.forecast.methods import Floats
from sched_env.pods.forecast import COLUMNS, EXPECTED, ROWS
from wire.graph import OPSET

GOLDEN_SIZES = (1, 2, 7, 64)


def to_onnx(weight: Floats) -> bytes:
    """Write a method: rows [B, columns] -> mean use expected [B, 2], by weights [2, known]."""
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

    sums = []
    for k, own in enumerate(weight):
        total = ""
        for column in np.flatnonzero(own) if own.any() else [0]:
            at = k * len(own) + int(column)
            term = node("Gather", ROWS, constant(at, np.int64), axis=1)
            if own[column] != 1.0:
                term = node("Mul", term, constant(own[column], np.float32))
            total = node("Add", total, term) if total else term
        sums.append(total)
    both = node("Concat", *sums, axis=1)
    nodes.append(helper.make_node("Max", [both, "zero"], [EXPECTED], name=EXPECTED))
    graph = helper.make_graph(
        nodes,
        "forecast",
        [helper.make_tensor_value_info(ROWS, TensorProto.FLOAT, ["B", len(COLUMNS)])],
        [helper.make_tensor_value_info(EXPECTED, TensorProto.FLOAT, ["B", len(weight)])],
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
