"""Attempts to put live what nobody approved: each was promoted, or left no trace, before promotions were bound."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import approval, promote, push
from pipeline.errors import PushError, RegistryError
from pipeline.registry import anchor_file, bundles, keys, outcomes, p256, places, runs, signing
from pipeline.registry.chain import BRANCH, Chain, sync
from pipeline.registry.git import Repository
from pipeline.registry.runs import branch_of
from pipeline.registry.verify import verify
from wire import secret_files, signatures
from wire.contracts.record import Answer, PromotionRecord
from wire.errors import ConfigError, LoadmasterError

pytestmark = pytest.mark.usefixtures("dvc_in_process")


def airflow_says(run_id: str, *, at: str = "2026-11-16T08:00:00+00:00") -> Answer:
    """The answer as ``airflow_answers`` hands it on after its checks."""
    asked = approval.question("functions", run_id)
    return Answer(
        id=f"airflow/nightly_retrain/{run_id}/approve/{at}/ada",
        source="airflow",
        person_id="ada",
        person_name="Ada",
        answered_at=at,
        asked_at=at,
        digest=asked.digest,
        report_sha256=asked.report_sha256,
    )


def refused(match: str, run_id: str = "one", **more: object) -> None:
    """Neither promoted nor left half done."""
    before = len(Chain.open().records)
    with pytest.raises(RegistryError, match=match):
        promote.promote("functions", run_id=run_id, **({"approver": "ada"} | more))  # type: ignore[arg-type]
    assert len(Chain.open().records) == before


def found(*parts: str) -> None:
    """``verify`` lists a finding with all of these words."""
    findings = [str(finding) for finding in verify()[1]]
    assert any(all(part in finding for part in parts) for finding in findings), findings


def replace(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # a hard link into the cache, as a workspace has
    path.write_bytes(content)


# What was approved is what was recorded ---------------------------------------------------------------------------


def rerun_with_another_seed(runs_folder: Path) -> None:
    path = runs_folder / "one" / "params.yaml"
    path.write_text(path.read_text().replace("seed: 1", "seed: 9"))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["dvc", "repro", "--quiet"], cwd=runs_folder / "one", env=environment, check=True)


def replace_bundle_and_report(runs_folder: Path) -> None:
    for part in ("bundles", "gate"):
        for source in (runs_folder / "two" / "data" / part / "functions").iterdir():
            replace(runs_folder / "one" / "data" / part / "functions" / source.name, source.read_bytes())
    bundles.dvc(runs_folder / "one", "commit", "--force", "--quiet")


def edit_the_verdict(runs_folder: Path) -> None:
    path = runs_folder / "one" / "data" / "gate" / "functions" / "report.json"
    replace(path, path.read_bytes().replace(b"better by 2 %", b"better by 9 %"))
    bundles.dvc(runs_folder / "one", "commit", "--force", "--quiet")


def edit_what_is_shown_only(runs_folder: Path) -> None:
    replace(runs_folder / "one" / "data" / "gate" / "functions" / "report.md", b"# Everything is fine")


def link_the_report_elsewhere(runs_folder: Path) -> None:
    path = runs_folder / "one" / "data" / "gate" / "functions" / "report.json"
    copy = runs_folder / "elsewhere.json"
    copy.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(copy)


def swap_the_champion_it_had_to_beat(runs_folder: Path) -> None:
    (runs_folder / "one" / "champions" / "functions" / "digest.txt").write_text("sha256:" + "0" * 64)


def add_a_champion(runs_folder: Path) -> None:
    (runs_folder / "one" / "champions" / "functions" / "weak.txt").write_text("easy to beat")


def lose_the_lock(runs_folder: Path) -> None:
    (runs_folder / "one" / "dvc.lock").unlink()


@pytest.mark.parametrize(
    "attack",
    [
        rerun_with_another_seed, replace_bundle_and_report, edit_the_verdict, edit_what_is_shown_only,
        link_the_report_elsewhere, swap_the_champion_it_had_to_beat, add_a_champion, lose_the_lock,
    ],
)  # fmt: skip
def test_a_workspace_that_changed_after_it_was_recorded_is_not_promoted(nights, attack) -> None:
    attack(nights)
    refused("was changed after run 'one' was recorded")
    with pytest.raises(RegistryError, match=r"was changed after run 'one' was recorded"):
        approval.question("functions", "one")
    before = sync().refs("refs/remotes/origin/runs/*")
    with contextlib.suppress(RegistryError):  # a link to the very same bytes changes no commit
        runs.record_run(nights / "one", "one")
    assert sync().refs("refs/remotes/origin/runs/*") == before
    assert verify()[1] == []


def test_a_failed_gate_that_was_edited_to_pass_is_not_promoted(nights, judge_again) -> None:
    judge_again("one", outcome="fail", reason="SLA is worse")
    refused("the gate said fail: SLA is worse")
    path = nights / "one" / "data" / "gate" / "functions" / "report.json"
    replace(path, path.read_bytes().replace(b'"fail"', b'"pass"'))
    bundles.dvc(nights / "one", "commit", "--force", "--quiet")
    refused("was changed after run 'one' was recorded")


def test_a_verdict_that_does_not_follow_from_its_rules_is_never_asked_about(nights, judge_again) -> None:
    rule = {"stage": "guardrail", "name": "sla_violation_rate", "outcome": "fail", "found": "", "required": ""}
    judge_again("one", rules=[rule])
    refused("says pass, and of its rule 'sla_violation_rate' fail")


def test_without_its_workspace_a_run_is_promoted_from_what_was_recorded(nights) -> None:
    shutil.rmtree(nights)
    record = promote.promote("functions", run_id="one", approver="ada", reason="")
    assert record.digest == approval.question("functions", "one").digest
    assert verify()[1] == []


def test_a_verdict_that_changed_on_the_branch_is_found_before_anybody_promotes_it(nights, judge_again) -> None:
    judge_again("one", outcome="fail", reason="SLA is worse")
    on_top("one", {runs.report_of("functions"): b'{"outcome": "pass"}'})
    found(f"branch {branch_of('one')}", "said fail and pass: the verdict changed")
    refused("was changed after run 'one' was recorded")


def on_top(run_id: str, files: dict[str, bytes]) -> None:
    """Push one more commit onto a run's branch, as whoever can write the remote can."""
    remote = Repository(Path(places.registry_remote()))
    ref = f"refs/heads/{branch_of(run_id)}"
    commit = remote.commit(files, "one more", parent=remote.resolve(ref), when="2026-11-16T09:00:00+00:00")
    remote.run("update-ref", ref, commit)


