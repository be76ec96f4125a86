"""From approved to live by shares of the calls, with the real service: each step is a record, and none is skipped."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import promote, push, rollout
from pipeline.errors import PushError
from pipeline.registry import bundles, outcomes
from pipeline.registry.chain import Chain
from pipeline.registry.service import policy_state
from pipeline.registry.verify import verify
from sched_env import problems
from wire import environment

sample_bundle = pytest.importorskip("wire.sample_bundle")
pytestmark = pytest.mark.usefixtures("dvc_in_process")


@pytest.fixture
def second(nights: Path, judge_again: Callable[..., None], real_service):
    """A service that runs a first policy, and a second one that a person has approved; returns the address."""

    def judged(name: str, seed: int, champion: str | None) -> str:
        bundle = nights / name / "data" / "bundles" / "functions"
        shutil.rmtree(bundle)
        bundle.mkdir()
        for file, content in sample_bundle.build(problems.spec("functions"), seed=seed, hidden=8).items():
            (bundle / file).write_bytes(content)
        digest = bundles.read_manifest(bundle).digest
        judge_again(name, digest=digest, champion_digest=champion)
        return digest

    with real_service() as url:
        first = judged("one", 1, None)
        promote.promote("functions", run_id="one", approver="ada", reason="")
        push.push("functions", url)
        outcomes.confirm("functions", url)
        judged("two", 2, first)
        promote.promote("functions", run_id="two", approver="ada", reason="")
        yield url


def ask(url: str, count: int, prefix: str) -> None:
    """Let the service place some requests, each with an id of its own: the id decides which arm answers."""
    for number in range(count):
        body = {
            "problem": "functions",
            "candidates": [{"name": name, "state": {"cpu_capacity": 8.0}} for name in "ab"],
            "requests": [{"id": f"{prefix}-{number}", "fields": {"cpu": 1.0, "mem": 1.0}}],
        }
        request = urllib.request.Request(f"{url}/v1/place", json.dumps(body).encode(), method="POST")
        urllib.request.urlopen(request, timeout=30).close()


def steps() -> list[str]:
    return [record.reason.split(" of")[0] for record in Chain.open().records if record.state == "canary"]


def test_the_shares_rise_one_by_one_and_verify_writes_live_at_all_of_them(second) -> None:
    seen = []
    for _ in range(4):
        done = rollout.step("functions", second, dwell_s=0, needed=0)
        said = policy_state(second, "functions")
        seen.append((done.live, said.canary.share if said.canary else 1.0))
    assert seen == [(False, 0.01), (False, 0.05), (False, 0.25), (True, 1.0)]
    assert steps() == ["1%", "5%", "25%"]
    record = outcomes.confirm("functions", second)
    assert (record.state, record.run_id) == ("live", "two")
    assert rollout.step("functions", second, dwell_s=0, needed=0).live, "asked again, nothing more happens"
    assert [one.state for one in Chain.open().records[-5:]] == ["approved", "canary", "canary", "canary", "live"]
    assert verify()[1] == []


def test_a_step_lasts_its_dwell_time(second) -> None:
    rollout.step("functions", second, dwell_s=3600, needed=0)
    said = rollout.step("functions", second, dwell_s=3600, needed=0)
    assert "of 3600 s" in said.said
    assert steps() == ["1%"]


def test_without_enough_calls_or_a_bound_that_shows_it_nothing_moves(second) -> None:
    rollout.step("functions", second, dwell_s=0, needed=5)
    log = environment.place("log_dir") / rollout.LOG
    ask(second, 3, "few")
    for _ in range(100):
        if log.exists():
            break
        time.sleep(0.1)  # the service writes what it answered a moment later
    said = rollout.step("functions", second, dwell_s=0, needed=5)
    assert "that each arm needs" in said.said
    assert steps() == ["1%"]


def test_the_bound_decides_on_what_the_log_says_of_both_arms(second, tmp_path) -> None:
    rollout.step("functions", second, dwell_s=0, needed=0)
    said = policy_state(second, "functions")

    def line(digest: str, fallback: str | None) -> str:
        return json.dumps({
            "at": "2999-01-01T00:00:00.000Z", "problem": "functions", "digest": digest, "counter": 1, "request": "r",
            "features": "f", "candidates": 2, "feasible": 2, "chosen": "a", "runner_up": None, "top": [],
            "propensity": 1.0, "fallback": fallback, "reason": "", "arm": "live", "latency_us": 10.0,
        })  # fmt: skip

    log = tmp_path / "decisions.jsonl"
    good = [line(said.canary.digest, None), line(said.digest, None)]
    log.write_text("\n".join(good * 50) + "\n" + '{"half": ')
    waits = rollout.step("functions", second, dwell_s=0, needed=20, log=log)
    assert "not shown yet" in waits.said, "fifty calls without a fault prove little"
    log.write_text("\n".join(good * 3000) + "\n")
    assert rollout.step("functions", second, dwell_s=0, needed=20, log=log).said.startswith("functions: 5%")
    bad = [line(said.canary.digest, "deadline"), line(said.digest, None)]
    log.write_text("\n".join(bad * 1000) + "\n")
    assert "not shown yet" in rollout.step("functions", second, dwell_s=0, needed=20, log=log).said
    assert steps() == ["1%", "5%"]


def test_one_that_is_not_through_in_time_is_ended_and_recorded_as_failed(second) -> None:
    rollout.step("functions", second, dwell_s=0, needed=0)
    with pytest.raises(PushError, match="not shown to be good enough"):
        rollout.step("functions", second, dwell_s=0, needed=0, most_s=-1.0)
    said = policy_state(second, "functions")
    assert said.canary is None
    assert Chain.open().records[-1].state == "failed"
    assert said.digest == Chain.open().live("functions").digest
    assert verify()[1] == []


def test_a_step_that_was_cut_goes_on_where_it_was(second) -> None:
    from pipeline.registry.service import end_canary

    for _ in range(2):
        rollout.step("functions", second, dwell_s=0, needed=0)
    end_canary(second, "functions")  # killed between the end of one share and the beginning of the next
    assert rollout.step("functions", second, dwell_s=0, needed=0).said.startswith("functions: 5%")


def test_the_first_policy_of_all_is_pushed_at_once(nights, judge_again, real_service) -> None:
    bundle = nights / "one" / "data" / "bundles" / "functions"
    shutil.rmtree(bundle)
    bundle.mkdir()
    for file, content in sample_bundle.build(problems.spec("functions"), seed=1, hidden=8).items():
        (bundle / file).write_bytes(content)
    judge_again("one", digest=bundles.read_manifest(bundle).digest, champion_digest=None)
    promote.promote("functions", run_id="one", approver="ada", reason="")
    with real_service() as url:
        assert rollout.step("functions", url, dwell_s=3600, needed=1000).live
        assert outcomes.confirm("functions", url).state == "live"
