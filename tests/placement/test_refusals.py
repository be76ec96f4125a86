"""Pushes that must be refused: nothing changes, the answer says why, the metric counts it under its step."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from placement import intake, trial
from placement.settings import Settings
from sched_env import problems
from wire import sample_bundle
from wire.errors import BundleError

SPEC = problems.spec("functions")

Refused = Callable[..., Any]


@pytest.fixture
def untouched(shared_live: Any, workshop: Any, kit: Any) -> Any:
    """The shared service; whatever the test did, sample 1 must still be live and answer."""
    yield shared_live
    entry = shared_live.get("/v1/policies").json()["policies"]["functions"]
    assert (entry["digest"], entry["counter"]) == (kit.digest_of(workshop.sample(1)), 1)
    assert kit.place(shared_live).json()["digest"] == entry["digest"]
    staging: Path = shared_live.app.state.service.settings.store_dir / "staging"
    assert list(staging.iterdir()) == []


def count(client: Any, reason: str) -> float:
    line = f'loadmaster_refused_pushes_total{{reason="{reason}"}} '
    found = [text for text in client.get("/metrics").text.splitlines() if text.startswith(line)]
    return float(found[0].split()[-1]) if found else 0.0


@pytest.fixture
def refused(untouched: Any, workshop: Any, kit: Any) -> Refused:
    """Push after sample 1; the answer must be the refusal that is expected."""

    def attempt(body: Any, reason: str, status: int = 422, said: str = "", **options: Any) -> Any:
        before = count(untouched, reason)
        options = {"counter": 2, "live": kit.digest_of(workshop.sample(1))} | options
        answer = kit.push(untouched, body, **options)
        assert answer.status_code == status, answer.text
        assert said in answer.json()["error"]
        assert count(untouched, reason) == before + 1
        return answer.json()

    return attempt


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("", 401),
        ("Basic abc", 401),
        ("Bearer ", 401),
        ("Bearer wrong", 403),
        ("Bearer a-token-for-tests-of-32-character", 403),
    ],
)
def test_without_the_token(refused: Refused, workshop: Any, header: str, status: int) -> None:
    refused(workshop.sample(2), "token", status, token=None, Authorization=header)


def test_without_a_token_file_pushes_are_off(client: Any, workshop: Any, kit: Any, settings: Any) -> None:
    settings.push_token_file.unlink()
    answer = kit.push(client, workshop.sample(1), counter=1)
    assert answer.status_code == 403
    assert "changes are off" in answer.json()["error"]


def test_a_stale_precondition_says_what_is_live(refused: Refused, workshop: Any, kit: Any) -> None:
    one, two = workshop.sample(1), workshop.sample(2)
    for believed in (None, kit.digest_of(two), ""):
        said = refused(two, "precondition", 412, live=believed)
        assert (said["live_digest"], said["live_counter"]) == (kit.digest_of(one), 1)


def test_without_any_precondition(untouched: Any, workshop: Any, kit: Any) -> None:
    sent = {"Authorization": f"Bearer {kit.TOKEN}"}
    answer = untouched.put("/v1/policies/functions", content=kit.tar(workshop.sample(2)), headers=sent)
    assert answer.status_code == 412
    assert "If-Match" in answer.json()["error"]


@pytest.mark.parametrize("counter", [1, 0, -5, 999_999_999_999_999])
def test_a_counter_that_does_not_rise_or_leaps(refused: Refused, workshop: Any, counter: int) -> None:
    refused(workshop.sample(2), "counter", 412, counter=counter)


def test_a_rollback_without_a_previous_policy(untouched: Any, kit: Any) -> None:
    sent = {"Authorization": f"Bearer {kit.TOKEN}", "X-Loadmaster-Counter": "9"}
    answer = untouched.post("/v1/policies/functions/rollback", headers=sent)
    assert answer.status_code == 412
    assert "no previous policy" in answer.json()["error"]


def test_an_unknown_problem(untouched: Any, workshop: Any, kit: Any) -> None:
    assert kit.push(untouched, workshop.sample(1), counter=1, problem="ships").status_code == 404


def test_a_bundle_of_another_problem(refused: Refused, workshop: Any) -> None:
    files = workshop.promoted(workshop.sample(1), counter=1, live=None, problem="vm")
    refused(files, "bundle", said="functions", problem="vm", live=None)


def test_a_body_above_the_cap(settings: Any, kit: Any) -> None:
    with kit.running(msgspec.structs.replace(settings, max_bundle_mib=1)) as client:
        assert kit.push(client, b"\0" * (2 << 20), counter=1).status_code == 413
        sent = {"Authorization": f"Bearer {kit.TOKEN}", "If-None-Match": "*"}
        unannounced = (b"\0" * 65536 for _ in range(40))
        assert client.put("/v1/policies/functions", content=unannounced, headers=sent).status_code == 413
        assert count(client, "size") == 2


def _link(kind: bytes, target: str) -> Any:
    def change(info: tarfile.TarInfo) -> None:
        if info.name == "policy.onnx":
            info.type, info.linkname, info.size = kind, target, 0

    return change


def _rename(name: str) -> Any:
    def change(info: tarfile.TarInfo) -> None:
        if info.name == "policy.onnx":
            info.name = name

    return change


@pytest.mark.parametrize(
    "change",
    [
        _link(tarfile.SYMTYPE, "/etc/passwd"),
        _link(tarfile.LNKTYPE, "manifest.json"),
        _link(tarfile.FIFOTYPE, ""),
        _link(tarfile.CHRTYPE, ""),
        _link(tarfile.DIRTYPE, ""),
        _rename("../policy.onnx"),
        _rename("/policy.onnx"),
        _rename("inner/policy.onnx"),
        _rename("policy.onnx.data"),
        _rename("manifest.json"),
    ],
)
def test_an_archive_with_anything_but_the_four_files(refused: Refused, workshop: Any, kit: Any, change: Any) -> None:
    refused(kit.tar(workshop.sample(2), change), "archive")


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9])
def test_a_truncated_archive(refused: Refused, workshop: Any, kit: Any, kept: float) -> None:
    whole = kit.tar(workshop.sample(2))
    refused(whole[: int(len(whole.rstrip(b"\0")) * kept)], "archive")


@examples(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=600)), min_size=1, max_size=5))
def test_whatever_the_archive_unpacking_gives_the_four_files_or_a_refusal(
    workshop: Any, kit: Any, tmp_path: Path, edits: list[tuple[float, bytes]]
) -> None:
    data = kit.tar(kit.promoted(workshop.sample(1), counter=1, live=None))
    for where, written in edits:
        index = int(where * len(data))
        data = data[:index] + written + data[index + len(written) :]
    (tmp_path / "body.tar").write_bytes(data)
    try:
        files, _ = intake.unpack(tmp_path / "body.tar")
    except BundleError:
        return
    assert files.keys() == workshop.sample(1).keys()
    assert list(tmp_path.iterdir()) == [tmp_path / "body.tar"]


def test_compressed_archives_and_noise(refused: Refused, workshop: Any, kit: Any) -> None:
    noise = np.random.default_rng(0).bytes(20_000)
    for body in (gzip.compress(kit.tar(workshop.sample(1))), noise, b"PK\x03\x04" + noise):
        refused(body, "archive")


@pytest.mark.parametrize("name", ["policy.onnx", "golden.npz", "manifest.json", "signature.sig"])
def test_one_changed_byte_in_any_file(refused: Refused, workshop: Any, kit: Any, name: str) -> None:
    files = workshop.sample(2)
    files[name] = kit.flip_byte(files[name])
    assert "staging" not in refused(files, "signature")["error"]


@pytest.mark.parametrize("name", ["policy.onnx", "golden.npz", "manifest.json"])
def test_a_changed_file_even_with_a_good_signature(refused: Refused, workshop: Any, kit: Any, name: str) -> None:
    files = sample_bundle.build(problems.spec("functions"), seed=3, hidden=8)
    files[name] = kit.flip_byte(files[name])
    refused(workshop.sign(files), "bundle")


def test_a_strangers_signature(refused: Refused, workshop: Any) -> None:
    files = workshop.sign(sample_bundle.build(problems.spec("functions"), seed=1, hidden=8), workshop.stranger)
    refused(files, "signature", said="not trusted")


def test_a_revoked_key(client: Any, workshop: Any, kit: Any, settings: Any) -> None:
    from wire import signatures

    key = signatures.key_id(workshop.public)
    revoked = {"revoked": {key: {"at": "2026-01-01T00:00:00Z", "reason": "lost laptop"}}}
    settings.revoked_keys_file.write_bytes(msgspec.json.encode(revoked))
    answer = kit.push(client, workshop.sample(1), counter=1)
    assert answer.status_code == 422
    assert "lost laptop" in answer.json()["error"]


def _external(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"


def _custom_op(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))


def _forbidden_op(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("RandomNormal", [], ["noise"], shape=[1]))


@pytest.mark.parametrize(
    ("change", "said"),
    [(_external, "external data"), (_custom_op, "com.example"), (_forbidden_op, "RandomNormal")],
)
def test_a_graph_that_reaches_outside(refused: Refused, workshop: Any, change: Any, said: str) -> None:
    model = sample_bundle.graph(SPEC, seed=0, hidden=8)
    golden = sample_bundle.golden_vectors(SPEC, model.SerializeToString())
    change(model)
    refused(workshop.around(SPEC, model.SerializeToString(), golden=golden), "bundle", said=said)


def test_a_policy_that_does_not_reproduce_its_golden_vectors(refused: Refused, workshop: Any) -> None:
    other = sample_bundle.graph(SPEC, seed=5, hidden=8).SerializeToString()
    policy = sample_bundle.graph(SPEC, seed=6, hidden=8).SerializeToString()
    golden = sample_bundle.golden_vectors(SPEC, other)
    refused(workshop.around(SPEC, policy, golden=golden), "trial", said="golden")


def test_a_policy_that_eats_memory_ends_in_the_trial(workshop: Any) -> None:
    model = sample_bundle.graph(SPEC, seed=0, hidden=8)
    golden = sample_bundle.golden_vectors(SPEC, model.SerializeToString())
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1 << 40], np.int64), "huge"))
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["huge"], ["bomb"]))
    model.graph.node.insert(1, helper.make_node("ReduceSum", ["bomb"], ["total"], keepdims=0))
    model.graph.node.insert(2, helper.make_node("Add", ["total", "one"], ["one_more"]))
    maximum = next(node for node in model.graph.node if node.op_type == "Max")
    maximum.input[1] = "one_more"
    files = sample_bundle.assemble(SPEC, model.SerializeToString(), golden=golden)
    with pytest.raises(BundleError):
        trial.run(files, Settings())


def test_a_trial_that_cannot_even_start_is_a_refusal(workshop: Any) -> None:
    with pytest.raises(BundleError, match="trial load"):
        trial.run(workshop.sample(1), Settings(trial_memory_mib=16))
    with pytest.raises(BundleError, match="longer than"):
        trial.run(workshop.sample(1), Settings(trial_timeout_s=0.01))  # type: ignore[arg-type]


def test_models_that_do_not_hold_what_they_say_are_refused(refused: Refused, workshop: Any, runtime_model: Any) -> None:
    policy, (spec, model, vectors) = workshop.sample(1)["policy.onnx"], runtime_model

    def around(**parts: Any) -> Any:
        return workshop.around(SPEC, policy, models={"runtime": (spec, model, vectors)}, **parts)

    def without(name: str) -> Any:
        files = sample_bundle.assemble(SPEC, policy, models={"runtime": runtime_model})
        return workshop.sign({key: data for key, data in files.items() if key != name})

    refused(without("model-runtime.onnx"), "bundle", said="no model-runtime.onnx")
    unlisted = {**sample_bundle.assemble(SPEC, policy), "model-runtime.onnx": model}
    refused(workshop.sign(unlisted), "bundle", said="what its manifest lists")
    refused({**around(), "model-oracle.onnx": model}, "archive", said="model-oracle.onnx")
    refused({**around(), "model-lifetime.onnx": model}, "signature")
    wide = msgspec.structs.replace(spec, output_axes=(None, 2))
    refused(workshop.around(SPEC, policy, models={"runtime": (wide, model, vectors)}), "bundle", said="output seconds")
    _, other, _ = sample_bundle.model(spec.inputs[0].columns, output="seconds", unit="seconds", seed=7)
    differing = workshop.around(SPEC, policy, models={"runtime": (spec, other, vectors)})
    refused(differing, "trial", said="differ by")
    large = {**around(), "model-runtime.onnx": model + bytes(33 * 1024 * 1024)}
    refused(large, "archive", said="at most")