def test_commits_on_top_of_a_promoted_run_are_found(nights) -> None:
    promote.promote("functions", run_id="one", approver="ada", reason="")
    on_top("one", {"params.yaml": b"{}"})
    found(f"branch {branch_of('one')}", "has commits on top of")


def test_an_answer_to_a_commit_that_is_no_longer_the_branchs_is_not_taken(nights) -> None:
    said = airflow_says("one")
    shutil.rmtree(nights / "one")  # nothing left to compare with but the branch
    on_top("one", {"reports/gate/functions/report.md": b"# Fine"})
    refused("answered about .* and another report", answer=said)


@pytest.mark.parametrize("other", ["two", "three", "One", "one "])
def test_a_workspace_is_recorded_under_its_own_id_alone(nights, other) -> None:
    with pytest.raises(RegistryError, match=r"is not the workspace of run|was recorded as"):
        runs.record_run(nights / "one", other)
    if other != "two":
        refused("was never recorded", run_id=other)


def test_bundles_come_by_hash_a_poisoned_cache_is_not_believed(nights, home) -> None:
    outputs = runs.outputs_of(sync(), approval.question("functions", "one").commit)
    from pipeline.registry.dvc_objects import members, object_path

    md5 = members(outputs["data/bundles/functions"])["policy.onnx"]
    for store in ("cache", "remote"):
        path = object_path(home / "dvc" / store, md5)
        path.chmod(0o644)
        path.write_bytes(b"evil weights")
    shutil.rmtree(nights)
    with pytest.raises((LoadmasterError, AssertionError)):
        promote.promote("functions", run_id="one", approver="ada", reason="")
    assert Chain.open().records == []


