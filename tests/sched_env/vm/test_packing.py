"""Prices of VMs are valid for every way to fill a server, and strong where they should be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sched_env.vm.packing import CELLS, Packing, Shapes, shapes_of

SHAPES = Shapes(
    cpu=np.array([1, 2, 3, 2]), mem=np.array([2, 1, 4, 3]), double=np.array([False, False, False, True]),
    half_cpu=4, half_mem=6,
)  # fmt: skip
COUNTS = st.lists(st.integers(0, 6), min_size=4, max_size=4).filter(any)


def fillings(shapes: Shapes):
    """List every set of VMs that one server can hold."""
    kinds = range(len(shapes.cpu))

    def halves(cpu, mem):
        ranges = [range(9) if not shapes.double[f] else range(1) for f in kinds]
        for counts in itertools.product(*ranges):
            if np.dot(counts, shapes.cpu) <= cpu and np.dot(counts, shapes.mem) <= mem:
                yield np.array(counts)

    found = []
    for doubles in range(5):
        split = np.where(shapes.double, doubles, 0)
        cpu, mem = shapes.half_cpu - split @ shapes.cpu, shapes.half_mem - split @ shapes.mem
        if cpu >= 0 and mem >= 0:
            found += [split + left + right for left in halves(cpu, mem) for right in halves(cpu, mem)]
    return np.unique(found, axis=0)


FILLINGS = fillings(SHAPES)
FULLEST = [a for a in FILLINGS if not any((a <= b).all() and (a < b).any() for b in FILLINGS)]


def least_servers(counts) -> int:
    """Cover the VMs with fillings, trying all: the servers that are really needed."""
    servers, reached = 0, {tuple(counts)}
    while tuple([0] * len(counts)) not in reached:
        reached = {tuple(np.maximum(np.array(left) - filling, 0)) for left in reached for filling in FULLEST}
        servers += 1
    return servers


@settings(deadline=None, max_examples=25)
@given(COUNTS, st.lists(st.integers(1, 9), min_size=4, max_size=4))
def test_prices_are_valid_and_need_no_more_servers_than_there_are(counts, mix):
    packing = Packing(SHAPES, np.array(mix, float))
    need = packing.need(np.array(counts, float))
    assert (packing.prices @ FILLINGS.T <= 1.0 + 1e-9).all()
    assert need <= least_servers(counts) + 1e-9
    assert need > least_servers(counts) - 2  # rounded up it is seldom wrong, never by much


def test_large_vms_need_a_server_each_though_the_totals_would_do():
    shapes = Shapes(np.array([3]), np.array([3]), np.array([True]), 4, 6)
    packing = Packing(shapes, np.ones(1))
    assert packing.need(np.array([5.0])) == pytest.approx(5.0)
    assert (packing.prices @ np.array([7.0])).max() == pytest.approx(7.0)  # learnt once, known for every number


def test_what_fits_no_server_needs_infinitely_many():
    shapes = Shapes(np.array([5, 1]), np.array([1, 1]), np.array([False, False]), 4, 6)
    packing = Packing(shapes, np.ones(2))
    assert packing.need(np.array([1.0, 0.0])) == np.inf
    assert packing.need(np.array([0.0, 8.0])) == pytest.approx(1.0)


def test_sizes_on_a_grid_stay_exact_and_others_are_rounded_down():
    halves = np.array([1.0, 2.0, 1.0])
    shapes, shape = shapes_of(np.array([0.5, 1.0, 0.5]), np.array([1.75, 3.5, 1.75]), halves, 40.0, 90.0)
    assert (shapes.half_cpu, shapes.half_mem) == (80, 360)
    assert shape[0] == shape[2] != shape[1]
    assert shapes.double[shape].tolist() == [False, True, False]
    shapes, _ = shapes_of(np.full(1, np.pi), np.full(1, np.e), np.ones(1), 40.0, 90.0)
    assert (shapes.half_cpu, shapes.half_mem) == (CELLS, CELLS)
    assert shapes.cpu[0] / CELLS <= np.pi / 40.0 < (shapes.cpu[0] + 1) / CELLS


def test_thousands_of_shapes_are_priced_on_a_coarser_grid():
    rng = np.random.default_rng(0)
    cpu, mem = rng.uniform(0.01, 20.0, 4000), rng.uniform(0.01, 40.0, 4000)
    shapes, shape = shapes_of(cpu, mem, np.ones(4000), 40.0, 90.0)
    assert len(shapes.cpu) < 1000
    packing = Packing(shapes, np.bincount(shape).astype(float))
    need = packing.need(np.bincount(shape).astype(float))
    assert 0.5 < need / max(cpu.sum() / 80.0, mem.sum() / 180.0) < 1.2
