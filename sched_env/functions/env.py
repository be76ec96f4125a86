"""``ServerlessSchedulingEnv``: one serverless cluster as a Gymnasium environment, with the observation people know.

A thin view over the batch kernels: the same scenario, start and actions give the same rewards in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sched_env import scenarios
from sched_env.functions import kernels, render
from sched_env.functions.dataset import read_tasks
from sched_env.functions.scenario import ServerlessScenario
from sched_env.functions.state import (
    ACTIVE,
    ARRIVAL,
    BILLED_UNTIL,
    CPU,
    DISK,
    FUNCTION,
    INSTANCES,
    LAST_REJECTED,
    LATE_SHARE,
    MEM,
    NET,
    R1,
    R2,
    REQUESTS,
    ROW,
    RUNNING_REQUESTS,
)
from sched_env.functions.tables import FunctionTrace
from sched_env.functions.trace import load as load_trace
from sched_env.functions.vector import ServerlessVectorEnv
from sched_env.single import InvalidAction, Observation, known
from sched_env.tables import NodeTable
from sched_env.vector import ENDED
from wire.errors import ConfigError, InfeasibleActionError, legal

LARGEST = 1e6
"""Bound of quantities that have none of their own (requests, io, relative response time)."""
GIVE_UP_AFTER = 3
"""With ``penalise``: so many refusals in a row, and the instance is rejected."""
MOST_REQUESTS = int(np.iinfo(np.int32).max)


class ServerlessSchedulingEnv(gymnasium.Env[Observation, np.int64]):
    """Place arriving function instances on nodes, one at a time.

    Args:
        num_nodes: Nodes of the generated cluster.
        num_functions: Different functions.
        scenario: ``functions/serverless``, ``functions/tutorial``, or a YAML file.
        trace: A (FunctionTrace, NodeTable) pair, a FunctionTrace alone, or a path; generated when left out.
        invalid_action: What an infeasible node does: ``terminate`` ends the episode, ``penalise`` goes on with the
            same instance (which is rejected after three refusals in a row), ``raise`` raises. The action changes
            nothing in any case, and ``info["invalid"]`` is true.
        invalid_penalty: Reward of an infeasible action, for the first two.
        render_mode: ``ansi`` or ``rgb_array``.
        overrides: Scenario keys to replace: ``beta``, ``horizon``, ``reward``, …
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - declared so by Gymnasium
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 4,
    }

    def __init__(
        self,
        num_nodes: int = 10,
        num_functions: int = 5,
        *,
        scenario: str | scenarios.Scenario = "functions/serverless",
        trace: Any = None,
        invalid_action: InvalidAction = "terminate",
        invalid_penalty: float = -10.0,
        render_mode: str | None = None,
        **overrides: Any,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"render_mode is {render_mode!r}", legal(self.metadata["render_modes"]))
        named = scenarios.load(scenario)
        if not isinstance(named, ServerlessScenario):
            raise ConfigError(f"scenario {named.name!r} is not of kind serverless", "functions/serverless, …")
        loaded = scenarios.load(named, {"nodes": num_nodes, "functions": num_functions, **overrides})
        self.scenario: ServerlessScenario = loaded  # type: ignore[assignment]
        self.render_mode = render_mode
        self.invalid_action, self.invalid_penalty = known(invalid_action), float(invalid_penalty)
        functions, nodes = load_trace(trace, self.scenario)
        self._core = ServerlessVectorEnv(self.scenario, 1, functions, nodes)
        self._whole_trace = False
        self._next: FunctionTrace | None = None
        self._seeded, self._running = False, False
        self._invalid = self._refused = 0
        self._actions = np.zeros(1, np.int64)
        self.num_nodes, self.num_functions = len(nodes), len(functions.function_names)
        self.action_space = spaces.Discrete(self.num_nodes)
        self._capacity = self._core.cluster.nodes[:, :4].copy()
        self._fixed: Observation = {
            "node_capacity": self._capacity[:, : MEM + 1].astype(np.float32),
            "node_price": nodes.price_usd_per_hour.astype(np.float32),
            "node_active": self._core.cluster.nodes[:, ACTIVE].astype(np.int8),
        }
        self.observation_space = _observation_space(nodes, self.num_functions)  # type: ignore[assignment]

    def set_dataset(self, tasks: Iterable[Any]) -> None:
        """Replay these tasks, from the first to the last, in every episode from the next ``reset`` on.

        They are read now, once: an iterator may be given, and it can be replayed. Fields and defaults:
        :mod:`sched_env.functions.dataset`.
        """
        self._next = read_tasks(tasks, self.num_functions)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode on an empty cluster; ``options={"start": row}`` names its first trace row.

        Without a start, environment 0 of ``make_vec`` with the same seed begins at the same row.
        """
        super().reset(seed=seed)
        core = self._core
        if self._next is not None:
            # All of a user's tasks are one episode, however long the scenario's are.
            whole = scenarios.load(self.scenario, {"horizon": 0, "episode_s": 0.0})
            core = self._core = ServerlessVectorEnv(whole, 1, self._next, core.table, seed=core.seed)  # type: ignore[arg-type]
            self._next, self._whole_trace = None, True
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(2**31))
        self._seeded, self._running = True, True
        self._invalid = self._refused = 0
        start = (options or {}).get("start", 0 if self._whole_trace else -1)
        core.reset(seed=seed, options={"starts": [start]})
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Place the present instance on a node and go on to the next one that fits somewhere."""
        if not self._running:
            raise gymnasium.error.ResetNeeded("the episode is over, or has not begun: call reset()")
        core = self._core
        self._actions[0] = action
        finished = core.advance(self._actions, kernels.HOLD)
        if finished < 0:
            return self._refuse(int(action))
        self._refused = 0
        observation, info = self._observe(), self._info()
        truncated = bool(core.buffers.truncated[0])
        if truncated:
            info.update(self._close(ENDED[core.buffers.ended[0]]))
        return observation, float(core.buffers.reward[0]), False, truncated, info

    def _refuse(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Answer an infeasible action; nothing has changed."""
        if self.invalid_action == "raise":
            raise InfeasibleActionError(
                f"node {action} cannot take the instance", "a node whose action_masks() entry is on"
            )
        observation, info = self._observe(), self._info()
        info["invalid"] = True
        self._invalid += 1
        self._refused += 1
        if self.invalid_action == "terminate":
            info.update(self._close("invalid"))
            return observation, self.invalid_penalty, True, False, info
        truncated = False
        if self._refused >= GIVE_UP_AFTER:
            # A deterministic policy that sees the same would do the same for ever.
            core = self._core
            truncated = int(kernels.give_up(core.cluster, core.rules, core.state, core.buffers, 0)) != kernels.RUNNING
            self._refused = 0
            observation, info = self._observe(), {**self._info(), "invalid": True}
            if truncated:
                info.update(self._close(ENDED[core.buffers.ended[0]]))
        return observation, self.invalid_penalty, False, truncated, info

    def _close(self, ended: str) -> dict[str, Any]:
        """Close the episode's accounts: all instances finish, and the metric sheet is complete."""
        core, self._running = self._core, False
        kernels.close_all(core.cluster, core.rules, core.state, core.buffers)
        sheet = dict(zip(core.METRICS, core.buffers.metrics[0].tolist(), strict=True))
        return {"metrics": {**sheet, "start": int(core.buffers.start[0]), "infeasible": self._invalid, "ended": ended}}

    def action_masks(self) -> NDArray[np.bool_]:
        """Say which nodes can take the present instance; what ``MaskablePPO`` asks for."""
        mask: NDArray[np.bool_] = self._core.buffers.mask[0].copy()
        return mask

    def render(self) -> Any:
        """Return the cluster as text (``ansi``) or as a picture (``rgb_array``)."""
        if self.render_mode is None:
            return None
        state, table = self._core.state, self._core.table
        row = int(state.cursor[0, ROW])
        task = self._core.cluster.tasks[row]
        billed = state.nodes[0, :, BILLED_UNTIL] > task[ARRIVAL]
        if self.render_mode == "rgb_array":
            return render.as_rgb(self._utilization(), billed)
        name = self._core.trace.function_names[int(task[FUNCTION])]
        headline = f"{task[ARRIVAL]:.1f} s: {name} asks for {task[CPU]:.2f} cores, {task[MEM]:.2f} GiB (row {row})"
        return render.as_text(table.names, self._utilization(), state.nodes[0, :, INSTANCES], billed, headline)

    def _utilization(self) -> NDArray[np.float32]:
        # A link or disk that is asked for more than it has is fully used, not more.
        result: NDArray[np.float32] = np.minimum(self._core.state.nodes[0, :, :4] / self._capacity, 1.0).astype(
            np.float32
        )
        return result

    def _observe(self) -> Observation:
        """Build the observation, every array new: what a caller keeps is never changed by a later step."""
        core = self._core
        functions = core.state.functions[0]
        task = core.cluster.tasks[core.state.cursor[0, ROW]]
        request = core.buffers.request[0].copy()
        return {
            "node_utilization": self._utilization(),
            **{name: values.copy() for name, values in self._fixed.items()},
            "node_deployed": np.minimum(core.state.nodes[0, :, :2], self._capacity[:, :2]).astype(np.float32),
            "current_function_request": request[: MEM + 1],
            "current_function_io": request[NET : DISK + 1],
            "current_function_requests": np.array([task[REQUESTS]], np.int32),
            "current_function_rart": request[-1:],
            "cluster_function_requests": functions[:, RUNNING_REQUESTS].astype(np.int32),
        }

    def _info(self) -> dict[str, Any]:
        core = self._core
        last, row = core.state.last[0], int(core.state.cursor[0, ROW])
        return {
            "invalid": False,
            "r1": float(last[R1]),
            "r2": float(last[R2]),
            "late_share": float(last[LATE_SHARE]),
            "rejected": int(last[LAST_REJECTED]),
            "row": row,
            "time_s": float(core.buffers.time_s[0]),
            "action_mask": self.action_masks(),
        }


def _observation_space(nodes: NodeTable, functions: int) -> spaces.Dict:
    def box(high: Any, *shape: int) -> spaces.Box:
        return spaces.Box(0.0, np.broadcast_to(np.asarray(high, np.float32), shape), shape, np.float32)

    count = len(nodes)
    capacity = np.stack([nodes.cpu, nodes.mem], axis=1)
    return spaces.Dict(
        {
            "node_utilization": box(1.0, count, 4),
            "node_capacity": box(capacity, count, 2),
            "node_price": box(nodes.price_usd_per_hour, count),
            "node_deployed": box(capacity, count, 2),
            "node_active": spaces.MultiBinary(count),
            "current_function_request": box(LARGEST, 2),
            "current_function_io": box(LARGEST, 2),
            "current_function_requests": spaces.Box(0, MOST_REQUESTS, (1,), np.int32),
            "current_function_rart": box(LARGEST, 1),
            "cluster_function_requests": spaces.Box(0, MOST_REQUESTS, (functions,), np.int32),
        }
    )
