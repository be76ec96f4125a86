"""Pushing: what makes a policy live, and everything that must not."""

from __future__ import annotations

import io
import tarfile
import threading
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from placement import trial
from sched_env import features, sample_bundle
from sched_env.errors import BundleError

SPEC = features.spec("functions")


def live_digest(client: Any) -> str | None:
    entry = client.get("/v1/policies").json()["policies"]["functions"]
    return entry["digest"] if entry else None


def refusals(client: Any, reason: str) -> float:
    line = f'loadmaster_refused_pushes_total{{reason="{reason}"}} '
    found = [text for text in client.get("/metrics").text.splitlines() if text.startswith(line)]
    return float(found[0].split()[-1]) if found else 0.0


def test_a_signed_bundle_becomes_live_and_answers(client: Any, workshop: Any, kit: Any) -> None:
    files = workshop.sample(1)
    assert client.get("/v1/policies").json()["policies"] == dict.fromkeys(("vm", "pods", "functions", "jobs"))
    answer = kit.push(client, files, counter=7)
    assert answer.status_code == 200
    said = answer.json()
    assert (said["problem"], said["digest"], said["counter"]) == ("functions", kit.digest_of(files), 7)
    entry = client.get("/v1/policies").json()["policies"]["functions"]
    assert entry["digest"] == kit.digest_of(files)
    assert entry["loaded_at"] == said["loaded_at"]
    placed = kit.place(client).json()
    assert placed["digest"] == kit.digest_of(files)
    assert not placed["placements"][0]["fallback"]
    manifest = client.get("/v1/policies/functions").json()
    assert manifest["algorithm"] == "untrained"


def test_scores_answered_are_those_of_the_graph(live_client: Any, workshop: Any, kit: Any) -> None:
    from sched_env.policy_graph import open_session, scores

    sent = kit.body(6)
    columns = {
        name: np.array([node["state"][name] for node in sent["candidates"]]) for name in sent["candidates"][0]["state"]
    }
    observation = features.build("functions", columns, sent["requests"][0]["fields"])
    session = open_session(workshop.sample(1)["policy.onnx"])
    expected = scores(session, *(array[np.newaxis] for array in observation))[0]
    ranked = kit.place(live_client, sent).json()["placements"][0]["ranked"]
    feasible = [index for index in np.argsort(-expected, kind="stable") if observation.mask[index]]
    assert [entry["name"] for entry in ranked] == [f"n{index}" for index in feasible][:5]
    np.testing.assert_allclose([entry["score"] for entry in ranked], expected[feasible][:5], rtol=1e-6)


def test_a_second_push_replaces_and_a_rollback_returns(live_client: Any, workshop: Any, kit: Any) -> None:
    one, two = workshop.sample(1), workshop.sample(2)
    assert kit.push(live_client, two, counter=2, live=kit.digest_of(one)).status_code == 200
    entry = live_client.get("/v1/policies").json()["policies"]["functions"]
    assert (entry["digest"], entry["previous_digest"]) == (kit.digest_of(two), kit.digest_of(one))

    def roll_back(counter: int, **headers: str) -> httpx.Response:
        sent = {"Authorization": f"Bearer {kit.TOKEN}", "X-Loadmaster-Counter": str(counter)} | headers
        answer: httpx.Response = live_client.post("/v1/policies/functions/rollback", headers=sent)
        return answer

    assert roll_back(2).status_code == 412  # a rollback is a flip: its counter must rise too
    assert roll_back(3, Authorization="Bearer wrong").status_code == 403
    assert roll_back(3, **{"If-Match": f'"{kit.digest_of(one)}"'}).status_code == 412
    answer = roll_back(3)
    assert answer.status_code == 200
    assert answer.json()["digest"] == kit.digest_of(one)
    assert kit.place(live_client).json()["digest"] == kit.digest_of(one)
    entry = live_client.get("/v1/policies").json()["policies"]["functions"]
    assert (entry["counter"], entry["previous_digest"]) == (3, kit.digest_of(two))


def test_a_rollback_without_a_previous_policy_is_refused(live_client: Any, kit: Any) -> None:
    sent = {"Authorization": f"Bearer {kit.TOKEN}", "X-Loadmaster-Counter": "9"}
    answer = live_client.post("/v1/policies/functions/rollback", headers=sent)
    assert answer.status_code == 412
    assert "no previous policy" in answer.json()["error"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": ""}, 401),
        ({"Authorization": "Basic abc"}, 401),
        ({"Authorization": "Bearer wrong"}, 403),
        ({"Authorization": "Bearer a-token-for-test"}, 403),
    ],
)
def test_without_the_token_nothing_is_read(
    live_client: Any, workshop: Any, kit: Any, headers: dict[str, str], status: int
) -> None:
    before = live_digest(live_client)
    answer = kit.push(live_client, workshop.sample(2), counter=2, live=before, token=None, **headers)
    assert answer.status_code == status
    assert live_digest(live_client) == before
    assert refusals(live_client, "token") == 1


