"""``random_feasible`` on whole batches: each episode draws from numpy's own PCG64 stream of (seed, start).

So an episode's draws depend on neither the batch nor the episodes before, and anyone can repeat them with
``np.random.default_rng([seed, start])`` and one ``integers(k)`` a decision, k being the number of feasible candidates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sched_env.jit import kernel, part

if TYPE_CHECKING:
    from sched_env.vector import PlacementVectorEnv

_WORD = 0xFFFFFFFFFFFFFFFF
_LOW32, _S32, _S58, _S63, _ONE = (np.uint64(value) for value in (0xFFFFFFFF, 32, 58, 63, 1))
_MULT_HIGH, _MULT_LOW = np.uint64(2549297995355413924), np.uint64(4865540595714422341)
STATE_HIGH, STATE_LOW, INC_HIGH, INC_LOW, SPARE, HAS_SPARE = range(6)
"""Columns of a stream: 128-bit state and increment in two words each, and the unused half of the last draw."""


class RandomFeasible:
    """A batch rule that chooses among the feasible candidates with equal chance."""

    def __init__(self, env: PlacementVectorEnv, seed: int) -> None:
        self._env, self._seed = env, seed
        self._actions = np.zeros(env.num_envs, np.int64)
        self._streams = np.zeros((env.num_envs, 6), np.uint64)
        self._episode = np.full(env.num_envs, -1, np.int64)

    def __call__(self, scores: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
        """Draw an action for each environment; the chosen one scores 1, other feasible ones 0."""
        buffers = self._env.buffers
        for b in np.flatnonzero(self._episode != buffers.episode):
            self._streams[b] = _stream(self._seed, int(buffers.start[b]))
            self._episode[b] = buffers.episode[b]
        pick(self._streams, buffers.mask, buffers.feasible, self._actions)
        if scores is not None:
            scores[:] = np.where(buffers.mask[:, : scores.shape[1]], 0.0, -np.inf)
            scores[np.arange(self._actions.size), self._actions] += 1.0
        return self._actions


def _stream(seed: int, start: int) -> NDArray[np.uint64]:
    state = np.random.PCG64(np.random.SeedSequence([seed, start])).state["state"]
    value, increment = int(state["state"]), int(state["inc"])
    return np.array([value >> 64, value & _WORD, increment >> 64, increment & _WORD, 0, 0], np.uint64)


@part
def _high_word(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return the upper 64 bits of a 128-bit product."""
    a1, a0, b1, b0 = a >> _S32, a & _LOW32, b >> _S32, b & _LOW32
    middle = a1 * b0 + ((a0 * b0) >> _S32)
    carry = a0 * b1 + (middle & _LOW32)
    return a1 * b1 + (middle >> _S32) + (carry >> _S32)


@part
def _next32(stream: NDArray[np.uint64]) -> Any:
    """Return the next 32 bits: the lower half of a fresh word first, its upper half at the next call."""
    if stream[HAS_SPARE] != 0:
        stream[HAS_SPARE] = 0
        return stream[SPARE]
    high, low = stream[STATE_HIGH], stream[STATE_LOW]
    high = high * _MULT_LOW + low * _MULT_HIGH + _high_word(low, _MULT_LOW)
    low = low * _MULT_LOW
    total = low + stream[INC_LOW]
    high = high + stream[INC_HIGH] + (_ONE if total < low else np.uint64(0))
    stream[STATE_HIGH], stream[STATE_LOW] = high, total
    word, turn = high ^ total, high >> _S58
    word = (word >> turn) | (word << ((np.uint64(64) - turn) & _S63))
    stream[SPARE], stream[HAS_SPARE] = word >> _S32, _ONE
    return word & _LOW32


@part
def _below(stream: NDArray[np.uint64], limit: np.uint64) -> Any:
    """Draw from ``[0, limit)`` without bias (Lemire), as numpy's ``integers``."""
    if limit == _ONE:
        return np.uint64(0)
    product = _next32(stream) * limit
    if (product & _LOW32) < limit:
        threshold = (_LOW32 - (limit - _ONE)) % limit
        while (product & _LOW32) < threshold:
            product = _next32(stream) * limit
    return product >> _S32


@kernel
def pick(
    streams: NDArray[np.uint64], mask: NDArray[np.bool_], feasible: NDArray[np.int32], actions: NDArray[np.int64]
) -> None:
    """Draw one feasible candidate for each environment; 0 where there is none."""
    for b in range(actions.size):
        actions[b] = 0
        if feasible[b] > 0:
            left = np.int64(_below(streams[b], np.uint64(feasible[b])))
            for candidate in range(mask.shape[1]):
                if mask[b, candidate]:
                    if left == 0:
                        actions[b] = candidate
                        break
                    left -= 1