def test_nothing_that_lies_in_a_workspace_is_run_by_promote(nights, tmp_path) -> None:
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\ncat\n")
    trap.chmod(0o755)
    git = nights / "one" / ".git"
    with (git / "config").open("a") as config:
        config.write(f'[core]\n\tfsmonitor = {trap}\n\thooksPath = {tmp_path}\n[filter "x"]\n\tclean = {trap}\n')
    (git / "info").mkdir(exist_ok=True)
    (git / "info" / "attributes").write_text("* filter=x\n")
    promote.promote("functions", run_id="one", approver="ada", reason="")
    assert not (tmp_path / "sprung").exists()


# An answer counts once, for one bundle ---------------------------------------------------------------------------


def test_an_old_answer_after_a_rollback_is_no_answer(nights, judge_again, service) -> None:
    first = airflow_says("one")
    digest = promote.promote("functions", run_id="one", answer=first).digest
    push.push("functions", service.url)
    outcomes.confirm("functions", service.url)
    judge_again("two", champion_digest=digest)
    second = promote.promote("functions", run_id="two", approver="ada").digest
    push.push("functions", service.url)
    outcomes.confirm("functions", service.url)
    service.policies["functions"] = {"digest": digest, "counter": 3, "previous_digest": second}
    outcomes.reconcile("functions", service.url)
    assert promote.promote("functions", run_id="one", answer=first).state == "rolled_back", "it is live: nothing to do"
    refused(r"run 'two' was live before.*a fresh gate and a fresh answer", run_id="two", answer=airflow_says("two"))
    refused(r"run 'two' was live before", run_id="two")


def test_after_a_failed_push_the_same_answer_does_not_count_again_and_a_fresh_one_does(nights, service) -> None:
    said = airflow_says("one")
    promote.promote("functions", run_id="one", answer=said)
    service.answer_with = (422, {"error": "golden vectors differ"})
    with pytest.raises(PushError):
        push.push("functions", service.url)
    refused(r"the answer that Ada gave at .* was used for record 0", answer=said)
    fresh = airflow_says("one", at="2026-11-16T09:00:00+00:00")
    assert promote.promote("functions", run_id="one", answer=fresh).counter == 2
    assert verify()[1] == []


def test_a_run_that_a_person_rejected_needs_a_new_run(nights) -> None:
    promote.reject("functions", run_id="one", answer=airflow_says("one"), reason="-1")
    refused(r"run 'one' was rejected before", answer=airflow_says("one", at="2026-11-16T09:00:00+00:00"))
    refused(r"run 'one' was rejected before")


def test_a_persons_no_is_kept_beside_a_time_out_and_ends_the_run(nights) -> None:
    promote.reject("functions", run_id="one")
    record = promote.reject("functions", run_id="one", answer=airflow_says("one"), reason="no")
    assert (record.sequence, record.approver) == (1, "Ada")
    assert promote.reject("functions", run_id="one", answer=airflow_says("one"), reason="no") == record
    refused("run 'one' was rejected before")


def test_an_answer_about_another_run_does_not_count(nights) -> None:
    refused("answered about .* and another report", answer=airflow_says("two"))


def test_one_answer_does_not_reject_one_run_and_approve_another(nights) -> None:
    said = airflow_says("one")
    promote.reject("functions", run_id="one", answer=said)
    about = approval.question("functions", "two")
    forged = msgspec.structs.replace(said, digest=about.digest, report_sha256=about.report_sha256)
    refused("was used for record 0", run_id="two", answer=forged)


@pytest.mark.parametrize("name", ["\x1b[2Kada", "ada\nbob", "\u202eada", "\u200b", "a" * 201, " "])
def test_nobody_is_named_by_what_cannot_be_read(nights, name) -> None:
    refused(r"cannot be read as a name|nobody approved", approver=name)


