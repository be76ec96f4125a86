"""From a judged run to a live record, and every way it may end otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import promote, push
from pipeline.champions import Standing
from pipeline.errors import PushError, RegistryError
from pipeline.registry import bundles, outcomes, runs
from pipeline.registry import command as registry
from pipeline.registry.chain import Chain
from wire.contracts.record import record_sha256

RUN = "manual__2026-11-16T05:50:18.123456+00:00"

pytestmark = pytest.mark.usefixtures("dvc_in_process")


def test_a_promotion_goes_live_and_everything_names_the_same_digest(home, night, service, live) -> None:
    clone = night(RUN, seed=1)
    record = live(clone, RUN, service)
    manifest = bundles.read_manifest(registry.live_bundle("functions", home))
    assert record.state == "live"
    assert record.digest == manifest.digest == service.policies["functions"]["digest"]
    assert (manifest.lineage.run_id, manifest.lineage.git_commit) == (RUN, record.git_commit)
    assert manifest.gate.outcome == "pass"
    assert registry.standing("functions") == Standing(record.digest, str(record.loaded_at))
    chain = Chain.open()
    assert [(one.state, one.approver) for one in chain.records] == [("approved", "ada"), ("live", None)]
    assert chain.records[1].previous_record_sha256 == record_sha256(chain.records[0])
    committed = chain.mirror.files(record.git_commit)
    assert committed["params.yaml"] == (clone / "params.yaml").read_bytes()
    assert {"dvc.lock", "reports/gate/functions/report.json", "stages.py"} <= committed.keys()
    assert service.pushes[0]["If-None-Match"] == "*"

    # Every step again: nothing new is written.
    assert live(clone, RUN, service) == record
    assert len(Chain.open().records) == 2


def test_refusals_leave_no_trace(nights, judge_again, service) -> None:
    digest = bundles.read_manifest(nights / "one" / "data" / "bundles" / "functions").digest
    with pytest.raises(RegistryError, match="nobody approved"):
        promote.promote("functions", run_id="one", approver=" ", reason="")
    for change, message in (
        ({"outcome": "inconclusive"}, "the gate said inconclusive"),
        ({"outcome": "pass", "digest": "sha256:0"}, "run the gate again"),
        ({"digest": digest, "champion_digest": "sha256:1"}, "but nothing is live"),
    ):
        judge_again("one", **change)
        with pytest.raises(RegistryError, match=message):
            promote.promote("functions", run_id="one", approver="ada", reason="")
    with pytest.raises(RegistryError, match="no promotion of functions is waiting"):
        push.push("functions", service.url)
    assert Chain.open().records == []
    assert registry.live_bundle("functions") is None


@pytest.mark.parametrize("name", ["gate/functions/report.json", "bundles/functions/policy.onnx"])
def test_what_was_edited_after_it_was_recorded_is_not_promoted(nights, name) -> None:
    path = nights / "one" / "data" / name
    content = path.read_bytes()
    path.unlink()  # a hard link into the cache, as a workspace has
    path.write_bytes(content.replace(b"better by 2 %", b"better by 9 %") if name.endswith("json") else content)
    if name.endswith("onnx"):
        # A whole bundle of another run, and a report that agrees: only the lock knows.
        for entry in (nights / "two" / "data" / "bundles" / "functions").iterdir():
            target = path.parent / entry.name
            target.unlink()
            target.write_bytes(entry.read_bytes())
        report = nights / "one" / "data" / "gate" / "functions" / "report.json"
        other = (nights / "two" / "data" / "gate" / "functions" / "report.json").read_bytes()
        report.unlink()
        report.write_bytes(other)
    with pytest.raises(RegistryError, match=r"was changed after run 'one' was recorded"):
        promote.promote("functions", run_id="one", approver="ada", reason="")
    with pytest.raises(RegistryError, match=r"was changed after run 'one' was recorded"):
        promote.reject("functions", run_id="one", approver="ada", reason="")
    assert Chain.open().records == []


def test_a_rejection_is_kept_once_and_changes_nothing(nights, service) -> None:
    first = promote.reject("functions", run_id="one", approver=None, reason="")
    again = promote.reject("functions", run_id="one", approver=None, reason="")
    assert first == again
    assert (first.state, first.approver, first.reason) == ("rejected", None, "nobody answered in time")
    assert service.pushes == []
    # Nobody said no: asked again, somebody may still say yes.
    assert promote.promote("functions", run_id="one", approver="ada", reason="").counter == 1


def test_a_second_promotion_waits_for_the_first(nights) -> None:
    promote.promote("functions", run_id="one", approver="ada", reason="")
    with pytest.raises(RegistryError, match=r"record 0, .* approved by ada .* is not live yet.*nothing of yours"):
        promote.promote("functions", run_id="two", approver="bob", reason="")
    assert len(Chain.open().records) == 1


def test_a_refused_push_is_recorded_as_failed_and_the_next_promotion_is_free(nights, service) -> None:
    promote.promote("functions", run_id="one", approver="ada", reason="")
    service.answer_with = (422, {"error": "golden vectors differ"})
    with pytest.raises(PushError, match="422: golden vectors differ"):
        push.push("functions", service.url)
    assert [record.state for record in Chain.open().records] == ["approved", "failed"]
    assert "golden vectors differ" in Chain.open().records[-1].reason
    service.answer_with = None
    assert promote.promote("functions", run_id="one", approver="ada", reason="again").counter == 2


def test_a_push_that_can_be_put_right_is_not_recorded_as_failed(nights, service) -> None:
    promote.promote("functions", run_id="one", approver="ada", reason="")
    for code in (401, 403, 500, 503):
        service.answer_with = (code, {"error": "no"})
        with pytest.raises(PushError, match=f"answered {code}"):
            push.push("functions", service.url)
    service.answer_with = None
    assert push.push("functions", service.url).state == "approved"
    assert outcomes.confirm("functions", service.url).state == "live"


def test_a_service_that_runs_something_else_makes_the_promotion_failed(nights, service) -> None:
    promote.promote("functions", run_id="one", approver="ada", reason="")
    with pytest.raises(PushError, match="reports no policy instead of counter 1"):
        outcomes.confirm("functions", service.url)
    assert [record.state for record in Chain.open().records] == ["approved", "failed"]
    with pytest.raises(PushError, match=r"http://127\.0\.0\.1:9/v1/policies does not answer"):
        outcomes.confirm("functions", "http://127.0.0.1:9")


def test_a_lost_local_bundle_is_fetched_again_for_the_push(nights, service) -> None:
    import shutil

    record = promote.promote("functions", run_id="one", approver="ada", reason="")
    shutil.rmtree(nights.parent / "bundles")
    push.push("functions", service.url)
    assert service.policies["functions"]["digest"] == record.digest


def test_a_flip_made_by_the_service_is_recorded_with_its_counter(history, service) -> None:
    records = Chain.open().records
    assert [record.state for record in records] == ["approved", "live", "approved", "live", "rejected", "rolled_back"]
    assert [record.counter for record in records] == [1, 1, 2, 2, 2, 3]
    assert (records[5].digest, records[5].previous_digest) == (records[0].digest, records[2].digest)
    service.policies["functions"] = {"digest": "sha256:strange", "counter": 9}
    with pytest.raises(RegistryError, match="which no record approved"):
        outcomes.reconcile("functions", service.url)


@pytest.mark.parametrize("run_id", [RUN, "a..b~c^d", "x.lock", ".hidden", "wöchentlich/1 2", "100%", "a+b:c"])
def test_branch_names_are_legal_and_reversible(run_id, tmp_path: Path) -> None:
    import subprocess

    branch = runs.branch_of(run_id)
    assert runs.run_id_of(branch) == run_id
    assert subprocess.run(["git", "check-ref-format", f"refs/heads/{branch}"], check=False).returncode == 0


def test_what_it_would_have_done_with_live_traffic_is_asked_about_and_cannot_change_after(night, home, nights) -> None:
    from pipeline import approval

    clone = night("three", seed=3)
    folder = clone / "data" / "shadow" / "functions"
    folder.mkdir(parents=True)
    (folder / "shadow.md").write_text("### In the shadow of what is live\n\nIt would have chosen otherwise.\n")
    (folder / "shadow.json").write_text("{}")
    without = approval.question("functions", "two")
    runs.record_run(clone, "three")
    asked = approval.question("functions", "three")
    assert "It would have chosen otherwise." in asked.body
    assert "not shadowed" in without.body
    (folder / "shadow.md").write_text("It would have done the same.\n")
    with pytest.raises(RegistryError, match=r"shadow\.md was changed after run"):
        approval.question("functions", "three")
