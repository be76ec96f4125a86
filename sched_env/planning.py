"""State for planning: rows of a vector environment are kept, put back, copied, and run on for a few decisions.

A row is everything an environment remembers: its part of the kernels' state and of the buffers, with the stream that
names its draws. So a copy goes on exactly as the original would, bit for bit, over the ends of episodes too, wherever
in the batch it stands. What no decision changes (the trace, the nodes) is shared, never copied.

Heuristics are bound to one environment and hold what they remember themselves (``random_feasible``: its stream;
``gavel_lp``: its plan); that is no part of a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wire.errors import ConfigError

if TYPE_CHECKING:
    from sched_env.vector import Arrays, PlacementVectorEnv

Group = TypeVar("Group", bound=tuple[Any, ...])


@dataclass(frozen=True)
class Snapshot:
    """Rows of a vector environment, copied; can be pickled, and put into any environment of the same world."""

    world: str
    """Digest of what the rows live in: scenario, trace, nodes."""
    state: Arrays
    buffers: Arrays
    seed: int
    park: bool

    def __len__(self) -> int:
        return int(self.buffers["active"].size)


class Runs(NamedTuple):
    """How the rows fared in :func:`run`."""

    returns: NDArray[np.float64]
    """[B]: rewards, added up."""
    decisions: NDArray[np.int64]
    """[B]: how many were taken; fewer than asked for where the episode ended."""
    ended: NDArray[np.bool_]
    """[B]: whether it did."""


def rows_of(env: PlacementVectorEnv, rows: ArrayLike | None) -> NDArray[np.int64]:
    """Return row numbers, checked; None: all."""
    if rows is None:
        return np.arange(env.num_envs)
    given = np.asarray(rows)
    if given.ndim != 1 or given.size == 0 or not np.issubdtype(given.dtype, np.integer):
        raise ConfigError(f"rows are {given.dtype} of shape {given.shape}", "a list of row numbers, at least one")
    if given.min() < 0 or given.max() >= env.num_envs:
        raise ConfigError(f"rows from {given.min()} to {given.max()}", f"rows 0 to {env.num_envs - 1}")
    return given.astype(np.int64)


def world_of(env: PlacementVectorEnv) -> tuple[Any, ...]:
    """Return what kernels take and no decision changes."""
    return tuple(part for part in env.arguments if part is not env.state and part is not env.scratch)


def digest(env: PlacementVectorEnv) -> str:
    """Name the world an environment's rows live in."""
    found = hashlib.blake2b(repr(env.scenario).encode(), digest_size=16)
    for part in world_of(env):
        for value in part:
            found.update(np.ascontiguousarray(value).tobytes())
    return found.hexdigest()


def _row_arrays(env: PlacementVectorEnv) -> Iterable[tuple[str, str, NDArray[Any]]]:
    """Yield (group, name, array) of everything whose first axis is the environments."""
    for name, array in env.state._asdict().items():
        if name not in env.DRAFTS:
            yield "state", name, array
    for name, array in env.buffers._asdict().items():
        yield "buffers", name, array


def get_state(env: PlacementVectorEnv, rows: ArrayLike | None = None) -> Snapshot:
    """Copy rows out of an environment; None: all of them."""
    chosen = rows_of(env, rows)
    kept: dict[str, Arrays] = {"state": {}, "buffers": {}}
    for group, name, array in _row_arrays(env):
        kept[group][name] = np.asarray(array)[chosen]
    return Snapshot(env.world(), **kept, seed=env.seed, park=env.park)