FORGED: dict[str, tuple[dict[str, object], str]] = {
    "no answer": ({"answer": None}, "approved by ada without an answer"),
    "answer of another": ({"answer": {"person_name": "eve"}}, "the answer is of 'eve'"),
    "answer to another bundle": ({"answer": {"digest": "sha256:" + "0" * 64}}, "the answer was about sha256:000"),
    "answer to another report": ({"answer": {"report_sha256": "0" * 64}}, "the answer was about another report"),
    "answer used before": ({"answer": {"id": "FIRST"}}, "its answer was used before, by record 0"),
    "another report": ({"report_sha256": "0" * 64}, "the answer was about another report"),
    "rules switched off unseen": ({"rules_off": {"cost_usd": "who would look"}}, "names other rules as switched off"),
    "a rollback to what was never live": ({"kind": "rollback"}, "which was never live"),
    "schema of yesterday": ({"schema": 1}, "of schema 1, with fields of schema 2"),
    "unreadable approver": ({"approver": "\x1b[8mada"}, "nobody could read as a name"),
    "a run that was live": ({"run_id": "FIRST"}, "was live before, in record 1: that needs a new run"),
}


@pytest.mark.parametrize("name", FORGED)
def test_whoever_signs_a_record_that_lacks_a_decision_is_found(attack, name) -> None:
    changes, reason = FORGED[name]
    record = attack.records[2]
    for key, value in changes.items():
        if isinstance(value, dict) and key == "answer":
            answer = {k: attack.records[0].answer.id if v == "FIRST" else v for k, v in value.items()}
            changes = changes | {key: msgspec.structs.replace(record.answer, **answer)}
        elif value == "FIRST":
            changes = changes | {key: attack.records[0].run_id}
    attack.replace(attack.forge(2, **changes))
    found("records/000002.json", reason)
    with pytest.raises(RegistryError, match="not whole"):
        Chain.open()


def test_a_record_without_the_new_fields_cannot_follow_one_that_has_them(attack) -> None:
    from msgspec import UNSET

    attack.replace(
        attack.forge(2, schema=1, kind=UNSET, answer=UNSET, report_sha256=UNSET, rules_off=UNSET), forget=True
    )
    found("records/000002.json", "of schema 1 after records of schema 2")


# Rules that were switched off ------------------------------------------------------------------------------------


def test_a_rule_that_was_switched_off_is_kept_in_the_record_with_its_reason(nights, judge_again) -> None:
    off = {"p99_wait_s": "not measured before December"}
    judge_again("one", rules_off=off)
    record = promote.promote("functions", run_id="one", approver="ada")
    assert record.rules_off == off
    assert verify()[1] == []


# The way back ------------------------------------------------------------------------------------------------------


def test_back_to_an_older_policy_goes_with_a_signed_rollback_and_no_gate(history, service, night) -> None:
    first, second = Chain.open().records[0], Chain.open().records[2]
    service.policies["functions"] = {"digest": first.digest, "counter": 3, "previous_digest": None}
    with pytest.raises(RegistryError, match="cannot be read as a name"):
        outcomes.roll_back("functions", service.url, approver="\x07", reason="", to=second.digest)
    record = outcomes.roll_back("functions", service.url, approver="eve", reason="SLA", to=second.digest[:20])
    assert (record.state, record.digest, record.counter) == ("live", second.digest, 4)
    asked = Chain.open().records[-2]
    assert (asked.state, asked.kind, asked.approver, asked.reason) == ("approved", "rollback", "eve", "SLA")
    assert asked.answer is not None
    assert (asked.answer.digest, asked.answer.report_sha256) == (second.digest, None)
    assert service.policies["functions"]["digest"] == second.digest
    assert verify()[1] == []
    with pytest.raises(RegistryError, match="0 policies that were live begin with"):
        outcomes.roll_back("functions", service.url, approver="eve", reason="", to=Chain.open().records[4].digest)


def test_no_rollback_to_a_policy_that_a_revoked_key_signed(history, service) -> None:
    first, second = Chain.open().records[0], Chain.open().records[2]
    service.policies["functions"] = {"digest": first.digest, "counter": 3, "previous_digest": second.digest}
    signing.revoke(signing.current_key_id(), "laptop lost", last_record=Chain.open().head())
    with pytest.raises(LoadmasterError, match=r"revoked key .*laptop lost"):
        outcomes.roll_back("functions", service.url, approver="eve", reason="", to=second.digest)
    assert service.pushes == []
    assert service.policies["functions"]["digest"] == first.digest


