"""Settings of workflows; the YAML files are in ``scenarios/`` beside this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from sched_env.scenarios import Amount, Count, Positive, Scenario, Share, Size

Order = Literal["rank", "trace"]


class WorkflowScenario(Scenario, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A DAG of functions an episode, placed task by task on nodes that differ in size, speed and price."""

    aliases: ClassVar[Mapping[str, str]] = {"num_nodes": "nodes"}

    nodes: Positive = 4
    """How many nodes, of the generated table; a trace that brings its own node table ignores it."""
    net_mb_s: Size = 125.0
    """Network of a generated node: what functions get on public platforms, about 1 Gbit/s."""
    order: Order = "rank"
    """In which order tasks are offered: by falling upward rank, as HEFT does (the longest way to the end first), or
    as they stand in the trace. Parents come first in both."""
    beta: Share = 1.0
    """Weight of time against cost. The return is -(beta x makespan / critical path on the fastest nodes + (1 - beta) x
    cost / least cost of the work)."""
    deadline_slack: Size = 2.0
    """Deadline = this x the critical path on the fastest nodes, for workflows that have none of their own."""
    dispatch_s: Amount = 0.0
    """From the moment at which a task's data is there to its start on a free node: what an engine takes to notice, and
    a container to start. Stage ``calibrate`` measures it; a generated workflow has none."""
    shape: Literal["mixed", "chain", "fan", "layered"] = "mixed"
    """What generated workflows look like (``sched_env.workflow.synthetic``)."""
    tasks: Positive = 100
    """Mean number of tasks of a generated workflow."""
    data_share: Amount = 1.0
    """Mean time to move the data of an edge over the mean run time of a task."""
    workflows: Positive = 1000
    """How many workflows are generated; an episode places one of them."""
    trace_seed: Count = 0
    """Names the generated workflows; the environment's seed only draws which of them are placed."""
