"""Writes graphs of plain arithmetic by hand, and their golden vectors: ``wire.graph`` runs no others."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.graph import OPSET

GOLDEN_SIZES = (1, 2, 7, 64)


class Writer:
    """Collects nodes and constants."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: type[np.generic]) -> str:
        """Add a constant; returns its name."""
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def __call__(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; returns the name of its output, or of all of several."""
        from onnx import helper

        names = [f"n{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, name=names[0], **attributes))
        return names[0] if outputs == 1 else names

    def table(
        self, name: str, rows: tuple[str, int], output: tuple[str, int], last: tuple[str, str], told: Mapping[str, str]
    ) -> bytes:
        """Finish a model from a table of rows to a table of answers, both float32.

        Args:
            name: Of the graph.
            rows: Name and width of the input.
            output: Name and width of the output.
            last: Operator and input of the node that gives it.
            told: Texts that travel in the graph's metadata.
        """
        from onnx import TensorProto, helper

        self.nodes.append(helper.make_node(last[0], [last[1]], [output[0]], name=output[0]))
        asked, answered = (
            helper.make_tensor_value_info(port, TensorProto.FLOAT, ["B", width]) for port, width in (rows, output)
        )
        graph = helper.make_graph(self.nodes, name, [asked], [answered], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        helper.set_model_props(model, dict(told))
        data: bytes = model.SerializeToString(deterministic=True)
        return data


def golden(session: Any, asked: NDArray[np.float32], rows: str, output: str) -> bytes:
    """Record rows, drawn from what is asked, and the graph's answers at several sizes."""
    arrays: dict[str, NDArray[Any]] = {"sizes": np.array(GOLDEN_SIZES)}
    for size in GOLDEN_SIZES:
        some = asked[np.random.default_rng(size).integers(len(asked), size=size)]
        arrays[f"{rows}_{size}"] = some
        arrays[f"{output}_{size}"] = session.run([output], {rows: some})[0]
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()
