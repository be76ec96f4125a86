"""Random numbers for kernels: a pure function of (seed, stream, counter), so results never depend on batch size."""

from __future__ import annotations

import numpy as np

from sched_env.jit import part

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@part
def scramble(value: np.uint64) -> np.uint64:
    """Mix 64 bits (the finaliser of splitmix64): every output bit depends on every input bit."""
    value = (value ^ (value >> _S30)) * _MIX1
    value = (value ^ (value >> _S27)) * _MIX2
    return value ^ (value >> _S31)


@part
def bits(seed: int, stream: int, counter: int) -> np.uint64:
    """Return 64 random bits named by seed, stream (the environment's index) and counter (the draw's number)."""
    key = scramble(np.uint64(seed) + _GAMMA)
    key = scramble(key ^ (np.uint64(stream) + np.uint64(1)) * _GAMMA)
    return scramble(key + (np.uint64(counter) + np.uint64(1)) * _GAMMA)


@part
def below(limit: int, seed: int, stream: int, counter: int) -> np.int64:
    """Draw an integer in ``[0, limit)``; the bias, limit / 2^32, is far below anything a rollout can see."""
    return np.int64(((bits(seed, stream, counter) >> _S32) * np.uint64(limit)) >> _S32)


@part
def uniform(seed: int, stream: int, counter: int) -> float:
    """Draw a float in ``[0, 1)`` with 53 random bits."""
    return float(bits(seed, stream, counter) >> np.uint64(11)) * (1.0 / 9007199254740992.0)