def test_without_a_token_file_pushes_are_off(client: Any, workshop: Any, kit: Any, settings: Any) -> None:
    settings.push_token_file.unlink()
    assert kit.push(client, workshop.sample(1), counter=1).status_code == 403


def test_a_token_is_made_where_there_is_none(settings: Any, kit: Any) -> None:
    settings.push_token_file.unlink()
    with kit.running(settings):
        assert len(settings.push_token_file.read_text().strip()) >= 32
        assert settings.push_token_file.stat().st_mode & 0o777 == 0o600


def test_a_stale_precondition_says_what_is_live(live_client: Any, workshop: Any, kit: Any) -> None:
    one, two = workshop.sample(1), workshop.sample(2)
    for believed in (None, kit.digest_of(two), ""):
        answer = kit.push(live_client, two, counter=2, live=believed)
        assert answer.status_code == 412
        assert answer.json()["live_digest"] == kit.digest_of(one)
        assert answer.json()["live_counter"] == 1
    bare = live_client.put(
        "/v1/policies/functions",
        content=kit.tar(two),
        headers={"Authorization": f"Bearer {kit.TOKEN}", "X-Loadmaster-Counter": "2"},
    )
    assert bare.status_code == 412
    assert live_digest(live_client) == kit.digest_of(one)


@pytest.mark.parametrize("counter", ["1", "0", "-5", "", "x", "9" * 30])
def test_a_counter_that_does_not_rise_is_refused(live_client: Any, workshop: Any, kit: Any, counter: str) -> None:
    one = kit.digest_of(workshop.sample(1))
    answer = kit.push(live_client, workshop.sample(2), counter=0, live=one, **{"X-Loadmaster-Counter": counter})
    assert answer.status_code == 412
    assert refusals(live_client, "counter") == 1
    assert live_digest(live_client) == one


def test_an_unknown_problem_is_not_found(client: Any, workshop: Any, kit: Any) -> None:
    assert kit.push(client, workshop.sample(1), counter=1, problem="ships").status_code == 404


def test_a_bundle_of_another_problem_is_refused(client: Any, workshop: Any, kit: Any) -> None:
    answer = kit.push(client, workshop.sample(1), counter=1, problem="vm")
    assert answer.status_code == 422
    assert "functions" in answer.json()["error"]


def test_a_body_above_the_cap_is_refused(settings: Any, workshop: Any, kit: Any) -> None:
    with kit.running(msgspec.structs.replace(settings, max_bundle_mib=1)) as client:
        assert kit.push(client, b"\0" * (2 << 20), counter=1).status_code == 413
        assert refusals(client, "size") == 1

        def endless() -> Any:
            for _ in range(40):
                yield b"\0" * 65536

        sent = {"Authorization": f"Bearer {kit.TOKEN}", "X-Loadmaster-Counter": "1", "If-None-Match": "*"}
        assert client.put("/v1/policies/functions", content=endless(), headers=sent).status_code == 413


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
        _rename("../policy.onnx"),
        _rename("/policy.onnx"),
        _rename("inner/policy.onnx"),
        _rename("policy.onnx.data"),
        _rename("manifest.json"),
    ],
)
def test_an_archive_with_anything_but_the_four_files_is_refused(
    client: Any, workshop: Any, kit: Any, change: Any
) -> None:
    answer = kit.push(client, kit.tar(workshop.sample(1), change), counter=1)
    assert answer.status_code == 422
    assert refusals(client, "archive") == 1
    assert live_digest(client) is None


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9])
def test_a_truncated_archive_is_refused(client: Any, workshop: Any, kit: Any, kept: float) -> None:
    whole = kit.tar(workshop.sample(1))
    answer = kit.push(client, whole[: int(len(whole.rstrip(b"\0")) * kept)], counter=1)
    assert answer.status_code == 422
    assert live_digest(client) is None


def test_compressed_archives_and_noise_are_refused(client: Any, workshop: Any, kit: Any) -> None:
    import gzip

    noise = np.random.default_rng(0).bytes(20_000)
    for body in (gzip.compress(kit.tar(workshop.sample(1))), noise, b"PK\x03\x04" + noise):
        assert kit.push(client, body, counter=1).status_code == 422


@pytest.mark.parametrize("name", ["policy.onnx", "golden.npz", "manifest.json", "signature.sig"])
def test_one_changed_byte_in_any_file_is_refused(live_client: Any, workshop: Any, kit: Any, name: str) -> None:
    one, files = kit.digest_of(workshop.sample(1)), workshop.sample(2)
    files[name] = kit.flip_byte(files[name])
    answer = kit.push(live_client, files, counter=2, live=one)
    assert answer.status_code == 422
    assert answer.json()["error"]
    assert live_digest(live_client) == one
    assert refusals(live_client, "signature") == 1


