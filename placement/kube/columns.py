"""The nodes of a watched cluster as the decisions of one problem see them, kept from one decision to the next.

A change of a node changes its row, here too, when it happens: what a decision finds is ready. What a decision has been
given is not changed any more: the first change after it is made in a copy, so that no decision waits for one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from placement.state import State
from sched_env import problems
from wire.contracts.feature_spec import ProblemName

COLUMNS = (
    "cpu_capacity", "mem_capacity", "cpu_deployed", "mem_deployed", "price", "active", "instances",
    "net_used", "disk_used",
)  # fmt: skip
"""State fields that are watched, the last two by Prometheus (NaN while it does not say); a problem takes those it
knows, and defaults for its others and for what is not known."""

_ACTIVE = COLUMNS.index("active")

PREPARED_NODES = 20_000
"""Up to so many, what a policy sees of the nodes alone is kept too; of more it is shown a shortlist."""

Table = NDArray[np.float64]
"""[COLUMNS, nodes]"""


class Kept:
    """All nodes, for one problem.

    Args:
        problem: Whose fields.
        names: Of the nodes.
        table: What the watch knows of them.
        offered: The scheduler offers them: it has looked at taints and tolerations, which is not ours to do again.
    """

    def __init__(self, problem: ProblemName, names: list[str], table: Table, *, offered: bool) -> None:
        known = problems.get(problem)
        fields, size = known.state_fields, len(names)
        self._problem, self._names, self._offered = problem, names, offered
        self._defaults = np.array([fields.get(name, ("", 0.0))[1] for name in COLUMNS])
        self._watched = [(row, name) for row, name in enumerate(COLUMNS) if name in fields]
        others = {name: default for name, (_, default) in fields.items() if name not in COLUMNS}
        # One number, not a column of it.
        self._others = {name: np.broadcast_to(np.float64(default), size) for name, default in others.items()}
        self._other = {name: np.full(1, default) for name, default in others.items()}
        self._unknown = np.isnan(table[[row for row, _ in self._watched]]).sum(axis=0)
        self._defaulted = int(self._unknown.sum()) + len(self._others) * size
        self._table = self._seen(table)
        self._steps = known.steps if size <= PREPARED_NODES else None
        self._prepared: Any = None
        if self._steps is not None:
            with np.errstate(all="ignore"):  # a node without capacity: who asks about it hears so
                self._prepared = self._steps.prepare(self._columns(self._table, self._others))
        self._state: State | None = None

    def change(self, row: int, values: NDArray[np.float64]) -> None:
        """A node's watched values are others now."""
        if self._state is not None:  # somebody decides by it
            self._state, self._table = None, self._table.copy()
            self._prepared = None if self._prepared is None else self._prepared.take()
        changed = self._seen(values[:, np.newaxis])
        self._table[:, row] = changed[:, 0]
        if self._steps is not None:
            with np.errstate(all="ignore"):
                self._prepared.put(np.array([row]), self._steps.prepare(self._columns(changed, self._other)))

    def state(self) -> State:
        """Return all of them."""
        if self._state is None:
            columns = self._columns(self._table, self._others)
            self._state = State(self._problem, self._names, columns, {}, self._defaulted, self._prepared)
        return self._state

    def take(self, names: list[str], rows: NDArray[np.intp]) -> State:
        """Return these."""
        prepared = None if self._prepared is None else self._prepared.take(rows)
        columns = self._columns(self._table[:, rows], {name: all_[: len(rows)] for name, all_ in self._others.items()})
        defaulted = int(self._unknown[rows].sum()) + len(self._others) * len(rows)
        return State(self._problem, names, columns, {}, defaulted, prepared)

    def _seen(self, table: Table) -> Table:
        seen = np.where(np.isnan(table), self._defaults[:, np.newaxis], table)
        if self._offered:
            seen[_ACTIVE] = 1.0
        return seen

    def _columns(self, table: Table, others: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
        return {**{name: table[row] for row, name in self._watched}, **others}
