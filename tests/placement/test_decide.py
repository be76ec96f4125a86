"""The core of a decision: the shield, the shortlist, the arrays that are kept, and two versions of a feature spec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from placement import shortlist
from placement.arms import Arm
from placement.decide import Decider
from placement.decision_log import DecisionLog
from placement.errors import PolicyFailedError
from placement.metrics import Metrics
from placement.policy import BOUND_SIZES, Policy, open_policy
from placement.ranking import all_finite, best, observe
from placement.settings import Settings
from placement.state import State
from placement.watchdog import Watchdog
from sched_env import problems
from sched_env.problem import Earlier, by_name
from wire import bundle, sample_bundle
from wire.contracts.place import PlacementRequest
from wire.errors import BundleError

SPEC = problems.spec("functions")


class Alone:
    """One policy that always answers."""

    def __init__(self, policy: Policy | None) -> None:
        self.policy = policy

    def get(self, _: str) -> Alone:
        return self

    def arm(self, _: str) -> Arm:
        return Arm("live", self.policy, 1)


def sample(seed: int = 1) -> Policy:
    return open_policy(bundle.check(sample_bundle.build(SPEC, seed=seed, hidden=8), problems.spoken), "none")


def state(count: int, seed: int = 0) -> State:
    rng = np.random.default_rng(seed)
    columns = {name: np.full(count, default) for name, (_, default) in problems.get("functions").state_fields.items()}
    columns["cpu_capacity"] = rng.choice([4.0, 8.0, 16.0], count)
    columns["cpu_deployed"] = columns["cpu_capacity"] * rng.random(count)
    columns["mem_deployed"] = columns["mem_capacity"] * rng.random(count)
    columns["price"] = rng.uniform(0.1, 2.0, count)
    return State("functions", [f"n{index}" for index in range(count)], columns, {}, 0)


@pytest.fixture
def deciding(tmp_path: Path) -> Iterator[Any]:
    opened: list[tuple[Decider, DecisionLog]] = []

    def make(policy: Policy | None, **changes: Any) -> tuple[Decider, Metrics]:
        settings = Settings(log_dir=tmp_path, deadline_ms=5_000, **changes)
        metrics = Metrics()
        log = DecisionLog(settings, metrics)
        decider = Decider(Alone(policy), settings, metrics, log)  # type: ignore[arg-type]
        opened.append((decider, log))
        return decider, metrics

    yield make
    for decider, log in opened:
        decider.close()
        log.close()


REQUEST = PlacementRequest("pod", {"cpu": 0.5, "mem": 1.0})


def test_arrays_that_are_kept_give_what_fresh_ones_give() -> None:
    policy, watchdog = sample(), Watchdog(5.0)
    build = problems.get("functions").build
    for size in (3, 100, 3, 700, *range(1, BOUND_SIZES + 4), 100):
        for seed in (1, 2):
            seen = observe(state(size, seed), REQUEST, build)
            kept = policy.score_one(seen, watchdog).copy()
            fresh = policy.score(seen.candidates[None], seen.request[None], seen.mask[None], watchdog)[0]
            np.testing.assert_array_equal(kept, fresh)
    watchdog.close()


def test_a_policy_that_scores_what_cannot_be_is_overruled_and_counted(deciding: Any) -> None:
    class Liar:
        """Prefers what is not feasible."""

        digest, manifest, build = "sha256:liar", None, staticmethod(problems.get("functions").build)

        def score_one(self, seen: Any, _: Any) -> Any:
            return np.where(seen.mask, 0.0, 1e9).astype(np.float32)

    decider, metrics = deciding(Liar())
    here = state(50)
    mask = problems.get("functions").build(here.columns, REQUEST.fields).mask
    assert not mask.all()
    ranked = decider.decide(here, [REQUEST], 50).placements[0].ranked
    assert {one.name for one in ranked} == {name for name, fits in zip(here.names, mask, strict=True) if fits}
    assert metrics.of("functions").vetoes._value.get() == 1


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_leave_it_to_the_heuristic(deciding: Any, wrong: float) -> None:
    class Broken:
        digest, manifest, build = "sha256:broken", None, staticmethod(problems.get("functions").build)

        def score_one(self, seen: Any, _: Any) -> Any:
            scores = np.zeros(len(seen.mask), np.float32)
            scores[int(np.flatnonzero(seen.mask)[-1])] = wrong
            return scores

    decider, metrics = deciding(Broken())
    placed = decider.decide(state(50), [REQUEST], 3).placements[0]
    assert placed.fallback
    assert "worst_fit answered because" in placed.reason
    assert metrics.since_start()["fallbacks"] == {"functions": 1}


def test_without_a_policy_and_at_the_deadline_the_heuristic_answers(deciding: Any) -> None:
    class Slow:
        digest, manifest, build = "sha256:slow", None, staticmethod(problems.get("functions").build)

        def score_one(self, _: Any, __: Any) -> Any:
            raise PolicyFailedError("deadline", "no scores within 1 ms")

    for policy in (None, Slow()):
        placed = deciding(policy)[0].decide(state(20), [REQUEST], 3).placements[0]
        assert placed.fallback
        assert len(placed.ranked) == 3


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_one_number_of_many_that_is_not_finite_is_found_wherever_it_is(wrong: float) -> None:
    largest = float(np.finfo(np.float32).max)
    for size in (1, 7, 100, 1300):
        numbers = np.random.default_rng(size).choice([-largest, -1.0, 0.0, 2.0, largest], size).astype(np.float32)
        assert all_finite(numbers)
        for place in {0, size // 2, size - 1}:
            broken = numbers.copy()
            broken[place] = wrong
            assert not all_finite(broken)


def test_the_best_few_are_those_of_a_whole_stable_sort() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 5, 300, 3000):
        scores = rng.integers(0, 40, size).astype(np.float32)  # many are equal
        scores[rng.random(size) < 0.3] = -np.inf
        names = [str(index) for index in range(size)]
        for count in (1, 2, 5, size):
            order = np.argsort(-scores, kind="stable")[:count]
            assert [one.name for one in best(names, scores, count)] == [str(index) for index in order]


def test_a_shortlist_holds_the_best_of_each_cheap_score_and_a_sample_of_feasible_ones() -> None:
    here, settings = state(5000), Settings(shortlist_best=50, shortlist_sample=40)
    mask, cheap = shortlist.feasible("functions", here.columns, REQUEST.fields, "worst_fit")
    np.testing.assert_array_equal(mask, problems.get("functions").build(here.columns, REQUEST.fields).mask)
    rows = shortlist.choose(mask, cheap, "pod", settings)
    assert mask[rows].all()
    assert len(np.unique(rows)) == len(rows) <= 3 * 50 + 40
    for score in cheap:
        order = np.argsort(np.where(mask, -score, np.inf), kind="stable")
        assert set(order[:10]) <= set(rows)
    np.testing.assert_array_equal(rows, shortlist.choose(mask, cheap, "pod", settings))
    assert not np.array_equal(rows, shortlist.choose(mask, cheap, "another", settings))


@pytest.mark.parametrize("problem", problems.names())
def test_every_problem_can_be_shortlisted(problem: str) -> None:
    fields = problems.get(problem).state_fields
    columns = {name: np.full(30, 1.0 if default != default else default) for name, (_, default) in fields.items()}
    asked = {name: default for name, (_, default) in problems.get(problem).request_fields.items()}
    mask, cheap = shortlist.feasible(problem, columns, asked, problems.get(problem).fallback)
    assert len(mask) == 30
    assert all(len(score) == 30 for score in cheap)


def test_above_its_size_the_policy_sees_the_shortlist_and_the_answer_says_so(deciding: Any) -> None:
    policy, here = sample(), state(3000)
    full = deciding(policy)[0].decide(here, [REQUEST], 3)
    decider, metrics = deciding(policy, shortlist_above=1000, shortlist_best=200, shortlist_sample=100)
    short = decider.decide(here, [REQUEST], 3)
    assert metrics.of("functions").shortlisted._value.get() == 1
    assert short.placements[0].feasible == full.placements[0].feasible
    assert f"of {full.placements[0].feasible} feasible ones among 3000" in short.placements[0].reason
    np.testing.assert_array_equal(np.isfinite(short.scores), np.isfinite(full.scores))
    first = here.names.index(short.placements[0].ranked[0].name)
    assert short.scores[first] == short.scores.max()
    nowhere = decider.decide(here, [PlacementRequest("big", {"cpu": 99.0, "mem": 1.0})], 3)
    assert nowhere.placements[0].ranked == []
    assert "3000 too little cpu" in nowhere.placements[0].reason
    assert not np.isfinite(nowhere.scores).any()


def test_requests_of_one_call_are_scored_as_if_each_came_alone(deciding: Any) -> None:
    decider, _ = deciding(sample())
    here = state(40)
    many = [PlacementRequest(f"r{number}", {"cpu": 0.1 * number, "mem": 1.0}) for number in range(1, 9)]
    together = decider.decide(here, many, 5).placements
    for one, request in zip(together, many, strict=True):
        alone = decider.decide(here, [request], 5).placements[0]
        assert [entry.name for entry in one.ranked] == [entry.name for entry in alone.ranked]
        assert [entry.score for entry in one.ranked] == pytest.approx([entry.score for entry in alone.ranked], rel=1e-4)


@pytest.fixture
def second_version(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``functions`` as it will be when its spec has a version 2: one candidate feature and one of the request more."""
    now = problems.get("functions")
    before = msgspec.structs.replace(
        SPEC, version=1, candidate=SPEC.candidate[:3] + SPEC.candidate[4:], request=SPEC.request[1:]
    )
    later = msgspec.structs.replace(SPEC, version=2)
    changed = replace(now, spec=later, earlier=Earlier(before, by_name(now.build, later, before)))
    monkeypatch.setattr(problems, "_load", lambda module: changed if "functions" in module else now)
    return changed


