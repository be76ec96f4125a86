"""VM scheduling the way VMAgent's simulator does it: objects all the way down; the yardstick of speed.

One object a NUMA half and a server, a method call for each action's feasibility, nested lists turned into an array
for every observation.
"""

from __future__ import annotations

import numpy as np

from sched_env.vm.tables import VmTrace


class Half:
    """A NUMA half and what it has left."""

    def __init__(self, cpu: float, mem: float) -> None:
        self.cpu, self.mem = cpu, mem

    def get(self) -> list[float]:
        """What is left."""
        return [self.cpu, self.mem]

    def fits(self, cpu: float, mem: float) -> bool:
        """Whether the half can hold this much."""
        return self.cpu >= cpu and self.mem >= mem

    def change(self, cpu: float, mem: float) -> None:
        """Give back, or take when negative."""
        self.cpu += cpu
        self.mem += mem


class Server:
    """Two halves."""

    def __init__(self, cpu: float, mem: float) -> None:
        self.halves = [Half(cpu, mem), Half(cpu, mem)]

    def get(self) -> list[list[float]]:
        """What is left of both halves."""
        return [half.get() for half in self.halves]

    def fits(self, request: dict[str, float], numa: int) -> bool:
        """Whether the request fits the half, or both when it is split."""
        if request["double"]:
            return all(half.fits(request["cpu"] / 2, request["mem"] / 2) for half in self.halves)
        return self.halves[numa].fits(request["cpu"], request["mem"])

    def change(self, request: dict[str, float], numa: int, sign: int) -> None:
        """Take (-1) or give back (+1) a request."""
        if request["double"]:
            for half in self.halves:
                half.change(sign * request["cpu"] / 2, sign * request["mem"] / 2)
        else:
            self.halves[numa].change(sign * request["cpu"], sign * request["mem"])


class Cluster:
    """The environment of the agent loop: mask, request and observation, then a step."""

    def __init__(self, trace: VmTrace, servers: int, double_thr: float) -> None:
        columns = (trace.vmid, trace.cpu, trace.mem, trace.kind)
        self.rows = [
            {"vmid": vmid, "cpu": cpu, "mem": mem, "kind": kind, "double": mem > double_thr}
            for vmid, cpu, mem, kind in zip(*(column.tolist() for column in columns), strict=True)
        ]
        self.count = servers

    def reset(self, row: int) -> None:
        """Empty the cluster and go to the first creation."""
        self.servers = [Server(40.0, 90.0) for _ in range(self.count)]
        self.placed: dict[int, tuple[dict[str, float], int]] = {}
        while self.rows[row]["kind"] == 1:
            row += 1
        self.row = row

    def obs(self) -> np.ndarray:
        """Return what is left everywhere."""
        return np.array([server.get() for server in self.servers])

    def req(self) -> np.ndarray:
        """Return what each choice of half would take."""
        row = self.rows[self.row]
        size = [row["cpu"], row["mem"]]
        if row["double"]:
            half = [row["cpu"] / 2, row["mem"] / 2]
            return np.array([[half, half], [half, half]])
        return np.array([[size, [0.0, 0.0]], [[0.0, 0.0], size]])

    def avail(self) -> np.ndarray:
        """Return which actions are feasible."""
        row = self.rows[self.row]
        return np.array([self.servers[action // 2].fits(row, action % 2) for action in range(2 * self.count)])

    def step(self, action: int) -> bool:
        """Place, walk over deletions, and tell whether the trace is over."""
        row = self.rows[self.row]
        self.servers[action // 2].change(row, action % 2, -1)
        self.placed[row["vmid"]] = (row, action)
        self.row += 1
        while self.row < len(self.rows) and self.rows[self.row]["kind"] == 1:
            held = self.placed.pop(self.rows[self.row]["vmid"], None)
            if held is not None:
                self.servers[held[1] // 2].change(held[0], held[1] % 2, 1)
            self.row += 1
        return self.row >= len(self.rows)
