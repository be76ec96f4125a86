"""Pod traces by name: a table, a public trace, or ``synthetic``."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sched_env.pods import public as public_pods
from sched_env.pods import snapshot as pod_snapshot
from sched_env.pods import synthetic as synthetic_pods
from sched_env.pods.tables import PodTrace
from sched_env.scenarios import SYNTHETIC
from sched_env.tables import NodeTable
from sched_env.traces.snapshot import is_snapshot
from wire.errors import ConfigError

if TYPE_CHECKING:
    from sched_env.pods.scenario import DeployScenario


def load(trace: Any, scenario: DeployScenario) -> tuple[PodTrace, NodeTable]:
    """Return the trace and nodes asked for, or the scenario's own; what was made before is not made again.

    ``trace`` is a (PodTrace, NodeTable) pair, a PodTrace for the scenario's nodes, a public trace's folder, the
    snapshot of a live cluster (a JSON file), or None.
    """
    price = scenario.node_price_usd_per_hour
    nodes = _nodes(
        scenario.nodes, scenario.node_cpu_cores, scenario.node_mem_gib, 1.0 if price is None else float(price)
    )
    if isinstance(trace, PodTrace):
        return trace, nodes
    if isinstance(trace, tuple):
        if len(trace) != 2 or not isinstance(trace[0], PodTrace) or not isinstance(trace[1], NodeTable):
            kinds = ", ".join(type(part).__name__ for part in trace)
            raise ConfigError(f"the trace is a tuple of {kinds}", "a (PodTrace, NodeTable) pair")
        return trace
    source = str(trace if trace is not None else scenario.trace)
    if source == SYNTHETIC:
        return _generated(
            scenario.nodes, scenario.node_cpu_cores, scenario.node_mem_gib, scenario.trace_windows,
            scenario.pods_per_node, scenario.load, scenario.requests_per_pod, scenario.churn, scenario.trace_seed,
        ), nodes  # fmt: skip
    if is_snapshot(Path(source)):
        return pod_snapshot.read(Path(source))
    return _read_once(Path(source), scenario.pods_per_node, scenario.load, scenario.trace_seed)


def _nodes(count: int, cpu: float, mem: float, price: float) -> NodeTable:
    return synthetic_pods.nodes(count, float(cpu), float(mem), price)


@lru_cache(maxsize=4)
def _read_once(path: Path, pods_per_node: int, share: float, seed: int) -> tuple[PodTrace, NodeTable]:
    return public_pods.read(path, pods_per_node=pods_per_node, load=share, seed=seed)


@lru_cache(maxsize=4)
def _generated(
    count: int,
    cpu: float,
    mem: float,
    windows: int,
    pods_per_node: int,
    share: float,
    requests_per_pod: int,
    churn: float,
    seed: int,
) -> PodTrace:
    return synthetic_pods.generate(
        _nodes(count, cpu, mem, 1.0), windows, pods_per_node=pods_per_node, load=share,
        requests_per_pod=requests_per_pod, churn=churn, seed=seed,
    )  # fmt: skip
