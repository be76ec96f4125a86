"""State of ``vm`` as kernels see it: arrays of all environments, and one record an environment.

Layout: a candidate is half ``2 * server + numa``; each environment's halves lie together, cpu and memory in arrays of
their own, so that the mask is one pass of vector instructions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

REWARD_ONE, REWARD_CPU, REWARD_WAIT = 0, 1, 2
NOWHERE = -1
ROW, KEY, HALF, BORN, UNTIL = range(5)
"""Columns of ``State.living``: the VM's row, its slot (or its row, where requests wait), its half, when it came, and
the quantile of its life that it has not outlived yet (infinite: it has outlived all)."""


class Params(NamedTuple):
    """A scenario as kernels read it."""

    half_cpu: float
    half_mem: float
    servers: int
    max_servers: int
    growing: int
    expand_threshold: float
    releases: bool
    waits: bool
    queue_extra: int
    reward: int
    horizon: int
    sla_wait_s: float
    price_usd_per_s: float
    start_min: int
    start_max: int
    recorded: bool
    """Whether episodes begin with the VMs that were there, on the servers of the record."""
    expects: bool
    """Whether anything is expected of the VMs' lives."""


ENV = np.dtype(
    [
        ("row", np.int64),  # trace row of the present request
        ("stop", np.int64),  # row after the last of the episode's cluster
        ("servers", np.int64),
        ("occupied", np.int64),  # servers that hold a VM
        ("busy_s", np.float64),  # server-seconds of servers that hold a VM, up to clock
        ("clock", np.float64),
        ("shown", np.float64),  # the clock when ages of servers were last written
        ("total", np.float64),  # return so far
        ("steps", np.int64),
        ("placed_cpu", np.float64),
        ("used_cpu", np.float64),  # allocated cores; kept only for clusters that may grow
        ("used_mem", np.float64),
        # For the ending "wait":
        ("waited", np.float64),  # seconds that requests of the episode have waited, together
        ("late", np.int64),  # requests placed after more than sla_wait_s
        ("queue_end", np.int64),  # row after the queue's last request
        ("queue_size", np.int64),
        ("arrived", np.int64),  # first creation row whose request has not arrived yet
        ("waiting", np.int64),  # requests that have arrived and are not placed
        ("leaving", np.int64),  # size of the heap of departures
        ("living", np.int64),  # VMs of whose lives something is expected
    ]
)
"""What an environment remembers beside its halves; one record, so that a step touches few cache lines."""


class State(NamedTuple):
    """State of B environments and, in row B, of a scratch one that measures queues for the ending ``wait``."""

    cpu: NDArray[np.float64]
    """[B + 1, C]: free cores of each half."""
    mem: NDArray[np.float64]
    vms: NDArray[np.int32]
    """[B + 1, C]: VMs on each half; a split VM counts on both."""
    since: NDArray[np.float64]
    """[B + 1, servers]: when a server was last empty; infinite while it is."""
    where: NDArray[np.signedinteger[Any]]
    """[B + 1, slots]: half that holds the VM of a slot, or -1."""
    env: Any
    """[B + 1] records of ``ENV``."""
    leaving: NDArray[np.float64]
    """[B + 1, H, 2]: heap of departures (``wait``): time, and row · C + half."""
    living: NDArray[np.float64]
    """[B + 1, H, 5]: the VMs of whose lives something is expected, in no order; H is 0 where nothing is, of any."""
    ends: NDArray[np.float64]
    """[B + 1, servers]: seconds until the last of its VMs is expected to be gone; [B + 1, 0] likewise."""
    queue_of: NDArray[np.int32]
    """[R + 1]: length of first_fit's run from a row, once measured; 0: not yet (``wait``)."""