def test_the_version_before_is_spoken_and_an_older_one_is_refused(second_version: Any, deciding: Any) -> None:
    here = state(30)
    for spec in (second_version.spec, second_version.earlier.spec):
        policy = open_policy(bundle.check(sample_bundle.build(spec, seed=1, hidden=8), problems.spoken), "none")
        seen = observe(here, REQUEST, policy.build)
        assert seen.candidates.shape[1] == len(spec.candidate)
        decision = deciding(policy)[0].decide(here, [REQUEST], 3)
        assert not decision.placements[0].fallback
    whole = second_version.build(here.columns, REQUEST.fields)
    np.testing.assert_array_equal(np.delete(whole.candidates, 3, axis=1), seen.candidates)
    np.testing.assert_array_equal(whole.request[1:], seen.request)
    older = msgspec.structs.replace(SPEC, version=0)
    with pytest.raises(BundleError, match=r"version 0; expected version 2 or 1"):
        bundle.check(sample_bundle.build(older, seed=1, hidden=8), problems.spoken)
    renamed = msgspec.structs.replace(second_version.earlier.spec, candidate=SPEC.candidate[:12])
    with pytest.raises(BundleError, match="candidate features of functions v1"):
        bundle.check(sample_bundle.build(renamed, seed=1, hidden=8), problems.spoken)
