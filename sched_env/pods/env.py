"""``DeployEnv``: one cluster with migrating pods in Gymnasium's form, a thin view over the kernels of ``pods``."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from sched_env.pods.counting import share
from sched_env.pods.state import HOT, MEM_REQUEST, MOVES_LEFT, ROW, WINDOW, WINDOWS
from sched_env.pods.vector import DeployVectorEnv
from sched_env.single import ROUNDING, Observation, PlacementEnv
from wire.errors import ConfigError

MOST_PODS = 100
"""Pod rows of a node in the padded view; the vector environments have no such limit."""

LARGEST = 1e6
"""Bound of quantities that have none of their own."""


class DeployEnv(PlacementEnv[DeployVectorEnv]):
    """One cluster; action: the node for the offered pod, its present one meaning stay.

    Observation: ``nodes`` (n, 101, 4), row 0 total cpu, total mem, remaining cpu, remaining mem of the node, then one
    row a pod: requested cpu, requested mem, assigned cpu, assigned mem, padded with zeros; ``candidates`` (n, F) and
    ``request`` (R), how the window went (``sched_env.pods.features``); ``mask`` (n).

    Args:
        n_node: Nodes of the generated cluster; the scenario's when left out.
        keys: As :class:`~sched_env.single.PlacementEnv`; the trace is as ``sched_env.pods.trace.load`` takes it.
    """

    SCENARIO = "pods/deploy"
    CANDIDATE = "node"

    def __init__(self, n_node: int | None = None, **keys: Any) -> None:
        super().__init__(**(keys if n_node is None else {"n_node": n_node, **keys}))
        if self.many.scenario.pod_limit > MOST_PODS:
            raise ConfigError(
                f"pod_limit is {self.many.scenario.pod_limit}",
                f"at most {MOST_PODS} in this view",
                "use make_vec, which has no limit",
            )
        self.n_node = len(self.many.table)
        features = self.many.feature_spec
        self.observation_space = spaces.Dict(
            {
                "nodes": spaces.Box(0.0, LARGEST, (self.n_node, 1 + MOST_PODS, 4), np.float32),
                "candidates": spaces.Box(-LARGEST, LARGEST, (self.n_node, len(features.candidate)), np.float32),
                "request": spaces.Box(-LARGEST, LARGEST, (len(features.request),), np.float32),
                "mask": spaces.MultiBinary(self.n_node),
            }
        )

    @property
    def t(self) -> int:
        """The present window: five minutes each, from the start of the trace."""
        return self.many.placement(0)[0]

    @property
    def nodes(self) -> dict[str, dict[str, Any]]:
        """Every node by name, and its pods, with what they asked for and what sharing gives them; worked out anew."""
        trace, table = self.many.trace, self.many.table
        window, place = self.many.placement(0)
        first = int(trace.window_rows[window])
        views = {}
        for n in range(self.n_node):
            rows = first + np.flatnonzero(place == n)
            asked_cpu, asked_mem = self.many.asked[rows].T
            given = share(float(table.cpu[n]), float(table.mem[n]), asked_cpu, asked_mem)
            columns = (asked_cpu, asked_mem, given.assigned_cpu, given.assigned_mem)
            views[table.names[n]] = {
                "total_cpu": float(table.cpu[n]),
                "total_mem": float(table.mem[n]),
                "remain_cpu": given.remain_cpu,
                "remain_mem": given.remain_mem,
                "pods": [
                    {"pod_name": trace.pod_names[trace.pod[row]], **dict(zip(_POD_KEYS, values, strict=True))}
                    for row, *values in zip(rows, *(column.tolist() for column in columns), strict=True)
                ],
            }
        return views

    @property
    def offered(self) -> tuple[str, int]:
        """The pod to decide on: its name and its present node."""
        cursor, trace = self.many.state.cursor[0], self.many.trace
        return trace.pod_names[trace.pod[trace.window_rows[self.t] + cursor[ROW]]], int(cursor[HOT])

    def _worst_rest(self) -> float:
        """Every request of a window is a position above and below its thresholds, and unmet; all moves are made."""
        cluster, rules, cursor = self.many.cluster, self.many.rules, self.many.state.cursor[0]
        window, last = int(cursor[WINDOW]), self._last_window()
        rows = cluster.window_rows[window + 1 : last + 2]
        requests = int(cluster.row_requests[rows[-1]] - cluster.row_requests[rows[0]])
        moves = int(cursor[MOVES_LEFT]) + int(np.maximum(rules.budget * np.diff(rows), 1.0).sum())
        largest = float(cluster.asks[cluster.window_rows[window] : rows[-1], : MEM_REQUEST + 1].sum(axis=1).max())
        counted = (rules.weight_over + rules.weight_under + rules.weight_unmet) * requests
        return -(counted + rules.weight_moved * largest * moves) / self.n_node * ROUNDING

    def _last_window(self) -> int:
        cursor = self.many.state.cursor[0]
        ends = int(cursor[WINDOW]) + self.many.rules.episode_windows - int(cursor[WINDOWS])
        return min(ends, len(self.many.trace) - 1)

    def _most_decisions(self) -> int:
        """Every pod is offered once in every window that is left."""
        rows = self.many.cluster.window_rows
        return int(rows[self._last_window() + 1] - rows[int(self.many.state.cursor[0, WINDOW])])

    def _facts(self) -> dict[str, Any]:
        return {"t": self.t}

    def _observe(self) -> Observation:
        padded = np.zeros((self.n_node, 1 + MOST_PODS, 4), np.float32)
        for n, node in enumerate(self.nodes.values()):
            padded[n, 0] = [node[key] for key in _NODE_KEYS]
            for row, pod in enumerate(node["pods"], start=1):
                padded[n, row] = [pod[key] for key in _POD_KEYS]
        return {"nodes": padded, **super()._observe()}


_NODE_KEYS = ("total_cpu", "total_mem", "remain_cpu", "remain_mem")
_POD_KEYS = ("request_cpu", "request_mem", "assigned_cpu", "assigned_mem")
