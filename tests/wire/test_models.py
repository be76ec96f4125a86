"""Further models of a bundle: carried, checked and opened; every way of being bad is named."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from sched_env import problems
from wire import bundle, golden, graph, models, policy, sample_bundle
from wire.contracts.bundle import (
    MANIFEST_FILE,
    POLICY_FILE,
    Column,
    Manifest,
    ModelInput,
    ModelSpec,
    content_digest,
    model_file,
    model_golden_file,
)
from wire.errors import BundleError

SPEC = problems.spec("functions")
POLICY = sample_bundle.build(SPEC, hidden=8)[POLICY_FILE]
COLUMNS = (Column("gib", "GiB"), Column("epochs", "count"), Column("co_runners", "count"))
RUNTIME = sample_bundle.model(COLUMNS, output="seconds", unit="seconds")
FILE, GOLDEN = model_file("runtime"), model_golden_file("runtime")
GOOD = sample_bundle.assemble(SPEC, POLICY, models={"runtime": RUNTIME})

Parts = tuple[ModelSpec, bytes, bytes]


def with_runtime(
    spec: ModelSpec = RUNTIME[0], model: bytes = RUNTIME[1], vectors: bytes = RUNTIME[2]
) -> dict[str, Any]:
    return sample_bundle.assemble(SPEC, POLICY, models={"runtime": (spec, model, vectors)})


def refuse(files: dict[str, bytes], said: str) -> None:
    with pytest.raises(BundleError, match=said):
        bundle.check(files)


def arrays_of(vectors: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(vectors)) as loaded:
        return {name: loaded[name] for name in loaded.files}


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def test_a_bundle_carries_models_and_the_one_loader_opens_them(tmp_path: Path) -> None:
    for name, data in GOOD.items():
        (tmp_path / name).write_bytes(data)
    loaded = policy.load(tmp_path, problems.spec)
    assert list(loaded.models) == ["runtime"]
    runtime = loaded.models["runtime"]
    assert (runtime.spec.output, runtime.spec.unit, runtime.spec.inputs[0].columns) == ("seconds", "seconds", COLUMNS)
    rows = np.random.default_rng(0).random((7, 3), np.float32)
    answered = runtime({"rows": rows})
    assert answered.shape == (7,)
    np.testing.assert_allclose(runtime({"rows": rows[::-1].copy()}), answered[::-1], rtol=1e-6)


def test_a_bundle_without_models_has_yesterdays_digest_and_manifest() -> None:
    plain = bundle.check(sample_bundle.assemble(SPEC, POLICY))
    assert plain.models == ()
    assert plain.manifest.digest == content_digest(SPEC.problem, SPEC, plain.manifest.files)
    assert b"models" not in sample_bundle.assemble(SPEC, POLICY)[MANIFEST_FILE]
    assert policy.GraphPolicy(plain.policy, "plain", plain).models == {}


def test_the_digest_covers_what_the_columns_mean() -> None:
    other = msgspec.structs.replace(RUNTIME[0], unit="hours")
    assert bundle.check(with_runtime(other)).manifest.digest != bundle.check(GOOD).manifest.digest


def test_files_and_specs_must_match() -> None:
    refuse({name: data for name, data in GOOD.items() if name != FILE}, f"no {FILE}")
    refuse({name: data for name, data in GOOD.items() if name != GOLDEN}, f"no {GOLDEN}")
    plain = sample_bundle.assemble(SPEC, POLICY)
    refuse(plain | {FILE: RUNTIME[1], GOLDEN: RUNTIME[2]}, "what its manifest lists")
    manifest = msgspec.json.decode(GOOD[MANIFEST_FILE], type=Manifest)
    unlisted = msgspec.structs.replace(manifest, models={})
    refuse(GOOD | {MANIFEST_FILE: msgspec.json.encode(unlisted)}, "manifest lists")
    lost = msgspec.structs.replace(manifest, files={n: s for n, s in manifest.files.items() if n != FILE})
    refuse(GOOD | {MANIFEST_FILE: msgspec.json.encode(lost)}, "manifest lists")
    refuse(GOOD | {FILE: RUNTIME[1] + b"\0"}, f"{FILE} has SHA-256")


def test_only_names_of_the_list_are_taken() -> None:
    refuse(GOOD | {"model-oracle.onnx": RUNTIME[1]}, "bundle holds 'model-oracle.onnx'")
    named = GOOD[MANIFEST_FILE].replace(b'"runtime":{', b'"oracle":{')
    refuse(GOOD | {MANIFEST_FILE: named}, "oracle")


def test_files_above_their_cap_are_refused_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bundle.MAX_FILE_BYTES, FILE, 10)
    refuse(GOOD, f"{FILE} has .* bytes; expected at most 10")


def test_size_and_operator_rules_are_those_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.load_model_from_string(RUNTIME[1])
    model.graph.node.append(helper.make_node("RandomNormal", [], ["noise"], shape=[1]))
    refuse(with_runtime(model=model.SerializeToString()), f"{FILE} uses operators .*RandomNormal")
    monkeypatch.setattr(graph, "MAX_PARAMETERS", 3)
    with pytest.raises(BundleError, match=f"{FILE} has 4 parameters"):
        models.check("runtime", RUNTIME[0], GOOD, graph.OPSET)


def changed(**fields: Any) -> ModelSpec:
    return msgspec.structs.replace(
        RUNTIME[0], inputs=(msgspec.structs.replace(RUNTIME[0].inputs[0], **fields),)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (changed(axes=(None, 4), columns=(*COLUMNS, Column("more", ""))), f"{FILE} input rows has"),
        (changed(axes=(None, None), columns=()), f"{FILE} input rows has"),
        (changed(axes=(None, None, 3)), f"{FILE} input rows has"),
        (changed(dtype="int64"), f"{FILE} input rows has"),
        (changed(name="others"), f"{FILE} inputs are"),
        (changed(axes=(5, 3)), "the first one open"),
        (changed(axes=(None, 0), columns=()), "the first one open"),
        (changed(columns=COLUMNS[:2]), "describes 2 columns"),
        (msgspec.structs.replace(RUNTIME[0], output="hours"), f"{FILE} outputs are"),
        (msgspec.structs.replace(RUNTIME[0], output_axes=(None, 3)), f"{FILE} output seconds has"),
        (msgspec.structs.replace(RUNTIME[0], output="rows"), "a name of its own"),
        (msgspec.structs.replace(RUNTIME[0], inputs=RUNTIME[0].inputs * 2), "a name of its own"),
    ],
)
def test_ports_are_held_to_the_spec(spec: ModelSpec, said: str) -> None:
    refuse(with_runtime(spec), said)


def test_golden_vectors_are_held_to_the_spec() -> None:
    arrays = arrays_of(RUNTIME[2])

    def refuse_golden(said: str, **changes: Any) -> None:
        kept = {name: array for name, array in (arrays | changes).items() if array is not None}
        refuse(with_runtime(vectors=npz(**kept)), said)

    refuse_golden("cannot be read", seconds_3=None)
    refuse_golden("two different sizes", sizes=np.array([3]))
    refuse_golden("rows_3", rows_3=arrays["rows_3"][:, :2])
    refuse_golden("rows_3", rows_3=arrays["rows_3"][0])
    refuse_golden("rows_3", rows_3=arrays["rows_3"].astype(np.float64))
    refuse_golden("seconds_3", seconds_3=arrays["seconds_3"][:2])
    refuse_golden("NaN", seconds_3=np.full_like(arrays["seconds_3"], np.nan))
    refuse(with_runtime(vectors=b"PK\x03\x04 nonsense"), "cannot be read")


def test_a_zip_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, sizes=np.zeros(1_000_000, np.int64))
    monkeypatch.setattr(golden, "MAX_BYTES", 1_000_000)
    refuse(with_runtime(vectors=buffer.getvalue()), f"{GOLDEN} unpacks to")


def test_answers_that_differ_are_found() -> None:
    arrays = arrays_of(RUNTIME[2])
    checked = bundle.check(with_runtime(vectors=npz(**arrays | {"seconds_20": arrays["seconds_20"] * 1.01})))
    with pytest.raises(BundleError, match=f"{FILE} of 20 rows differ by"):
        models.open_all(checked.models)
    assert models.replay_golden(models.GraphModel(bundle.check(GOOD).models[0]), bundle.check(GOOD).models[0]) == 0.0


def test_an_axis_beside_the_rows_may_be_open_or_longer() -> None:
    spec = ModelSpec(
        (ModelInput("history", "float32", (None, None, 2), (Column("cpu", "cores"), Column("mem", "GiB"))),),
        "load",
        "cores",
        1,
        output_axes=(None, 2),
    )
    port = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("ReduceMean", ["history", "axis"], ["load"], keepdims=0)],
        "forecast",
        [port("history", onnx.TensorProto.FLOAT, ("rows", "steps", 2))],
        [port("load", onnx.TensorProto.FLOAT, ("rows", 2))],
        [onnx.numpy_helper.from_array(np.array([1]), "axis")],
    )
    data = helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    rng, arrays = np.random.default_rng(0), {"sizes": np.array([1, 4])}
    for rows, steps in ((1, 9), (4, 3)):
        arrays[f"history_{rows}"] = rng.random((rows, steps, 2), np.float32)
        arrays[f"load_{rows}"] = arrays[f"history_{rows}"].mean(axis=1)
    files = sample_bundle.assemble(SPEC, POLICY, models={"forecast": (spec, data, npz(**arrays))})
    opened = models.open_all(bundle.check(files).models)
    assert opened["forecast"]({"history": np.ones((2, 5, 2), np.float32)}).tolist() == [[1.0, 1.0], [1.0, 1.0]]
