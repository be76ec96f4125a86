"""A forecast for a bundle of ``pods``: half the last window, half the one a day before; the swing around that."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from sched_env.pods.forecast import COLUMNS, EXPECTED, KNOWN, ROWS, SPEC
from sched_env.pods.foresight import AHEAD
from wire import graph
from wire.contracts.bundle import ModelSpec


def halfway_model() -> tuple[ModelSpec, bytes, bytes, Any]:
    """Return spec, graph, golden vectors, and the model to ask."""
    nodes, half = [], numpy_helper.from_array(np.array([0.5], np.float32), "half")
    constants, sums = [half], []
    for k in range(2):
        terms = []
        for name in ("last", "day_before", "later_day_before", "swing"):
            at = numpy_helper.from_array(np.array([k * len(KNOWN) + KNOWN.index(name)], np.int64), f"at_{k}_{name}")
            constants.append(at)
            nodes.append(helper.make_node("Gather", [ROWS, at.name], [f"term_{k}_{name}"], axis=1))
            terms.append(f"term_{k}_{name}")
        last, *before, swing = terms
        for then in before:
            nodes.append(helper.make_node("Add", [last, then], [f"sum_{then}"]))
            nodes.append(helper.make_node("Mul", [f"sum_{then}", "half"], [f"mean_{then}"]))
            sums.append(f"mean_{then}")
        sums += [swing, swing]
    nodes.append(helper.make_node("Concat", sums, [EXPECTED], axis=1))
    ports = (
        [helper.make_tensor_value_info(ROWS, TensorProto.FLOAT, ["B", len(COLUMNS)])],
        [helper.make_tensor_value_info(EXPECTED, TensorProto.FLOAT, ["B", len(AHEAD)])],
    )
    made = helper.make_graph(nodes, "forecast", *ports, constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", graph.OPSET)], ir_version=8)
    data = model.SerializeToString(deterministic=True)
    session = graph.open_session(data)
    arrays: dict[str, Any] = {"sizes": np.array([1, 3])}
    for size in (1, 3):
        arrays[f"{ROWS}_{size}"] = np.random.default_rng(size).random((size, len(COLUMNS)), np.float32)
        arrays[f"{EXPECTED}_{size}"] = session.run([EXPECTED], {ROWS: arrays[f"{ROWS}_{size}"]})[0]
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return SPEC, data, buffer.getvalue(), lambda inputs: session.run([EXPECTED], dict(inputs))[0]
