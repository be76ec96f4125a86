"""The bundle checker: a good bundle passes, and every way of being bad is named."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from sched_env import problems
from wire import bundle, golden, graph, sample_bundle
from wire.contracts.bundle import GOLDEN_FILE, GOLDEN_SIZES, MANIFEST_FILE, MASKED_SCORE, POLICY_FILE, Manifest
from wire.errors import BundleError

SPEC = problems.spec("functions")


GOOD = sample_bundle.build(SPEC, hidden=8)


@pytest.fixture
def good() -> dict[str, bytes]:
    return dict(GOOD)


@pytest.fixture
def model() -> onnx.ModelProto:
    built: onnx.ModelProto = sample_bundle.graph(SPEC, seed=0, hidden=8)
    return built


def refuse_graph(model: onnx.ModelProto, said: str) -> None:
    with pytest.raises(BundleError, match=said):
        graph.check_graph(model.SerializeToString(), SPEC, graph.OPSET)


def with_manifest(bundled: dict[str, bytes], **changes: Any) -> dict[str, bytes]:
    manifest = msgspec.json.decode(bundled[MANIFEST_FILE])
    return bundled | {MANIFEST_FILE: json.dumps(manifest | changes).encode()}


def test_a_good_bundle_passes_and_replays(good: dict[str, bytes]) -> None:
    checked = bundle.check(good)
    assert checked.manifest.problem == "functions"
    assert [case.mask.shape[1] for case in checked.golden] == list(GOLDEN_SIZES)
    assert bundle.replay_golden(graph.open_session(checked.policy), checked.golden) == 0.0


def test_the_same_seed_gives_the_same_digest(good: dict[str, bytes]) -> None:
    again = bundle.check(sample_bundle.build(SPEC, hidden=8)).manifest.digest
    assert again == bundle.check(good).manifest.digest
    assert again != bundle.check(sample_bundle.build(SPEC, seed=1, hidden=8)).manifest.digest


def test_one_file_serves_any_number_of_candidates_in_any_order(good: dict[str, bytes]) -> None:
    session = graph.open_session(good[POLICY_FILE])
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 17, 1000):
        candidates = rng.random((3, size, len(SPEC.candidate)), np.float32)
        request = rng.random((3, len(SPEC.request)), np.float32)
        mask = rng.random((3, size)) < 0.7
        scores = graph.scores(session, candidates, request, mask)
        assert scores.shape == (3, size)
        assert (scores[~mask] == np.float32(MASKED_SCORE)).all()
        order = rng.permutation(size)
        shuffled = graph.scores(session, candidates[:, order], request, mask[:, order])
        np.testing.assert_allclose(shuffled, scores[:, order], rtol=1e-4, atol=1e-5)


def test_read_takes_plain_files_only(good: dict[str, bytes], tmp_path: Path) -> None:
    for name, data in good.items():
        (tmp_path / name).write_bytes(data)
    assert bundle.read(tmp_path) == good
    (tmp_path / "extra.bin").write_bytes(b"")
    with pytest.raises(BundleError, match=r"extra\.bin"):
        bundle.read(tmp_path)
    (tmp_path / "extra.bin").unlink()
    (tmp_path / POLICY_FILE).rename(tmp_path.parent / "elsewhere.onnx")
    (tmp_path / POLICY_FILE).symlink_to(tmp_path.parent / "elsewhere.onnx")
    with pytest.raises(BundleError, match="not a regular file"):
        bundle.read(tmp_path)
    with pytest.raises(BundleError, match="cannot be read"):
        bundle.read(tmp_path / "nowhere")


@pytest.mark.parametrize("name", [POLICY_FILE, GOLDEN_FILE, MANIFEST_FILE])
def test_each_file_is_needed(good: dict[str, bytes], name: str) -> None:
    with pytest.raises(BundleError, match=f"no {name}"):
        bundle.check({key: data for key, data in good.items() if key != name})


def test_files_above_their_cap_are_refused_unparsed(good: dict[str, bytes]) -> None:
    with pytest.raises(BundleError, match="at most"):
        bundle.check(good | {MANIFEST_FILE: b" " * (bundle.MAX_FILE_BYTES[MANIFEST_FILE] + 1)})


@pytest.mark.parametrize("name", [POLICY_FILE, GOLDEN_FILE])
def test_a_file_that_differs_from_the_manifest_is_refused(good: dict[str, bytes], name: str) -> None:
    with pytest.raises(BundleError, match=f"{name} has SHA-256"):
        bundle.check(good | {name: good[name] + b"\0"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"digest": "sha256:" + "0" * 64}, "claims digest"),
        ({"files": {POLICY_FILE: "0" * 64}}, "manifest lists"),
        ({"problem": "vm"}, "feature spec is of problem"),
        ({"schema": 2}, "schema"),
        ({"opset": "new"}, "opset"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    good: dict[str, bytes], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(BundleError, match=said):
        bundle.check(with_manifest(good, **changes))


def test_prose_in_the_manifest_does_not_change_the_digest(good: dict[str, bytes]) -> None:
    told = with_manifest(good, metrics={"return": 1.5}, gate={"outcome": "pass", "reason": "better"})
    assert bundle.check(told).manifest.digest == bundle.check(good).manifest.digest


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (msgspec.structs.replace(SPEC, version=SPEC.version + 1), "version"),
        (msgspec.structs.replace(SPEC, candidate=SPEC.candidate[::-1]), "candidate features"),
        (msgspec.structs.replace(SPEC, request=SPEC.request[:-1]), "request features"),
        (
            msgspec.structs.replace(
                SPEC, candidate=(msgspec.structs.replace(SPEC.candidate[0], unit="GiB"), *SPEC.candidate[1:])
            ),
            "candidate features",
        ),
    ],
)
def test_a_feature_spec_that_cannot_be_filled_in_is_refused(spec: Any, said: str) -> None:
    with pytest.raises(BundleError, match=said):
        bundle.check_spec(spec, SPEC)


def test_another_scale_is_the_graphs_own_affair() -> None:
    scaled = msgspec.structs.replace(SPEC.candidate[0], scale=99.0)
    bundle.check_spec(msgspec.structs.replace(SPEC, candidate=(scaled, *SPEC.candidate[1:])), SPEC)


def test_external_data_in_weights_or_attributes_is_refused(model: onnx.ModelProto) -> None:
    tensor = numpy_helper.from_array(np.zeros(3, np.float32), "far")
    tensor.ClearField("raw_data")
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"
    attribute = onnx.ModelProto.FromString(model.SerializeToString())
    attribute.graph.node.append(helper.make_node("Constant", [], ["c"], value=tensor))
    refuse_graph(attribute, "external data")
    tensor.data_location = TensorProto.EXTERNAL
    model.graph.initializer.append(tensor)
    refuse_graph(model, "external data")


def test_foreign_parts_are_refused(model: onnx.ModelProto) -> None:
    copies = [onnx.ModelProto.FromString(model.SerializeToString()) for _ in range(6)]
    copies[0].graph.node[0].domain = "com.microsoft"
    refuse_graph(copies[0], r"com\.microsoft")
    copies[1].opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    refuse_graph(copies[1], r"ai\.onnx\.ml")
    branch = helper.make_graph([helper.make_node("Identity", ["one"], ["y"])], "b", [], [])
    copies[2].graph.node.append(helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch))
    refuse_graph(copies[2], "If")
    copies[3].graph.node[0].attribute.append(helper.make_attribute("body", branch))
    refuse_graph(copies[3], "attribute 'body'")
    copies[4].functions.append(helper.make_function("x", "F", [], [], [], [helper.make_opsetid("", 18)]))
    refuse_graph(copies[4], "local functions")
    copies[5].graph.sparse_initializer.add()
    refuse_graph(copies[5], "sparse")


def test_size_caps_hold(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MAX_PARAMETERS", 100)
    refuse_graph(model, "parameters")
    monkeypatch.setattr(graph, "MAX_NODES", 5)
    refuse_graph(model, "nodes")


def test_the_opset_must_be_known_and_as_the_manifest_says(model: onnx.ModelProto) -> None:
    with pytest.raises(BundleError, match="manifest says 19"):
        graph.check_graph(model.SerializeToString(), SPEC, 19)
    model.opset_import[0].version = 12
    with pytest.raises(BundleError, match=POLICY_FILE):
        graph.check_graph(model.SerializeToString(), SPEC, 12)


def test_inputs_and_output_are_held_to_names_types_and_open_axes(model: onnx.ModelProto) -> None:
    def port(model: onnx.ModelProto, index: int) -> Any:
        return model.graph.input[index].type.tensor_type

    copies = [onnx.ModelProto.FromString(model.SerializeToString()) for _ in range(4)]
    port(copies[0], 0).shape.dim[1].dim_value = 20
    refuse_graph(copies[0], "candidates")
    port(copies[1], 0).shape.dim[2].dim_value = 99
    refuse_graph(copies[1], "candidates")
    port(copies[2], 2).elem_type = TensorProto.FLOAT
    refuse_graph(copies[2], "mask")
    copies[3].graph.output[0].type.tensor_type.shape.dim.add().dim_value = 1
    refuse_graph(copies[3], "scores")
    model.graph.input.append(helper.make_tensor_value_info("secret", TensorProto.FLOAT, [1]))
    refuse_graph(model, "inputs")


@pytest.mark.parametrize("policy", [b"", b"not onnx", b"\x08\x08\x12" + b"\xff" * 40])
def test_noise_is_not_a_graph(policy: bytes) -> None:
    with pytest.raises(BundleError, match=POLICY_FILE):
        graph.check_graph(policy, SPEC, graph.OPSET)


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def test_golden_vectors_are_held_to_their_layout(good: dict[str, bytes]) -> None:
    with np.load(io.BytesIO(good[GOLDEN_FILE])) as loaded:
        arrays = {name: loaded[name] for name in loaded.files}

    def refuse(said: str, **changes: Any) -> None:
        kept = {name: array for name, array in (arrays | changes).items() if array is not None}
        with pytest.raises(BundleError, match=said):
            bundle.check_golden(npz(**kept), SPEC)

    refuse("cannot be read", scores_3=None)
    refuse("two different sizes", sizes=np.array([3]))
    refuse("scores_3", scores_3=arrays["scores_3"][:, :2])
    refuse("mask_3", mask_3=arrays["mask_3"].astype(np.float32))
    refuse("request_3", request_3=arrays["request_3"].astype(np.float64))
    refuse("NaN", scores_3=np.full_like(arrays["scores_3"], np.nan))
    refuse("at least one row", **{name: array[:0] for name, array in arrays.items() if name.endswith("_3")})
    for noise in (b"", b"PK\x03\x04 nonsense"):
        with pytest.raises(BundleError, match="cannot be read"):
            bundle.check_golden(noise, SPEC)


def test_golden_vectors_never_unpickle() -> None:
    buffer = io.BytesIO()
    np.savez(buffer, sizes=np.array([1, 2]), candidates_1=np.array([{}], dtype=object))
    with pytest.raises(BundleError, match="cannot be read"):
        bundle.check_golden(buffer.getvalue(), SPEC)


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from([POLICY_FILE, GOLDEN_FILE, MANIFEST_FILE]),
    edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=8), st.integers(0, 8)), min_size=1),
)
def test_whatever_the_bytes_the_answer_is_yes_or_a_refusal(name: str, edits: list[tuple[float, bytes, int]]) -> None:
    data = GOOD[name]
    for where, added, removed in edits:
        index = int(where * len(data))
        data = data[:index] + added + data[index + removed :]
    with contextlib.suppress(BundleError):
        if name == POLICY_FILE:
            graph.check_graph(data, SPEC, graph.OPSET)
        elif name == GOLDEN_FILE:
            bundle.check_golden(data, SPEC)
        else:
            bundle.check_manifest(data)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, sizes=np.zeros(1_000_000, np.int64))
    assert len(buffer.getvalue()) < 20_000
    monkeypatch.setattr(golden, "MAX_BYTES", 1_000_000)
    with pytest.raises(BundleError, match="unpacks to"):
        bundle.check_golden(buffer.getvalue(), SPEC)


def test_scores_that_differ_are_found(good: dict[str, bytes]) -> None:
    checked = bundle.check(good)
    other = graph.open_session(sample_bundle.build(SPEC, seed=1, hidden=8)[POLICY_FILE])
    with pytest.raises(BundleError, match="differ by"):
        bundle.replay_golden(other, checked.golden)


def test_a_graph_without_the_mask_is_found(model: onnx.ModelProto) -> None:
    model.graph.node.pop()
    model.graph.node.append(helper.make_node("Identity", ["score"], ["scores"]))
    policy = model.SerializeToString()
    files = sample_bundle.assemble(SPEC, policy)
    checked = bundle.check(files)
    with pytest.raises(BundleError, match="masked candidate"):
        bundle.replay_golden(graph.open_session(policy), checked.golden)


def test_the_command_line_says_yes_or_why_not(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False)

    folder = tmp_path / "bundle"
    folder.mkdir()
    for name, data in GOOD.items():
        (folder / name).write_bytes(data)
    passed = run("wire.bundle", str(folder))
    assert passed.returncode == 0
    manifest = msgspec.json.decode((folder / MANIFEST_FILE).read_bytes(), type=Manifest)
    assert json.loads(passed.stdout)["digest"] == manifest.digest
    assert hashlib.sha256((folder / POLICY_FILE).read_bytes()).hexdigest() == manifest.files[POLICY_FILE]
    (folder / GOLDEN_FILE).write_bytes(b"")
    refused = run("wire.bundle", str(folder))
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: golden.npz has SHA-256")


def test_loading_a_policy_leaves_no_trace_of_telemetry(tmp_path: Path) -> None:
    script = (
        "from sched_env import problems; from wire import graph, sample_bundle;"
        "graph.open_session(sample_bundle.build(problems.spec('functions'), hidden=8)['policy.onnx'])"
    )
    environ = {"PATH": "", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-B", "-c", script], check=True, env=environ, cwd=Path(__file__).parents[2])
    assert list(tmp_path.rglob("*onnxruntime*")) == []
