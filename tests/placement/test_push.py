"""Pushing: what makes a policy live, and everything that must not."""

from __future__ import annotations

import io
import tarfile
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from sched_env import problems

SPEC = problems.spec("functions")


def live_digest(client: Any) -> str | None:
    entry = client.get("/v1/policies").json()["policies"]["functions"]
    return entry["digest"] if entry else None


def test_a_signed_bundle_becomes_live_and_answers(client: Any, workshop: Any, kit: Any) -> None:
    files = workshop.sample(1)
    assert client.get("/v1/policies").json()["policies"] == dict.fromkeys(problems.names())
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
    from wire.graph import open_session, scores

    sent = kit.body(6)
    columns = {
        name: np.array([node["state"][name] for node in sent["candidates"]]) for name in sent["candidates"][0]["state"]
    }
    observation = problems.get("functions").build(columns, sent["requests"][0]["fields"])
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


def test_a_token_is_made_where_there_is_none(settings: Any, kit: Any) -> None:
    settings.push_token_file.unlink()
    with kit.running(settings):
        assert len(settings.push_token_file.read_text().strip()) >= 32
        assert settings.push_token_file.stat().st_mode & 0o777 == 0o600


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


def test_tar_of_the_folder_itself_is_accepted(client: Any, workshop: Any, kit: Any, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    for name, data in kit.promoted(workshop.sample(1), counter=1, live=None).items():
        (folder / name).write_bytes(data)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    assert kit.push(client, buffer.getvalue(), counter=1).status_code == 200


def test_further_models_are_taken_stored_and_opened_again(
    client: Any, settings: Any, workshop: Any, kit: Any, runtime_model: Any
) -> None:
    policy = workshop.sample(1)["policy.onnx"]
    files = workshop.around(SPEC, policy, models={"runtime": runtime_model})
    assert kit.push(client, files, counter=1).status_code == 200

    def asks(service: Any) -> list[float]:
        runtime = service.live.get("functions").policy.models["runtime"]
        return list(runtime({"rows": np.ones((2, 3), np.float32)}))

    answered = asks(client.app.state.service)
    digest = kit.digest_of(files).removeprefix("sha256:")
    stored = settings.store_dir / "functions" / "bundles" / digest
    assert {path.name: path.read_bytes() for path in stored.iterdir()} == files
    assert "runtime" in client.get("/v1/policies/functions").json()["models"]
    client.app.state.service.store.close()
    with kit.running(settings) as again:
        assert live_digest(again) == kit.digest_of(files)
        assert asks(again.app.state.service) == answered
