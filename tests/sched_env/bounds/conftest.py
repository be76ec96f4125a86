from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sched_env.jobs.vector import Workload
from sched_env.vector import make_vec


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
