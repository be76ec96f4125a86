"""A synthetic VM trace calibrated on Huawei-East-1: flavours, bursts, time of day and lifetimes.

Only summary figures of the public trace are used. Long-lived VMs are as rare as in its terminated-VM subset.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sched_env.vm.huawei import events_of
from sched_env.vm.tables import VmTrace

FLAVOURS = np.array(
    # cores, GiB, VMs
    [
        (1, 1, 25447), (1, 2, 53934), (1, 4, 3339), (2, 4, 14918), (2, 8, 2273), (4, 8, 9360), (4, 16, 1962),
        (8, 16, 2029), (8, 32, 1023), (12, 24, 638), (16, 32, 1002), (24, 48, 3), (32, 64, 131), (48, 96, 2),
        (64, 128, 252),
    ],
    dtype=np.float64,
)  # fmt: skip
QUANTILES = np.array([0.0, 0.1, 0.5, 0.75, 0.9, 0.99, 1.0])
LIFETIMES_S = {
    # cores up to -> lifetime at the quantiles above
    1.0: (1, 69, 3150, 8581, 24_320, 433_875, 2_540_293),
    4.0: (1, 29, 842, 3513, 9973, 549_799, 2_540_293),
    16.0: (1, 29, 58, 201, 3319, 342_548, 2_540_293),
    64.0: (1, 298, 31_687, 51_086, 112_969, 1_028_462, 2_540_293),
}
HOUR_WEIGHT = np.array(
    [1.75, 2.27, 1.35, 1.15, 0.88, 1.27, 1.49, 1.25, 1.24, 1.03, 0.81, 0.95,
     1.16, 0.97, 0.90, 0.85, 0.65, 0.56, 0.63, 0.57, 0.54, 0.46, 0.62, 0.64]
)  # fmt: skip
MEAN_GAP_S = 23.0
"""Mean time between two VMs."""
SAME_BURST = 0.45
"""Share of VMs that come in the same second as the one before."""


def generate(vms: int = 20_000, seed: int = 0, load: float = 1.0) -> VmTrace:
    """Generate a trace of creations and deletions.

    Args:
        vms: Number of VMs.
        seed: Same seed, same trace.
        load: Arrival rate as a multiple of the public trace's.
    """
    rng = np.random.default_rng(seed)
    flavour = FLAVOURS[rng.choice(len(FLAVOURS), vms, p=FLAVOURS[:, 2] / FLAVOURS[:, 2].sum())]
    arrival = arrivals(vms, rng, load)
    leave = arrival + _lifetimes(flavour[:, 0], rng)
    return events_of(np.arange(vms), flavour[:, 0], flavour[:, 1], arrival, leave)


def arrivals(vms: int, rng: np.random.Generator, load: float) -> NDArray[np.float64]:
    """Draw bursts whose rate follows the time of day, in whole seconds."""
    fresh = rng.random(vms) >= SAME_BURST
    work = np.cumsum(np.where(fresh, rng.exponential(MEAN_GAP_S / (1.0 - SAME_BURST) / load, vms), 0.0))
    # Time at which the accumulated hourly weight reaches each burst's share of "work".
    hours = np.arange(int(work[-1] / 3600.0 / HOUR_WEIGHT.min()) + 2)
    done = np.concatenate([[0.0], np.cumsum(HOUR_WEIGHT[hours[:-1] % 24] * 3600.0)])
    arrival: NDArray[np.float64] = np.floor(np.interp(work, done, hours * 3600.0))
    return arrival


def _lifetimes(cpu: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw lifetimes by size, log-linear between the known quantiles, in whole seconds."""
    uniform = rng.random(cpu.size)
    limits = np.array(list(LIFETIMES_S))
    bands = np.searchsorted(limits, cpu)
    life = np.empty(cpu.size)
    for band, quantiles in enumerate(LIFETIMES_S.values()):
        here = bands == band
        life[here] = np.exp(np.interp(uniform[here], QUANTILES, np.log(quantiles)))
    return np.maximum(np.floor(life), 1.0)
