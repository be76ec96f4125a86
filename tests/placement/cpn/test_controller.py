"""The controller over played clusters, in virtual time: the simulator's own queue, and what upstream got wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from placement.cpn.events import PodSeen
from placement.cpn.records import Job
from placement.cpn.submission import read
from sched_env.jobs import synthetic
from sched_env.jobs.heuristics import NAMES
from sched_env.jobs.tables import JobTrace
from sched_env.jobs.workload import Workload
from sched_env.rollout import run_episodes
from tests.placement.cpn.conftest import known, queue_jobs
from tests.placement.cpn.played import Rehearsal

Rehearse = Callable[..., Rehearsal]
Submit = Callable[..., Job]
COUNTS = {"RTX4090": 2, "A100": 1, "P100": 6}


def queue(rows: int, *, data_gb: float, load: float = 0.0, seed: int = 0) -> Workload:
    where = synthetic.topology(COUNTS)
    trace = synthetic.queue(rows, where, load=load, data_gb=data_gb, seed=seed)
    columns = {name: getattr(trace, name) for name in JobTrace.__dataclass_fields__}
    columns["origin"] = 0 * trace.origin  # data lie in the store outside
    # Models by name, as the controller has them: models that have had the same service take turns in that order.
    names = sorted(trace.model_names)
    columns["model"] = np.array([names.index(name) for name in trace.model_names], np.int32)[trace.model]
    columns["model_names"] = tuple(names)
    return Workload(JobTrace(**columns), where, synthetic.runtime(where.card_types))


def enter(rehearsal: Rehearsal, workload: Workload) -> None:
    about = known(rehearsal.controller.network)
    for body in queue_jobs(workload.jobs):
        job, kept = read(body, about, now=rehearsal.world.now, tenant=None, key=None)
        assert rehearsal.submit(job, kept) is not None


def figures(rehearsal: Rehearsal) -> dict[str, float]:
    jobs, attempts, _ = rehearsal.store.everything()
    began = min(job.submitted_at for job in jobs)
    return {
        "makespan_s": max(job.ended_at or 0.0 for job in jobs) - began,
        "mean_completion_s": sum((job.ended_at or 0.0) - job.submitted_at for job in jobs) / len(jobs),
        "mean_wait_s": sum(one.decided_at - began for one in attempts) / len(jobs),
    }


@pytest.mark.soak  # whole queues, and the simulator's own run beside them
@pytest.mark.parametrize("strategy", [name for name in NAMES if name != "gavel_lp"])
def test_a_queue_takes_as_long_as_the_simulator_says(rehearse: Rehearse, strategy: str) -> None:
    rehearsal = rehearse(COUNTS, strategy=strategy)
    # The network in the controller's own order of cards: who deals, cycles or breaks ties goes by their numbers.
    workload = queue(40, data_gb=8.0)._replace(topology=rehearsal.controller.network.table)
    predicted = run_episodes("jobs/testbed", strategy, [0], trace=workload, episode_jobs=40)[0]
    enter(rehearsal, workload)
    rehearsal.run()
    assert set(rehearsal.ended().values()) == {"finished"}
    found = figures(rehearsal)
    for name, value in found.items():
        assert value == pytest.approx(predicted[name], rel=1e-3), name
    assert all(count == 1 for count in rehearsal.world.created.values())


@pytest.mark.parametrize("small", [True, False])
def test_who_cannot_go_to_the_card_that_another_left_stays_booked_on_its_own(
    rehearse: Rehearse, submit: Submit, small: bool
) -> None:
    """The cluster's own scheduler gave a job the A100 that a second one, sent at the same time, was meant for."""
    rehearsal = rehearse({"A100": 1, "P100": 6}, strategy="kube_default", startup_s=5.0)
    meant = submit(rehearsal, "meant", "cnn-small" if small else "llm-9b")
    for number in range(6):
        submit(rehearsal, f"job-{number}")
    rehearsal.tick()
    books, network = rehearsal.controller.books, rehearsal.controller.network
    a100 = next(card for card in network.cards.values() if card.type == "A100")
    on_it = next(one for one in books.attempts.values() if one.card == a100.name)
    if not small:
        assert on_it.job == meant.id
    taker = next(one for one in books.attempts.values() if one.cluster == a100.cluster and one is not on_it)
    left = taker.card
    seen = PodSeen(a100.cluster, taker.job, 1, a100.node, False, None, "", None, 0.0)
    rehearsal.controller._course.hear(seen, rehearsal.world.now)
    assert taker.card == a100.name
    assert on_it.card == (left if small else a100.name)
    assert (left in {one.card for one in books.attempts.values()}) == small


