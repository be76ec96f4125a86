"""Heuristics of ``vm``, written once: on columns for one decision, on scalars inside the batch kernel.

"Left" is what a half would have after the placement. Shares are of a half's capacity. Ties go to the lowest action.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.observation import Columns, Mask, Row, Scores, columns, scalars
from sched_env.vm.features import REQUEST_FIELDS, STATE_FIELDS

NAMES = (
    "random_feasible",
    "first_fit",  # lowest server, half 0 first
    "best_fit",  # tightest: smallest share of the scarcer resource left
    "worst_fit",  # the opposite of best_fit
    "vmagent_spread",  # upstream's so-called BestFit: as worst_fit, but a split request is judged on half 0 alone
    "numa_balance",  # the imbalance between the two halves of a server, on its worse resource, grows least
    "numa_first_fit",  # lowest server, and in it the half by numa_balance
    "numa_best_fit",  # tightest server, and in it the fuller half, so that pairs of empty halves stay whole
    "least_allocated",  # server with the largest mean free share (Kubernetes' LeastAllocated)
    "most_allocated",  # the opposite
    "balanced_allocation",  # server whose cpu and memory shares come closest (Kubernetes' BalancedAllocation)
    "dot_product",  # free capacity most aligned with the request (Tetris)
    "dot_product_tight",  # the other sign: least free capacity along the request
    "fragmentation",  # expected unusable capacity over typical requests grows least (after FGD)
    "least_extension",  # server whose end moves least by the expected life; where no life is known it is first_fit
)
(
    RANDOM_FEASIBLE,
    FIRST_FIT,
    BEST_FIT,
    WORST_FIT,
    VMAGENT_SPREAD,
    NUMA_BALANCE,
    NUMA_FIRST_FIT,
    NUMA_BEST_FIT,
    LEAST_ALLOCATED,
    MOST_ALLOCATED,
    BALANCED_ALLOCATION,
    DOT_PRODUCT,
    DOT_PRODUCT_TIGHT,
    FRAGMENTATION,
    LEAST_EXTENSION,
) = range(len(NAMES))

TYPICAL_REQUESTS = np.array(
    # cores and GiB from each half used, halves used, popularity: the flavours of Huawei-East-1
    [
        (1.0, 1.0, 1.0, 0.219),
        (1.0, 2.0, 1.0, 0.464),
        (1.0, 4.0, 1.0, 0.029),
        (2.0, 4.0, 1.0, 0.128),
        (2.0, 8.0, 1.0, 0.020),
        (4.0, 8.0, 1.0, 0.080),
        (2.0, 8.0, 2.0, 0.017),
        (4.0, 8.0, 2.0, 0.017),
        (4.0, 16.0, 2.0, 0.009),
        (6.0, 12.0, 2.0, 0.005),
        (8.0, 16.0, 2.0, 0.009),
        (16.0, 32.0, 2.0, 0.001),
        (32.0, 64.0, 2.0, 0.002),
    ]
)


def _fragment(cpu: Any, mem: Any, ocpu: Any, omem: Any, cpu_cap: Any, mem_cap: Any, shapes: NDArray[np.float64]) -> Any:
    """Return a server's free capacity that a typical request could not use, in halves."""
    own = cpu / cpu_cap + mem / mem_cap
    other = ocpu / cpu_cap + omem / mem_cap
    lost = 0.0 * own
    for shape in range(shapes.shape[0]):
        c, m, split, popularity = shapes[shape, 0], shapes[shape, 1], shapes[shape, 2] - 1.0, shapes[shape, 3]
        fits = ((cpu >= c) & (mem >= m)) * 1.0
        ofits = ((ocpu >= c) & (omem >= m)) * 1.0
        both = fits * ofits
        single = (1.0 - fits) * own + (1.0 - ofits) * other
        double = (1.0 - both) * (own + other)
        lost = lost + popularity * (single * (1.0 - split) + double * split)
    return lost


