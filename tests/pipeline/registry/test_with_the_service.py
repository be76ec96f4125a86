"""The joint with the real placement service: what the registry pushes is taken, what it records is what is live."""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline import promote, push
from pipeline.errors import PushError, RegistryError
from pipeline.registry import bundles, outcomes, places, restore, signing
from pipeline.registry import command as registry
from pipeline.registry.chain import Chain
from pipeline.registry.service import live_policy, push_token
from pipeline.registry.verify import verify
from sched_env import problems
from wire import environment

sample_bundle = pytest.importorskip("wire.sample_bundle")

pytestmark = pytest.mark.usefixtures("dvc_in_process")


@pytest.fixture
def judged(nights: Path, judge_again: Callable[..., None]) -> Callable[..., None]:
    """Puts a real policy, and the gate's word on it, into a run, and records it."""

    def judge(name: str, *, seed: int, champion: str | None) -> None:
        bundle = nights / name / "data" / "bundles" / "functions"
        shutil.rmtree(bundle)
        bundle.mkdir()
        for file, content in sample_bundle.build(problems.spec("functions"), seed=seed, hidden=8).items():
            (bundle / file).write_bytes(content)
        judge_again(name, digest=bundles.read_manifest(bundle).digest, champion_digest=champion)

    return judge


def roll_back(url: str, counter: int) -> None:
    headers = {"Authorization": f"Bearer {push_token()}", "X-Loadmaster-Counter": str(counter)}
    request = urllib.request.Request(f"{url}/v1/policies/functions/rollback", headers=headers, method="POST", data=b"")
    urllib.request.urlopen(request, timeout=60).close()


def test_promote_push_verify_roll_back_and_restore_with_the_real_service(judged, real_service) -> None:
    with real_service() as url:
        records = []
        for seed, name in enumerate(("one", "two"), start=1):
            champion = records[-1].digest if records else None
            judged(name, seed=seed, champion=champion)
            promote.promote("functions", run_id=name, approver="ada", reason="")
            push.push("functions", url)
            records.append(outcomes.confirm("functions", url))
        answer = live_policy(url, "functions")
        assert answer is not None
        assert (answer.digest, answer.counter) == (records[1].digest, 2)
        assert records[1].loaded_at == answer.loaded_at
        assert verify()[1] == [], "store and records agree"

        roll_back(url, 3)
        with pytest.raises(PushError, match="the records say"):
            outcomes.confirm("functions", url)
        assert any("live.json" in finding.file for finding in verify()[1])
        flip = outcomes.reconcile("functions", url)
        assert flip is not None
        assert (flip.state, flip.digest) == ("rolled_back", records[0].digest)
        assert verify()[1] == []

    store = places.store()
    before = {path.name: path.read_bytes() for path in (store / "functions").iterdir() if path.is_file()}
    shutil.rmtree(store)
    restore.restore()
    assert {path.name: path.read_bytes() for path in (store / "functions").iterdir() if path.is_file()} == before
    with real_service() as url:
        answer = live_policy(url, "functions")
        assert answer is not None
        assert (answer.digest, answer.counter) == (records[0].digest, 3)


def switch_off(url: str) -> None:
    headers = {"Authorization": f"Bearer {push_token()}"}
    request = urllib.request.Request(f"{url}/v1/policies/functions", headers=headers, method="DELETE")
    urllib.request.urlopen(request, timeout=60).close()


