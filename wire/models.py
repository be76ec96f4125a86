"""Further models of a bundle: checked like the policy, by the same rules, and opened as callables.

Who feeds a model knows its columns from the spec; the graph is held to the spec's ports, and the golden vectors must
come out as the exporter saw them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy.typing as npt

from wire import golden, graph
from wire.contracts.bundle import ModelName, ModelSpec, model_file, model_golden_file
from wire.errors import BundleError
from wire.graph import FloatArray

Inputs = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class ModelCase:
    """Inputs of one number of rows and the answers the exporter saw."""

    inputs: Inputs
    output: FloatArray


@dataclass(frozen=True)
class CheckedModel:
    """A model whose spec, graph and golden vectors have passed; not yet loaded."""

    name: ModelName
    spec: ModelSpec
    graph: bytes
    golden: tuple[ModelCase, ...]


class GraphModel:
    """Answers for rows of inputs with an ONNX graph, on one thread."""

    def __init__(self, checked: CheckedModel) -> None:
        self.spec = checked.spec
        self._session = graph.open_session(checked.graph, model_file(checked.name))

    @property
    def metadata(self) -> Mapping[str, str]:
        """Texts that travel in the graph, so that the digest covers them; whoever reads one checks it."""
        found: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        return found

    def __call__(self, inputs: Inputs) -> FloatArray:
        """Answer one number a row, in the unit of the spec."""
        answer: FloatArray = self._session.run([self.spec.output], dict(inputs))[0]
        return answer


def check(name: ModelName, spec: ModelSpec, files: Mapping[str, bytes], opset: int) -> CheckedModel:
    """Check one model of a bundle whose digests have been compared; raises :class:`BundleError` with the reason."""
    check_spec(name, spec)
    data = files[model_file(name)]
    ports = {port.name: (port.dtype, port.axes) for port in spec.inputs}
    graph.check_model(data, ports, {spec.output: ("float32", spec.output_axes)}, opset, model_file(name))
    return CheckedModel(name, spec, data, check_golden(name, spec, files[model_golden_file(name)]))


def check_spec(name: ModelName, spec: ModelSpec) -> None:
    """Refuse a spec that contradicts itself."""
    names = [*(port.name for port in spec.inputs), spec.output]
    if len(set(names)) != len(names):
        raise BundleError(f"model {name} has ports {names}", "a name of its own for each")
    for axes in (*(port.axes for port in spec.inputs), spec.output_axes):
        if axes[0] is not None or any(axis is not None and axis < 1 for axis in axes):
            raise BundleError(f"model {name} has a port with axes {axes}", "the first one open, others from 1")
    for port in spec.inputs:
        described, width = len(port.columns), port.axes[-1] or 0
        if described != width:
            raise BundleError(
                f"model {name} input {port.name} describes {described} columns", f"{width}, as its last axis has"
            )


def check_golden(name: ModelName, spec: ModelSpec, data: bytes) -> tuple[ModelCase, ...]:
    """Decode a model's golden vectors: two numbers of rows or more, the spec's shapes, finite numbers."""
    file = model_golden_file(name)
    ports = {port.name: (port.axes, str(port.dtype)) for port in spec.inputs}
    ports[spec.output] = spec.output_axes, "float32"
    cases: list[ModelCase] = []
    for size, arrays in golden.load(data, file, list(ports)).items():
        expected = {port: (_shape(axes, arrays[port], size), dtype) for port, (axes, dtype) in ports.items()}
        golden.hold_to(arrays, expected, size, file)
        output = arrays.pop(spec.output)
        cases.append(ModelCase(arrays, output))
    return tuple(cases)


def _shape(axes: tuple[int | None, ...], array: npt.NDArray[Any], rows: int) -> tuple[int, ...]:
    """Fill in the open axes: the first is the rows, others are as the array has them."""
    found = array.shape if array.ndim == len(axes) else (1,) * len(axes)
    return (rows, *(axis or length for axis, length in zip(axes[1:], found[1:], strict=True)))


def replay_golden(model: GraphModel, checked: CheckedModel) -> float:
    """Replay the golden vectors; returns the worst relative difference, raises when an answer differs."""
    worst, apart = 0.0, golden.spread((case.output for case in checked.golden), model_golden_file(checked.name))
    for case in checked.golden:
        what = f"{model_file(checked.name)} of {len(case.output)} rows"
        found = golden.run(partial(model, case.inputs), case.output, what)
        worst = max(worst, golden.compare(found, case.output, what, apart))
    return worst


def open_all(checked: Iterable[CheckedModel]) -> dict[ModelName, GraphModel]:
    """Open models and hold each to its golden vectors."""
    opened: dict[ModelName, GraphModel] = {}
    for one in checked:
        opened[one.name] = GraphModel(one)
        replay_golden(opened[one.name], one)
    return opened