def test_a_job_that_was_sent_is_expected_to_run_after_the_start_up_as_when_it_was_placed(
    rehearse: Rehearse, submit: Submit
) -> None:
    """Rounds go on while it starts; to take it for running lets others be put where a reservation forbids it."""
    rehearsal = rehearse({"A100": 1}, startup_s=40.0)
    submit(rehearsal, "measured")
    rehearsal.run()
    jobs = [submit(rehearsal, f"job-{number}") for number in range(4)]
    rehearsal.tick()
    attempts = rehearsal.controller.books.attempts
    assert set(attempts) == {job.id for job in jobs[:3]}  # and one waits, so that there was a round when they were sent
    last = attempts[jobs[2].id]
    assert last.submitted_at is not None
    assert last.started_at is None
    assert rehearsal.controller.round.decisions == []
    assert rehearsal.controller.round.ends[last.job] == pytest.approx(last.predicted_end)


def test_random_feasible_draws_as_in_the_simulator(rehearse: Rehearse, submit: Submit) -> None:
    rehearsal = rehearse(COUNTS, strategy="random_feasible")
    job = submit(rehearsal, "one")
    rehearsal.tick()
    cards = rehearsal.controller.network.table.cards
    drawn = int(np.random.default_rng([0, 0]).integers(len(cards)))
    assert drawn > 0  # the first one is no proof
    assert rehearsal.controller.books.attempts[job.id].card == cards[drawn]


def test_a_job_goes_through_its_states_in_order(rehearse: Rehearse, submit: Submit) -> None:
    rehearsal = rehearse(startup_s=5.0)
    job = submit(rehearsal, "one", gb=10)
    rehearsal.run()
    moves = rehearsal.store.moves(job.id)
    assert [move["target"] for move in moves] == [
        "waiting", "scheduled", "transferring", "submitted", "running", "finished"
    ]  # fmt: skip
    transfer = 10 * 1024 / 100
    assert moves[3]["at"] - moves[1]["at"] == pytest.approx(transfer)
    assert moves[4]["at"] - moves[3]["at"] == pytest.approx(5.0)
    only = rehearsal.store.attempts([job.id])[0]
    assert only.log == f"log of {only.kube_name}"
    assert not rehearsal.world.jobs


def test_failed_attempts_are_tried_elsewhere_and_then_reported(rehearse: Rehearse, submit: Submit) -> None:
    rehearsal = rehearse(max_attempts=3)
    rehearsal.world.failing = {("twice", 1): (0.5, "oom"), ("twice", 2): (0.2, "node_lost")}
    rehearsal.world.failing |= {("never", number): (0.1, "user_error") for number in range(1, 9)}
    twice, never = submit(rehearsal, "twice"), submit(rehearsal, "never")
    rehearsal.run()
    assert rehearsal.ended() == {"twice": "finished", "never": "failed"}
    tries = rehearsal.store.attempts([twice.id])
    assert [one.outcome for one in tries] == ["oom", "node_lost", "finished"]
    assert len({one.node for one in tries}) == 3
    assert tries[1].decided_at >= (tries[0].ended_at or 0.0) + 10.0
    assert tries[2].decided_at >= (tries[1].ended_at or 0.0) + 20.0
    found = rehearsal.store.job(never.id)
    assert found is not None
    assert found.failures == 3
    assert "as played" in found.reason


def test_the_users_backoff_limit_bounds_the_attempts(rehearse: Rehearse) -> None:
    from tests.placement.cpn.conftest import manifest

    rehearsal = rehearse()
    rehearsal.world.failing = {("once", number): (0.1, "user_error") for number in range(1, 9)}
    body = manifest("once")
    body["spec"]["backoffLimit"] = 0
    job, kept = read(body, known(rehearsal.controller.network), now=rehearsal.world.now, tenant=None, key=None)
    rehearsal.submit(job, kept)
    rehearsal.run()
    assert rehearsal.ended() == {"once": "failed"}
    assert sum(rehearsal.world.created.values()) == 1