def test_switching_off_is_recorded_restored_and_left_again_forward_and_back(judged, real_service) -> None:
    with real_service() as url:
        judged("one", seed=1, champion=None)
        first = promote.promote("functions", run_id="one", approver="ada", reason="").digest
        push.push("functions", url)
        outcomes.confirm("functions", url)
        switch_off(url)
        with pytest.raises(RegistryError, match="no policy is live"):
            outcomes.roll_back("functions", url, approver="eve", reason="not recorded yet")
        off = outcomes.reconcile("functions", url)
        assert off is not None
        assert (off.state, off.digest, off.counter, off.approver) == ("switched_off", first, 2, None)
        assert "worst_fit answers" in off.reason
        assert outcomes.reconcile("functions", url) is None, "it is recorded once"
        assert Chain.open().live("functions") is None
        assert Chain.open().live_since("functions") is None
        assert verify()[1] == []
    store = places.store()
    before = {path.name: path.read_bytes() for path in (store / "functions").iterdir() if path.is_file()}
    shutil.rmtree(store)
    restore.restore()
    assert {path.name: path.read_bytes() for path in (store / "functions").iterdir() if path.is_file()} == before
    with real_service() as url:
        assert live_policy(url, "functions") is None
        back = outcomes.roll_back("functions", url, approver="eve", reason="it was the network")
        assert (back.state, back.digest, back.counter, back.previous_digest) == ("live", first, 3, None)
        switch_off(url)
        outcomes.reconcile("functions", url)
        judged("two", seed=2, champion=None)
        second = promote.promote("functions", run_id="two", approver="ada", reason="").digest
        push.push("functions", url)
        assert (outcomes.confirm("functions", url).digest, live_policy(url, "functions").digest) == (second, second)
        assert verify()[1] == []


@pytest.fixture
def two_lives(judged, real_service) -> Iterator[tuple[str, list[str]]]:
    """The real service after two promotions; its address, and both digests."""
    with real_service() as url:
        digests: list[str] = []
        for seed, name in enumerate(("one", "two"), start=1):
            judged(name, seed=seed, champion=digests[-1] if digests else None)
            digests.append(promote.promote("functions", run_id=name, approver="ada", reason="").digest)
            push.push("functions", url)
            outcomes.confirm("functions", url)
        yield url, digests


def test_one_command_goes_back_records_who_and_why_and_never_flips_twice(two_lives, monkeypatch, capsys) -> None:
    url, (first, second) = two_lives

    def command(*more: str) -> str:
        arguments = ["rollback", "--problem", "functions", "--url", url, "--approver", "eve", "--reason", "SLA", *more]
        monkeypatch.setattr(sys, "argv", ["registry", *arguments])
        assert registry.main() == 0
        return capsys.readouterr().out

    assert f"functions: rolled_back by eve {first} (record 4, counter 3)" in command()
    assert live_policy(url, "functions").digest == first
    record = Chain.open().records[-1]
    assert (record.state, record.approver, record.reason) == ("rolled_back", "eve", "SLA")
    assert (record.digest, record.previous_digest) == (first, second)
    assert record.loaded_at == live_policy(url, "functions").loaded_at
    assert verify()[1] == [], "chained, signed, tagged, and the store agrees"

    with pytest.raises(RegistryError, match=f"rolled back already.*--to {second}"):
        command()
    assert "(record 4, counter 3)" in command("--to", first[:20]), "already so"
    assert live_policy(url, "functions").counter == 3
    assert f"rolled_back by eve {second} (record 5, counter 4)" in command("--to", second)
    assert live_policy(url, "functions").digest == second
    with pytest.raises(RegistryError, match="0 policies that were live begin with"):
        command("--to", "sha256:00000000")
    assert verify()[1] == []


def test_a_policy_that_was_set_aside_and_given_back_can_still_be_gone_back_from(two_lives) -> None:
    url, (first, second) = two_lives
    switch_off(url)
    roll_back(url, 4)
    assert live_policy(url, "functions").digest == second
    record = outcomes.roll_back("functions", url, approver="eve", reason="it was not the network")
    assert (record.state, record.digest) == ("live", first)
    assert live_policy(url, "functions").digest == first
    given_back, asked = [one for one in Chain.open().of("functions") if one.sequence > 3 and one != record]
    assert (given_back.digest, given_back.approver, given_back.counter) == (second, None, 4)
    assert (asked.state, asked.digest, asked.approver) == ("approved", first, "eve"), "pushed again, by a person"
    assert verify()[1] == []


