"""How many servers of two halves a set of VMs needs at least: prices of VMs, by column generation.

A price vector is *valid* when no way to fill an empty server is worth more than 1. Whatever packs a set of VMs into s
servers then shows that the set is worth at most s: its worth is a lower bound on servers, for every policy, and the
same prices hold for every set, at every instant, for every number of servers. The best prices of a set are the dual
of the linear program that covers it with whole servers (Gilmore and Gomory's); its columns, the fillings, come from
an exact two-dimensional knapsack, so that prices are valid whatever the solver's tolerance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.jit import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CELLS = 400
"""Finest grid of a half's cores and of its memory; sizes that are not on it are rounded down, which is valid."""
MOST_SHAPES = 300
"""Shapes priced apart; more of them are rounded down onto ``COARSE_CELLS`` until there are fewer."""
COARSE_CELLS = 40
ROUNDS = 60
"""New fillings a set is priced with at most; prices are valid after every one."""
TOLERANCE = 1e-6
"""Relative: prices this near to the best are the best."""


class Shapes(NamedTuple):
    """The kinds of VM of a trace, on a grid that makes their sizes whole numbers."""

    cpu: Ints
    """[F]: of each half used."""
    mem: Ints
    double: NDArray[np.bool_]
    """[F]: whether it takes as much of the other half too."""
    half_cpu: int
    half_mem: int


def shapes_of(cpu: Floats, mem: Floats, halves: Floats, half_cpu: float, half_mem: float) -> tuple[Shapes, Ints]:
    """Return the distinct shapes of VMs and the shape of each VM."""
    for cells in (CELLS, COARSE_CELLS):
        cores, half_cores = _on_grid(cpu, half_cpu, cells)
        memory, half_memory = _on_grid(mem, half_mem, cells)
        table, shape = np.unique(np.stack([cores, memory, halves.astype(np.int64)]), axis=1, return_inverse=True)
        if table.shape[1] <= MOST_SHAPES:
            break
    return Shapes(table[0], table[1], table[2] == 2, half_cores, half_memory), shape.ravel()


def _on_grid(sizes: Floats, capacity: float, cells: int) -> tuple[Ints, int]:
    """Return sizes and capacity as whole numbers of a unit in which all are exact; otherwise sizes rounded down."""
    for parts in range(1, int(cells / capacity) + 1):
        if np.abs(sizes * parts - np.round(sizes * parts)).max(initial=0.0) < 1e-9:
            return np.round(sizes * parts).astype(np.int64), int(np.floor(capacity * parts + 1e-9))
    return np.floor(sizes * (cells / capacity)).astype(np.int64), cells


@kernel
def _fill(cpu: Ints, mem: Ints, worth: Floats, half_cpu: int, half_mem: int) -> tuple[Floats, NDArray[np.int32]]:
    """Return the greatest worth of VMs within every part of a half, and the VM added last (-1: none)."""
    best = np.zeros((half_cpu + 1, half_mem + 1))
    last = np.full((half_cpu + 1, half_mem + 1), -1, np.int32)
    for c in range(half_cpu + 1):
        for m in range(half_mem + 1):
            # A part of one cell less may hold as much; its choice is then followed from there.
            if c > 0 and best[c - 1, m] > best[c, m]:
                best[c, m], last[c, m] = best[c - 1, m], -2
            if m > 0 and best[c, m - 1] > best[c, m]:
                best[c, m], last[c, m] = best[c, m - 1], -3
            for f in range(cpu.size):
                if cpu[f] <= c and mem[f] <= m:
                    value = best[c - cpu[f], m - mem[f]] + worth[f]
                    if value > best[c, m]:
                        best[c, m], last[c, m] = value, f
    return best, last


class Packing:
    """Prices of shapes, found once and used for every instant of a trace.

    Args:
        shapes: The kinds of VM.
        mix: [F] how often each is seen; new prices are made to mean something for all of them.
    """

    def __init__(self, shapes: Shapes, mix: Floats) -> None:
        self.shapes = shapes
        self._mix = mix / mix.sum()
        self.fits = (shapes.cpu <= shapes.half_cpu) & (shapes.mem <= shapes.half_mem)
        self._priced = self.fits & (shapes.cpu + shapes.mem > 0)  # what was rounded down to nothing is free
        self.prices: Floats = np.empty((0, mix.size))
        """[P, F], all valid; more with every set that is priced."""
        self._fillings: list[Floats] = []
        for f in np.flatnonzero(self._priced):
            self._fillings.append(self._best_filling(np.eye(mix.size)[f])[1])

    def _best_filling(self, worth: Floats) -> tuple[float, Floats]:
        """Return what a server can be worth at most, and how many VMs of each shape make it so.

        A split VM takes as much of both halves: beside a set of them both halves are alike, and filled alike.
        """
        s = self.shapes
        priced = self._priced & (worth > 0.0)
        single, double = np.flatnonzero(priced & ~s.double), np.flatnonzero(priced & s.double)
        alone, last_single = _fill(s.cpu[single], s.mem[single], worth[single], s.half_cpu, s.half_mem)
        split, last_double = _fill(s.cpu[double], s.mem[double], worth[double], s.half_cpu, s.half_mem)
        total = split + 2.0 * alone[::-1, ::-1]
        c, m = np.unravel_index(int(total.argmax()), total.shape)
        filling = np.zeros(len(worth))
        for f, copies, cells, last in (
            (double, 1.0, (int(c), int(m)), last_double),
            (single, 2.0, (s.half_cpu - int(c), s.half_mem - int(m)), last_single),
        ):
            for added in _followed(last, cells, s.cpu[f], s.mem[f]):
                filling[f[added]] += copies
        return float(total[c, m]), filling

    def need(self, counts: Floats) -> float:
        """Return a lower bound on the servers that hold so many VMs of each shape; its prices are kept."""
        from scipy.optimize import linprog

        if (counts[~self.fits] > 0).any():
            return np.inf
        known = float((self.prices @ counts).max(initial=0.0))
        # A trace of every other shape makes the prices of shapes that are absent now as high as they can be.
        target = np.where(self._priced, counts + 1e-3 * self._mix * max(counts.sum(), 1.0), 0.0)
        best, kept = known, None
        for _ in range(ROUNDS):
            answer = linprog(
                np.ones(len(self._fillings)), A_ub=-np.stack(self._fillings, axis=1), b_ub=-target, method="highs"
            )
            if answer.x is None:
                raise RuntimeError(f"fillings do not cover the VMs: {answer.message}")
            worth = np.where(self._priced, np.maximum(-answer.ineqlin.marginals, 0.0), 0.0)
            most, filling = self._best_filling(worth)
            valid = worth / most
            if valid @ counts > best:
                best, kept = float(valid @ counts), valid
            if most <= 1.0 + TOLERANCE:
                break
            self._fillings.append(filling)
        if kept is not None and best > known * (1.0 + TOLERANCE):
            self.prices = np.vstack([self.prices, kept])
        return best


def _followed(last: NDArray[np.int32], cells: tuple[int, int], cpu: Ints, mem: Ints) -> list[int]:
    """Walk back from a part of a half to nothing; return the VMs on the way."""
    c, m = cells
    added = []
    while last[c, m] != -1:
        f = int(last[c, m])
        if f == -2:
            c -= 1
        elif f == -3:
            m -= 1
        else:
            added.append(f)
            c, m = c - int(cpu[f]), m - int(mem[f])
    return added
