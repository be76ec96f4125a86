from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sched_env.vm.huawei import events_of
from sched_env.vm.tables import VmTrace

SHARED = Path(os.environ.get("LOADMASTER_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))


@pytest.fixture
def huawei() -> Path:
    """The public trace's folder; tests that need it are skipped where it is absent."""
    folder = SHARED / "huawei-east-1"
    if not (folder / "baseline.json").exists():
        pytest.skip(f"the public traces are not in {SHARED} (LOADMASTER_SHARED_DATA names another place)")
    return folder


@pytest.fixture
def vms() -> Callable[..., VmTrace]:
    """Make a trace from (arrival, lifetime, cores, GiB) of each VM; a lifetime of None is never deleted."""

    def make(*rows: tuple[float, float | None, float, float]) -> VmTrace:
        arrival = np.array([row[0] for row in rows], float)
        life = np.array([np.inf if row[1] is None else row[1] for row in rows], float)
        cpu, mem = (np.array([row[k] for row in rows], float) for k in (2, 3))
        return events_of(np.arange(len(rows)), cpu, mem, arrival, arrival + life)

    return make


class Oracle:
    """The rules of problems.md 1.1, 1.2 and 1.11 in the plainest Python, without looking at the kernels."""

    def __init__(self, trace: VmTrace, **settings: Any) -> None:
        self.trace = trace
        self.count = settings.get("servers", 2)
        self.cap = settings.get("half_cpu_cores", 40.0), settings.get("half_mem_gib", 90.0)
        self.threshold = settings.get("double_threshold", 1e10)
        self.releases = settings.get("releases", True)
        self.grow, self.limit = settings.get("growing_servers", 0), settings.get("max_servers", 0)
        self.expand = settings.get("expand_threshold", 0.7)
        self.extra = settings.get("queue_extra", 40)

    def begin(self, start: int) -> None:
        self.free = [[list(self.cap), list(self.cap)] for _ in range(self.count)]
        self.held: dict[int, tuple[int, int]] = {}  # creation row -> (server, half)
        self.row = start
        while self.trace.kind[self.row] == 1 or not self._fits_somewhere(self.row):
            self.row += 1

    def need(self, row: int) -> tuple[float, float, bool]:
        cpu, mem = float(self.trace.cpu[row]), float(self.trace.mem[row])
        double = mem > self.threshold
        return (cpu / 2, mem / 2, True) if double else (cpu, mem, False)

    def mask(self, row: int) -> list[bool]:
        cpu, mem, double = self.need(row)
        result = []
        for server in self.free:
            ok = [half[0] >= cpu and half[1] >= mem for half in server]
            result += [all(ok)] * 2 if double else ok
        return result

    def _fits_somewhere(self, row: int) -> bool:
        return any(self.mask(row))

    def change(self, row: int, server: int, half: int, sign: int) -> None:
        cpu, mem, double = self.need(row)
        for k in (0, 1) if double else (half,):
            self.free[server][k][0] += sign * cpu
            self.free[server][k][1] += sign * mem

    def place(self, row: int, action: int) -> None:
        self.change(row, action // 2, action % 2, -1)
        self.held[row] = (action // 2, action % 2)
        while self.grow and len(self.free) < self.limit and self._share() > self.expand:
            for _ in range(min(self.grow, self.limit - len(self.free))):
                self.free.append([list(self.cap), list(self.cap)])

    def _share(self) -> float:
        shares = []
        for k in (0, 1):
            left = sum(half[k] for server in self.free for half in server)
            shares.append(1 - left / (2 * len(self.free) * self.cap[k]))
        return max(shares) - 1e-12  # sums of floats in another order than the kernel's

    def step(self, action: int) -> str | None:
        """Place, walk in row order; return how the episode ended."""
        self.place(self.row, action)
        self.row += 1
        while self.row < len(self.trace) and self.trace.kind[self.row] == 1:
            for created, (server, half) in list(self.held.items()):
                if self.releases and self.trace.vmid[created] == self.trace.vmid[self.row]:
                    self.change(created, server, half, +1)
                    del self.held[created]
            self.row += 1
        if self.row >= len(self.trace):
            return "end_of_trace"
        return None if self._fits_somewhere(self.row) else "full"

    def queue(self, start: int) -> list[int]:
        """The rows of the queue of the ending ``wait``: first_fit's run and ``extra`` more."""
        self.begin(start)
        first, placed, ended = self.row, 0, None
        while ended is None:
            ended = self.step(self.mask(self.row).index(True))
            placed += 1
        rows = [row for row in range(first, len(self.trace)) if self.trace.kind[row] == 0]
        return rows[: placed + self.extra]

    def run_wait(self, start: int, choose: Callable[[list[bool]], int]) -> list[float]:
        """Run the queue first-in-first-out; return each request's waiting time (placed ones)."""
        rows = self.queue(start)
        self.begin(start)
        now, leaving, waits = 0.0, [], []
        for row in rows:
            now = max(now, float(self.trace.time[row]))
            while True:
                for entry in sorted(entry for entry in leaving if entry[0] <= now):
                    leaving.remove(entry)
                    self.change(entry[1], *entry[2], +1)
                if self._fits_somewhere(row):
                    break
                finite = [entry[0] for entry in leaving if entry[0] < np.inf]
                if not finite:
                    return waits
                now = min(finite)
            action = choose(self.mask(row))
            self.place(row, action)
            gone = [r for r in range(row, len(self.trace)) if self.trace.vmid[r] == self.trace.vmid[row]]
            life = float(self.trace.time[gone[1]] - self.trace.time[row]) if len(gone) > 1 else np.inf
            leaving.append((now + life, row, (action // 2, action % 2)))
            waits.append(now - float(self.trace.time[row]))
        return waits


@pytest.fixture
def oracle() -> type[Oracle]:
    return Oracle