def set_state(env: PlacementVectorEnv, snapshot: Snapshot, rows: ArrayLike | None = None) -> None:
    """Put rows into an environment; without ``rows`` the whole of it, with its seed and what happens at an end.

    Raises:
        ConfigError: When the rows are of another world, or not as many, or draw by another seed; nothing has changed.
    """
    chosen = rows_of(env, rows)
    if len(snapshot) != chosen.size:
        raise ConfigError(f"the snapshot has {len(snapshot)} rows", f"{chosen.size}, one for each that is replaced")
    if snapshot.world != env.world():
        raise ConfigError("the snapshot is of another scenario or trace", "one of an environment made in the same way")
    if rows is None:
        env.seed, env.park = snapshot.seed, snapshot.park
    elif snapshot.seed != env.seed:
        raise ConfigError(
            f"the snapshot draws by seed {snapshot.seed}, the environment by {env.seed}",
            "the same seed where only some rows are replaced",
        )
    for group, name, array in _row_arrays(env):
        np.asarray(array)[chosen] = getattr(snapshot, group)[name]
    env.rows_replaced()


def fork(env: PlacementVectorEnv, rows: ArrayLike, into: PlacementVectorEnv | None = None) -> PlacementVectorEnv:
    """Copy rows, any number of times each, into an environment of their own.

    Args:
        env: The environment.
        rows: Row k of the fork is a copy of row ``rows[k]``.
        into: A fork made before, whose memory (and the heuristics bound to it) is used again; it may have more rows
            than are wanted, which then rest.
    """
    chosen = rows_of(env, rows)
    if into is None:
        into = env.twin(chosen.size)
    elif any(ours is not theirs for ours, theirs in zip(world_of(env), world_of(into), strict=True)):
        raise ConfigError("the environment to fork into is not a fork of this one", "one that env.fork(rows) returned")
    elif into.num_envs < chosen.size:
        raise ConfigError(f"{chosen.size} rows into a fork of {into.num_envs}", "a fork with at least as many rows")
    into.seed, into.park = env.seed, env.park
    for (_, _, source), (_, _, target) in zip(_row_arrays(env), _row_arrays(into), strict=True):
        # Without "clip" (rows are checked) numpy would copy twice.
        np.take(np.asarray(source), chosen, axis=0, out=np.asarray(target)[: chosen.size], mode="clip")
    for array in (into.buffers.active, into.buffers.mask, into.buffers.feasible):
        array[chosen.size :] = 0
    into.rows_replaced()
    return into


def resized(group: Group, count: int, present: int, drafts: Iterable[str] = ()) -> Group:
    """Return empty arrays like these, for another number of environments; drafts belong to no row and are copied."""

    def new(name: str, array: NDArray[Any]) -> NDArray[Any]:
        if name in drafts:
            return array.copy()
        return np.zeros((array.shape[0] - present + count, *array.shape[1:]), array.dtype).view(type(array))

    arrays = group._asdict()  # type: ignore[attr-defined]
    return type(group)(**{name: new(name, array) for name, array in arrays.items()})


def forced(env: PlacementVectorEnv, rows: ArrayLike | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return every feasible candidate of these rows: the row, and the action, of each; in order."""
    chosen = rows_of(env, rows)
    at, actions = np.nonzero(env.buffers.mask[chosen])
    return chosen[at], actions


def run(
    env: PlacementVectorEnv,
    choose: Callable[[], NDArray[np.int64]],
    decisions: int,
    first: ArrayLike | None = None,
) -> Runs:
    """Run every row on for at most so many decisions; rows whose episode ends rest.

    Args:
        env: The environment, as a rule a fork: its rows move on.
        choose: A heuristic bound to it, or anything that returns an action for each row.
        decisions: The most that a row takes.
        first: The first action of each row, instead of the one that would be chosen; fewer than rows where the
            last ones rest.
    """
    if decisions < 1:
        raise ConfigError(f"{decisions} decisions", "at least 1")
    active = env.buffers.active
    runs = Runs(np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64), active.copy())
    park, env.park = env.park, True
    try:
        for number in range(decisions):
            if not active.any():
                break
            if number == 0 and first is not None:
                given = np.asarray(first, np.int64)
                actions = np.zeros(env.num_envs, np.int64)
                actions[: given.size] = given
            else:
                actions = choose()
            runs.decisions[active] += 1
            env.step(actions)
            runs.returns[:] += env.buffers.reward
    finally:
        env.park = park
    runs.ended[:] &= ~active
    return runs
