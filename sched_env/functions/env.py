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
from sched_env.functions.dataset import read_tasks
from sched_env.functions.scenario import ServerlessScenario
from sched_env.functions.state import (
    DISK,
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
from sched_env.functions.vector import ServerlessVectorEnv
from sched_env.single import Observation, PlacementEnv, Step
from sched_env.stepping import HOLD
from sched_env.tables import NodeTable
from sched_env.vector import ENDED
from wire.errors import ConfigError

LARGEST = 1e6
"""Bound of quantities that have none of their own (requests, io, relative response time)."""
GIVE_UP_AFTER = 3
"""With ``penalise``: so many refusals in a row, and the instance is rejected."""
MOST_REQUESTS = int(np.iinfo(np.int32).max)


class ServerlessSchedulingEnv(PlacementEnv[ServerlessVectorEnv]):
    """Place arriving function instances on nodes, one at a time.

    With ``penalise`` an instance is rejected after three refusals in a row. ``info["invalid"]`` is always there.

    Args:
        num_nodes: Nodes of the generated cluster.
        num_functions: Different functions.
        scenario: ``functions/serverless``, ``functions/tutorial``, or a YAML file.
        trace: A (FunctionTrace, NodeTable) pair, a FunctionTrace alone, or a path; generated when left out.
        keys: As :class:`~sched_env.single.PlacementEnv`; scenario keys are ``beta``, ``horizon``, ``reward``, …
    """

    CANDIDATE = "node"

    def __init__(
        self,
        num_nodes: int = 10,
        num_functions: int = 5,
        *,
        scenario: str | scenarios.Scenario = "functions/serverless",
        trace: Any = None,
        **keys: Any,
    ) -> None:
        named = scenarios.load(scenario)
        if not isinstance(named, ServerlessScenario):
            raise ConfigError(f"scenario {named.name!r} is not of kind serverless", "functions/serverless, …")
        super().__init__(named, trace, **{"nodes": num_nodes, "functions": num_functions, **keys})
        functions, nodes = self.many.trace, self.many.table
        self._whole_trace = False
        self._next: FunctionTrace | None = None
        self._seeded = False
        self._invalid = self._refused = 0
        self._actions = np.zeros(1, np.int64)
        self.num_nodes, self.num_functions = len(nodes), len(functions.function_names)
        self._capacity = self.many.cluster.nodes[:, :4].copy()
        self._fixed: Observation = {
            "node_capacity": self._capacity[:, : MEM + 1].astype(np.float32),
            "node_price": nodes.price_usd_per_hour.astype(np.float32),
        }
        self.observation_space = _observation_space(nodes, self.num_functions)

    def set_dataset(self, tasks: Iterable[Any]) -> None:
        """Replay these tasks, from the first to the last, in every episode from the next ``reset`` on.

        They are read now, once: an iterator may be given, and it can be replayed. Fields and defaults:
        :mod:`sched_env.functions.dataset`.
        """
        self._next = read_tasks(tasks, self.num_functions)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode with what ran at its start; ``options={"start": row}`` names its first trace row.

        Without a start, environment 0 of ``make_vec`` with the same seed begins at the same row.
        """
        gymnasium.Env.reset(self, seed=seed)
        core = self.many
        if self._next is not None:
            # All of a user's tasks are one episode, however long the scenario's are.
            whole = scenarios.load(self.scenario, {"horizon": 0, "episode_s": 0.0})
            core = self.many = ServerlessVectorEnv(whole, 1, self._next, core.table, seed=core.seed)  # type: ignore[arg-type]
            self._next, self._whole_trace = None, True
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(2**31))
        self._seeded, self._over = True, False
        self._invalid = self._refused = 0
        start = (options or {}).get("start", 0 if self._whole_trace else -1)
        core.reset(seed=seed, options={"starts": [start]})
        return self._observe(), self._facts()

    def step(self, action: Any) -> Step:
        """Place the present instance on a node and go on to the next one that fits somewhere."""
        self._check_under_way()
        core = self.many
        self._actions[0] = action
        finished = core.advance(self._actions, HOLD)
        if finished < 0:
            return self._refuse(int(action))
        self._refused = 0
        observation, info = self._observe(), self._facts()
        truncated = bool(core.buffers.truncated[0])
        if truncated:
            info.update(self._close(ENDED[core.buffers.ended[0]]))
        return observation, float(core.buffers.reward[0]), False, truncated, info

    def _refuse(self, action: Any) -> Step:
        """Answer an infeasible action; nothing has changed."""
        self._invalid += 1
        self._refused += 1
        observation, reward, terminated, truncated, info = super()._refuse(action)
        if terminated:
            info.update(self._close("invalid"))
        elif self._refused >= GIVE_UP_AFTER:
            # A deterministic policy that sees the same would do the same for ever.
            core = self.many
            truncated = core.give_up() > 0
            self._refused = 0
            observation, info = self._observe(), {**self._facts(), "invalid": True}
            if truncated:
                info.update(self._close(ENDED[core.buffers.ended[0]]))
        return observation, reward, terminated, truncated, info

    def _close(self, ended: str) -> dict[str, Any]:
        """Close the episode's accounts: all instances finish, and the metric sheet is complete."""
        core, self._over = self.many, True
        core.close_accounts()
        sheet = dict(zip(core.METRICS, core.buffers.metrics[0].tolist(), strict=True))
        return {"metrics": {**sheet, "start": int(core.buffers.start[0]), "infeasible": self._invalid, "ended": ended}}

    def _utilization(self) -> NDArray[np.float32]:
        # A link or disk that is asked for more than it has is fully used, not more.
        result: NDArray[np.float32] = np.minimum(self.many.state.nodes[0, :, :4] / self._capacity, 1.0).astype(
            np.float32
        )
        return result

    def _observe(self) -> Observation:
        """Build the observation, every array new: what a caller keeps is never changed by a later step."""
        core = self.many
        functions = core.state.functions[0]
        task = core.cluster.tasks[core.state.cursor[0, ROW]]
        request = core.buffers.request[0].copy()
        return {
            "node_utilization": self._utilization(),
            **{name: values.copy() for name, values in self._fixed.items()},
            "node_active": core.active(0).astype(np.int8),
            "node_deployed": np.minimum(core.state.nodes[0, :, :2], self._capacity[:, :2]).astype(np.float32),
            "current_function_request": request[: MEM + 1],
            "current_function_io": request[NET : DISK + 1],
            "current_function_requests": np.array([task[REQUESTS]], np.int32),
            "current_function_rart": request[-1:],
            "cluster_function_requests": functions[:, RUNNING_REQUESTS].astype(np.int32),
        }

    def _facts(self) -> dict[str, Any]:
        core = self.many
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
