"""What a policy sees of a workflow: one row for each node, relative to the task that is to be placed.

Single functions are seen by how contended a node is; for a task of a workflow what counts is when its data can be
there, when the node has room, and how much of the way to the end is left. So workflows have features of their own
(the same shapes: ``candidates``, ``request``, ``mask``). Times are in units of the workflow's critical path on the
fastest nodes and costs in units of its least cost, so that one policy serves workflows of seconds and of days.

Written once for scalars (compiled, inside the kernels) and for arrays, with the same bits both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.observation import NODE_CPU_CORES, NODE_MEM_GIB, Observation, columns, scalars
from wire.contracts.feature_spec import Feature, FeatureSpec

FIT_TOLERANCE = 1e-9
"""Cores or GiB that rounding may leave over when a node is filled exactly."""
HOURS_PER_SECOND = 1.0 / 3600.0

STATE_FIELDS: dict[str, tuple[str, float]] = {
    "cpu_capacity": ("cores", NODE_CPU_CORES),
    "mem_capacity": ("GiB", NODE_MEM_GIB),
    "price": ("USD/hour", 1.0),
    "speed": ("ratio", 1.0),
    "net_capacity": ("MB/s", 125.0),
    "tasks": ("count", 0.0),
    "moved_mb": ("MB", 0.0),
    "ready_s": ("seconds", 0.0),
    "start_s": ("seconds", 0.0),
    "billed_s": ("seconds", 0.0),
}
"""Raw fields of a node. ``tasks``: of this workflow, placed there. Of the task to be placed: ``moved_mb``, data that
would have to come over the network; ``ready_s``, when all of it would be there, from the start of the workflow;
``start_s``, when the node also has room; ``billed_s``, what it would add to the time the node is in use."""

REQUEST_FIELDS: dict[str, tuple[str, float]] = {
    "cpu": ("cores", 1.0),
    "mem": ("GiB", 1.0),
    "runtime_s": ("seconds", 60.0),
    "parents": ("count", 0.0),
    "read_mb": ("MB", 0.0),
    "tail_s": ("seconds", 0.0),
    "makespan_s": ("seconds", 0.0),
    "left": ("count", 1.0),
    "tasks": ("count", 1.0),
    "deadline_s": ("seconds", 120.0),
    "reference_s": ("seconds", 60.0),
    "least_usd": ("USD", 1.0),
    "sequence": ("count", 0.0),
}
"""Raw fields of a task. ``tail_s``: upward rank without the task's own run time, the mean way from its end to the end
of the workflow; ``makespan_s``: of what is placed so far; ``left``: tasks not yet placed, with this one;
``reference_s`` and ``least_usd``: the units of time and cost, see above; ``sequence``: tasks placed before."""

SPEC = FeatureSpec(
    problem="workflow",
    version=2,
    candidate=(
        Feature("price", "USD/hour", 1.0, "nodes.price_usd_per_hour", 1.0),
        Feature("speed", "ratio", 1.0, "state speed", 1.0),
        Feature("run", "ratio", 1.0, "derived: run time at the node's speed, in critical paths", 0.0),
        Feature("growth", "ratio", 1.0, "derived: by how much the makespan grows", 0.0),
        Feature("cost", "ratio", 1.0, "derived: price of the time billed in addition, in least costs", 0.0),
        Feature("late", "ratio", 1.0, "derived: end on the node after the earliest end on any that can hold it", 0.0),
    ),
    request=(
        Feature("runtime", "ratio", 1.0, "derived: runtime_s in critical paths", 1.0),
        Feature("parents", "count", 4.0, "request parents", 0.0),
        Feature("tail", "ratio", 1.0, "derived: tail_s in critical paths", 0.0),
        Feature("left", "ratio", 1.0, "derived: share of the tasks that is left", 1.0),
        Feature("slack", "ratio", 1.0, "derived: what the earliest path leaves of the critical path, at least 0", 0.0),
    ),
)
"""What is compared between nodes, and nothing that grows with the workflow: what is learned of short ones holds of long
ones."""
BEFORE = FeatureSpec(
    problem="workflow",
    version=1,
    candidate=(
        Feature("cpu_capacity", "cores", 16.0, "nodes.cpu_capacity_cores", 4.0),
        Feature("mem_capacity", "GiB", 64.0, "nodes.mem_capacity_gib", 16.0),
        Feature("price", "USD/hour", 1.0, "nodes.price_usd_per_hour", 1.0),
        Feature("speed", "ratio", 1.0, "state speed", 1.0),
        Feature("net_capacity", "MB/s", 125.0, "state net_capacity", 125.0),
        Feature("tasks", "count", 16.0, "state tasks", 0.0),
        Feature("moved_mb", "MB", 1000.0, "state moved_mb", 0.0),
        Feature("ready", "ratio", 1.0, "derived: ready_s in critical paths", 0.0),
        Feature("wait", "ratio", 1.0, "derived: from ready_s to start_s", 0.0),
        Feature("run", "ratio", 1.0, "derived: run time at the node's speed", 0.0),
        Feature("finish", "ratio", 1.0, "derived: end on the node", 0.0),
        Feature("growth", "ratio", 1.0, "derived: by how much the makespan grows", 0.0),
        Feature("path", "ratio", 1.0, "derived: end on the node and the mean way to the end of the workflow", 1.0),
        Feature("cost", "ratio", 1.0, "derived: price of the time billed in addition, in least costs", 0.0),
    ),
    request=(
        Feature("cpu", "cores", 4.0, "request cpu", 1.0),
        Feature("mem", "GiB", 8.0, "request mem", 1.0),
        Feature("runtime", "ratio", 1.0, "derived: runtime_s in critical paths", 1.0),
        Feature("parents", "count", 4.0, "request parents", 0.0),
        Feature("read_mb", "MB", 1000.0, "request read_mb", 0.0),
        Feature("tail", "ratio", 1.0, "derived: tail_s in critical paths", 0.0),
        Feature("makespan", "ratio", 1.0, "derived: makespan_s in critical paths", 0.0),
        Feature("left", "ratio", 1.0, "derived: share of the tasks that is left", 1.0),
        Feature("tasks", "count", 100.0, "request tasks", 1.0),
        Feature("deadline", "ratio", 2.0, "derived: deadline_s in critical paths", 2.0),
    ),
)
"""The spec before the present one. Most of it grows with the workflow, and normalised features are clipped: late in a
long one all nodes looked the same, so no policy could even be HEFT there, and what was learned of short ones was wrong.
"""


def outlook(
    ready_s: Any,
    start_s: Any,
    run_s: Any,
    billed_s: Any,
    price: Any,
    makespan_s: Any,
    tail_s: Any,
    inverse_reference: Any,
    inverse_least: Any,
) -> Any:
    """Return ready, wait, run, finish, growth, path and cost of a task on a node, or on all nodes."""
    finish_s = start_s + run_s
    return (
        ready_s * inverse_reference,
        (start_s - ready_s) * inverse_reference,
        run_s * inverse_reference,
        finish_s * inverse_reference,
        np.maximum(finish_s - makespan_s, 0.0) * inverse_reference,
        (finish_s + tail_s) * inverse_reference,
        price * (billed_s * HOURS_PER_SECOND) * inverse_least,
    )


def lateness(finish_s: Any, earliest_s: Any, inverse_reference: Any) -> Any:
    """Return how much later than on the best node that can hold it a task ends; 0 on nodes that cannot."""
    return np.maximum(finish_s - earliest_s, 0.0) * inverse_reference


def slack_of(earliest_s: Any, tail_s: Any, inverse_reference: Any) -> Any:
    """Return what of the critical path is left when a task ends as early as it can and its way to the end is mean."""
    return np.maximum(1.0 - (earliest_s + tail_s) * inverse_reference, 0.0)


def fits(cpu_capacity: Any, mem_capacity: Any, cpu: Any, mem: Any) -> Any:
    """Say whether an empty node can hold the task; one that is full now takes it later."""
    return (cpu <= cpu_capacity + FIT_TOLERANCE) & (mem <= mem_capacity + FIT_TOLERANCE)


def terms(candidates: Mapping[str, Any], request: Mapping[str, float]) -> tuple[dict[str, Any], dict[str, float]]:
    """Return features and raw fields of nodes and task by name; what was left out takes its default."""
    node: dict[str, Any] = dict(zip(STATE_FIELDS, columns(STATE_FIELDS, candidates), strict=True))
    task = dict(zip(REQUEST_FIELDS, scalars(REQUEST_FIELDS, request), strict=True))
    inverse_reference = 1.0 / task["reference_s"]
    inverse_least = 1.0 / task["least_usd"] if task["least_usd"] > 0.0 else 0.0  # nodes may be free
    seen = outlook(
        node["ready_s"],
        node["start_s"],
        task["runtime_s"] * (1.0 / node["speed"]),
        node["billed_s"],
        node["price"],
        task["makespan_s"],
        task["tail_s"],
        inverse_reference,
        inverse_least,
    )
    node |= dict(zip(("ready", "wait", "run", "finish", "growth", "path", "cost"), seen, strict=True))
    ends = node["start_s"] + task["runtime_s"] * (1.0 / node["speed"])
    holds = fits(node["cpu_capacity"], node["mem_capacity"], task["cpu"], task["mem"])
    earliest = float(np.where(holds, ends, np.inf).min(initial=np.inf))
    node["late"] = lateness(ends, earliest, inverse_reference)
    task["slack"] = float(slack_of(earliest, task["tail_s"], inverse_reference))
    for name, field in (
        ("runtime", "runtime_s"), ("tail", "tail_s"), ("makespan", "makespan_s"), ("deadline", "deadline_s"),
    ):  # fmt: skip
        task[name] = task[field] * inverse_reference
    task["left"] *= 1.0 / task["tasks"]
    return node, task


def build(candidates: Mapping[str, Any], request: Mapping[str, float], spec: FeatureSpec = SPEC) -> Observation:
    """Build the observation from raw fields; what is left out takes its default."""
    node, task = terms(candidates, request)
    return Observation(
        np.stack([node[feature.name] for feature in spec.candidate], axis=-1, dtype=np.float32),
        np.array([task[feature.name] for feature in spec.request], np.float32),
        fits(node["cpu_capacity"], node["mem_capacity"], task["cpu"], task["mem"]),
    )


def build_before(candidates: Mapping[str, Any], request: Mapping[str, float]) -> Observation:
    """Build the observation of the spec before."""
    return build(candidates, request, BEFORE)


def ruled_out(candidates: Mapping[str, Any], request: Mapping[str, float]) -> dict[str, int]:
    """Say how many nodes are too small for the task even when empty."""
    node, task = terms(candidates, request)
    return {
        f"too little {name}": int((task[name] > node[f"{name}_capacity"] + FIT_TOLERANCE).sum())
        for name in ("cpu", "mem")
    }


def gauges(candidates: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """Return how late each node could start the task, as a share of the latest start: nodes have no level of use."""
    node = dict(zip(STATE_FIELDS, columns(STATE_FIELDS, candidates), strict=True))
    return {"start": node["start_s"] / max(float(node["start_s"].max(initial=0.0)), 1e-9)}
