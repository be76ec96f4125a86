"""Workflows by name: DAGs given as tables, a file or folder of WfFormat documents, or ``synthetic``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sched_env.scenarios import SYNTHETIC
from sched_env.tables import NodeTable
from sched_env.traces.nodes import find, read_nodes
from sched_env.traces.wfinstances import Workflow, read_workflow
from sched_env.workflow import synthetic as synthetic_workflows
from sched_env.workflow.tables import Dag
from wire.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from sched_env.workflow.scenario import WorkflowScenario

ASSUMED_CORES, ASSUMED_GIB = 1.0, 1.0
"""What a task holds where it was not recorded."""


def dag_of(flow: Workflow) -> Dag:
    """Turn a recorded execution into a workflow to place: run times as measured, whole cores, memory at its peak."""
    cores = np.ceil(np.where(np.isnan(flow.cpu), ASSUMED_CORES, flow.cpu))
    mem = np.where(np.isnan(flow.mem), ASSUMED_GIB, flow.mem)
    return Dag(
        name=flow.name,
        runtime_s=flow.runtime_s,
        cpu=np.maximum(cores, 1.0),
        mem=np.maximum(mem, 1.0 / 1024.0),
        edges=flow.edges,
        edge_mb=flow.edge_mb,
        input_mb=flow.input_mb,
    )


def read(path: Path | str) -> tuple[tuple[Dag, ...], NodeTable | None]:
    """Read a WfFormat document, or all of a folder in order of their paths, with its ``nodes.csv`` if there is one."""
    path = Path(path)
    if not path.is_dir():
        return (dag_of(read_workflow(path)),), None
    files = sorted(file for file in path.rglob("*.json*") if file.name.endswith((".json", ".json.gz")))
    if not files:
        raise TraceError(f"{path} has no *.json or *.json.gz", "WfFormat documents, in the folder or below it")
    nodes = find(path, "nodes")
    return tuple(dag_of(read_workflow(file)) for file in files), read_nodes(nodes) if nodes else None


def load(trace: Any, scenario: WorkflowScenario) -> tuple[tuple[Dag, ...], NodeTable]:
    """Return the workflows and nodes asked for, or the scenario's own; what was read before is not read again.

    ``trace`` is a (workflows, NodeTable) pair, a Dag or a sequence of them for the scenario's nodes, a path, or None.
    """
    nodes = synthetic_workflows.nodes(scenario.nodes, scenario.net_mb_s)
    if isinstance(trace, tuple) and len(trace) == 2 and isinstance(trace[1], NodeTable):
        trace, nodes = trace
    if isinstance(trace, Dag):
        trace = (trace,)
    if isinstance(trace, Sequence) and not isinstance(trace, str):
        strange = [type(part).__name__ for part in trace if not isinstance(part, Dag)]
        if strange or not trace:
            raise ConfigError(f"the trace holds {strange[0] if strange else 'no workflow'}", "Dags, at least one")
        return tuple(trace), nodes
    if trace is not None and not isinstance(trace, str | Path):
        raise ConfigError(
            f"the trace is a {type(trace).__name__}", "workflows (Dag), or the path of WfFormat documents"
        )
    source = str(trace if trace is not None else scenario.trace)
    if source == SYNTHETIC:
        return _generated(
            scenario.workflows, scenario.shape, scenario.tasks, scenario.data_share, scenario.net_mb_s,
            scenario.trace_seed,
        ), nodes  # fmt: skip
    path = Path(source)
    dags, own_nodes = _read_once(path, path.stat().st_mtime_ns if path.exists() else 0)
    return dags, own_nodes or nodes


@lru_cache(maxsize=4)
def _read_once(path: Path, _modified_ns: int) -> tuple[tuple[Dag, ...], NodeTable | None]:
    return read(path)


_generated = lru_cache(maxsize=4)(synthetic_workflows.workflows)