def test_back_to_what_a_retired_key_signed_it_is_signed_anew(history, service) -> None:
    first, second = Chain.open().records[0], Chain.open().records[2]
    service.policies["functions"] = {"digest": first.digest, "counter": 3, "previous_digest": second.digest}
    old = signing.current_key_id()
    signing.rotate()
    signing.retire(old, last_record=Chain.open().head())
    record = outcomes.roll_back("functions", service.url, approver="eve", reason="SLA", to=second.digest)
    assert (record.state, record.digest) == ("live", second.digest)
    assert record.bundle_sha256 != second.bundle_sha256
    bundle = places.bundle(second.digest)
    assert signatures.verify(bundle, signing.trusted_folder(), signing.revoked_file()) == signing.current_key_id()
    approved = Chain.open().approved("functions", second.digest)
    assert approved is not None
    assert approved.kind == "rollback"
    findings = [str(finding) for finding in verify()[1]]
    assert all("retired key" in one for one in findings), "what it signed and is still in reach is told, nothing else"


# Keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["revoke", "retire"])
def test_what_a_key_signed_before_it_was_withdrawn_is_not_pushed_after(nights, service, how) -> None:
    promote.promote("functions", run_id="one", approver="ada")
    old = signing.current_key_id()
    if how == "revoke":
        signing.revoke(old, "laptop lost", last_record=Chain.open().head())
    else:
        signing.rotate()
        signing.retire(old, last_record=Chain.open().head())
    with pytest.raises(RegistryError, match=r"signed by key .* whose (revocation|retirement) came"):
        push.push("functions", service.url)
    assert service.pushes == []


def test_a_retired_key_signs_nothing_new(history, tmp_path, monkeypatch) -> None:
    kept = tmp_path / "backup.pem"
    secret_files.create(kept, Path(signing.private_key()).read_bytes(), exclusive=False)
    old = signing.current_key_id()
    signing.rotate()
    signing.retire(old, last_record=Chain.open().head())
    with monkeypatch.context() as patch:
        patch.setenv(signing.KEY_ENV, str(kept))
        with pytest.raises(RegistryError, match="is retired"):
            signing.sign_bytes(b"x")
        # The thief of a backup uses other tools than ours: the record is found.
        patch.setattr(signing, "private_key", lambda: kept)
        patch.setattr(signing, "_publish", lambda path: None)
        chain = Chain.open()
        record = chain.follow_up(chain.records[4], state="rejected", approver=None, reason="x")
        assert chain.write(record, {})
    found("signed by key", "after its retirement")
    with pytest.raises(RegistryError, match="after its retirement"):
        Chain.open()


def test_a_key_dropped_into_the_folder_is_not_trusted_because_it_is_there(history, tmp_path, monkeypatch) -> None:
    mine = tmp_path / "mine.pem"
    secret_files.create(mine, p256.new_private_pem(), exclusive=False)
    dropped = signing.trusted_folder() / f"{p256.key_id(mine)}.pub"
    dropped.write_bytes(p256.public_pem(mine))
    assert p256.key_id(mine) not in signatures.trusted(signing.trusted_folder())
    found(str(dropped), "dropped here")
    bundle = places.bundle(Chain.open().records[0].digest)
    signatures.sign(bundle, mine)
    with pytest.raises(LoadmasterError, match="not trusted"):
        signatures.verify(bundle, signing.trusted_folder(), signing.revoked_file())
    with monkeypatch.context() as patch:
        patch.setattr(signing, "private_key", lambda: mine)
        patch.setattr(signing, "_publish", lambda path: None)
        chain = Chain.open()
        assert chain.write(chain.follow_up(chain.records[4], state="rejected", approver=None, reason="x"), {})
    with pytest.raises(RegistryError, match="unknown key"):
        Chain.open()


@pytest.mark.parametrize("text", ["", "{}", "null", '"all"', "[1]", "[" * 5000])
def test_a_list_of_keys_that_cannot_be_read_trusts_nobody(home, text) -> None:
    signing.private_key()
    (signing.trusted_folder() / signatures.LISTED).write_text(text)
    with pytest.raises(LoadmasterError, match="not a list of key ids"):
        signatures.trusted(signing.trusted_folder())


