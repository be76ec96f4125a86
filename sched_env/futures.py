"""Futures other than the recorded one: what has not been seen yet is drawn anew from the trace itself.

``arrivals``: blocks of consecutive rows of the record follow one another, each with its time since the row before; so
bursts, sizes and lives stay as they belong together. ``lives``: the recorded arrivals, each with the life of another
one of its kind (function, model of job, flavour of VM). A future is drawn by its own seed alone: all rows that are
forked onto it meet the same one.

    future = futures.draw(env, rows, "arrivals", seed=3)
    fork = env.fork(rows, future=future)

Where nothing is drawn (``pods``: who asks for what in a window belongs together; ``workflow``: all is known at the
start) there is no other future.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sched_env import planning
from wire.errors import ConfigError

if TYPE_CHECKING:
    from sched_env.vector import PlacementVectorEnv

Kind = Literal["arrivals", "lives"]
BLOCK = 32
"""Rows that stay together in ``arrivals``: about as many as a rollout looks ahead."""


@dataclass(frozen=True)
class Record:
    """The arrivals of a trace, in order."""

    rows: NDArray[np.int64]
    """Their rows in the trace."""
    arrival_s: NDArray[np.float64]
    kind: NDArray[np.int64]
    """Which of them have lives that could be each other's."""


@dataclass(frozen=True)
class Future:
    """What happens instead of the record; three arrays with an entry for each row of the trace."""

    first: int
    """First row that is not as recorded."""
    source: NDArray[np.int64]
    """The recorded row that stands there."""
    life: NDArray[np.int64]
    """The recorded row whose life it has."""
    arrival_s: NDArray[np.float64]
    seed: int


def draw(env: PlacementVectorEnv, rows: ArrayLike | None, kind: Kind, *, seed: int, block: int = BLOCK) -> Future:
    """Draw a future for rows of an environment (None: all), from the first arrival that none of them has seen.

    Args:
        env: The environment; its trace is drawn from.
        rows: The rows that will be forked.
        kind: ``arrivals`` or ``lives``.
        seed: Names the future.
        block: Rows that stay together, with ``arrivals``.
    """
    if kind not in ("arrivals", "lives"):
        raise ConfigError(f"kind of future {kind!r}", "arrivals or lives")
    if block < 1:
        raise ConfigError(f"block is {block}", "at least 1")
    record = env.record()
    first = int(env.seen_until(planning.rows_of(env, rows)).max())
    rng = np.random.default_rng([seed, 1])
    count = int(record.rows[-1]) + 1
    source, life, arrival_s = np.arange(count), np.arange(count), np.zeros(count)
    arrival_s[record.rows] = record.arrival_s
    ahead = np.flatnonzero(record.rows >= first)
    if kind == "lives":
        life[record.rows[ahead]] = record.rows[_others(record.kind, ahead, rng)]
    elif ahead.size:
        begins = rng.integers(0, max(record.rows.size - block, 1), -(-ahead.size // block))
        taken = (begins[:, None] + np.arange(block)).ravel()[: ahead.size] % record.rows.size
        gaps = np.diff(record.arrival_s, prepend=record.arrival_s[0])[taken]
        before = record.arrival_s[max(int(ahead[0]) - 1, 0)]
        source[record.rows[ahead]] = life[record.rows[ahead]] = record.rows[taken]
        arrival_s[record.rows[ahead]] = before + np.cumsum(gaps)
    return Future(first, source, life, arrival_s, seed)


def _others(kind: NDArray[np.int64], ahead: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw for each of these arrivals one of the whole record of its kind."""
    order = np.argsort(kind, kind="stable")
    begin, end = (np.searchsorted(kind[order], kind[ahead], side=side) for side in ("left", "right"))
    drawn: NDArray[np.int64] = order[rng.integers(begin, end)]
    return drawn
