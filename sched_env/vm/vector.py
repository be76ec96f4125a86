"""``make_vec`` for ``vm``: allocates the kernels' arrays and calls them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sched_env.futures import Future, Record
from sched_env.heap import ITEM
from sched_env.heap import TIME as LEAVES
from sched_env.jit import entry
from sched_env.occupancy import NOTHING, Choice, Event, Layout, Present, present
from sched_env.scenarios import within_split
from sched_env.stepping import PARK, RESTART
from sched_env.vector import PlacementVectorEnv
from sched_env.vm import kernels
from sched_env.vm.events import CPU, HALVES, MEM, STOP, TIME, Events, compile_events, starts_as_recorded
from sched_env.vm.features import occupied_for
from sched_env.vm.lives import ends_s
from sched_env.vm.scenario import VmScenario
from sched_env.vm.state import BORN, ENV, HALF, NOWHERE, REWARD_CPU, REWARD_ONE, REWARD_WAIT, ROW, Params, State
from sched_env.vm.tables import VmTrace
from sched_env.vm.trace import load as load_trace
from wire.errors import ConfigError

_REWARDS = {"+1": REWARD_ONE, "cpu": REWARD_CPU, "wait": REWARD_WAIT}


class VmVectorEnv(PlacementVectorEnv):
    """B clusters of NUMA servers. When clusters grow, the view has as many candidates as the largest one."""

    METRICS: ClassVar[tuple[str, ...]] = kernels.METRICS
    scenario: VmScenario
    COUNTS: ClassVar[frozenset[str]] = PlacementVectorEnv.COUNTS | {"servers", "end_row"}
    DRAFTS: ClassVar[frozenset[str]] = frozenset({"queue_of"})

    def __init__(
        self, scenario: VmScenario, trace: VmTrace, num_envs: int, *, seed: int = 0, copy: bool = False
    ) -> None:
        scenario, end = _part(scenario, trace)
        super().__init__(scenario, num_envs, 2 * scenario.most_servers, seed=seed, copy=copy)
        self.trace, self.events = trace, compile_events(trace, scenario)
        # Episodes end with their part of the trace; lives go on as recorded, or nobody would leave near its end.
        self.events.parts[-1, STOP] = end
        self.params = _params(scenario, self.events, starts_as_recorded(trace, scenario))
        self.state = _state(scenario, self.events, num_envs, self.params.expects)
        self._grows = scenario.growing_servers > 0

    @property
    def arguments(self) -> tuple[State, Params, Events]:
        """What every kernel of the problem takes first."""
        return self.state, self.params, self.events

    def _reset(self, starts: NDArray[np.int64]) -> None:
        last = int(self.events.parts[-1, STOP])
        bad = starts[(starts >= last) | (self.events.next_start[np.clip(starts, 0, last)] >= last)]
        if bad.size:
            raise ConfigError(f"start {bad[0]} has no request at or after it", f"a trace row from 0 to {last - 1}")
        kernels.reset(*self.arguments, self.buffers, starts, self.seed)
        self._show()

    @property
    def returns(self) -> NDArray[np.float64]:
        """What each episode has brought so far."""
        total: NDArray[np.float64] = self.state.env.total[: self.num_envs]
        return total

    def run(self, actions: NDArray[np.int64], at_end: int) -> int:
        """Step by the built-in reward; ``HOLD`` closes accounts of episodes that end, and leaves the rest as it is."""
        values = (*self.arguments, self.buffers, actions, self.seed, at_end == PARK, at_end == RESTART)
        if self._kernel is None:
            self._kernel = entry(kernels.step, *values)
        return self._kernel(*values)

    def close_accounts(self) -> None:
        """Write the metrics of every episode, wherever it stands."""
        kernels.close_all(self.state, self.params, self.buffers)

    def _step(self, actions: NDArray[np.int64]) -> int:
        finished = super()._step(actions)
        if self._grows:
            self._show()
        return finished

    def raw_fields(self, b: int) -> tuple[dict[str, NDArray[np.float64]], dict[str, float]]:
        """Return the raw state fields of environment b's halves and of its request."""
        width = 2 * int(self.state.env.servers[b])
        cpu, mem = self.state.cpu[b, :width], self.state.mem[b, :width]
        sibling = np.arange(width) ^ 1
        # Past the end of the trace nothing is asked for: the last row stands in.
        row = min(int(self.state.env.row[b]), len(self.events.rows) - 1)
        need = self.events.rows[row]
        halves = {
            "cpu_free": cpu,
            "mem_free": mem,
            "other_cpu_free": cpu[sibling],
            "other_mem_free": mem[sibling],
            "cpu_capacity": np.full(width, self.params.half_cpu),
            "mem_capacity": np.full(width, self.params.half_mem),
            "occupied_s": occupied_for(self.state.env.clock[b], self.state.since[b, : width // 2]).repeat(2),
            "ends_s": self._ends(b, width // 2).repeat(2),
        }
        return halves, {
            "cpu": float(need[CPU] * need[HALVES]),
            "mem": float(need[MEM] * need[HALVES]),
            "double": float(need[HALVES] - 1.0),
            "waiting": float(self.state.env.waiting[b]),
            "life_s": float(self.events.expected[row, 0]) if self.params.expects else 0.0,
        }

    def _ends(self, b: int, servers: int) -> NDArray[np.float64]:
        """Return when the last VM of each server is expected to be gone, as who calls the service works it out."""
        vms = self.state.living[b, : int(self.state.env.living[b])]
        on, rows = vms[:, HALF].astype(np.int64) >> 1, vms[:, ROW].astype(np.int64)
        ages = self.state.env.clock[b] - vms[:, BORN]
        found = (ends_s(ages[on == server], self.events.expected[rows[on == server]]) for server in range(servers))
        return np.fromiter(found, np.float64, servers) if vms.size else np.zeros(servers)

    def recorded(self) -> NDArray[np.int64]:
        """Return the half on which each environment's present request was recorded; -1: nobody says."""
        rows = np.minimum(self.state.env.row[: self.num_envs], self.events.home.size - 1)
        homes: NDArray[np.int64] = self.events.home[rows].astype(np.int64)
        return homes

    def layout(self) -> Layout:
        """Name the halves, as many as there can be."""
        servers = range(self.scenario.most_servers)
        names = tuple(f"server {server} half {half}" for server in servers for half in (0, 1))
        return Layout("half", names, tuple(f"server {server}" for server in servers for _ in (0, 1)))

    def usage(self, b: int) -> dict[str, NDArray[np.float64]]:
        """Return the share of each half's cores and memory in use."""
        width = 2 * int(self.state.env.servers[b])
        cpu, mem = self.state.cpu[b, :width], self.state.mem[b, :width]
        return {"cpu": 1.0 - cpu / self.params.half_cpu, "mem": 1.0 - mem / self.params.half_mem}

    def choice(self, b: int, action: int) -> Choice:
        """Say which VM would be placed: keys are trace rows."""
        return Choice(int(self.state.env.row[b]), action)

    def label(self, _b: int, key: int) -> str:
        """Name a VM."""
        return f"vm {self.trace.vmid[key]}"

    def present(self, b: int) -> Present:
        """Return the VMs that an episode finds, or, where requests wait, all that are there."""
        events = self.events
        if self.params.waits:
            leaving = self._leaving(b)
            rows, halves = np.divmod(np.array(list(leaving), np.int64), self.state.cpu.shape[1])
            ends = np.array(list(leaving.values()))
        elif self.params.recorded:
            row = int(self.state.env.row[b])
            rows = np.flatnonzero((events.slot[:row] >= 0) & (events.gone[:row] > row))
            halves = self.state.where[b, events.slot[rows]].astype(np.int64)
            rows, halves = rows[halves != NOWHERE], halves[halves != NOWHERE]
            ends = events.rows[rows, TIME] + events.life_s[rows]
        else:
            return NOTHING
        return present(rows, halves, ends - events.life_s[rows], np.where(np.isfinite(ends), ends, np.nan))

    def happened(self, b: int, action: int) -> Callable[[], tuple[tuple[float, float], list[Event]]]:
        """Note which VMs are there; a deletion of a VM that was never placed is none."""
        events, state, row = self.events, self.state, int(self.state.env.row[b])
        now, life_s = float(self.buffers.time_s[b]), float(events.life_s[row])
        span = now, now + life_s if np.isfinite(life_s) else float("nan")
        if self.params.waits:
            there = {**self._leaving(b), row * state.cpu.shape[1] + action: now + life_s}
        else:
            where = state.where[b].copy()
            where[events.slot[row]] = action

        def gone(rows: NDArray[np.int64], halves: NDArray[Any], times: NDArray[np.float64]) -> list[Event]:
            columns = self.trace.vmid[rows].tolist(), halves.tolist(), times.tolist()
            return [Event("end", f"vm {vm}", half, -1, at) for vm, half, at in zip(*columns, strict=True)]

        def after() -> tuple[tuple[float, float], list[Event]]:
            if self.params.waits:
                stayed = self._leaving(b)
                left = sorted((time_s, item) for item, time_s in there.items() if item not in stayed)
                items = np.array([item for _, item in left], np.int64)
                times = np.array([time_s for time_s, _ in left])
                return span, gone(*np.divmod(items, state.cpu.shape[1]), times)
            rows = np.arange(row + 1, int(state.env.row[b])) if self.params.releases else np.empty(0, np.int64)
            rows = rows[events.slot[rows] < 0]
            rows = rows[where[~events.slot[rows]] != NOWHERE]
            return span, gone(rows, where[~events.slot[rows]], self.trace.time[rows])

        return after

    def _leaving(self, b: int) -> dict[int, float]:
        """Return when the VMs of an environment that waits will leave, by row and half in one number."""
        heap = self.state.leaving[b, : int(self.state.env.leaving[b])]
        return dict(zip(heap[:, ITEM].astype(np.int64).tolist(), heap[:, LEAVES].tolist(), strict=True))

    def record(self) -> Record:
        """Return all requests; lives are those of the same flavour. Only where requests wait is a life its own."""
        if not self.params.waits:
            return super().record()
        rows = np.flatnonzero(self.events.slot >= 0)
        flavour = np.unique(self.events.rows[rows, : HALVES + 1], axis=0, return_inverse=True)[1]
        return Record(rows, self.events.rows[rows, TIME], flavour.ravel())

    def seen_until(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of the first request that has not arrived."""
        return np.asarray(self.state.env.arrived[rows])

    def _meeting(self, rows: NDArray[np.int64], future: Future) -> Self:
        told, life = self.events.rows.copy(), self.events.life_s.copy()
        ahead = np.flatnonzero(self.events.slot[: future.source.size] >= 0)
        ahead = ahead[ahead >= future.first]
        told[ahead, : HALVES + 1] = self.events.rows[future.source[ahead], : HALVES + 1]
        told[ahead, TIME] = future.arrival_s[ahead]
        life[ahead] = self.events.life_s[future.life[ahead]]
        expected = self.events.expected.copy()
        if self.params.expects:
            expected[ahead] = self.events.expected[future.source[ahead]]
        fork = self.fork(rows)
        fork.events, fork._world = self.events._replace(rows=told, life_s=life, expected=expected), None
        if (future.life != future.source).any():
            fork._live_on(self.events.life_s, future.seed)
        return fork

    def _live_on(self, recorded_s: NDArray[np.float64], seed: int) -> None:
        """Give the VMs that are there another rest of their lives: one of their flavour that has lasted as long.

        Drawn by (seed, VM): the same in every row, wherever the VM stands.
        """
        record = self.record()
        lives: dict[int, NDArray[np.float64]] = {}
        for b in range(self.num_envs):
            now = float(self.buffers.time_s[b])
            heap = self.state.leaving[b, : int(self.state.env.leaving[b])]
            for k in np.flatnonzero(np.isfinite(heap[:, LEAVES])):
                row = int(heap[k, ITEM]) // self.state.cpu.shape[1]
                flavour = int(record.kind[np.searchsorted(record.rows, row)])
                if flavour not in lives:
                    lives[flavour] = np.sort(recorded_s[record.rows[record.kind == flavour]])
                age = now - (heap[k, LEAVES] - recorded_s[row])
                longer = lives[flavour][np.searchsorted(lives[flavour], age, side="right") :]
                if longer.size:
                    heap[k, LEAVES] = now + (longer[np.random.default_rng([seed, 2, row]).integers(longer.size)] - age)
            heap[:] = heap[np.lexsort((heap[:, ITEM], heap[:, LEAVES]))]  # what is sorted is a heap

    def rows_replaced(self) -> None:
        """Show as many candidates as the largest cluster has."""
        self._show()

    def _show(self) -> None:
        width = 2 * int(self.state.env.servers[: self.num_envs].max())
        if width != self.width:
            self._expose(width)


def make(
    scenario: VmScenario, num_envs: int, *, seed: int = 0, trace: VmTrace | str | Path | None = None, copy: bool = False
) -> VmVectorEnv:
    """Make a vector environment; ``trace`` is a table, a file, or None for the scenario's own."""
    return VmVectorEnv(scenario, load_trace(trace, scenario), num_envs, seed=seed, copy=copy)


def _part(scenario: VmScenario, trace: VmTrace) -> tuple[VmScenario, int]:
    """Return the scenario with starts in its part of the trace, and the row after the part's last."""
    if scenario.split != "all" and trace.stop.size > 1:
        raise ConfigError(
            f"split is {scenario.split} and the trace holds {trace.stop.size} clusters, one after another",
            "the trace of one cluster, or split: all",
        )
    cut, end = within_split(scenario, len(trace))
    if not (trace.kind[cut.start_min : end] == 0).any() and scenario.split != "all":
        raise ConfigError(f"part {scenario.split} of the trace has no creation", "a longer trace")
    return cut, end


def _params(scenario: VmScenario, events: Events, recorded: bool) -> Params:
    rows = int(events.parts[-1, STOP])
    startable = int(np.flatnonzero(events.next_start[:-1] < rows)[-1]) + 1
    stop = min(scenario.start_max or startable, startable)
    return Params(
        half_cpu=float(scenario.half_cpu_cores),
        half_mem=float(scenario.half_mem_gib),
        servers=scenario.servers,
        max_servers=scenario.most_servers,
        growing=scenario.growing_servers,
        expand_threshold=float(scenario.expand_threshold),
        releases=scenario.releases,
        waits=scenario.ending == "wait",
        queue_extra=scenario.queue_extra,
        reward=_REWARDS[scenario.reward_kind],
        horizon=scenario.horizon,
        sla_wait_s=float(scenario.sla_wait_s),
        price_usd_per_s=(1.0 if scenario.price_assumed else scenario.server_price_usd_per_hour or 0.0) / 3600.0,
        start_min=scenario.start_min if scenario.start_min < stop else 0,  # a trace shorter than the first start
        start_max=stop,
        recorded=recorded,
        expects=bool(events.expected.any()),
    )


def _state(scenario: VmScenario, events: Events, num_envs: int, expects: bool) -> State:
    rows, B, C = events.slot.size, num_envs + 1, 2 * scenario.most_servers
    slots = int(np.where(events.slot < 0, ~events.slot, events.slot).max()) + 1
    # As many VMs as the smallest request lets into the largest cluster, or all there are.
    created = events.rows[events.slot >= 0]
    share = np.maximum(created[:, CPU] / scenario.half_cpu_cores, created[:, MEM] / scenario.half_mem_gib)
    most = min(len(created), int(scenario.most_servers * 2 / (share * created[:, HALVES]).min())) + 1
    heap, living = most * (scenario.ending == "wait"), most * expects
    return State(
        cpu=np.zeros((B, C)),
        mem=np.zeros((B, C)),
        vms=np.zeros((B, C), np.int32),
        since=np.full((B, scenario.most_servers), np.inf),
        where=np.zeros((B, slots), np.int16 if C < 2**15 else np.int32),  # small: it is the coldest memory of a step
        env=np.zeros(B, ENV).view(np.recarray),
        leaving=np.zeros((B, heap, 2)),
        living=np.zeros((B, living, 5)),
        ends=np.zeros((B, scenario.most_servers * expects)),
        queue_of=np.zeros(rows + 1 if heap else 0, np.int32),
    )
