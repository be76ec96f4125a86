"""A push is believed for its signed record alone: the token knocks, the record promotes, once, after what is live."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sched_env import problems
from wire import sample_bundle, signatures
from wire.contracts.bundle import Verdict

SPEC = problems.spec("functions")

Attempt = Callable[..., Any]


@pytest.fixture
def attempt(shared_live: Any, workshop: Any, kit: Any) -> Attempt:
    """Push sample 2 after sample 1, with a record of the test's own; it must be refused and change nothing."""
    one = kit.digest_of(workshop.sample(1))

    def push(code: str, said: str, status: int = 422, *, files: Any = None, key: Path | None = None, **changes: Any):  # type: ignore[no-untyped-def]
        sent = workshop.promoted(files or workshop.sample(2), **{"counter": 2, "live": one} | changes, key=key)
        answer = kit.push(shared_live, sent, live=one)
        assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text
        entry = shared_live.get("/v1/policies").json()["policies"]["functions"]
        assert (entry["digest"], entry["counter"]) == (one, 1)
        assert f'refused_pushes_total{{reason="{code}"}}' in shared_live.get("/metrics").text
        return answer.json()

    return push


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": "live"}, "says live"),
        ({"state": "rejected"}, "says rejected"),
        ({"state": "rolled_back"}, "says rolled_back"),
        ({"state": "failed"}, "says failed"),
        ({"approver": None}, "no approver"),
        ({"approver": "  "}, "no approver"),
        ({"gate": {"outcome": "fail"}}, "'fail'"),
        ({"gate": {"outcome": "inconclusive"}}, "'inconclusive'"),
        ({"gate": {}}, "None"),
        ({"problem": "vm"}, "is about vm"),
        ({"digest": "sha256:" + "0" * 64}, "promotes sha256:000"),
        ({"bundle_sha256": "0" * 64}, "promotes files"),
        ({"bundle_sha256": None}, "promotes files"),
    ],
)
def test_a_record_that_promotes_something_else_or_nothing(attempt: Attempt, changes: Any, said: str) -> None:
    attempt("record", said, **changes)


def test_a_record_of_a_stranger(attempt: Attempt, workshop: Any) -> None:
    attempt("record", "unknown key", key=workshop.stranger)


@pytest.mark.parametrize("verdict", [None, Verdict("fail", ""), Verdict("inconclusive", ""), Verdict("unchanged", "")])
def test_a_bundle_whose_own_verdict_is_not_a_pass(attempt: Attempt, workshop: Any, verdict: Any) -> None:
    attempt("record", "verdict", files=workshop.sign(sample_bundle.build(SPEC, seed=2, hidden=8, gate=verdict)))


def test_an_old_bundle_with_a_new_counter(live_client: Any, workshop: Any, kit: Any) -> None:
    """The record's counter is signed: a header, or an edited file, raises nothing."""
    one, two = workshop.sample(1), workshop.sample(2)
    old = workshop.promoted(one, counter=1, live=None)
    assert kit.push(live_client, two, counter=2, live=kit.digest_of(one)).status_code == 200
    again = kit.push(live_client, old, live=kit.digest_of(two), **{"X-Loadmaster-Counter": "9"})
    assert again.status_code == 412
    record = json.loads(old["record.json"]) | {"counter": 9, "previous_digest": kit.digest_of(two)}
    edited = old | {"record.json": json.dumps(record, sort_keys=True, separators=(",", ":")).encode()}
    refused = kit.push(live_client, edited, live=kit.digest_of(two))
    assert (refused.status_code, "does not match" in refused.json()["error"]) == (422, True)
    assert live_client.get("/v1/policies").json()["policies"]["functions"]["digest"] == kit.digest_of(two)


def test_the_same_record_counts_once(live_client: Any, workshop: Any, kit: Any) -> None:
    one, two = workshop.sample(1), workshop.sample(2)
    sent = workshop.promoted(two, counter=2, live=kit.digest_of(one))
    assert kit.push(live_client, sent, live=kit.digest_of(one)).status_code == 200
    back = live_client.post("/v1/policies/functions/rollback", headers={"Authorization": f"Bearer {kit.TOKEN}"})
    assert (back.status_code, back.json()["counter"]) == (200, 3)
    assert kit.push(live_client, sent, live=kit.digest_of(one)).status_code == 412


def test_a_record_after_another_policy_than_the_live_one(attempt: Attempt) -> None:
    for believed in (None, "sha256:" + "1" * 64):
        attempt("precondition", "is live for functions", 412, live=believed)


@pytest.mark.parametrize("missing", ["record.json", "record.sig"])
def test_a_push_without_proof(shared_live: Any, workshop: Any, kit: Any, missing: str) -> None:
    one = kit.digest_of(workshop.sample(1))
    files = workshop.promoted(workshop.sample(2), counter=2, live=one)
    del files[missing]
    answer = kit.push(shared_live, kit.tar(files), live=one)
    assert (answer.status_code, f"lacks {missing}" in answer.json()["error"]) == (422, True)


@pytest.mark.parametrize(
    "broken",
    [
        {"record.json": b"{}"},
        {"record.json": b'{"gate":' + b"[" * 200_000 + b"]" * 200_000 + b"}"},
        {"record.sig": b"[" * 4000},
        {"record.sig": b"{}"},
        {"record.sig": b"\xff\xfe"},
        {"record.sig": b"x" * 5000},
        {"record.json": b" " * (5 << 20)},
    ],
    ids=["empty", "deep", "deep signature", "no signature", "no text", "large signature", "large"],
)
def test_hostile_records_are_refusals_like_any_other(
    shared_live: Any, workshop: Any, kit: Any, broken: dict[str, bytes]
) -> None:
    one = kit.digest_of(workshop.sample(1))
    files = workshop.promoted(workshop.sample(2), counter=2, live=one) | broken
    answer = kit.push(shared_live, files, live=one)
    assert answer.status_code == 422, answer.text


