"""The ONNX graphs of a bundle: what they may hold, and how they are run.

ONNX is not code, but not harmless either: weights can point to other files, operators can come from elsewhere. A
graph is walked before anything interprets it, and only plain arithmetic passes. onnx and onnxruntime are imported
when first used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from wire.contracts.bundle import CANDIDATES_INPUT, MASK_INPUT, POLICY_FILE, REQUEST_INPUT, SCORES_OUTPUT
from wire.contracts.feature_spec import FeatureSpec
from wire.errors import BundleError

MAX_NODES = 2_000
MAX_PARAMETERS = 8_000_000

OPSET = 18
"""What the exporter writes."""
OPSETS = range(17, 24)
"""Opsets that the exporter writes and the pinned onnxruntime runs."""

ALLOWED_OPS = frozenset(
    """
    Abs Add And ArgMax BatchNormalization Cast CastLike Ceil Celu Clip Concat Constant ConstantOfShape Cos Cosh
    CumSum Div Dropout Elu Equal Erf Exp Expand Flatten Floor Gather GatherElements GatherND Gelu Gemm Greater
    GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log
    LogSoftmax MatMul Max Mean Min Mish Mod Mul Neg Not OneHot Or PRelu Pow RMSNormalization Range Reciprocal
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare Relu Reshape Round ScatterElements Selu Shape Sigmoid Sign Sin Sinh Size Slice Softmax
    Softplus Softsign Split Sqrt Squeeze Sub Sum Swish Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze
    Where Xor
    """.split()  # noqa: SIM905 - a literal list would be ninety lines
)
"""Arithmetic and shapes only: no control flow (If, Loop, Scan), no sequences, no random numbers, no custom domains."""

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

Ports = Mapping[str, tuple[str, tuple[int | None, ...]]]
"""Name -> (dtype, axes) of a graph's inputs or outputs; None is an axis that must stay open."""


@contextmanager
def refusing(found: str, expected: str = "") -> Iterator[None]:
    """Turn whatever hostile bytes make a library raise into a refusal: parsers raise far more than they document."""
    try:
        yield
    except BundleError:
        raise
    except Exception as error:
        raise BundleError(f"{found}: {str(error)[:500] or type(error).__name__}", expected) from error


def check_graph(policy: bytes, spec: FeatureSpec, opset: int) -> None:
    """Refuse a policy that reaches outside itself, uses other operators, or does not have our inputs and output."""
    inputs: Ports = {
        CANDIDATES_INPUT: ("float32", (None, None, len(spec.candidate))),
        REQUEST_INPUT: ("float32", (None, len(spec.request))),
        MASK_INPUT: ("bool", (None, None)),
    }
    check_model(policy, inputs, {SCORES_OUTPUT: ("float32", (None, None))}, opset, POLICY_FILE)


def check_model(data: bytes, inputs: Ports, outputs: Ports, opset: int, file: str) -> None:
    """Refuse a graph that is not plain arithmetic between exactly these ports."""
    import onnx

    with refusing(f"{file} is not valid ONNX", "what pipeline.export writes"):
        model = onnx.load_model_from_string(data)
        _refuse_foreign_parts(model, file)
        onnx.checker.check_model(model)
    actual = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
    if actual not in OPSETS or actual != opset:
        found = f"{file} has opset {actual}, its manifest says {opset}"
        raise BundleError(found, f"the same opset in both, {OPSETS.start} to {OPSETS.stop - 1}")
    _check_ports(f"{file} input", model.graph.input, inputs)
    _check_ports(f"{file} output", model.graph.output, outputs)


def _refuse_foreign_parts(model: Any, file: str) -> None:
    """Walk the whole model before anything interprets it: domains, operators, subgraphs, external and sparse data."""
    import onnx

    graph = model.graph
    domains = sorted({entry.domain for entry in model.opset_import} | {node.domain for node in graph.node})
    foreign = [domain for domain in domains if domain not in ("", "ai.onnx")]
    if foreign:
        raise BundleError(f"{file} uses operator domains {foreign}", "the standard domain only")
    if model.functions or model.training_info or graph.sparse_initializer:
        raise BundleError(f"{file} has local functions, training info or sparse tensors", "a plain graph")
    strangers = sorted({node.op_type for node in graph.node} - ALLOWED_OPS)
    if strangers:
        raise BundleError(f"{file} uses operators {strangers}", "operators of wire.graph.ALLOWED_OPS")
    if len(graph.node) > MAX_NODES:
        raise BundleError(f"{file} has {len(graph.node)} nodes", f"at most {MAX_NODES}")
    tensors = list(graph.initializer)
    plain = {
        getattr(onnx.AttributeProto, kind) for kind in ("FLOAT", "INT", "STRING", "TENSOR", "FLOATS", "INTS", "STRINGS")
    }
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type not in plain:
                raise BundleError(f"{file} node {node.name!r} has attribute {attribute.name!r}", "plain values")
            if attribute.type == onnx.AttributeProto.TENSOR:
                tensors.append(attribute.t)
    if any(tensor.external_data or tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors):
        raise BundleError(f"{file} keeps weights in another file (external data)", "all weights inside")
    parameters = sum(int(np.prod(tensor.dims, dtype=np.float64)) for tensor in tensors)
    if parameters > MAX_PARAMETERS:
        raise BundleError(f"{file} has {parameters} parameters", f"at most {MAX_PARAMETERS}")


def _check_ports(side: str, ports: Iterable[Any], expected: Ports) -> None:
    """Hold graph inputs or outputs to names, types, ranks and fixed axes; None is an axis that must stay open."""
    import onnx

    found = {port.name: port.type.tensor_type for port in ports}
    if set(found) != set(expected):
        raise BundleError(f"{side}s are {sorted(found)}", f"exactly {sorted(expected)}")
    for name, (dtype, shape) in expected.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        axes = tuple(axis.dim_value or None for axis in found[name].shape.dim)
        if found[name].elem_type != kind or axes != shape:
            raise BundleError(
                f"{side} {name} has element type {found[name].elem_type} and axes {axes}",
                f"element type {kind} ({dtype}) and axes {shape}, None being dynamic",
            )


def runtime() -> Any:
    """Import onnxruntime with its telemetry off: since 1.29 it reports to its makers, on Linux too, unless told not to.

    The choice is made once a process, at the first import, so that every import has to come through here.
    """
    for name in ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED"):  # the second is 1.28's name for it
        os.environ.setdefault(name, "1")
    import onnxruntime

    return onnxruntime


def open_session(data: bytes, file: str = POLICY_FILE) -> Any:
    """Load a graph with the options of a shared pod: one thread, no spinning."""
    onnxruntime = runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 3
    with refusing(f"onnxruntime cannot load {file}"):
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def scores(
    session: Any, candidates: FloatArray, request: FloatArray, mask: BoolArray, run_options: Any = None
) -> FloatArray:
    """Run a policy on one batch."""
    feed = {CANDIDATES_INPUT: candidates, REQUEST_INPUT: request, MASK_INPUT: mask}
    result: FloatArray = session.run([SCORES_OUTPUT], feed, run_options)[0]
    return result
