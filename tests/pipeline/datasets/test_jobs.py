"""Jobs from windows: queue, network and run times as recorded, and errors that say what a source must tell."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import windows
from pipeline.datasets.jobs import DATASET
from pipeline.errors import DataError
from sched_env import scenarios
from sched_env.jobs import synthetic
from sched_env.rollout import run_episodes

SIZE = {"gpus": 1.0, "gpu_mem_gib": 4.0, "data_gb": 2.0, "cpu_cores": 1.0, "mem_gib": 2.0}


@pytest.fixture
def gpus(folder: Path, write: Any, event: Any, at: Any) -> Path:
    """Two clusters of a node each; model m is known on both types of card, model k on the first."""

    def job(name: str, begin: float, end: float, model: str, node: str, **more: Any) -> list[dict[str, Any]]:
        return [
            event(name, begin, "create", model, "job", **{**SIZE, **more}),
            event(name, end, "delete", model, "job", node=node, runtime_s=end - begin - 10.0),
        ]

    rows = [
        *job("a", 0.0, 110.0, "m", "n1", epochs=100.0),
        *job("b", 20.0, 430.0, "m", "n2", epochs=200.0),
        *job("c", 40.0, 450.0, "k", "n1", epochs=100.0),
        *job("d", 60.0, 570.0, "k", "n1", epochs=None),
        *job("many", 70.0, 170.0, "m", "n1", epochs=1.0, gpus=8.0),
    ]
    write(folder, "events", rows)
    moments = [at(0), at(300)]
    cards = [("n1", "0", "fast", 16.0), ("n1", "1", "fast", 16.0), ("n2", "0", "slow", 8.0)]
    write(folder, "cards", [
        {"window_start": moment, "cluster": "c", "node": node, "card": card, "model": model,
         "gpu_mem_capacity_gib": mem, "gpu_used_mean_ratio": 0.5}
        for moment in moments for node, card, model, mem in cards
    ])  # fmt: skip
    node = {"cpu_capacity_cores": 8.0, "mem_capacity_gib": 32.0, "price_usd_per_hour": 3.0}
    use = {"cpu_used_mean_cores": 2.0, "mem_used_mean_gib": 4.0}
    write(folder, "nodes", [
        {"window_start": moment, "cluster": "c", "node": name, **node, **use}
        for moment in moments for name in ("n1", "n2")
    ])  # fmt: skip
    return folder


def test_queue_network_and_run_times_are_as_recorded(gpus: Path, at: Any) -> None:
    jobs, where, runtime, _ = DATASET.load(gpus, at(0), at(600))
    assert jobs.model_names == ("k", "m")
    assert jobs.arrival_s.tolist() == [0.0, 20.0, 40.0, 60.0]
    # The last says no epochs: 500 s at the 4 s that its model takes for one.
    assert jobs.epochs.tolist() == [100.0, 200.0, 100.0, 125.0]
    assert jobs.gpu_mem.tolist() == [4.0] * 4
    assert jobs.data_gb.tolist() == [2.0] * 4
    assert where.cards == ("c/n1/0", "c/n1/1", "c/n2/0")
    assert where.card_usd_per_hour.tolist() == [1.5, 1.5, 3.0]
    assert where.node_mem.tolist() == [28.0, 28.0]
    assert where.node_cpu_used.tolist() == [0.25, 0.25]
    alone = runtime.seconds[:, :, 0, 0]
    # m is twice as slow on the slow card, so k is too, which was never seen there.
    assert alone == pytest.approx(np.array([[4.0, 8.0], [1.0, 2.0]]))
    beside = 1.0 + synthetic.CONTENTION * 0.5
    assert runtime.seconds[1, 0, 1, 0] == pytest.approx(beside)
    assert runtime.seconds[1, 0, 1, 2] == pytest.approx(1.0 + synthetic.CONTENTION + 0.5)


def test_nothing_after_the_end_is_seen(gpus: Path, at: Any) -> None:
    jobs, _, runtime, _ = DATASET.load(gpus, at(0), at(300))
    assert runtime.seconds[1, 0, 0, 0] == pytest.approx(1.0)
    # Only a had ended: nothing is known of k, and d, without epochs, has no length yet.
    assert runtime.seconds[0, 0, 0, 0] == pytest.approx(1.0)
    assert jobs.epochs.tolist() == [100.0, 200.0, 100.0]


def test_run_times_from_before_the_span_are_known(gpus: Path, at: Any, write: Any, event: Any) -> None:
    day = at(86_400)
    write(gpus, "events", [event("z", 86_500.0, "create", "m", "job", epochs=5.0, **SIZE)], day)
    for table in ("cards", "nodes"):
        rows = windows.read(gpus, table, at(0), at(300)).to_pylist()
        write(gpus, table, [{**row, "window_start": day} for row in rows], day)
    jobs, _, runtime, _ = DATASET.load(gpus, day, day + timedelta(days=1))
    assert jobs.arrival_s.tolist() == [100.0]
    assert runtime.seconds[runtime.model_names.index("m"), :, 0, 0] == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"function": None}, r"1 of 4 jobs have no model, e\.g\. a.*column function.*docs/sources\.md"),
        ({"gpu_mem_gib": None}, r"no job of the model 'm' says its GPU memory.*gpu_mem_bytes"),
    ],
)
def test_a_source_that_does_not_tell_is_told_what_to_tell(
    gpus: Path, at: Any, write: Any, change: dict[str, Any], message: str
) -> None:
    rows = windows.read(gpus, "events", at(0), at(600)).to_pylist()
    for row in rows:
        if row["entity"] in ("a", "b") and (change.get("function", "") == "" or row["entity"] == "a"):
            row.update(change)
    write(gpus, "events", rows)
    with pytest.raises(DataError, match=message):
        DATASET.load(gpus, at(0), at(600))


def test_windows_without_jobs_or_cards_say_so(gpus: Path, at: Any) -> None:
    with pytest.raises(DataError, match="no job of one GPU submitted"):
        DATASET.load(gpus, at(300), at(600))
    with pytest.raises(DataError, match=r"no GPU card with its memory.*DCGM"):
        DATASET.load(gpus, at(900), at(1200))


def test_the_sample_plays_whole_episodes(sample_windows: Path) -> None:
    days = windows.span(sample_windows)
    workload = DATASET.load(sample_windows, days.start, days.start + timedelta(days=1))
    assert set(workload.topology.clusters) == {"sample-gpu-1", "sample-gpu-2"}
    assert len(workload.topology) == 13
    (model_at, models), (type_at, types) = (
        zip(*(name.split("/") for name in names), strict=True)
        for names in (workload.runtime.model_names, workload.runtime.card_types)
    )
    alone, together = workload.runtime.seconds[:, :, 0, 0], np.equal.outer(model_at, type_at)
    assert np.array_equal(np.isfinite(alone), together), "a job runs on cards of its own cluster, and on each of them"
    # Medians of jobs that took 5 % more or less; a pair seen seldom or never is guessed.
    known = sorted(set(models)), sorted(set(types))
    truth = synthetic.runtime(tuple(known[1])).select(tuple(known[1]), tuple(known[0])).seconds[:, :, 0, 0]
    truth = truth[np.ix_([known[0].index(m) for m in models], [known[1].index(t) for t in types])]
    assert np.median(np.abs(alone[together] / truth[together] - 1.0)) < 0.03
    scenario = scenarios.load("jobs/cpn", {"episode_jobs": 30})
    starts = DATASET.starts(workload, scenario)
    assert len(starts) == len(workload.jobs) - 29
    times = DATASET.times_s(workload, starts)
    assert (np.diff(times) >= 0).all()
    for load in (1.0, 1.5):
        trace = DATASET.scaled(workload, load)
        assert DATASET.times_s(trace, starts) == pytest.approx(times / load)
        for policy in ("fifo", "random_feasible"):
            episodes = run_episodes(scenario, policy, starts[[0, -1]], trace=trace)
            assert all(episode["placed"] >= 30 and episode["oom"] == 0 for episode in episodes)  # and who was in line
