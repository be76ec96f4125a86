"""Many serverless clusters at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sched_env.functions import kernels
from sched_env.functions.contention import cold_ratio
from sched_env.functions.rewards import RewardInputs
from sched_env.functions.scenario import ServerlessScenario
from sched_env.functions.state import (
    ARRIVAL,
    BILLED_UNTIL,
    COLD,
    CPU,
    CPU_INVERSE,
    DISK,
    DISK_INVERSE,
    DOMAIN,
    DURATION,
    FUNCTION,
    HOME,
    IDLE,
    IDLE_UNTIL,
    INSTANCES,
    LEAVING,
    MEM,
    MEM_INVERSE,
    NET,
    NET_INVERSE,
    NEXT,
    NODE,
    OWN_DOMAIN,
    PLACED,
    RART,
    REQUESTS,
    RESPONSE,
    RETURN,
    ROW,
    RUNNING_REQUESTS,
    TASK,
    Cluster,
    Rules,
    State,
    cluster_of,
    empty_state,
    most_alive,
    rules_of,
    set_paced,
)
from sched_env.functions.tables import FunctionTrace
from sched_env.functions.trace import load as load_trace
from sched_env.futures import Future, Record
from sched_env.heap import ITEM
from sched_env.heap import TIME as LEAVES
from sched_env.occupancy import Choice, Layout, Present, present
from sched_env.scenarios import Scenario, within_split
from sched_env.tables import Floats, NodeTable, first_rows
from sched_env.vector import SHEET, PlacementVectorEnv
from wire.errors import ConfigError


class ServerlessVectorEnv(PlacementVectorEnv):
    """B clusters that replay one trace from different rows.

    Args:
        scenario: The settings.
        num_envs: B.
        trace: The instances that arrive.
        nodes: Where they may go.
        seed: Names the start points.
        copy: Return fresh arrays from every call.
    """

    METRICS: ClassVar[tuple[str, ...]] = (
        *SHEET,
        "response_ratio",
        "response_ratio_p99",
        "cold_starts",
        "rejected",
    )
    COUNTS: ClassVar[frozenset[str]] = PlacementVectorEnv.COUNTS | {"cold_starts", "rejected"}
    DYNAMICS = kernels.DYNAMICS
    scenario: ServerlessScenario

    def __init__(
        self,
        scenario: ServerlessScenario,
        num_envs: int,
        trace: FunctionTrace,
        nodes: NodeTable,
        *,
        seed: int = 0,
        copy: bool = False,
    ) -> None:
        super().__init__(scenario, num_envs, len(nodes), seed=seed, copy=copy)
        self.trace, self.table = trace, nodes
        self.rules = rules_of(scenario, trace, nodes)
        self.cluster = cluster_of(trace, nodes, self.rules.cold_start_s, self.rules.by_use)
        self._check_placeable()
        self.state = empty_state(
            num_envs, len(nodes), len(trace.function_names), most_alive(trace.arrival_s, trace.duration_s)
        )
        self._fix_columns(nodes.cpu, nodes.mem, nodes.price_usd_per_hour)

    @property
    def arguments(self) -> tuple[Cluster, Rules, State]:
        """What every kernel of the problem takes first."""
        return self.cluster, self.rules, self.state

    def _check_placeable(self) -> None:
        """Refuse a trace from whose start points no episode could ever take a decision."""
        rules, trace = self.rules, self.trace
        first = rules.start_min
        last = rules.start_max + rules.horizon if rules.start_max and rules.horizon else len(trace)
        fits = np.zeros(len(trace), np.bool_)
        for cpu, mem in set(zip(self.table.cpu.tolist(), self.table.mem.tolist(), strict=True)):
            fits |= (trace.cpu <= cpu) & (trace.mem <= mem)
        if not fits[first:last].any():
            raise ConfigError(
                f"no instance of rows {first} to {last} of the trace fits an empty node", "at least one that does"
            )

    def _reset(self, starts: NDArray[np.int64]) -> None:
        self._check_starts(starts, len(self.trace))
        super()._reset(starts)
        stuck = np.flatnonzero(self.buffers.feasible == 0)
        if stuck.size:
            raise ConfigError(f"from start {starts[stuck[0]]} on, no instance of the episode fits a node as it is")

    @property
    def returns(self) -> Floats:
        """What each episode has brought so far."""
        brought: Floats = self.state.totals[:, RETURN]
        return brought

    def reward_inputs(self, actions: NDArray[np.int64]) -> Callable[[], RewardInputs]:
        """Note which instances are about to be placed."""
        rows = self.state.cursor[:, ROW].copy()
        return lambda: RewardInputs.of(self.cluster, self.rules, self.state, rows, actions)

    def whole_reward(self, given: Floats) -> Floats:
        """Take off the arrivals that were rejected, which is all that the kernel's reward is here."""
        return self.buffers.reward + given

    def active(self, b: int) -> NDArray[np.bool_]:
        """Return which nodes may take the present instance if they have room: up, of its domain, not exceeded."""
        row = int(self.state.cursor[b, ROW])
        window = min(max(int(self.cluster.tasks[row, ARRIVAL] * self.cluster.up_rate), 0), len(self.cluster.up) - 1)
        same = self.cluster.nodes[:, DOMAIN] == self.cluster.homes[row, OWN_DOMAIN]
        result: NDArray[np.bool_] = same & self.cluster.up[window]
        if self.rules.exceeded_rests:
            inverse = self.cluster.nodes[:, [CPU_INVERSE, MEM_INVERSE, NET_INVERSE, DISK_INVERSE]]
            result &= (self.state.nodes[b, :, : DISK + 1] * inverse).max(axis=1) <= kernels.EXCEEDED
        return result

    def record(self) -> Record:
        """Return all instances; lives are those of the same function."""
        return Record(np.arange(len(self.trace)), self.trace.arrival_s, self.trace.function.astype(np.int64))

    def seen_until(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row after the instance to be placed."""
        seen: NDArray[np.int64] = self.state.cursor[rows, ROW] + 1
        return seen

    def _meeting(self, rows: NDArray[np.int64], future: Future) -> Self:
        tasks = self.cluster.tasks[future.source]
        tasks[:, ARRIVAL] = future.arrival_s
        for column in (DURATION, REQUESTS):
            tasks[:, column] = self.cluster.tasks[future.life, column]
        tasks[:, COLD] = cold_ratio(self.rules.cold_start_s, *(tasks[:, k] for k in (DURATION, REQUESTS, RESPONSE)))
        set_paced(self.cluster, tasks)
        fork = self.fork(rows)
        slots, present = most_alive(tasks[:, ARRIVAL], tasks[:, DURATION]), self.state.rates.shape[1]
        if slots > present:  # the list of free slots ends with the number of slots: it goes on in the new ones
            roomier = empty_state(rows.size, len(self.table), self.state.functions.shape[1], slots)
            for name, array in fork.state._asdict().items():
                getattr(roomier, name)[tuple(map(slice, array.shape))] = array
            roomier.links[:, present:, NEXT] = np.arange(present + 1, slots + 1)
            fork.state = roomier
        fork.cluster = self.cluster._replace(tasks=tasks, homes=self.cluster.homes[future.source])
        fork._world = None
        return fork

    def recorded(self) -> NDArray[np.int64]:
        """Return the node on which each environment's present instance was recorded; -1: nobody says."""
        homes: NDArray[np.int64] = self.cluster.homes[self.state.cursor[:, ROW], HOME].astype(np.int64)
        return homes

    def layout(self) -> Layout:
        """Name the nodes."""
        return Layout("node", self.table.names)

    def usage(self, b: int) -> dict[str, Floats]:
        """Return the share of each node's resources in use; a link or disk asked for more than it has is fully used."""
        inverse = self.cluster.nodes[:, [CPU_INVERSE, MEM_INVERSE, NET_INVERSE, DISK_INVERSE]]
        shares = np.minimum(self.state.nodes[b, :, : DISK + 1] * inverse, 1.0)
        return {name: shares[:, column] for column, name in enumerate(("cpu", "mem", "net", "disk"))}

    def choice(self, b: int, action: int) -> Choice:
        """Say which instance would be placed: keys are trace rows."""
        return Choice(int(self.state.cursor[b, ROW]), action)

    def label(self, _b: int, key: int) -> str:
        """Name an instance by its function and its row."""
        return f"{self.trace.function_names[int(self.trace.function[key])]} #{key}"

    def present(self, b: int) -> Present:
        """Return the running instances."""
        heap = self.state.leaving[b, : int(self.state.cursor[b, LEAVING])]
        links = self.state.links[b, heap[:, ITEM].astype(np.int64)]
        rows = links[:, TASK].astype(np.int64)
        return present(rows, links[:, NODE], self.trace.arrival_s[rows], heap[:, LEAVES].copy())

    def ended_s(self, _b: int, key: int, _expected_s: float) -> float:
        """An instance lives for its duration, whatever its neighbours do."""
        return float(self.trace.arrival_s[key] + self.trace.duration_s[key])

    def raw_fields(self, b: int) -> tuple[dict[str, NDArray[Any]], dict[str, float]]:
        """Return the raw state and request fields of an environment's present decision, copied."""
        node, table = self.state.nodes[b], self.table
        row = int(self.state.cursor[b, ROW])
        task = self.cluster.tasks[row]
        now, f = task[ARRIVAL], int(task[FUNCTION])
        warm = self.state.warm[b, f]
        candidates = {
            "cpu_capacity": table.cpu,
            "mem_capacity": table.mem,
            "net_capacity": table.net,
            "disk_capacity": table.disk,
            "cpu_deployed": node[:, CPU].copy(),
            "mem_deployed": node[:, MEM].copy(),
            "net_used": node[:, NET].copy(),
            "disk_used": node[:, DISK].copy(),
            "price": table.price_usd_per_hour,
            "active": self.active(b).astype(np.float64),
            "instances": node[:, INSTANCES].copy(),
            "billed_left_s": np.maximum(node[:, BILLED_UNTIL] - now, 0.0),
            "warm": np.where(warm[:, IDLE_UNTIL] > now, warm[:, IDLE], 0.0),
        }
        request = {
            "cpu": task[CPU],
            "mem": task[MEM],
            "net": task[NET],
            "disk": task[DISK],
            "requests": task[REQUESTS],
            "duration_s": task[DURATION],
            "response_s": task[RESPONSE],
            "slo_s": self.trace.slo_s[row],
            "function_requests": self.state.functions[b, f, RUNNING_REQUESTS],
            "rart": self.state.functions[b, f, RART],
            "cold_start_s": self.rules.cold_start_s,
            "cooldown_s": self.rules.cooldown_s,
            "sequence": self.state.totals[b, PLACED],
        }
        return candidates, {name: float(value) for name, value in request.items()}


def make(
    scenario: Scenario,
    num_envs: int,
    *,
    seed: int = 0,
    trace: Any = None,
    copy: bool = False,
) -> ServerlessVectorEnv:
    """Make the environments of a scenario; see :func:`sched_env.functions.trace.load` for ``trace``."""
    if not isinstance(scenario, ServerlessScenario):
        raise ConfigError(f"scenario {scenario.name!r} is a {type(scenario).__name__}", "a ServerlessScenario")
    functions, nodes = load_trace(trace, scenario)
    settings, end = within_split(scenario, len(functions), scenario.horizon + 1)
    functions = first_rows(functions, end)
    return ServerlessVectorEnv(settings, num_envs, functions, nodes, seed=seed, copy=copy)