@pytest.mark.parametrize("when", ["waiting", "transferring", "running"])
def test_a_withdrawn_job_ends_wherever_it_is(rehearse: Rehearse, submit: Submit, when: str) -> None:
    rehearsal = rehearse({"P100": 1}, strategy="fifo_exclusive")
    first = submit(rehearsal, "first", gb=10 if when == "transferring" else 0)
    second = submit(rehearsal, "second")
    rehearsal.run(until_s=rehearsal.world.now + 1.0)
    target = second if when == "waiting" else first
    found = rehearsal.store.job(target.id)
    assert found is not None
    assert found.state == when
    rehearsal.store.ask_to_cancel(target.id, rehearsal.world.now)
    rehearsal.run()
    other = "first" if when == "waiting" else "second"
    assert rehearsal.ended() == {target.name: "cancelled", other: "finished"}
    assert not rehearsal.world.jobs


def test_waiting_jobs_are_placed_as_soon_as_something_fits(rehearse: Rehearse, submit: Submit) -> None:
    """Upstream looked at its queue again only after a completion: an idle network with waiting jobs stood still."""
    rehearsal = rehearse({"P100": 1}, strategy="fifo")
    rehearsal.world.lost.add("cluster-0")
    submit(rehearsal, "one")
    rehearsal.run(until_s=rehearsal.world.now + 100.0)
    assert not rehearsal.world.created
    rehearsal.world.lost.clear()
    rehearsal.controller.links["cluster-0"].list()  # type: ignore[attr-defined]  # its watch lists anew
    rehearsal.run(until_s=rehearsal.world.now + 10.0)
    assert rehearsal.world.created


def test_a_cluster_that_is_lost_for_a_while_keeps_its_jobs_and_gets_no_new_ones(
    rehearse: Rehearse, submit: Submit
) -> None:
    rehearsal = rehearse({"P100": 6}, strategy="round_robin")
    for number in range(12):
        submit(rehearsal, f"job-{number}", epochs=5000)
    rehearsal.run(until_s=rehearsal.world.now + 20.0)
    rehearsal.world.lost.add("cluster-1")
    before = {name for name, job in rehearsal.world.jobs.items() if job.cluster == "cluster-1"}
    for number in range(12, 16):
        submit(rehearsal, f"job-{number}")
    rehearsal.run(until_s=rehearsal.world.now + 1000.0)
    assert {name for name, job in rehearsal.world.jobs.items() if job.cluster == "cluster-1"} == before
    rehearsal.world.lost.clear()
    rehearsal.controller.links["cluster-1"].list()  # type: ignore[attr-defined]  # its watch lists anew
    rehearsal.run()
    assert len(rehearsal.ended()) == 16
    assert set(rehearsal.ended().values()) == {"finished"}
    assert all(count == 1 for count in rehearsal.world.created.values())


def test_an_unseen_model_runs_alone_and_is_learned(rehearse: Rehearse, submit: Submit, monkeypatch: Any) -> None:
    rehearsal = rehearse({"P100": 1}, strategy="fifo")
    tables = rehearsal.controller.tables
    monkeypatch.setattr(tables._run_times, "must_run_alone", lambda model: model == "cnn-large")
    submit(rehearsal, "new", "cnn-large")
    submit(rehearsal, "other")
    rehearsal.run(until_s=rehearsal.world.now + 1.0)
    assert len(rehearsal.world.jobs) == 1
    rehearsal.run()
    alone = rehearsal.world.table.select(("P100",), ("cnn-large",)).seconds[0, 0, 0, 0]
    table, _ = tables.table(("P100",), ("cnn-large",))
    assert table.select(("P100",), ("cnn-large",)).seconds[0, 0, 0, 0] == pytest.approx(alone)


def test_priorities_go_first(rehearse: Rehearse, submit: Submit) -> None:
    rehearsal = rehearse({"P100": 1}, strategy="fifo_exclusive", priority_ageing_s=500.0)
    submit(rehearsal, "running", epochs=20_000)
    rehearsal.tick()
    submit(rehearsal, "plain")
    submit(rehearsal, "urgent", priority=5)
    submit(rehearsal, "old", priority=4)
    rehearsal.run()
    order = [one.job for one in sorted(rehearsal.store.everything()[1], key=lambda one: one.decided_at)]
    names = [rehearsal.store.job(job).name for job in order]  # type: ignore[union-attr]
    assert names[:2] == ["running", "urgent"]


