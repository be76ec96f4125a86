from __future__ import annotations

import heapq
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sched_env.jobs.runtime import RuntimeModel
from sched_env.jobs.tables import JobTrace, Topology
from sched_env.jobs.topology import Description, build
from sched_env.jobs.workload import Workload
from sched_env.vector import make_vec

SHARED = Path(os.environ.get("LOADMASTER_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
MODELS = {"small": (0.1, 0.5), "medium": (0.2, 0.8), "llm": (5.0, 1.0)}
"""Seconds an epoch alone on a card of type "fast"; share of the card it keeps busy."""
SPEED = {"fast": 1.0, "slow": 0.5}


def predict(card_type: str, models: tuple[str, ...]) -> list[float]:
    """Twice as slow on a slow card; sharing slows down by how much the sum of shares exceeds half a card."""
    excess = max(sum(MODELS[m][1] for m in models) - 0.5, 0.0) if len(models) > 1 else 0.0
    return [MODELS[m][0] / SPEED[card_type] * (1.0 + excess) for m in models]


@pytest.fixture
def queues() -> Path:
    """The folder of the public queues; tests that need it are skipped where it is absent."""
    folder = SHARED / "cpn-job-queues"
    if not folder.exists():
        pytest.skip(f"the public traces are not in {SHARED} (LOADMASTER_SHARED_DATA names another place)")
    return folder


@pytest.fixture
def network() -> Callable[..., Topology]:
    """Make a network from (type, GPU GiB) of each card of each node; data are in a store behind 100 MB/s."""

    def make(*nodes: list[tuple[str, float]], cpu_cores: float = 16.0, mem_gib: float = 64.0) -> Topology:
        listed = [
            {
                "name": f"n{index}",
                "cpu_cores": cpu_cores,
                "mem_gib": mem_gib,
                "cards": [{"type": kind, "mem_gib": size, "usd_per_hour": 2.0} for kind, size in node],
            }
            for index, node in enumerate(nodes)
        ]
        import msgspec

        place = {"name": "here", "clusters": [{"name": "c", "nodes": listed}]}
        link = {"from": "store", "to": "here", "bandwidth_mb_s": 102.4, "usd_per_gb": 0.5}
        description = {"datacenters": [{"name": "store"}, place], "links": [link]}
        return build(msgspec.convert(description, Description))

    return make


@pytest.fixture
def jobs() -> Callable[..., JobTrace]:
    """Make a queue from (arrival, model, epochs, GPU GiB[, data GB[, GiB[, cores]]]) of each job."""

    def make(*rows: tuple[Any, ...]) -> JobTrace:
        filled = [(*row, *(0.0, 0.0, 0.0)[len(row) - 4 :]) for row in rows]
        columns = list(zip(*filled, strict=True))
        return JobTrace(
            arrival_s=np.array(columns[0], float),
            model=np.array([list(MODELS).index(name) for name in columns[1]], np.int32),
            epochs=np.array(columns[2], float),
            gpu_mem=np.array(columns[3], float),
            data_gb=np.array(columns[4], float),
            mem=np.array(columns[5], float),
            cpu=np.array(columns[6], float),
            model_names=tuple(MODELS),
        )

    return make


@pytest.fixture
def workload() -> Callable[[JobTrace, Topology], Workload]:
    """Put a queue and a network together with the run times above."""
    return lambda trace, where: Workload(trace, where, RuntimeModel(predict))


class Reference:
    """The rules of shared cards in the plainest Python: objects, dictionaries and no look at the kernels.

    Given which card each job is placed on, and when, it says when each job ends or is withdrawn.
    """

    def __init__(
        self,
        where: Topology,
        trace: JobTrace,
        runtime: Callable[[str, tuple[str, ...]], list[float]],
        fixed_s: float = 0.0,
    ):
        self.where, self.trace, self.runtime, self.fixed_s = where, trace, runtime, fixed_s

    def ends(self, placements: list[tuple[int, int, float]]) -> dict[int, float]:
        """Run placements (job, card, time) on every card and return when their jobs leave it."""
        ends: dict[int, float] = {}
        for card in range(len(self.where)):
            ends.update(self._card(card, [(t, job) for job, c, t in placements if c == card]))
        return ends

    def _card(self, card: int, placed: list[tuple[float, int]]) -> dict[int, float]:
        kind = self.where.card_types[self.where.card_type[card]]
        per_gb = self.where.seconds_per_gb()
        starts: list[tuple[float, int]] = []
        leaves = self.trace.cancelled_at()
        for time, job in placed:
            move = self.trace.data_gb[job] * per_gb[self.trace.origin[job], self.where.card_node[card]]
            heapq.heappush(starts, (time + self.fixed_s + move, job))
        ends = {job: float(leaves[job]) for start, job in starts if leaves[job] < start}
        starts = [(start, job) for start, job in sorted(starts) if job not in ends]
        running: dict[int, float] = {}  # job -> epochs left
        now = 0.0
        while starts or running:
            names = tuple(sorted(self.trace.model_names[self.trace.model[job]] for job in running))
            speed = dict(zip(names, self.runtime(kind, names), strict=True)) if names else {}
            pace = {job: speed[self.trace.model_names[self.trace.model[job]]] for job in running}
            finish = {job: now + left * pace[job] for job, left in running.items()}
            first = min(finish.values(), default=np.inf)
            gone = min((float(leaves[job]) for job in running), default=np.inf)
            following = min(first, gone, starts[0][0] if starts else np.inf)
            for job in running:
                running[job] -= (following - now) / pace[job]
            now = following
            if starts and starts[0][0] <= now:
                _, job = heapq.heappop(starts)
                running[job] = float(self.trace.epochs[job])
            else:
                for job in [job for job, end in finish.items() if min(end, leaves[job]) <= now]:
                    ends[job] = now
                    del running[job]
        return ends


@pytest.fixture
def reference() -> type[Reference]:
    return Reference


@pytest.fixture
def runtime() -> Callable[[str, tuple[str, ...]], list[float]]:
    return predict


@pytest.fixture
def every_schedule() -> Callable[..., tuple[float, float]]:
    """Try every sequence of actions the environment allows; return the least makespan and mean completion."""

    def play_all(workload: Workload, **settings: Any) -> tuple[float, float]:
        env = make_vec("jobs/cpn", 1, trace=workload, episode_jobs=len(workload.jobs), **settings)
        best = [np.inf, np.inf]

        def play(prefix: list[int]) -> None:
            env.reset(options={"starts": [0], "park": True})
            infos: dict[str, Any] = {}
            for action in prefix:
                *_, infos = env.step([action])
            if not env.buffers.active[0]:
                best[0] = min(best[0], float(infos["episode"]["makespan_s"][0]))
                best[1] = min(best[1], float(infos["episode"]["mean_completion_s"][0]))
                return
            for action in np.flatnonzero(env.buffers.mask[0].copy()):
                play([*prefix, int(action)])

        play([])
        return best[0], best[1]

    return play_all
