"""A complete but untrained bundle: the shape of a real policy with weights from a seed.

For tests, benchmarks and trying the service before the first night; its metrics are empty and it has no gate verdict,
so nobody can take it for a trained one.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from wire.bundle import files_sha256
from wire.contracts import decode, encode
from wire.contracts.bundle import (
    CANDIDATES_INPUT,
    GOLDEN_FILE,
    GOLDEN_SIZES,
    MANIFEST_FILE,
    MASK_INPUT,
    MASKED_SCORE,
    POLICY_FILE,
    REQUEST_INPUT,
    SCORES_OUTPUT,
    Column,
    Lineage,
    Manifest,
    ModelInput,
    ModelName,
    ModelSpec,
    content_digest,
    model_file,
    model_golden_file,
)
from wire.contracts.feature_spec import FeatureSpec
from wire.contracts.record import Answer, PromotionRecord
from wire.graph import OPSET, open_session, scores


def build(spec: FeatureSpec, *, seed: int = 0, hidden: int = 64, **changes: Any) -> dict[str, bytes]:
    """Return the files of a bundle, signature excepted; ``changes`` replace fields of its manifest."""
    policy = graph(spec, seed=seed, hidden=hidden).SerializeToString()
    return assemble(spec, policy, **changes)


def record(files: dict[str, bytes], *, counter: int, previous_digest: str | None, **changes: Any) -> PromotionRecord:
    """Return the record that would promote a signed bundle, by a person of the name ``nobody``."""
    manifest = decode(files[MANIFEST_FILE], Manifest, source=MANIFEST_FILE)
    fields: dict[str, Any] = {
        "sequence": counter,
        "problem": manifest.problem,
        "state": "approved",
        "digest": manifest.digest,
        "previous_digest": previous_digest,
        "counter": counter,
        "run_id": "sample",
        "git_commit": "0" * 40,
        "dvc_lock_sha256": "0" * 64,
        "data_range": ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
        "gate": {"outcome": "pass"},
        "approver": "nobody",
        "decided_at": "1970-01-01T00:00:00+00:00",
        "reason": "a sample",
        "previous_record_sha256": None,
        "bundle_sha256": files_sha256(files),
        "kind": "promotion",
        "report_sha256": "0" * 64,
        "rules_off": {},
    }
    fields |= changes
    moment = fields["decided_at"]
    answer = Answer(
        id=f"sample-{counter}",
        source="terminal",
        person_id="nobody",
        person_name=fields["approver"] or "nobody",
        answered_at=moment,
        asked_at=None,
        digest=fields["digest"],
        report_sha256=fields["report_sha256"],
    )
    return PromotionRecord(**{"answer": answer} | fields)


def assemble(
    spec: FeatureSpec,
    policy: bytes,
    *,
    golden: bytes | None = None,
    models: dict[ModelName, tuple[ModelSpec, bytes, bytes]] | None = None,
    **changes: Any,
) -> dict[str, bytes]:
    """Put a manifest and golden vectors around a policy.

    Args:
        spec: What the policy's inputs mean.
        policy: The graph.
        golden: Its golden vectors, if they are not to be recorded here.
        models: Further models: name -> spec, graph and golden vectors (:func:`model`).
        changes: Replace fields of the manifest.
    """
    golden = golden if golden is not None else golden_vectors(spec, policy)
    content = {POLICY_FILE: policy, GOLDEN_FILE: golden}
    for name, (_, further, vectors) in (models or {}).items():
        content |= {model_file(name): further, model_golden_file(name): vectors}
    specs = {name: further[0] for name, further in (models or {}).items()}
    files = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    fields: dict[str, Any] = {
        "problem": spec.problem,
        "feature_spec": spec,
        "files": files,
        "digest": content_digest(spec.problem, spec, files, specs),
        "algorithm": "untrained",
        "opset": OPSET,
        "params": {},
        "metrics": {},
        "lineage": Lineage("0" * 40, "0" * 64, "sample", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
        **({"models": specs} if specs else {}),
    }
    return content | {MANIFEST_FILE: encode(Manifest(**fields | changes))}


def graph(spec: FeatureSpec, *, seed: int, hidden: int, scale_to: float = 1.0) -> Any:
    """Build the graph: features over their scale, a shared layer, the mean of the feasible, a second layer, a score.

    Args:
        spec: What the inputs mean.
        seed: Of the weights.
        hidden: Width of the two layers.
        scale_to: Factor of the scores.
    """
    from onnx import TensorProto, helper

    rng = np.random.default_rng(seed)
    width = len(spec.candidate) + len(spec.request)

    def weight(*shape: int) -> np.ndarray[Any, Any]:
        return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]), np.float32)

    constants = {
        "candidate_scale": np.array([feature.scale for feature in spec.candidate], np.float32),
        "request_scale": np.array([feature.scale for feature in spec.request], np.float32),
        "first": weight(width, hidden),
        "second": weight(2 * hidden, hidden),
        "head": weight(hidden, 1) * np.float32(scale_to),
        "one": np.array(1, np.float32),
        "axis_1": np.array([1], np.int64),
        "axis_2": np.array([2], np.int64),
        "masked_score": np.array(MASKED_SCORE, np.float32),
    }
    operators = [
        ("Div", [CANDIDATES_INPUT, "candidate_scale"], "own"),
        ("Div", [REQUEST_INPUT, "request_scale"], "asked"),
        ("Unsqueeze", ["asked", "axis_1"], "asked_row"),
        ("Shape", [CANDIDATES_INPUT], "shape"),
        ("Gather", ["shape", "axis_1"], "count"),
        ("Concat0", ["axis_1", "count", "axis_1"], "rows"),
        ("Expand", ["asked_row", "rows"], "asked_rows"),
        ("Concat2", ["own", "asked_rows"], "input"),
        ("MatMul", ["input", "first"], "first_sum"),
        ("Relu", ["first_sum"], "row"),
        ("Cast", [MASK_INPUT], "mask_number"),
        ("Unsqueeze", ["mask_number", "axis_2"], "mask_column"),
        ("Mul", ["row", "mask_column"], "feasible"),
        ("ReduceSum", ["feasible", "axis_1"], "sum"),
        ("ReduceSum", ["mask_column", "axis_1"], "number"),
        ("Max", ["number", "one"], "number_or_one"),
        ("Div", ["sum", "number_or_one"], "mean"),
        ("Expand", ["mean", "rows"], "means"),
        ("Concat2", ["row", "means"], "context"),
        ("MatMul", ["context", "second"], "second_sum"),
        ("Tanh", ["second_sum"], "deep"),
        ("MatMul", ["deep", "head"], "score_column"),
        ("Squeeze", ["score_column", "axis_2"], "score"),
        ("Where", [MASK_INPUT, "score", "masked_score"], SCORES_OUTPUT),
    ]
    extra: dict[str, dict[str, Any]] = {
        "Concat0": {"axis": 0},
        "Concat2": {"axis": 2},
        "Cast": {"to": TensorProto.FLOAT},
    }
    nodes = [
        helper.make_node(kind.rstrip("02"), inputs, [output], name=output, **extra.get(kind, {}))
        for kind, inputs, output in operators
    ]

    port = helper.make_tensor_value_info
    inputs = [
        port(CANDIDATES_INPUT, TensorProto.FLOAT, ("batch", "nodes", len(spec.candidate))),
        port(REQUEST_INPUT, TensorProto.FLOAT, ("batch", len(spec.request))),
        port(MASK_INPUT, TensorProto.BOOL, ("batch", "nodes")),
    ]
    return _model("policy", nodes, inputs, port(SCORES_OUTPUT, TensorProto.FLOAT, ("batch", "nodes")), constants)


def _model(name: str, nodes: list[Any], inputs: list[Any], output: Any, constants: dict[str, Any]) -> Any:
    from onnx import checker, helper, numpy_helper

    weights = [numpy_helper.from_array(value, constant) for constant, value in constants.items()]
    body = helper.make_graph(nodes, name, inputs, [output], weights)
    made = helper.make_model(body, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    checker.check_model(made)
    return made


def model(columns: Sequence[Column], *, output: str, unit: str, seed: int = 0) -> tuple[ModelSpec, bytes, bytes]:
    """Return a further model, linear in its columns, with its spec and golden vectors."""
    from onnx import TensorProto, helper

    spec = ModelSpec((ModelInput("rows", "float32", (None, len(columns)), tuple(columns)),), output, unit, version=1)
    rng = np.random.default_rng(seed)
    nodes = [
        helper.make_node("MatMul", ["rows", "weights"], ["column"]),
        helper.make_node("Squeeze", ["column", "axis_1"], [output]),
    ]
    constants = {"weights": np.asarray(rng.random((len(columns), 1)), np.float32), "axis_1": np.array([1], np.int64)}
    port = helper.make_tensor_value_info
    inputs = [port("rows", TensorProto.FLOAT, ("rows_asked", len(columns)))]
    made = _model("model", nodes, inputs, port(output, TensorProto.FLOAT, ("rows_asked",)), constants)
    graph_bytes = made.SerializeToString()
    arrays: dict[str, Any] = {"sizes": np.array(GOLDEN_SIZES)}
    session = open_session(graph_bytes)
    for size in GOLDEN_SIZES:
        arrays[f"rows_{size}"] = rng.random((size, len(columns)), np.float32)
        arrays[f"{output}_{size}"] = session.run([output], {"rows": arrays[f"rows_{size}"]})[0]
    return spec, graph_bytes, _npz(arrays)


def golden_vectors(spec: FeatureSpec, policy: bytes, sizes: Sequence[int] = GOLDEN_SIZES, seed: int = 0) -> bytes:
    """Record what a policy answers for random inputs, in the layout of ``golden.npz``."""
    rng = np.random.default_rng(seed)
    session = open_session(policy)
    arrays: dict[str, Any] = {"sizes": np.array(sizes, np.int64)}
    for size in sizes:
        candidates = rng.random((2, size, len(spec.candidate)), np.float32)
        request = rng.random((2, len(spec.request)), np.float32)
        mask = rng.random((2, size)) < 0.8
        arrays |= {f"candidates_{size}": candidates, f"request_{size}": request, f"mask_{size}": mask}
        arrays[f"scores_{size}"] = scores(session, candidates, request, mask)
    return _npz(arrays)


def _npz(arrays: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()