def half_score(
    rule: int,
    index: Any,
    cpu: Any,
    mem: Any,
    ocpu: Any,
    omem: Any,
    cpu_cap: Any,
    mem_cap: Any,
    need_cpu: float,
    need_mem: float,
    split: float,
    ends_s: Any,
    life_s: float,
    shapes: NDArray[np.float64],
) -> Any:
    """Score placing a request on a half (or, when ``split`` is 1, on it and its sibling); higher is better.

    Args:
        rule: One of the constants above.
        index: The action's number.
        cpu: Free cores of the half.
        mem: Free GiB of the half.
        ocpu: Free cores of its sibling.
        omem: Free GiB of its sibling.
        cpu_cap: Cores of a half.
        mem_cap: GiB of a half.
        need_cpu: Cores taken from each half used.
        need_mem: GiB taken from each half used.
        split: 0 or 1. Products with it choose between two values without a branch, exactly.
        ends_s: Seconds until the server's last VM is expected to be gone.
        life_s: Expected life of the request.
        shapes: ``TYPICAL_REQUESTS``.
    """
    if rule == FIRST_FIT:
        return -1.0 * index
    if rule == LEAST_EXTENSION:
        return -np.maximum(life_s - ends_s, 0.0)
    one = 1.0 - split
    cpu_left, mem_left = cpu - need_cpu, mem - need_mem
    ocpu_left, omem_left = ocpu - need_cpu * split, omem - need_mem * split
    if rule in (BEST_FIT, WORST_FIT, VMAGENT_SPREAD):
        left = np.minimum(cpu_left / cpu_cap, mem_left / mem_cap)
        oleft = np.minimum(ocpu_left / cpu_cap, omem_left / mem_cap)
        if rule == VMAGENT_SPREAD:
            odd = index % 2 * 1.0
            return left * one + (left * (1.0 - odd) + oleft * odd) * split
        tightest = left * one + np.minimum(left, oleft) * split
        return -tightest if rule == BEST_FIT else tightest
    if rule in (NUMA_BALANCE, NUMA_FIRST_FIT):
        gained = np.maximum(np.abs(cpu - ocpu) / cpu_cap, np.abs(mem - omem) / mem_cap) - np.maximum(
            np.abs(cpu_left - ocpu_left) / cpu_cap, np.abs(mem_left - omem_left) / mem_cap
        )
        return gained if rule == NUMA_BALANCE else gained - 1e3 * (index // 2)
    if rule in (DOT_PRODUCT, DOT_PRODUCT_TIGHT):
        product = (cpu / cpu_cap) * (need_cpu / cpu_cap) + (mem / mem_cap) * (need_mem / mem_cap)
        return product if rule == DOT_PRODUCT else -product
    if rule == FRAGMENTATION:
        return _fragment(cpu, mem, ocpu, omem, cpu_cap, mem_cap, shapes) - _fragment(
            cpu_left, mem_left, ocpu_left, omem_left, cpu_cap, mem_cap, shapes
        )
    cpu_share, mem_share = (cpu_left + ocpu_left) / (2.0 * cpu_cap), (mem_left + omem_left) / (2.0 * mem_cap)
    if rule == NUMA_BEST_FIT:
        return -1e3 * np.minimum(cpu_share, mem_share) - np.minimum(cpu_left / cpu_cap, mem_left / mem_cap)
    if rule == BALANCED_ALLOCATION:
        return -np.abs(cpu_share - mem_share)
    free = (cpu_share + mem_share) / 2.0
    return free if rule == LEAST_ALLOCATED else -free


def score(name: str, candidates: Columns, request: Row, mask: Mask) -> Scores:
    """Score every half for one request, from raw state fields."""
    rule = NAMES.index(name)
    cpu_free, mem_free, other_cpu, other_mem, cpu_cap, mem_cap, _, ends_s = columns(STATE_FIELDS, candidates)
    cpu, mem, double, _, life_s = scalars(REQUEST_FIELDS, request)
    share = 1.0 - 0.5 * double
    scores: Scores = half_score(
        rule, np.arange(mask.size), cpu_free, mem_free, other_cpu, other_mem, cpu_cap, mem_cap,
        cpu * share, mem * share, double, ends_s, life_s, TYPICAL_REQUESTS,
    )  # fmt: skip
    return scores
