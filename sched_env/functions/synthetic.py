"""Generated function instances and nodes, so that nothing needs a download.

``serverless`` follows what is public about FaaS workloads (Shahrad et al., "Serverless in the Wild", ATC 2020): few
functions get most of the calls, sizes and lives are log-normal, the day has a peak, and functions come in bursts.
``tutorial`` draws the tasks of the tutorial that ``ServerlessSchedulingEnv`` comes from.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from sched_env.functions.tables import FunctionTrace
from sched_env.tables import Floats, NodeTable

DAY_S = 86_400.0
DAY_SWING = 0.4
"""The arrival rate goes up and down by this share of its mean in the course of a day."""
POPULARITY = 1.1
"""Exponent of the Zipf law of the functions' popularity."""
BURST = 3.0
"""Mean number of instances that arrive together: scaling out is how load reaches a FaaS platform."""
BURST_SECONDS = 5.0
"""Mean time between the arrivals of one burst."""
OUTAGE_STEP_S = 60.0
"""Nodes come and go on the minute."""
TUTORIAL_SPACING_S, TUTORIAL_LIFE_S = 1.0, 5.0
"""The tutorial has no time: a task a second, each living for five, keeps ten nodes about an eighth full."""


class NodeType(NamedTuple):
    """One row of a price list."""

    name: str
    cpu: float
    mem: float
    price_usd_per_hour: float


NODE_TYPES = (
    NodeType("c6i.2xlarge", 8, 16, 0.340),
    NodeType("m6i.2xlarge", 8, 32, 0.384),
    NodeType("r6i.xlarge", 4, 32, 0.252),
    NodeType("c6i.4xlarge", 16, 32, 0.680),
)
"""Compute, general, memory and large: AWS on-demand list prices, us-east-1, August 2026."""


def nodes(count: int, net_mb_s: float = 1000.0, disk_iops: float = 5000.0) -> NodeTable:
    """Return a table of nodes that takes the types in turn."""
    types = [NODE_TYPES[index % len(NODE_TYPES)] for index in range(count)]
    return NodeTable(
        names=tuple(f"node-{index:04d}-{kind.name}" for index, kind in enumerate(types)),
        cpu=np.array([kind.cpu for kind in types], np.float64),
        mem=np.array([kind.mem for kind in types], np.float64),
        net=np.full(count, net_mb_s),
        disk=np.full(count, disk_iops),
        price_usd_per_hour=np.array([kind.price_usd_per_hour for kind in types]),
    )


def serverless(rows: int, functions: int, cores: float, load: float, seed: int) -> FunctionTrace:
    """Generate a trace that asks for ``load`` x ``cores`` cores on average, over a day with a peak.

    Args:
        rows: Length.
        functions: How many different functions.
        cores: Cores of the cluster it is meant for.
        load: Mean share of them that is asked for.
        seed: Names the trace.
    """
    rng = np.random.default_rng(seed)
    cpu = np.clip(rng.lognormal(np.log(0.7), 0.7, functions), 0.1, 4.0)
    mem = np.clip(cpu * rng.lognormal(np.log(2.0), 0.7, functions), 0.125, 16.0)
    net = np.clip(rng.lognormal(np.log(40.0), 1.0, functions), 1.0, 300.0)
    disk = np.clip(rng.lognormal(np.log(300.0), 1.0, functions), 10.0, 2000.0)
    life_s = np.clip(rng.lognormal(np.log(150.0), 0.8, functions), 10.0, 1800.0)
    response_s = np.clip(rng.lognormal(np.log(0.2), 1.0, functions), 0.01, 10.0)
    busy = rng.uniform(0.3, 0.9, functions)
    popularity = rng.permutation(1.0 / np.arange(1, functions + 1) ** POPULARITY)
    popularity /= popularity.sum()

    bursts = int(1.2 * rows / BURST) + 50  # more than enough for all rows, whatever sizes are drawn
    sizes = rng.geometric(1.0 / BURST, bursts)
    which = np.repeat(rng.choice(functions, bursts, p=popularity), sizes)
    duration_s = life_s[which] * rng.lognormal(-0.125, 0.5, which.size)
    # Little's law, with the mean the draw really has: cores in use = arrivals a second x mean(cpu x life).
    instances_per_s = load * cores / float(np.mean(cpu[which] * duration_s))
    begin_s = _day(np.cumsum(rng.exponential(BURST / instances_per_s, bursts)))
    arrival_s: Floats = np.repeat(begin_s, sizes) + rng.exponential(BURST_SECONDS, which.size) * _later_in_burst(sizes)
    order = np.argsort(arrival_s, kind="stable")[:rows]
    which, duration_s = which[order], duration_s[order]
    requests = np.maximum(1, np.round(duration_s * busy[which] / response_s[which])).astype(np.int32)
    return FunctionTrace(
        arrival_s=arrival_s[order] - arrival_s[order[0]],
        function=which.astype(np.int32),
        cpu=cpu[which],
        mem=mem[which],
        net=net[which],
        disk=disk[which],
        requests=requests,
        duration_s=duration_s,
        response_s=response_s[which],
        function_names=tuple(f"function-{index:03d}" for index in range(functions)),
    )


