"""Workflows in Gymnasium's form, two thin views over the kernels: task by task, and the whole DAG in one action."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from sched_env.single import ROUNDING, Observation, PlacementEnv
from sched_env.workflow.features import HOURS_PER_SECOND, fits
from sched_env.workflow.state import (
    CPU,
    FINISH,
    FIRST,
    FLOW,
    INPUT,
    INVERSE_LEAST,
    INVERSE_REFERENCE,
    INVERSE_SPEED,
    MEM,
    NEXT,
    NODE,
    PRICE,
    RUNTIME,
    SECONDS_PER_MB,
    SIZE,
    START,
    TAIL,
)
from sched_env.workflow.vector import WorkflowVectorEnv
from wire.errors import ConfigError, InfeasibleActionError

TASK_COLUMNS = (CPU, MEM, RUNTIME, INPUT, TAIL)
"""What ``WorkflowPlanEnv`` shows of a task: cores, GiB, seconds, MB from outside, mean way from its end to the end."""


class WorkflowEnv(PlacementEnv[WorkflowVectorEnv]):
    """One workflow, task by task: observation ``candidates`` (N, F), ``request`` (R), ``mask`` (N); action: a node.

    Tasks are offered parents first, by falling upward rank (scenario key ``order``). A start is a workflow's number;
    ``info`` names it, and holds its ``schedule`` at the end.

    Arguments as :class:`~sched_env.single.PlacementEnv`; the trace holds workflows (``sched_env.workflow.trace.load``).
    """

    SCENARIO = "workflow/dag"
    CANDIDATE = "node"

    def _worst_rest(self) -> float:
        """No task that is left starts later than all before it and its data, and all run on the slowest node."""
        many, plan = self.many, self.many.plan
        cursor, flow = many.state.cursor[0], plan.flows[int(many.state.cursor[0, FLOW])]
        rows = np.arange(cursor[FIRST] + cursor[NEXT], cursor[FIRST] + cursor[SIZE])
        read_mb = np.array([plan.edge_mb[slice(*plan.parents[row : row + 2])].max(initial=0.0) for row in rows])
        slowest, per_mb, price = (plan.nodes[:, column].max() for column in (INVERSE_SPEED, SECONDS_PER_MB, PRICE))
        run_s = plan.tasks[rows, RUNTIME] * slowest
        moved_s = np.maximum(read_mb, plan.tasks[rows, INPUT]) * per_mb + plan.dispatch_s
        others = plan.there[slice(*plan.there_first[cursor[FLOW] : cursor[FLOW] + 2]), 1].max(initial=0.0)
        grown = ((moved_s + run_s).sum() + others) * flow[INVERSE_REFERENCE]
        usd = run_s.sum() * HOURS_PER_SECOND * price * flow[INVERSE_LEAST]
        return -float(many.rules.beta * grown + (1.0 - many.rules.beta) * usd) * ROUNDING

    def _most_decisions(self) -> int:
        """Return how many tasks are left."""
        cursor = self.many.state.cursor[0]
        return int(cursor[SIZE] - cursor[NEXT])

    def _facts(self) -> dict[str, Any]:
        return {"workflow": self.many.dags[int(self.many.buffers.start[0])].name}

    def _place(self, chosen: Any) -> tuple[float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated, info = super()._place(chosen)
        if self._over:
            info["schedule"] = self.schedule()
        return reward, terminated, truncated, info

    def schedule(self) -> dict[str, NDArray[Any]]:
        """Return node, start and end of the tasks placed so far, in the order they were offered in."""
        placed = self.many.state.placed[0, : self.many.state.cursor[0, NEXT]].copy()
        return {"node": placed[:, NODE].astype(np.int64), "start_s": placed[:, START], "finish_s": placed[:, FINISH]}


class WorkflowPlanEnv(WorkflowEnv):
    """One workflow in one step: the action is a node for every task, in the order ``WorkflowEnv`` offers them.

    The result is that of the same choices made one at a time. Observation: ``candidates`` (N, F) as at the first task;
    ``tasks`` (T, 5: ``TASK_COLUMNS``), ``edges`` (E, 3: from, to, MB) and ``mask`` (T, N), padded to the largest
    workflow with zeros, edges with -1. Entries of the action beyond the last task are ignored.
    """

    def __init__(self, *arguments: Any, **keys: Any) -> None:
        super().__init__(*arguments, **keys)
        if self.many.scenario.horizon:
            raise ConfigError(f"horizon is {self.many.scenario.horizon}", "0: a plan is for the whole workflow")
        many = self.many
        T, N = many.most_tasks, len(many.table)
        E = max(len(dag.edges) for dag in many.dags)
        self.action_space = spaces.MultiDiscrete(np.full(T, N))
        self.observation_space = spaces.Dict(
            {
                "candidates": many.single_observation_space["candidates"],  # type: ignore[index]
                "tasks": spaces.Box(0.0, np.inf, (T, len(TASK_COLUMNS)), np.float32),
                "edges": spaces.Box(-1.0, np.inf, (E, 3), np.float32),
                "mask": spaces.MultiBinary((T, N)),
            }
        )
        self._shown: Observation = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin a workflow; as ``WorkflowEnv.reset``."""
        self._shown = {}
        return super().reset(seed=seed, options=options)

    def _read(self, action: ArrayLike) -> NDArray[np.int64]:
        nodes = np.asarray(action)
        if nodes.shape != (self.many.most_tasks,) or not np.issubdtype(nodes.dtype, np.integer):
            raise ConfigError(
                f"the action has shape {nodes.shape} and type {nodes.dtype}",
                f"({self.many.most_tasks},), a node for each task, in whole numbers",
            )
        return nodes[: int(self.many.state.cursor[0, SIZE])].astype(np.int64)

    def _place(self, chosen: NDArray[np.int64]) -> tuple[float, bool, bool, dict[str, Any]]:
        """Place every task of the workflow."""
        # Looked at as a whole before anything is placed: an infeasible plan changes nothing.
        if not self._feasible(chosen).all():
            raise InfeasibleActionError("a task cannot go where the plan has it", "a plan whose every mask is 1")
        total = 0.0
        for node in chosen:  # _over is only ever true behind the last
            reward, terminated, truncated, info = super()._place(int(node))
            total += reward
        return total, terminated, truncated, info

    def _feasible(self, chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say of each task whether it can go where a plan has it."""
        known = (chosen >= 0) & (chosen < len(self.many.table))
        mask = self._observe()["mask"][np.arange(chosen.size), np.where(known, chosen, 0)] > 0
        return known & mask

    def _instead_of(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        first = self._observe()["mask"][: chosen.size].argmax(axis=1)
        return np.where(self._feasible(chosen), chosen, first)

    def _observe(self) -> Observation:
        """Build the observation once a workflow: nothing in it changes before the one step that ends it."""
        if not self._shown:
            many, plan = self.many, self.many.plan
            shapes = {name: space.shape for name, space in self.observation_space.items()}  # type: ignore[attr-defined]
            first, size = (int(many.state.cursor[0, column]) for column in (FIRST, SIZE))
            tasks, edges = np.zeros(shapes["tasks"], np.float32), np.full(shapes["edges"], -1.0, np.float32)
            mask = np.zeros(shapes["mask"], np.int8)
            own = plan.tasks[first : first + size]
            tasks[:size] = own[:, TASK_COLUMNS]
            begin, end = plan.parents[first], plan.parents[first + size]
            into = np.repeat(np.arange(size), np.diff(plan.parents[first : first + size + 1]))
            edges[: end - begin] = np.stack([plan.parent[begin:end], into, plan.edge_mb[begin:end]], axis=1)
            room = plan.room[plan.room_of[many.state.cursor[0, FLOW]]]
            mask[:size] = fits(room[:, 0], room[:, 1], own[:, CPU, None], own[:, MEM, None])
            candidates = many.observe()["candidates"][0]
            self._shown = {"candidates": candidates, "tasks": tasks, "edges": edges, "mask": mask}
        return {name: array.copy() for name, array in self._shown.items()}

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the feasible nodes of every task, flat, as sb3-contrib asks for them; padding allows everything."""
        mask = self._observe()["mask"].astype(np.bool_)
        mask[int(self.many.state.cursor[0, SIZE]) :] = True
        return mask.ravel()
