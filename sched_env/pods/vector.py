"""Many clusters with migrating pods at once."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sched_env.occupancy import Choice, Layout, Present, present
from sched_env.pods import batch as rules
from sched_env.pods import kernels
from sched_env.pods.counting import grained, loads, requests_of, statistics
from sched_env.pods.features import STATISTICS
from sched_env.pods.foresight import AHEAD
from sched_env.pods.scenario import DeployScenario
from sched_env.pods.state import (
    CPU_INVERSE,
    CPU_MEAN,
    FOLLOWING,
    HOT,
    MEM_INVERSE,
    MEM_MEAN,
    MOVES_LEFT,
    RETURN,
    ROW,
    WINDOW,
    Cluster,
    Rules,
    Scratch,
    State,
    cluster_of,
    empty_state,
    prepared,
    rules_of,
    scratch_of,
)
from sched_env.pods.tables import PodTrace
from sched_env.pods.trace import load as load_trace
from sched_env.scenarios import Scenario, within_split
from sched_env.tables import Floats, NodeTable
from sched_env.vector import SHEET, PlacementVectorEnv
from wire.errors import ConfigError


class DeployVectorEnv(PlacementVectorEnv):
    """B clusters that replay one trace from different windows.

    Args:
        scenario: The settings.
        num_envs: B.
        trace: The pods of every window and their requests.
        nodes: Where they may go.
        seed: Names the start points.
        copy: Return fresh arrays from every call.
    """

    METRICS: ClassVar[tuple[str, ...]] = (
        *SHEET,
        "performance_violation_rate",
        "migrations",
        "resource_violations",
        "positions",
        "performance_violations",
        "crowded_requests",
        "dealt_requests",
        "under_rate",
        "windows",
        "displaced",
        "unplaced",
    )
    COUNTS: ClassVar[frozenset[str]] = PlacementVectorEnv.COUNTS | set(METRICS[len(SHEET) :]) - {
        "performance_violation_rate",
        "under_rate",
    }
    DYNAMICS = kernels.DYNAMICS
    scenario: DeployScenario

    def __init__(
        self,
        scenario: DeployScenario,
        num_envs: int,
        trace: PodTrace,
        nodes: NodeTable,
        *,
        seed: int = 0,
        copy: bool = False,
    ) -> None:
        super().__init__(scenario, num_envs, len(nodes), seed=seed, copy=copy)
        if trace.node.max() >= len(nodes):
            raise ConfigError(f"the trace has a pod on node {trace.node.max()}", f"nodes 0 to {len(nodes) - 1}")
        asked = np.stack([trace.cpu_request, trace.mem_request], axis=1)
        trace, rows = prepared(trace, nodes)
        self.trace, self.table = trace, nodes
        self.asked = asked[rows]
        """[rows, 2]: cpu and memory requests as they were given, to the digit; the kernels' are rounded to grains."""
        self.rules = rules_of(scenario)
        self.cluster = cluster_of(trace, nodes, foresight=scenario.foresight)
        self.state = empty_state(
            num_envs, len(nodes), trace, parallel=self.rules.parallel, foresight=scenario.foresight
        )
        self.scratch = scratch_of(trace)
        kernels.describe(*self.arguments)
        kernels.survey(*self.arguments)
        self._fix_columns(nodes.cpu, nodes.mem, nodes.price_usd_per_hour)

    @property
    def arguments(self) -> tuple[Cluster, Rules, State, Scratch]:
        """What every kernel of the problem takes first."""
        return self.cluster, self.rules, self.state, self.scratch

    def _reset(self, starts: NDArray[np.int64]) -> None:
        self._check_starts(starts, len(self.trace), "windows")
        if self.cluster.next_stress[min(self.rules.start_min, len(self.trace) - 1)] < 0:
            raise ConfigError(
                f"no node of the trace is ever above the threshold of {self.scenario.threshold}",
                "a window, before the last, with something to decide",
                "lower the threshold, or set offers: all",
            )
        asked = starts[starts >= 0]
        quiet = asked[self.cluster.next_stress[asked] < 0]
        if quiet.size:
            raise ConfigError(
                f"from window {quiet[0]} on, no node is above the threshold", "a start with something to decide"
            )
        super()._reset(starts)

    def recorded(self) -> NDArray[np.int64]:
        """Return the node that each environment's offered pod was on in the window after; where it was gone, stay."""
        cursor = self.state.cursor
        rows = self.trace.window_rows[cursor[:, WINDOW]] + cursor[:, ROW]
        after = self.cluster.pods[rows, FOLLOWING]
        homes: NDArray[np.int64] = np.where(after >= 0, after, cursor[:, HOT]).astype(np.int64)
        return homes

    def as_recorded(self) -> tuple[Floats, Floats]:
        """Return how every window goes with pods where the trace has them, as ``State.nodes`` and ``State.books``."""
        shape = len(self.trace), len(self.table)
        nodes, books = (np.zeros((*shape, array.shape[2])) for array in (self.state.nodes, self.state.books))
        kernels.look(*self.arguments, nodes, books)
        return nodes, books

    def placement(self, b: int) -> tuple[int, NDArray[np.int32]]:
        """Return environment b's window and the node (-1: none) of each of its pod rows, copied."""
        window = int(self.state.cursor[b, WINDOW])
        rows = int(self.trace.window_rows[window + 1] - self.trace.window_rows[window])
        return window, self.state.place[b, window & 1, :rows].copy()

    @property
    def returns(self) -> Floats:
        """What each episode has brought so far."""
        brought: Floats = self.state.totals[:, RETURN]
        return brought

    def layout(self) -> Layout:
        """Name the nodes."""
        return Layout("node", self.table.names)

    def usage(self, b: int) -> dict[str, Floats]:
        """Return the mean share of each node's cpu and memory that was in use in the window."""
        use, nodes = self.state.nodes[b], self.cluster.nodes
        return {"cpu": use[:, CPU_MEAN] * nodes[:, CPU_INVERSE], "mem": use[:, MEM_MEAN] * nodes[:, MEM_INVERSE]}

    def choice(self, b: int, action: int) -> Choice:
        """Say which pod is offered: keys are pods."""
        cursor = self.state.cursor[b]
        return Choice(int(self.trace.pod[self.trace.window_rows[cursor[WINDOW]] + cursor[ROW]]), action)

    def label(self, _b: int, key: int) -> str:
        """Name a pod."""
        return self.trace.pod_names[key]

    def present(self, b: int) -> Present:
        """Return the pods of the window and their nodes."""
        window, place = self.placement(b)
        first = int(self.trace.window_rows[window])
        there = np.flatnonzero(place >= 0)
        unknown = np.full(there.size, np.nan)
        return present(self.trace.pod[first + there].astype(np.int64), place[there], unknown, unknown)

    def raw_fields(self, b: int) -> tuple[dict[str, NDArray[Any]], dict[str, float]]:
        """Return the raw fields of an environment's present decision, worked out from the trace."""
        trace, table, cursor = self.trace, self.table, self.state.cursor[b]
        window, place = self.placement(b)
        first = int(trace.window_rows[window])
        offered = first + int(cursor[ROW])
        rows: list[list[int]] = [[] for _ in range(len(table))]
        for row, n in enumerate(place.tolist()):
            if n >= 0:
                rows[n].append(first + row)
        use = np.array([self._use(on_node) for on_node in rows])

        def added_up(values: Floats) -> Floats:
            there = place >= 0
            return np.bincount(place[there], values[there], len(table)).astype(np.float64)

        span = slice(first, first + place.size)
        ahead = grained(trace.ahead(span))

        candidates: dict[str, Floats] = {
            "cpu_capacity": table.cpu,
            "mem_capacity": table.mem,
            "price": table.price_usd_per_hour,
            "here": (np.arange(len(table)) == cursor[HOT]).astype(np.float64),
            **dict(zip(_USE, use.T, strict=True)),
            "cpu_shares": added_up(trace.cpu_request[span]),
            "mem_deployed": added_up(trace.mem_request[span]),
            "pods": np.array([float(len(on_node)) for on_node in rows]),
            "active": (self.cluster.up[window] & (table.domain == trace.domain[offered])).astype(np.float64),
            **{name: added_up(values) for name, values in zip(AHEAD, ahead.T, strict=True)},
            "penalty": np.empty(len(table)),
        }
        rules.penalties(*self.arguments, b, candidates["penalty"])
        request = {
            "cpu": float(trace.cpu_request[offered]),
            "mem": float(trace.mem_request[offered]),
            **dict(zip(_USE, self._use([offered]), strict=True)),
            "moves_left": float(cursor[MOVES_LEFT]),
            "pod_limit": self.rules.pod_limit,
            "price_per_move": self.rules.price_per_move,
            "threshold": self.rules.threshold,
            **dict(zip(AHEAD, ahead[int(cursor[ROW])].tolist(), strict=True)),
        }
        return candidates, request

    def _use(self, rows: list[int]) -> list[float]:
        load = loads([requests_of(self.trace, row) for row in rows], self.scenario.arrival)
        return [*statistics(load.cpu), *statistics(load.mem)]


_USE = tuple(f"{resource}_{statistic}" for resource in ("cpu", "mem") for statistic in STATISTICS)


def make(scenario: Scenario, num_envs: int, *, seed: int = 0, trace: Any = None, copy: bool = False) -> DeployVectorEnv:
    """Make the environments of a scenario; see :func:`sched_env.pods.trace.load` for ``trace``."""
    if not isinstance(scenario, DeployScenario):
        raise ConfigError(f"scenario {scenario.name!r} is a {type(scenario).__name__}", "a DeployScenario")
    pods, nodes = load_trace(trace, scenario)
    settings, end = within_split(scenario, len(pods), scenario.episode_windows + 1)  # the last is only counted
    pods = pods if end == len(pods) else pods.windows(0, end)
    return DeployVectorEnv(settings, num_envs, pods, nodes, seed=seed, copy=copy)