def test_of_one_priority_a_job_whose_deadline_is_in_question_goes_first_and_a_hopeless_one_does_not(
    rehearse: Rehearse, submit: Submit
) -> None:
    rehearsal = rehearse({"P100": 1}, strategy="fifo_exclusive")
    run_s = 6000 * 0.012 / 0.7
    submit(rehearsal, "running", epochs=6000)
    rehearsal.tick()
    submit(rehearsal, "plain", epochs=6000)
    submit(rehearsal, "far", epochs=6000, deadline=100 * run_s)
    submit(rehearsal, "late", epochs=6000, deadline=run_s / 2)
    pressed = submit(rehearsal, "pressed", epochs=6000, deadline=2.5 * run_s)
    rehearsal.run()
    order = [one.job for one in sorted(rehearsal.store.everything()[1], key=lambda one: one.decided_at)]
    names = [rehearsal.store.job(job).name for job in order]  # type: ignore[union-attr]
    assert names == ["running", "pressed", "plain", "far", "late"]
    found = rehearsal.store.job(pressed.id)
    assert found is not None
    assert found.ended_at is not None
    assert found.ended_at <= found.submitted_at + 2.5 * run_s


@pytest.mark.parametrize(("weight", "shares"), [(0.0, False), (5.0, True)])
def test_load_balance_keeps_jobs_from_nodes_that_are_busier_than_the_mean(
    rehearse: Rehearse, submit: Submit, weight: float, shares: bool
) -> None:
    rehearsal = rehearse({"RTX4090": 2, "P100": 2}, strategy="min_completion_time", load_balance=weight)
    for number in range(4):
        submit(rehearsal, f"job-{number}", "cnn-small", epochs=5000)
    rehearsal.run()
    nodes = {one.node for one in rehearsal.world.ran}
    assert nodes == ({"node-0000", "node-0001"} if shares else {"node-0000"}), "the slower node's turn, or not"


def test_clusters_join_and_leave_while_jobs_run(rehearse: Rehearse, submit: Submit) -> None:
    rehearsal = rehearse({"P100": 6}, strategy="round_robin")
    whole = yaml.safe_load(Path(rehearsal.controller.settings.topology).read_text())
    fewer = {**whole, "datacenters": [one for one in whole["datacenters"] if one["name"] != "dc-1"]}

    def describe(network: dict[str, Any]) -> None:
        Path(rehearsal.controller.settings.topology).write_text(yaml.safe_dump(network))
        rehearsal.tick()

    describe(fewer)
    assert "cluster-1" not in rehearsal.controller.links
    for number in range(6):
        submit(rehearsal, f"early-{number}", epochs=20_000)
    rehearsal.run(until_s=rehearsal.world.now + 5.0)
    assert {job.cluster for job in rehearsal.world.jobs.values()} == {"cluster-0", "cluster-2"}
    describe(whole)
    for number in range(3):
        submit(rehearsal, f"joined-{number}", epochs=20_000)
    rehearsal.run(until_s=rehearsal.world.now + 5.0)
    there = {name for name, job in rehearsal.world.jobs.items() if job.cluster == "cluster-1"}
    assert there, "a cluster that joined gets jobs"
    describe(fewer)
    submit(rehearsal, "after", epochs=20_000)
    rehearsal.run(until_s=rehearsal.world.now + 5.0)
    assert {name for name, job in rehearsal.world.jobs.items() if job.cluster == "cluster-1"} == there
    assert "cluster-1" in rehearsal.controller.links, "one that left is followed until its jobs have ended"
    rehearsal.run()
    assert set(rehearsal.ended().values()) == {"finished"}
    assert len(rehearsal.ended()) == 10
    assert all(count == 1 for count in rehearsal.world.created.values())


def test_after_out_of_memory_a_job_is_booked_with_a_quarter_more(rehearse: Rehearse, submit: Submit) -> None:
    rehearsal = rehearse(strategy="fifo")
    rehearsal.world.failing = {("one", 1): (0.5, "oom")}
    job = submit(rehearsal, "one")
    rehearsal.run()
    after = rehearsal.store.job(job.id)
    assert after is not None
    assert after.gpu_mem_gib == pytest.approx(1.25 * job.gpu_mem_gib)