def test_a_rollback_killed_before_its_record_is_finished_by_the_same_command(two_lives, monkeypatch) -> None:
    url, (first, _) = two_lives

    class Killed(BaseException):
        pass

    def die(*arguments: object, **more: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(outcomes, "append", die)
        with pytest.raises(Killed):
            outcomes.roll_back("functions", url, approver="eve", reason="SLA")
    assert live_policy(url, "functions").digest == first
    assert any("live.json" in finding.file for finding in verify()[1]), "told until it is recorded"
    record = outcomes.roll_back("functions", url, approver="eve", reason="SLA")
    assert (record.state, record.digest, record.counter) == ("rolled_back", first, 3)
    assert live_policy(url, "functions").counter == 3, "no second flip"
    assert verify()[1] == []


def test_a_rollback_needs_a_person_and_something_to_go_back_to(judged, real_service) -> None:
    with real_service() as url:
        with pytest.raises(RegistryError, match="nobody approved"):
            outcomes.roll_back("functions", url, approver=" ", reason="")
        with pytest.raises(RegistryError, match="no policy is live"):
            outcomes.roll_back("functions", url, approver="eve", reason="")
        judged("one", seed=1, champion=None)
        promote.promote("functions", run_id="one", approver="ada", reason="")
        with pytest.raises(RegistryError, match="is under way"):
            outcomes.roll_back("functions", url, approver="eve", reason="")
        push.push("functions", url)
        outcomes.confirm("functions", url)
        with pytest.raises(RegistryError, match="ran no policy"):
            outcomes.roll_back("functions", url, approver="eve", reason="")
    assert [record.state for record in Chain.open().records] == ["approved", "live"]


def test_the_first_policy_is_set_aside_as_the_approval_body_says(judged, real_service, tmp_path, monkeypatch) -> None:
    judged("one", seed=1, champion=None)
    promote.promote("functions", run_id="one", approver="ada", reason="")
    body = {"problem": "functions", "candidates": [{"name": "a", "state": {"cpu_capacity": 16, "mem_capacity": 32}}],
            "requests": [{"id": "r", "fields": {"cpu": 2, "mem": 4}}]}  # fmt: skip

    def fallback(url: str) -> bool:
        with urllib.request.urlopen(f"{url}/v1/place", json.dumps(body).encode(), timeout=60) as response:
            (placement,) = json.load(response)["placements"]
        return bool(placement["fallback"])

    monkeypatch.setenv("LOADMASTER_DEADLINE_MS", "10000")
    with real_service() as url:
        push.push("functions", url)
        outcomes.confirm("functions", url)
        assert not fallback(url)
    with monkeypatch.context() as patch:
        patch.setenv(environment.variable("store_dir"), str(tmp_path / "empty"))
        with real_service() as url:
            assert fallback(url)
    with real_service() as url:
        assert not fallback(url)
    assert verify()[1] == []


def test_a_refusal_by_the_real_service_changes_nothing_and_is_recorded(
    judged, real_service, tmp_path, monkeypatch
) -> None:
    judged("one", seed=1, champion=None)
    promote.promote("functions", run_id="one", approver="ada", reason="")
    # The service has heard of a stolen key before this machine has.
    revoked = tmp_path / "revoked.json"
    revoked.write_text(json.dumps({"revoked": {signing.current_key_id(): {"reason": "stolen"}}}))
    monkeypatch.setenv("LOADMASTER_REVOKED_KEYS_FILE", str(revoked))
    with real_service() as url:
        with pytest.raises(PushError, match=r"422: .*stolen"):
            push.push("functions", url)
        assert live_policy(url, "functions") is None
    assert [record.state for record in Chain.open().records] == ["approved", "failed"]
    assert "stolen" in Chain.open().records[-1].reason


def test_what_is_live_is_one_contract_for_the_service_and_for_the_registry() -> None:
    from pipeline.registry import service
    from placement.api import policies as api
    from wire.contracts import policies as contract

    assert service.Policies is api.Policies is contract.Policies
    assert service.LivePolicy is api.LivePolicy is contract.LivePolicy
    assert service.COUNTER_HEADER is api.COUNTER_HEADER is contract.COUNTER_HEADER