def _later_in_burst(sizes: Any) -> Floats:
    """Return 0 for the first of each burst, 1 for the others."""
    later = np.ones(int(sizes.sum()))
    later[np.concatenate([[0], np.cumsum(sizes)[:-1]])] = 0.0
    return later


def _day(even_s: Floats) -> Floats:
    """Bend evenly spread times so that the rate swings with the time of day, the mean rate unchanged."""
    grid = np.linspace(0.0, float(even_s[-1]) + DAY_S, max(int((even_s[-1] + DAY_S) / 60.0), 2))
    phase = 2.0 * np.pi / DAY_S
    # The integral of 1 + swing x sin(phase t): how much even time has passed at time t of the bent clock.
    passed = grid + DAY_SWING / phase * (1.0 - np.cos(phase * grid))
    return np.asarray(np.interp(even_s, passed, grid), np.float64)


def outages(trace: FunctionTrace, nodes: int, per_hour: float, mean_s: float, seed: int) -> FunctionTrace:
    """Let nodes fail and come back, each by itself: exponential times between failures, and until the return.

    A node that is away takes no new instances; those it has go on (it is cordoned, as before a repair).
    """
    if per_hour == 0.0:
        return trace
    rng = np.random.default_rng([seed, 2])
    end_s = float(trace.arrival_s[-1])
    up = np.ones((int(end_s // OUTAGE_STEP_S) + 1, nodes), np.bool_)
    for n in range(nodes):
        now = rng.exponential(3600.0 / per_hour)
        while now < end_s:
            back = now + max(rng.exponential(mean_s), OUTAGE_STEP_S)
            up[int(now // OUTAGE_STEP_S) : int(back // OUTAGE_STEP_S), n] = False
            now = back + rng.exponential(3600.0 / per_hour)
    return dataclasses.replace(trace, up=up, up_s=OUTAGE_STEP_S)


def tutorial(rows: int, functions: int, seed: int) -> FunctionTrace:
    """Draw the tutorial's tasks: cpu U(0.1, 4), mem U(0.1, 8), net U(10, 100), disk U(100, 1000), requests 1..99."""
    rng = np.random.default_rng(seed)
    return FunctionTrace(
        arrival_s=np.arange(rows, dtype=np.float64) * TUTORIAL_SPACING_S,
        function=rng.integers(functions, size=rows, dtype=np.int32),
        cpu=rng.uniform(0.1, 4.0, rows),
        mem=rng.uniform(0.1, 8.0, rows),
        net=rng.uniform(10.0, 100.0, rows),
        disk=rng.uniform(100.0, 1000.0, rows),
        requests=rng.integers(1, 100, size=rows, dtype=np.int32),
        duration_s=np.full(rows, TUTORIAL_LIFE_S),
        function_names=tuple(f"f{index}" for index in range(functions)),
    )