def test_a_tenant_has_no_more_running_than_its_quota(rehearse: Rehearse, submit: Submit) -> None:
    from placement.cpn.config import Quota

    rehearsal = rehearse(strategy="fifo", quotas={"small": Quota(running=2)})
    for number in range(6):
        submit(rehearsal, f"small-{number}", tenant="small")
        submit(rehearsal, f"large-{number}", tenant="large")
    rehearsal.tick()
    running = [rehearsal.controller.books.jobs[job].tenant for job in rehearsal.controller.books.attempts]
    assert running.count("small") == 2
    assert running.count("large") == 6
    rehearsal.run()
    assert len(rehearsal.ended()) == 12


def test_a_node_that_is_down_gets_nothing(rehearse: Rehearse, submit: Submit, monkeypatch: Any) -> None:
    rehearsal = rehearse({"P100": 2, "RTX4090": 2}, strategy="min_completion_time")
    for link in rehearsal.controller.links.values():
        monkeypatch.setattr(link, "node_up", lambda node: node != "node-0001")
    rehearsal.tick()
    for link in rehearsal.controller.links.values():
        monkeypatch.setattr(link, "node_up", lambda node: node != "node-0001")
    for number in range(8):
        submit(rehearsal, f"job-{number}")
    rehearsal.run()
    assert {one.node for one in rehearsal.world.ran} == {"node-0000"}


def test_data_are_brought_by_a_job_of_its_own_where_one_is_configured(rehearse: Rehearse, submit: Submit) -> None:
    rehearsal = rehearse(prefetch_image="registry/fetch:1")
    job, at_once = submit(rehearsal, "one", gb=10), submit(rehearsal, "none", gb=0)
    began = rehearsal.world.now
    rehearsal.run()
    assert rehearsal.ended() == {"one": "finished", "none": "finished"}
    only = rehearsal.store.attempts([job.id])[0]
    assert rehearsal.world.created == {only.kube_name: 1, f"{only.kube_name}-prefetch": 1, f"lm-{at_once.id}-1": 1}
    # The Job of the job is sent when the data are there, not when they were reckoned to be (10 GB at 100 MB/s).
    assert only.tried_at == only.arrives_at == pytest.approx(began + 10 * rehearsal.world.fetch_s_per_gb)
    assert [move["target"] for move in rehearsal.store.moves(job.id)][1:4] == ["scheduled", "transferring", "submitted"]


def test_data_that_cannot_be_brought_are_tried_elsewhere_and_a_withdrawn_transfer_is_stopped(
    rehearse: Rehearse, submit: Submit
) -> None:
    rehearsal = rehearse(prefetch_image="registry/fetch:1")
    job, withdrawn = submit(rehearsal, "one", gb=10), submit(rehearsal, "two", gb=10)
    rehearsal.world.failing_fetches = {f"lm-{job.id}-1-prefetch"}
    rehearsal.run(until_s=rehearsal.world.now + 1.0)
    rehearsal.store.ask_to_cancel(withdrawn.id, rehearsal.world.now)
    rehearsal.tick()
    assert list(rehearsal.world.fetches) == [f"lm-{job.id}-1-prefetch"]
    rehearsal.run()
    assert rehearsal.ended() == {"one": "finished", "two": "cancelled"}
    first, second = rehearsal.store.attempts([job.id])
    assert (first.outcome, second.outcome) == ("user_error", "finished")
    assert "could not be brought" in first.detail
    assert first.node != second.node


def test_a_controller_that_dies_while_data_are_brought_does_not_bring_them_twice(
    rehearse: Rehearse, submit: Submit
) -> None:
    rehearsal = rehearse(prefetch_image="registry/fetch:1")
    job = submit(rehearsal, "one", gb=10)
    rehearsal.run(until_s=rehearsal.world.now + 50.0)
    rehearsal.die()
    rehearsal.boot()
    rehearsal.run()
    assert rehearsal.ended() == {"one": "finished"}
    assert rehearsal.world.created[f"lm-{job.id}-1-prefetch"] == 1
    assert len(rehearsal.store.attempts([job.id])) == 1