def test_without_its_list_no_key_of_the_folder_is_trusted_and_none_is_adopted(history, tmp_path) -> None:
    """Deleting the list must not be a way to have a dropped key trusted."""
    mine = tmp_path / "mine.pem"
    secret_files.create(mine, p256.new_private_pem(), exclusive=False)
    (signing.trusted_folder() / f"{p256.key_id(mine)}.pub").write_bytes(p256.public_pem(mine))
    (signing.trusted_folder() / signatures.LISTED).unlink()
    own = signing.current_key_id()
    for attempt in (Chain.open, lambda: signing.sign_bytes(b"x"), signing.rotate):
        with pytest.raises(LoadmasterError, match=r"trusted\.json is missing.*keys trust"):
            attempt()
    assert not (signing.trusted_folder() / signatures.LISTED).exists()
    found("trusted.json", "is missing")
    assert keys.main(["trust", own[:12]]) == 0
    assert list(signatures.trusted(signing.trusted_folder())) == [own]
    found(p256.key_id(mine), "dropped here")


# A registry that was cut short -----------------------------------------------------------------------------------


def cut_short(root: Path, to: int) -> None:
    """Take the newest records off the remote, and forget on this machine that they were ever there."""
    chain = Chain.open()
    Repository(root / "remotes" / "registry.git").run("update-ref", BRANCH, chain.commits()[to])
    shutil.rmtree(places.registry_mirror())


def test_an_anchor_outside_finds_a_registry_that_was_cut_short_on_a_fresh_machine(
    history, tmp_path, monkeypatch
) -> None:
    anchor = tmp_path / "anchor.jsonl"
    monkeypatch.setenv(anchor_file.ANCHOR_ENV, str(anchor))
    with pytest.raises(RegistryError, match="touch"):
        Chain.open()
    anchor.touch()
    promote.reject("functions", run_id=Chain.open().records[4].run_id, approver=None)
    (line,) = anchor.read_text().splitlines()
    assert json.loads(line)["sequence"] == 6
    assert Chain.open().records[-1].sequence == 6
    cut_short(history, 5)
    with pytest.raises(RegistryError, match="has seen record 6, the chain ends at 5: it was cut short"):
        Chain.open()
    found(str(anchor), "cut short")
    anchor.write_text(line.replace(json.loads(line)["sha256"], "0" * 64).replace('"sequence":6', '"sequence":5') + "\n")
    found(str(anchor), "history was rewritten")


def test_the_services_counter_finds_a_registry_that_was_cut_short(history, service) -> None:
    live = Chain.open().records[5]
    service.policies["functions"] = {"digest": live.digest, "counter": 3, "previous_digest": None}
    assert verify(service.url)[1] == []
    cut_short(history, 3)
    findings = [str(finding) for finding in verify(service.url)[1]]
    assert any("at counter 3 there, the records end at 2: they were cut short" in one for one in findings), findings


# What lies in the registry's own repository ----------------------------------------------------------------------


def test_hooks_that_lie_in_the_registry_do_not_run(nights, tmp_path) -> None:
    for hook in ("post-receive", "pre-receive", "update", "post-update", "reference-transaction", "proc-receive"):
        path = Path(places.registry_remote()) / "hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
        path.chmod(0o755)
    promote.reject("functions", run_id="one", approver="ada", reason="no")
    assert len(Chain.open().records) == 1
    assert not (tmp_path / "sprung").exists()


def test_a_command_in_the_registrys_own_settings_does_not_run(nights, tmp_path) -> None:
    remote = Repository(Path(places.registry_remote()))
    remote.run("config", "core.alternateRefsCommand", f"touch {tmp_path}/sprung; true")
    (remote.path / "objects" / "info").mkdir(exist_ok=True)
    (remote.path / "objects" / "info" / "alternates").write_text(str(places.registry_mirror() / "objects") + "\n")
    promote.reject("functions", run_id="one", approver="ada", reason="no")
    assert not (tmp_path / "sprung").exists()


