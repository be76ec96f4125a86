"""What the simulator is told of a live run: overheads that nobody knows before a job is placed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placement.cpn.topology import read
from sched_env.rollout import run_episodes
from tests.placement.cpn.conftest import topology_text
from tests.placement.cpn.test_controller import COUNTS, queue

JOBS = 24


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    yield importlib.import_module("cpn_simulated").simulated
    sys.modules.pop("cpn_simulated", None)


@pytest.mark.parametrize("strategy", ["min_completion_time_reserve", "shortest_predicted_first", "random_feasible"])
def test_without_overheads_it_is_the_simulator_and_with_them_each_job_takes_its_own(
    simulated: Any, strategy: str
) -> None:
    network = read(topology_text(COUNTS), "test")
    load = queue(JOBS, data_gb=0.0)._replace(topology=network.table)
    said = simulated(load, network, strategy, np.zeros(JOBS), 0.7)
    plain = run_episodes("jobs/testbed", strategy, [0], trace=load, episode_jobs=JOBS)[0]
    assert said["makespan_s"] == pytest.approx(plain["makespan_s"])
    assert said["mean_completion_s"] == pytest.approx(plain["mean_completion_s"])
    last = np.zeros(JOBS)
    last[int(load.jobs.epochs.argmax())] = 1e6  # whenever it is placed, it ends after all others, and nobody knew
    low, high = simulated(load, network, strategy, last, 0.7)["makespan_s_range"]
    assert 0.9e6 < low < high < 1.1e6 + 2 * plain["makespan_s"]
    one = np.full(JOBS, 50.0)
    known = simulated(load, network, strategy, one, 0.7, foreseen=True)
    assert known["mean_completion_s"] > plain["mean_completion_s"]