def test_a_token_alone_cannot_use_up_the_counters(live_client: Any, workshop: Any, kit: Any) -> None:
    one, two = workshop.sample(1), workshop.sample(2)
    assert kit.push(live_client, two, counter=2, live=kit.digest_of(one)).status_code == 200
    for text in ("999999999999999", "9" * 30, "2", "-1", "x", "", "٣"):
        sent = {"Authorization": f"Bearer {kit.TOKEN}", "X-Loadmaster-Counter": text.encode()}
        assert live_client.post("/v1/policies/functions/rollback", headers=sent).status_code == 412
    sent = {"Authorization": f"Bearer {kit.TOKEN}", "X-Loadmaster-Counter": "7"}
    assert live_client.post("/v1/policies/functions/rollback", headers=sent).json()["counter"] == 7


def revoke(settings: Any, public: Path) -> None:
    listed = {"revoked": {signatures.key_id(public): {"at": "2026-01-01T00:00:00Z", "reason": "lost laptop"}}}
    settings.revoked_keys_file.write_bytes(msgspec.json.encode(listed))


def test_a_key_revoked_since_is_refused_at_a_rollback_too(
    live_client: Any, settings: Any, workshop: Any, kit: Any
) -> None:
    one, two = workshop.sample(1), workshop.sample(2)
    assert kit.push(live_client, two, counter=2, live=kit.digest_of(one)).status_code == 200
    revoke(settings, workshop.public)
    token = {"Authorization": f"Bearer {kit.TOKEN}"}
    refused = live_client.post("/v1/policies/functions/rollback", headers=token)
    assert (refused.status_code, "lost laptop" in refused.json()["error"]) == (422, True)
    assert kit.place(live_client).json()["digest"] == kit.digest_of(two)
    off = live_client.delete("/v1/policies/functions", headers=token)
    assert (off.status_code, off.json()["digest"]) == (200, None), "the heuristic needs no key"
    assert live_client.post("/v1/policies/functions/rollback", headers=token).status_code == 422


def test_a_key_taken_away_is_refused_at_a_rollback_too(
    live_client: Any, settings: Any, workshop: Any, kit: Any
) -> None:
    assert kit.push(live_client, workshop.sample(2), counter=2, live=kit.digest_of(workshop.sample(1))).is_success
    for path in settings.trusted_keys_dir.glob("*.pub"):
        path.unlink()
    token = {"Authorization": f"Bearer {kit.TOKEN}"}
    refused = live_client.post("/v1/policies/functions/rollback", headers=token)
    assert (refused.status_code, "not trusted any more" in refused.json()["error"]) == (422, True)


def test_a_revocation_is_seen_and_shown_without_a_restart(
    settings: Any, workshop: Any, kit: Any, within: Callable[[Callable[[], bool]], None]
) -> None:
    with kit.running(msgspec.structs.replace(settings, retry_s=1)) as client:
        assert kit.push(client, workshop.sample(1), counter=1).is_success
        revoke(settings, workshop.public)
        within(lambda: "lost laptop" in client.get("/readyz").json()["degraded"].get("functions", ""))
        assert kit.place(client).json()["digest"], "it answers until somebody decides"
        settings.revoked_keys_file.unlink()
        within(lambda: client.get("/readyz").json()["degraded"] == {})


def test_a_key_dropped_into_the_folder_is_not_trusted_because_it_is_there(
    client: Any, settings: Any, workshop: Any, kit: Any
) -> None:
    public = workshop.stranger.with_suffix(".pub").read_bytes()
    (settings.trusted_keys_dir / "dropped.pub").write_bytes(public)
    record = sample_bundle.record(workshop.sample(1), counter=1, previous_digest=None)
    answer = kit.push(client, workshop.sample(1) | workshop.proof(record, workshop.stranger))
    assert (answer.status_code, "unknown key" in answer.json()["error"]) == (422, True)
    theirs = workshop.sign(
        {name: data for name, data in workshop.sample(1).items() if name != kit.SIGNATURE_FILE}, workshop.stranger
    )
    answer = kit.push(client, theirs, counter=1)
    assert (answer.status_code, "not trusted" in answer.json()["error"]) == (422, True)
    (settings.trusted_keys_dir / signatures.LISTED).unlink()
    answer = kit.push(client, workshop.sample(1), counter=1)
    assert (answer.status_code, "trusted.json is missing" in answer.json()["error"]) == (422, True)


def test_a_record_without_its_approvers_answer_to_this_bundle(attempt: Attempt, workshop: Any) -> None:
    whole = sample_bundle.record(workshop.sample(2), counter=2, previous_digest=None).answer
    attempt("record", "no answer", answer=None)
    attempt("record", "no answer", answer=msgspec.UNSET, schema=1)
    attempt("record", "no answer", answer=msgspec.structs.replace(whole, person_name="mallory"))
    attempt("record", "no answer", answer=msgspec.structs.replace(whole, digest="sha256:" + "0" * 64))


def test_back_to_what_was_live_once_needs_a_record_of_its_own_and_no_gate(
    live_client: Any, workshop: Any, kit: Any
) -> None:
    one, two = workshop.sample(1), workshop.sample(2)
    assert kit.push(live_client, two, counter=2, live=kit.digest_of(one)).is_success
    back = workshop.promoted(one, counter=3, live=kit.digest_of(two), kind="rollback", gate={})
    assert kit.push(live_client, back, live=kit.digest_of(two)).is_success
    assert kit.place(live_client).json()["digest"] == kit.digest_of(one)