@pytest.mark.parametrize("name", ["policy.onnx", "golden.npz", "manifest.json"])
def test_a_changed_file_is_refused_even_with_a_good_signature(client: Any, workshop: Any, kit: Any, name: str) -> None:
    files = sample_bundle.build(seed=3, hidden=8)
    files[name] = kit.flip_byte(files[name])
    answer = kit.push(client, workshop.sign(files), counter=1)
    assert answer.status_code == 422
    assert refusals(client, "bundle") == 1


def test_a_strangers_signature_is_refused(client: Any, workshop: Any, kit: Any) -> None:
    files = workshop.sign(sample_bundle.build(seed=1, hidden=8), workshop.stranger)
    answer = kit.push(client, files, counter=1)
    assert answer.status_code == 422
    assert "not trusted" in answer.json()["error"]


def test_a_revoked_key_is_refused(client: Any, workshop: Any, kit: Any, settings: Any) -> None:
    from sched_env import signatures

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
def test_a_graph_that_reaches_outside_is_refused(client: Any, workshop: Any, kit: Any, change: Any, said: str) -> None:
    model = sample_bundle.graph(SPEC, seed=0, hidden=8)
    golden = sample_bundle.golden_vectors(SPEC, model.SerializeToString())
    change(model)
    answer = kit.push(client, workshop.around(SPEC, model.SerializeToString(), golden=golden), counter=1)
    assert answer.status_code == 422
    assert said in answer.json()["error"]


def test_a_policy_that_does_not_reproduce_its_golden_vectors_is_refused(client: Any, workshop: Any, kit: Any) -> None:
    other = sample_bundle.graph(SPEC, seed=5, hidden=8).SerializeToString()
    policy = sample_bundle.graph(SPEC, seed=6, hidden=8).SerializeToString()
    golden = sample_bundle.golden_vectors(SPEC, other)
    answer = kit.push(client, workshop.around(SPEC, policy, golden=golden), counter=1)
    assert answer.status_code == 422
    assert "golden" in answer.json()["error"]
    assert refusals(client, "trial") == 1


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
        trial.run(files, timeout_s=60, memory_mib=4096)


def test_a_trial_that_cannot_even_start_is_a_refusal(workshop: Any) -> None:
    with pytest.raises(BundleError, match="trial load"):
        trial.run(workshop.sample(1), timeout_s=60, memory_mib=16)
    with pytest.raises(BundleError, match="longer than"):
        trial.run(workshop.sample(1), timeout_s=0.01, memory_mib=4096)


def test_of_pushes_at_the_same_time_one_wins(live_client: Any, workshop: Any, kit: Any) -> None:
    one = kit.digest_of(workshop.sample(1))
    answers: dict[int, int] = {}

    def attempt(seed: int) -> None:
        answers[seed] = kit.push(live_client, workshop.sample(seed), counter=seed, live=one).status_code

    bundles = [2, 3, 4]
    for seed in bundles:
        workshop.sample(seed)
    threads = [threading.Thread(target=attempt, args=(seed,)) for seed in bundles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers.values()) == [200, 412, 412]
    winner = next(seed for seed, status in answers.items() if status == 200)
    assert live_digest(live_client) == kit.digest_of(workshop.sample(winner))


def test_every_answer_during_a_swap_comes_from_one_of_the_two(settings: Any, workshop: Any, kit: Any) -> None:
    one, two = workshop.sample(1), workshop.sample(2)
    digests = {kit.digest_of(one), kit.digest_of(two)}
    seen: list[str] = []
    faults: list[Any] = []
    stop = threading.Event()
    with kit.listening(settings) as address, httpx.Client(base_url=address, timeout=30) as control:
        assert kit.push(control, one, counter=1).status_code == 200

        def ask() -> None:
            with httpx.Client(base_url=address, timeout=30) as asking:
                while not stop.is_set():
                    answer = kit.place(asking, kit.body(50, requests=3))
                    said = answer.json()
                    if answer.status_code != 200 or any(entry["fallback"] for entry in said["placements"]):
                        faults.append(said)
                    seen.append(said["digest"])

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert kit.push(control, two, counter=2, live=kit.digest_of(one)).status_code == 200
        sent = {"Authorization": f"Bearer {kit.TOKEN}"}
        for counter in range(3, 23):
            sent["X-Loadmaster-Counter"] = str(counter)
            assert control.post("/v1/policies/functions/rollback", headers=sent).status_code == 200
        stop.set()
        for thread in threads:
            thread.join()
    assert not faults
    assert set(seen) == digests


def test_nothing_is_left_in_staging(live_client: Any, workshop: Any, kit: Any, settings: Any) -> None:
    kit.push(live_client, b"noise", counter=5, live=kit.digest_of(workshop.sample(1)))
    staging: Path = settings.store_dir / "staging"
    assert list(staging.iterdir()) == []


def test_tar_of_the_folder_itself_is_accepted(client: Any, workshop: Any, kit: Any, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    for name, data in workshop.sample(1).items():
        (folder / name).write_bytes(data)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    assert kit.push(client, buffer.getvalue(), counter=1).status_code == 200
