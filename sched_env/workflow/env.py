"""Workflows in Gymnasium's form, two thin views over the kernels: task by task, and the whole DAG in one action."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import ArrayLike, NDArray

from sched_env import scenarios
from sched_env.errors import ConfigError, InfeasibleActionError, legal
from sched_env.features.workflow import fits
from sched_env.vector import ENDED
from sched_env.workflow.state import CPU, FINISH, FIRST, INPUT, MEM, NEXT, NODE, RUNTIME, SIZE, START, TAIL
from sched_env.workflow.vector import make

Observation = dict[str, NDArray[Any]]
Step = tuple[Observation, float, bool, bool, dict[str, Any]]
InvalidAction = Literal["terminate", "penalise", "raise"]
INVALID_ACTIONS: tuple[InvalidAction, ...] = ("terminate", "penalise", "raise")
TASK_COLUMNS = (CPU, MEM, RUNTIME, INPUT, TAIL)
"""What ``WorkflowPlanEnv`` shows of a task: cores, GiB, seconds, MB from outside, mean way from its end to the end."""


class WorkflowEnv(gymnasium.Env[Any, Any]):
    """One workflow, task by task: observation ``candidates`` (N, F), ``request`` (R), ``mask`` (N); action: a node.

    Tasks are offered parents first, by falling upward rank (scenario key ``order``).

    Args:
        scenario: Name, file or loaded scenario.
        trace: Workflows (``sched_env.traces.workflows.load``); the scenario's own when left out.
        invalid_action: What an infeasible action does, the state being unchanged in every case: ``terminate`` ends the
            episode with ``info["invalid"]``, ``penalise`` costs ``invalid_penalty``, ``raise`` raises.
        invalid_penalty: Reward taken by ``penalise``.
        seed: Names the workflows that are drawn until ``reset`` is given another.
        overrides: Scenario keys to replace.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium

    def __init__(
        self,
        scenario: str | scenarios.Scenario = "functions/workflow",
        trace: Any = None,
        *,
        invalid_action: InvalidAction = "terminate",
        invalid_penalty: float = 10.0,
        seed: int = 0,
        render_mode: None = None,
        **overrides: Any,
    ) -> None:
        if invalid_action not in INVALID_ACTIONS:
            raise ConfigError(f"invalid_action is {invalid_action!r}", legal(INVALID_ACTIONS))
        self.many = make(scenarios.load(scenario, overrides), 1, seed=seed, trace=trace, copy=True)
        """The vector environment behind this one."""
        self.render_mode = render_mode
        self.invalid_action, self.invalid_penalty = invalid_action, float(invalid_penalty)
        self._over = True
        self.action_space = self.many.single_action_space
        self.observation_space: spaces.Space[Any] = spaces.Dict(self.many.single_observation_space.spaces)  # type: ignore[attr-defined]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin a workflow; ``options={"start": number}`` names it, otherwise it is drawn from the seed."""
        super().reset(seed=seed)
        start = (options or {}).get("start", -1)
        self.many.reset(seed=seed, options={"starts": [start], "park": True})
        self._over = False
        chosen = int(self.many.buffers.start[0])
        return self._observe(), {"start": chosen, "workflow": self.many.dags[chosen].name}

    def step(self, action: Any) -> Step:
        """Put the offered task on node ``action``."""
        if self._over:
            raise ResetNeeded("the episode is over; call reset()")
        try:
            reward, terminated, truncated, info = self._place(int(action))
        except InfeasibleActionError:
            return self._refuse()
        return self._observe(), reward, terminated, truncated, info

    def _place(self, node: int) -> tuple[float, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, infos = self.many.step([node])
        info: dict[str, Any] = {}
        if infos:
            self._over = True
            metrics = infos["episode"]
            info["episode_metrics"] = {name: float(metrics[name][0]) for name in self.many.METRICS}
            info["ended"] = ENDED[metrics["ended"][0]]
            info["schedule"] = self.schedule()
        return float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def _refuse(self) -> Step:
        if self.invalid_action == "raise":
            raise InfeasibleActionError("a node cannot hold its task", "nodes whose mask is 1", "nothing changed")
        ends = self.invalid_action == "terminate"
        self._over = ends
        return self._observe(), 0.0 if ends else -self.invalid_penalty, ends, False, {"invalid": True}

    def _observe(self) -> Observation:
        seen = self.many.observe()
        return {
            "candidates": seen["candidates"][0],
            "request": seen["request"][0],
            "mask": seen["mask"][0].astype(np.int8),
        }

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the feasible actions, as sb3-contrib's MaskablePPO asks for them."""
        mask: NDArray[np.bool_] = self.many.buffers.mask[0].copy()
        return mask

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

    def __init__(
        self, scenario: str | scenarios.Scenario = "functions/workflow", trace: Any = None, **keys: Any
    ) -> None:
        super().__init__(scenario, trace, **keys)
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

    def step(self, action: ArrayLike) -> Step:
        """Place every task of the workflow."""
        if self._over:
            raise ResetNeeded("the episode is over; call reset()")
        nodes = np.asarray(action, np.int64)
        if nodes.shape != (self.many.most_tasks,):
            raise ConfigError(f"the action has shape {nodes.shape}", f"({self.many.most_tasks},), a node for each task")
        size = int(self.many.state.cursor[0, SIZE])
        chosen = nodes[:size]
        # Looked at as a whole before anything is placed: an infeasible plan changes nothing.
        legal_nodes = (chosen >= 0) & (chosen < len(self.many.table))
        if not legal_nodes.all() or not self._observe()["mask"][np.arange(size), chosen].all():
            return self._refuse()
        total = 0.0
        for node in chosen:
            reward, terminated, truncated, info = self._place(int(node))
            total += reward
        return self._observe(), total, terminated, truncated, info

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
            mask[:size] = fits(many.table.cpu, many.table.mem, own[:, CPU, None], own[:, MEM, None])
            candidates = many.observe()["candidates"][0]
            self._shown = {"candidates": candidates, "tasks": tasks, "edges": edges, "mask": mask}
        return {name: array.copy() for name, array in self._shown.items()}

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the feasible nodes of every task, flat, as sb3-contrib asks for them; padding allows everything."""
        mask = self._observe()["mask"].astype(np.bool_)
        mask[int(self.many.state.cursor[0, SIZE]) :] = True
        return mask.ravel()
