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
from sched_env.functions.dataset import Dataset
from sched_env.functions.scenario import ServerlessScenario
from sched_env.functions.state import (
    ARRIVAL,
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
from sched_env.functions.vector import ServerlessVectorEnv
from sched_env.single import ROUNDING, Observation, PlacementEnv, start_of
from sched_env.stepping import HOLD
from sched_env.tables import NodeTable
from wire.errors import ConfigError, InfeasibleActionError

LARGEST = 1e6
"""Bound of quantities that have none of their own (requests, io, relative response time)."""
MOST_REQUESTS = int(np.iinfo(np.int32).max)


class ServerlessSchedulingEnv(PlacementEnv[ServerlessVectorEnv]):
    """Place arriving function instances on nodes, one at a time.

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
        self._settings = self.many.scenario
        self._dataset: Dataset | None = None
        self._seeded = False
        self._actions = np.zeros(1, np.int64)
        self.num_nodes, self.num_functions = len(nodes), len(functions.function_names)
        self._capacity = self.many.cluster.nodes[:, :4].copy()
        self._fixed: Observation = {
            "node_capacity": self._capacity[:, : MEM + 1].astype(np.float32),
            "node_price": nodes.price_usd_per_hour.astype(np.float32),
        }
        self.observation_space = _observation_space(nodes, self.num_functions)

    def set_dataset(self, tasks: Iterable[Any]) -> None:
        """Take the tasks from here, from the next ``reset`` on (:mod:`sched_env.functions.dataset` has the fields).

        A list, or anything else that has a length, is read now, and all of it is every episode. An iterator or a
        generator is read as it goes and may be endless: an episode is the next ``horizon`` tasks.
        """
        self._dataset = Dataset(tasks, self.num_functions, self._settings.horizon)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode with what ran at its start; ``options={"start": row}`` names its first trace row.

        Without a start, environment 0 of ``make_vec`` with the same seed begins at the same row.
        """
        start = start_of(options, -1 if self._dataset is None else 0)
        gymnasium.Env.reset(self, seed=seed)
        if self._dataset is not None:
            self._replay(self._dataset)
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(2**31))
        self._seeded = True
        self.many.reset(seed=seed, options={"starts": [start]})
        self._begin()
        return self._observe(), {"invalid": False, **self._facts()}

    def _replay(self, dataset: Dataset) -> None:
        """Put the tasks of the next episode in place of the trace."""
        tasks, many = dataset.episode(), self.many
        if tasks is many.trace:
            return
        changed = {"start_min": 0, "start_max": 0, **({"horizon": 0, "episode_s": 0.0} if dataset.whole else {})}
        settings = scenarios.load(self._settings, changed)
        self.many = ServerlessVectorEnv(settings, 1, tasks, many.table, seed=many.seed)  # type: ignore[arg-type]

    def _place(self, chosen: int) -> tuple[float, bool, bool, dict[str, Any]]:
        """Place the present instance on a node and go on to the next one that fits somewhere."""
        many, self._actions[0] = self.many, chosen
        if many.advance(self._actions, HOLD) < 0:
            raise InfeasibleActionError(f"node {chosen} is infeasible", "a node whose mask is on")
        self._over = truncated = bool(many.buffers.truncated[0])
        return float(many.buffers.reward[0]), False, truncated, {"invalid": False, **self._facts()}

    def _figures(self, ended: str) -> dict[str, Any]:
        """Close the accounts: all instances finish, which is why the last observation was made before."""
        self.many.close_accounts()
        return super()._figures(ended)

    def _worst_rest(self) -> float:
        """Every arrival that is left is placed at the worst reward, or rejected."""
        return min(-1.0, -self.many.rules.rejection_penalty) * self._most_decisions() * ROUNDING

    def _worst_of_user(self) -> float:
        return min(super()._worst_of_user(), -self.many.rules.rejection_penalty * self._most_decisions() * ROUNDING)

    def _most_decisions(self) -> int:
        """Return how many arrivals are left."""
        tasks, rules, row = self.many.cluster.tasks, self.many.rules, int(self.many.state.cursor[0, ROW])
        start, stop = int(self.many.buffers.start[0]), len(tasks)
        if rules.horizon:
            stop = min(stop, start + rules.horizon)
        if rules.episode_s:
            stop = min(stop, int(np.searchsorted(tasks[:, ARRIVAL], tasks[start, ARRIVAL] + rules.episode_s)))
        return stop - row

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
            "r1": float(last[R1]),
            "rfrt": float(last[R1]),
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
