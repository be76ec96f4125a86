"""``DeployEnv``: one cluster with migrating pods in Gymnasium's form, a thin view over the kernels of ``pods``."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from sched_env import scenarios
from sched_env.errors import ConfigError, InfeasibleActionError, legal
from sched_env.pods.counting import share
from sched_env.pods.scenario import DeployScenario
from sched_env.pods.state import HOT, ROW
from sched_env.pods.vector import make
from sched_env.traces.tables import Floats
from sched_env.vector import ENDED

Observation = dict[str, NDArray[Any]]
Step = tuple[Observation, float, bool, bool, dict[str, Any]]
INVALID_ACTIONS = ("terminate", "penalise", "raise")
MOST_PODS = 100
"""Pod rows of a node in the padded view; the vector environments have no such limit."""

LARGEST = 1e6
"""Bound of quantities that have none of their own."""


class DeployEnv(gymnasium.Env[Any, Any]):
    """One cluster; action: the node for the offered pod, its present one meaning stay.

    Observation: ``nodes`` (n, 101, 4), row 0 total cpu, total mem, remaining cpu, remaining mem of the node, then one
    row a pod: requested cpu, requested mem, assigned cpu, assigned mem, padded with zeros; ``candidates`` (n, F) and
    ``request`` (R), how the window went (``sched_env.features.pods``); ``mask`` (n).

    Args:
        n_node: Nodes of the generated cluster; the scenario's when left out.
        scenario: Name, file or loaded scenario.
        trace: A (PodTrace, NodeTable) pair, a PodTrace, or a path; the scenario's own when left out.
        invalid_action: What an infeasible action does, the state being unchanged in every case: ``terminate`` ends the
            episode with ``info["invalid"]``, ``penalise`` costs ``invalid_penalty``, ``raise`` raises.
        invalid_penalty: Reward taken by ``penalise``.
        seed: Names the start points until ``reset`` is given another.
        overrides: Scenario keys to replace.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium

    def __init__(
        self,
        n_node: int | None = None,
        *,
        scenario: str | scenarios.Scenario = "pods/deploy",
        trace: Any = None,
        invalid_action: Literal["terminate", "penalise", "raise"] = "terminate",
        invalid_penalty: float = 10.0,
        seed: int = 0,
        render_mode: None = None,
        **overrides: Any,
    ) -> None:
        if invalid_action not in INVALID_ACTIONS:
            raise ConfigError(f"invalid_action is {invalid_action!r}", legal(INVALID_ACTIONS))
        loaded = scenarios.load(scenario, overrides if n_node is None else {"n_node": n_node, **overrides})
        if isinstance(loaded, DeployScenario) and loaded.pod_limit > MOST_PODS:
            raise ConfigError(
                f"pod_limit is {loaded.pod_limit}",
                f"at most {MOST_PODS} in this view",
                "use make_vec, which has no limit",
            )
        self.many = make(loaded, 1, seed=seed, trace=trace, copy=True)
        """The vector environment behind this one."""
        self.render_mode = render_mode
        self._invalid_action, self._invalid_penalty = invalid_action, invalid_penalty
        self._over = True
        self.n_node = len(self.many.table)
        self.action_space = self.many.single_action_space
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
    def nodes(self) -> list[dict[str, Any]]:
        """Every node and its pods, with what they asked for and what sharing gives them; worked out anew each time."""
        trace, table = self.many.trace, self.many.table
        window, place = self.many.placement(0)
        first = int(trace.window_rows[window])
        views = []
        for n in range(self.n_node):
            rows = first + np.flatnonzero(place == n)
            asked_cpu, asked_mem = self.many.asked[rows].T
            given = share(float(table.cpu[n]), float(table.mem[n]), asked_cpu, asked_mem)
            columns = (asked_cpu, asked_mem, given.assigned_cpu, given.assigned_mem)
            views.append(
                {
                    "total_cpu": float(table.cpu[n]),
                    "total_mem": float(table.mem[n]),
                    "remain_cpu": given.remain_cpu,
                    "remain_mem": given.remain_mem,
                    "pods": [
                        {"pod_name": trace.pod_names[trace.pod[row]], **dict(zip(_POD_KEYS, values, strict=True))}
                        for row, *values in zip(rows, *(column.tolist() for column in columns), strict=True)
                    ],
                }
            )
        return views

    @property
    def offered(self) -> tuple[str, int]:
        """The pod to decide on: its name and its present node."""
        cursor, trace = self.many.state.cursor[0], self.many.trace
        return trace.pod_names[trace.pod[trace.window_rows[self.t] + cursor[ROW]]], int(cursor[HOT])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; ``options={"start": window}`` names its first window, otherwise it is drawn."""
        super().reset(seed=seed)
        start = (options or {}).get("start", -1)
        self.many.reset(seed=seed, options={"starts": [start], "park": True})
        self._over = False
        return self._observe(), {"start": int(self.many.buffers.start[0]), "t": self.t}

    def step(self, action: int) -> Step:
        """Put the offered pod on node ``action``; when the last of the window was decided, replay the next one."""
        if self._over:
            raise ResetNeeded("the episode is over; call reset()")
        try:
            _, reward, terminated, truncated, infos = self.many.step([int(action)])
        except InfeasibleActionError:
            return self._refuse(int(action))
        info: dict[str, Any] = {"t": self.t}
        if infos:
            self._over = True
            metrics = infos["episode"]
            info["episode_metrics"] = {name: float(metrics[name][0]) for name in self.many.METRICS}
            info["ended"] = ENDED[metrics["ended"][0]]
        return self._observe(), float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def _refuse(self, action: int) -> Step:
        if self._invalid_action == "raise":
            raise InfeasibleActionError(
                f"node {action} cannot take the pod", "a node whose mask is 1", "nothing changed"
            )
        ends = self._invalid_action == "terminate"
        self._over = ends
        return self._observe(), 0.0 if ends else -self._invalid_penalty, ends, False, {"t": self.t, "invalid": True}

    def _observe(self) -> Observation:
        seen = self.many.observe()
        padded = np.zeros((self.n_node, 1 + MOST_PODS, 4), np.float32)
        for n, node in enumerate(self.nodes):
            padded[n, 0] = [node[key] for key in _NODE_KEYS]
            for row, pod in enumerate(node["pods"], start=1):
                padded[n, row] = [pod[key] for key in _POD_KEYS]
        return {
            "nodes": padded,
            "candidates": seen["candidates"][0],
            "request": seen["request"][0],
            "mask": seen["mask"][0].astype(np.int8),
        }

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the feasible actions, as sb3-contrib's MaskablePPO asks for them."""
        mask: NDArray[np.bool_] = self.many.buffers.mask[0].copy()
        return mask

    def raw(self) -> tuple[dict[str, Floats], dict[str, float]]:
        """Return the raw fields of the present decision, as the live service would report them."""
        return self.many.raw(0)


_NODE_KEYS = ("total_cpu", "total_mem", "remain_cpu", "remain_mem")
_POD_KEYS = ("request_cpu", "request_mem", "assigned_cpu", "assigned_mem")
