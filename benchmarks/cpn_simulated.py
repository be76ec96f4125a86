"""What the simulator makes of a queue that was run live (``cpn_live.py``), given what dispatch took there.

Live, a card is taken for longer than a job computes: until it is dispatched and has started, and until its end is
heard of. The simulator is given that job by job, since what was slow in a run was slow for the jobs of a minute. Nobody
knows a job's own beforehand: the controller reckons with the mean of late, so the simulator's scheduler reckons with
the mean of the run (``startup_s``), and what a job takes besides is added when it is placed, as a transfer that costs
nothing. Each draw changes all of them by up to a tenth: who takes the last card that is free depends on seconds, and
the end of a queue on that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placement.cpn.topology import Network
from sched_env import scenarios
from sched_env.jobs.state import DATA
from sched_env.jobs.tables import MB_PER_GB, JobTrace
from sched_env.jobs.vector import make
from sched_env.jobs.workload import Workload
from sched_env.rollout import Policy, chooser

FIGURES = ("makespan_s", "mean_completion_s")
DRAWS = 20


def simulated(
    load: Workload,
    network: Network,
    policy: Policy,
    overhead_s: NDArray[np.float64],
    threshold: float,
    shown: Mapping[str, Any] | None = None,
    *,
    foreseen: bool = False,
) -> dict[str, Any]:
    """Play the queue some times; return the mean of the draws, and their range.

    Args:
        load: Queue, network and run times.
        network: As the controller has it.
        policy: A strategy, or a policy.
        overhead_s: [jobs] what dispatch, start-up and hearing of the end took.
        threshold: Of the nodes' cores.
        shown: Further keys of the scenario: those under which the policy was trained.
        foreseen: Let schedulers know each job's overhead beforehand, which nobody does live.
    """
    if load.jobs.data_gb.any():
        raise SystemExit("the queue has data to move: transfers stand for overheads here")
    (rate,) = {float(one) for one in network.table.link_mb_s[0] if np.isfinite(one)}
    gb_per_s = rate / MB_PER_GB
    rng, found = np.random.default_rng(0), []
    for _ in range(DRAWS):
        took = np.maximum(overhead_s, 0.0) * rng.uniform(0.9, 1.1, len(overhead_s))
        expected = 0.0 if foreseen else float(took.mean())
        told = _told(load, network, took * gb_per_s if foreseen else np.zeros(len(took)))
        keys = {"episode_jobs": len(took), "cpu_threshold": threshold, "startup_s": expected, **(shown or {})}
        env = make(scenarios.load("jobs/testbed", keys), 1, seed=0, trace=told)
        choose = chooser(env, policy)  # random_feasible draws as the controller does
        env.reset(options={"starts": [0], "park": True})
        while env.buffers.active.any():
            actions = choose(None)
            row = env.choice(0, int(actions[0])).key
            if row >= 0:  # a policy of pairs may wait
                env.queue.rows[row, DATA] = (took[row] - expected) * gb_per_s
            env.step(actions)
        found.append(dict(zip(env.METRICS, env.buffers.metrics[0].tolist(), strict=True)))
    mean = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
    return mean | {f"{name}_range": [float(f(one[name] for one in found)) for f in (min, max)] for name in FIGURES}


def _told(load: Workload, network: Network, data_gb: NDArray[np.float64]) -> Workload:
    """Return the queue with all jobs there at once and their models in the controller's order, that of their names.

    Models with the same service take turns by that order.
    """
    names = sorted(load.jobs.model_names)
    columns = {name: getattr(load.jobs, name) for name in JobTrace.__dataclass_fields__ if name != "data_gb"}
    columns |= {
        "arrival_s": np.zeros(len(data_gb)),
        "origin": np.zeros(len(data_gb), np.int32),
        "model": np.array([names.index(name) for name in load.jobs.model_names], np.int32)[load.jobs.model],
        "model_names": tuple(names),
    }
    free = dataclasses.replace(network.table, link_usd_per_gb=np.zeros_like(network.table.link_mb_s))
    return Workload(JobTrace(**columns, data_gb=data_gb), free, load.runtime)
