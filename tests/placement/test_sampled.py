"""Decisions kept whole, rarely and exactly: another policy can be asked later what it would have done."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np

from placement import sampled
from placement.ranking import feature_hash
from placement.state import from_rows
from sched_env import problems
from wire.contracts.place import PlacementRequest
from wire.contracts.sample import FILE_NAME, SampledLine


def kept(settings: Any) -> list[SampledLine]:
    path = settings.log_dir / FILE_NAME
    return [msgspec.json.decode(line, type=SampledLine) for line in path.read_bytes().splitlines()]


def test_a_line_holds_all_that_the_decision_was_made_from(settings: Any, workshop: Any, kit: Any) -> None:
    with kit.running(settings) as client:
        kit.push(client, workshop.sample(1), counter=4)
        answered = kit.place(client, kit.body(6, requests=3)).json()
    (line,) = kept(settings)  # three decisions within the half minute: the first is kept
    log = [json.loads(row) for row in (settings.log_dir / "decisions.jsonl").read_text().splitlines()]
    columns = {name: np.array(values, float) for name, values in line.columns.items()}
    rebuilt = problems.get("functions").build(columns, line.request.fields)
    assert feature_hash(rebuilt) == log[0]["features"], "the very observation that the policy saw"
    assert (line.digest, line.fallback) == (kit.digest_of(workshop.sample(1)), None)
    assert line.chosen == answered["placements"][0]["ranked"][0]["name"]


def test_what_the_heuristic_decided_is_kept_too_and_says_so(settings: Any, kit: Any) -> None:
    with kit.running(settings) as client:
        kit.place(client)
    (line,) = kept(settings)
    assert (line.digest, line.fallback) == (None, "no_policy")


def test_none_is_kept_when_it_is_switched_off(settings: Any, kit: Any) -> None:
    with kit.running(msgspec.structs.replace(settings, sampled_every_s=0.0)) as client:
        kit.place(client)
    assert not (settings.log_dir / FILE_NAME).exists()


def _offer(taken: sampled.Sampled, at_s: float, problem: str = "functions", size: int = 3) -> None:
    fields = problems.get(problem).state_fields
    state = from_rows(problem, [f"n{k}" for k in range(size)], np.ones((size, len(fields))))
    taken.offer(at_s, state, PlacementRequest("r", {}), None, "n0", None)


def test_one_of_each_problem_every_half_minute_and_none_that_is_huge(settings: Any) -> None:
    taken = sampled.Sampled(settings)
    for at_s in np.arange(1000.0, 1090.0, 1.0):
        _offer(taken, at_s)
        _offer(taken, at_s, "vm")
        _offer(taken, at_s, "pods", sampled.MOST_CANDIDATES + 1)
    taken.write()
    taken.close()
    problems_kept = [line.problem for line in kept(settings)]
    assert (problems_kept.count("functions"), problems_kept.count("vm"), problems_kept.count("pods")) == (3, 3, 0)


def test_the_state_is_as_it_was_then_although_the_cluster_goes_on(settings: Any) -> None:
    taken = sampled.Sampled(settings)
    fields = problems.get("vm").state_fields
    state = from_rows("vm", ["a", "b"], np.ones((2, len(fields))))
    taken.offer(1000.0, state, PlacementRequest("r", {}), None, "a", None)
    for column in state.columns.values():
        np.copyto(column, 7.0)
    taken.write()
    taken.close()
    assert {value for values in kept(settings)[0].columns.values() for value in values} <= {1.0, None}


def test_a_disk_that_does_not_take_it_is_said_and_nobody_waits(settings: Any, caplog: Any) -> None:
    settings.log_dir.parent.mkdir(parents=True, exist_ok=True)
    settings.log_dir.write_text("a file where the folder should be")
    taken = sampled.Sampled(settings)
    _offer(taken, 1000.0)
    taken.write()
    assert "a sampled decision of functions is not kept" in caplog.text
