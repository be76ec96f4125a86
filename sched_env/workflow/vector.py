"""Many workflows at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sched_env.occupancy import Choice, Layout, Present, present
from sched_env.scenarios import Scenario, within_split
from sched_env.tables import Floats, NodeTable
from sched_env.vector import PlacementVectorEnv
from sched_env.workflow import kernels
from sched_env.workflow.raw_state import raw_fields
from sched_env.workflow.scenario import Order, WorkflowScenario
from sched_env.workflow.state import (
    FINISH,
    FIRST,
    FLOW,
    NEXT,
    NODE,
    RETURN,
    SIZE,
    START,
    UNTIL,
    Plan,
    Rules,
    State,
    empty_state,
    plan_of,
    rules_of,
)
from sched_env.workflow.tables import Dag
from sched_env.workflow.trace import load
from wire.errors import ConfigError


class WorkflowVectorEnv(PlacementVectorEnv):
    """B workflows that are placed side by side, each on nodes of its own; a start is the number of a workflow.

    Args:
        scenario: The settings.
        num_envs: B.
        dags: The workflows.
        nodes: Where their tasks may go.
        seed: Names the workflows that are drawn.
        copy: Return fresh arrays from every call.
    """

    METRICS: ClassVar[tuple[str, ...]] = kernels.METRICS
    DYNAMICS = kernels.DYNAMICS
    COUNTS: ClassVar[frozenset[str]] = PlacementVectorEnv.COUNTS | {"nodes_used"}
    DRAFTS: ClassVar[frozenset[str]] = frozenset({"sources", "ends"})
    scenario: WorkflowScenario

    def __init__(
        self,
        scenario: WorkflowScenario,
        num_envs: int,
        dags: Sequence[Dag],
        nodes: NodeTable,
        *,
        seed: int = 0,
        copy: bool = False,
    ) -> None:
        super().__init__(scenario, num_envs, len(nodes), seed=seed, copy=copy)
        self.dags, self.table, self.order = tuple(dags), nodes, scenario.order
        self.plan = plan_of(self.dags, nodes, self.order, scenario.deadline_slack, scenario.dispatch_s)
        self.rules = rules_of(scenario, len(self.dags))
        self.most_tasks = int(np.diff(self.plan.first).max())
        most_there = int(np.diff(self.plan.there_first).max())
        self.state = empty_state(
            num_envs, len(nodes), self.most_tasks, int(np.diff(self.plan.parents).max()), most_there
        )
        self._fix_columns(nodes.price_usd_per_hour, nodes.speed)

    @property
    def arguments(self) -> tuple[Plan, Rules, State]:
        """What every kernel of the problem takes first."""
        return self.plan, self.rules, self.state

    def use(self, order: Order) -> None:
        """Offer tasks in another order than the scenario's, as a heuristic that is a whole scheduler does.

        Raises:
            ConfigError: When an episode is under way; episodes at their first decision begin anew.
        """
        if order == self.order:
            return
        self._check_first_decision(self.state.cursor[:, NEXT], f"tasks are offered by {self.order}")
        self.order = order
        self.plan = plan_of(self.dags, self.table, order, self.scenario.deadline_slack, self.scenario.dispatch_s)
        self._begin_anew()

    @property
    def returns(self) -> Floats:
        """What each episode has brought so far."""
        brought: Floats = self.state.totals[:, RETURN]
        return brought

    def recorded(self) -> NDArray[np.int64]:
        """Return the node on which each environment's present task was recorded; -1: nobody says."""
        rows = self.state.cursor[:, FIRST] + self.state.cursor[:, NEXT]
        home: NDArray[np.int64] = self.plan.home[np.minimum(rows, self.plan.home.size - 1)]
        return home

    def layout(self) -> Layout:
        """Name the nodes."""
        return Layout("node", self.table.names)

    def usage(self, b: int) -> dict[str, Floats]:
        """Return when each node's last task ends, as a share of the makespan so far: nodes have no level of use."""
        until = self.state.nodes[b, :, UNTIL]
        return {"booked": until / max(float(until.max(initial=0.0)), 1e-9)}

    def choice(self, b: int, action: int) -> Choice:
        """Say which task would be placed: keys are numbers in the order that tasks are offered in."""
        return Choice(int(self.state.cursor[b, NEXT]), action)

    def label(self, _b: int, key: int) -> str:
        """Name a task."""
        return f"task {key}"

    def present(self, b: int) -> Present:
        """Return the tasks placed so far; a plan forgets none."""
        placed = self.state.placed[b, : int(self.state.cursor[b, NEXT])]
        return present(np.arange(len(placed)), placed[:, NODE].astype(np.int64), placed[:, START], placed[:, FINISH])

    def graph(self, b: int) -> dict[str, Any]:
        """Return the workflow's tasks and which of them read what others wrote."""
        cursor, plan = self.state.cursor[b], self.plan
        first, size = int(cursor[FIRST]), int(cursor[SIZE])
        edges = [
            [int(parent), task]
            for task in range(size)
            for parent in plan.parent[plan.parents[first + task] : plan.parents[first + task + 1]]
        ]
        return {
            "name": self.dags[int(cursor[FLOW])].name,
            "tasks": [self.label(b, task) for task in range(size)],
            "edges": edges,
        }

    def raw_fields(self, b: int) -> tuple[dict[str, Floats], dict[str, float]]:
        """Return the raw fields of environment b's present decision."""
        return raw_fields(self, b)

    def _reset(self, starts: NDArray[np.int64]) -> None:
        self._check_starts(starts, len(self.dags), "workflows")
        super()._reset(starts)


def make(
    scenario: Scenario, num_envs: int, *, seed: int = 0, trace: Any = None, copy: bool = False
) -> WorkflowVectorEnv:
    """Make the environments of a scenario; see :func:`sched_env.workflow.trace.load` for ``trace``."""
    if not isinstance(scenario, WorkflowScenario):
        raise ConfigError(f"scenario {scenario.name!r} is a {type(scenario).__name__}", "a WorkflowScenario")
    dags, nodes = load(trace, scenario)
    settings, end = within_split(scenario, len(dags))
    return WorkflowVectorEnv(settings, num_envs, dags[:end], nodes, seed=seed, copy=copy)