def test_a_lock_that_a_killed_process_left_is_named(nights, monkeypatch) -> None:
    monkeypatch.setattr("pipeline.registry.chain.ATTEMPTS", 2)
    lock = Path(places.registry_remote()) / "refs" / "heads" / "promotions.lock"
    lock.touch()
    os.utime(lock, (0, 0))
    with pytest.raises(RegistryError, match=rf"locked: {lock} has been there for \d+ s.*delete that file"):
        promote.reject("functions", run_id="one", approver="ada", reason="no")
    lock.unlink()
    assert promote.reject("functions", run_id="one", approver="ada", reason="no").sequence == 0


# Run ids and folders ---------------------------------------------------------------------------------------------


@given(st.lists(st.text(min_size=1, max_size=60), min_size=2, max_size=2, unique=True))
def test_no_two_runs_share_a_workspace(pair: list[str]) -> None:
    names = []
    for run_id in pair:
        try:
            names.append(places.run_folder_name(run_id))
        except ConfigError:
            return  # too long as a folder
    assert names[0] != names[1]
    for name in names:
        assert name.isascii()
        assert "/" not in name
        assert "+" not in name
        assert not name.startswith(".")


@pytest.mark.parametrize(
    "pair", [("a:b", "a-b"), ("a+b", "a b"), ("x", "x+unfinished"), ("a~3Ab", "a:b"), (".x", "~2Ex")]
)
def test_ids_that_once_met_in_one_folder_no_longer_do(pair) -> None:
    assert places.run_folder_name(pair[0]) != places.run_folder_name(pair[1])


@pytest.mark.parametrize("run_id", ["", "x" * 241, ":" * 81])
def test_an_id_that_makes_no_folder_is_refused(run_id) -> None:
    with pytest.raises(ConfigError, match="bytes as a folder"):
        places.run_folder_name(run_id)


def test_the_usual_ids_stay_readable() -> None:
    assert places.run_folder_name("manual__2026-11-16T02:00:00+00:00") == "manual__2026-11-16T02~3A00~3A00~2B00~3A00"


# The command line ------------------------------------------------------------------------------------------------


def test_a_comment_that_begins_with_a_dash_does_not_fail_the_promotion(nights, monkeypatch, capsys) -> None:
    said = approval.Response(approved=True, answer=airflow_says("one"), comment="--approve, -1, fine")
    monkeypatch.setattr("pipeline.airflow_answers.response", lambda *arguments: said)
    arguments = ["--problem", "functions", "--run-id=one", "--airflow-task=nightly_retrain/approve"]
    monkeypatch.setattr(sys, "argv", ["promote", *arguments])
    assert promote.main() == 0
    assert "approved by Ada" in capsys.readouterr().out
    record: PromotionRecord = Chain.open().records[0]
    assert (record.reason, record.answer) == ("--approve, -1, fine", said.answer)


@pytest.mark.parametrize("more", [[], ["--reject"]])
def test_without_an_answer_neither_a_promotion_nor_a_rejection_is_recorded(nights, monkeypatch, more) -> None:
    monkeypatch.setattr("pipeline.airflow_answers.response", lambda *arguments: None)
    arguments = ["--problem", "functions", "--run-id=one", "--airflow-task=nightly_retrain/approve", *more]
    monkeypatch.setattr(sys, "argv", ["promote", *arguments])
    if more:
        assert promote.main() == 0
    else:
        with pytest.raises(RegistryError, match=r"nobody has answered .*a task set to success is no answer"):
            promote.main()
    assert Chain.open().records == []


def test_an_approval_is_never_kept_as_a_rejection_nor_a_rejection_as_an_approval(nights, monkeypatch) -> None:
    yes = approval.Response(approved=True, answer=airflow_says("one"), comment="")
    arguments = ["promote", "--problem", "functions", "--run-id=one", "--airflow-task=nightly_retrain/approve"]

    def main(said: approval.Response, *more: str) -> Callable[[], int | None]:
        monkeypatch.setattr("pipeline.airflow_answers.response", lambda *_: said)
        monkeypatch.setattr(sys, "argv", [*arguments, *more])
        return promote.main

    assert main(yes, "--reject")() == 0
    assert Chain.open().records == []
    with pytest.raises(RegistryError, match="the answer was Reject"):
        main(yes._replace(approved=False))()
    assert Chain.open().records == []
    assert main(yes._replace(approved=False), "--reject")() == 0
    assert Chain.open().records[0].state == "rejected"
