"""The plain definitions of sharing and counting; docs/pods.md has the worked examples (tests/docs)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sched_env.pods.counting import Requests, above, below, loads, score, share, statistics, unmet
from sched_env.pods.tables import PodTrace, offsets
from sched_env.tables import NodeTable

SIZES = st.floats(0.0, 50.0)


@st.composite
def evenly_spaced(draw):
    """Pods whose k-th requests arrive at k x spacing and last as long."""
    spacing = draw(st.floats(0.01, 100.0))
    pods = []
    for count in draw(st.lists(st.integers(0, 6), min_size=1, max_size=5)):
        cpu, mem = (draw(arrays.arrays(np.float64, count, elements=SIZES)) for _ in range(2))
        pods.append(Requests(np.arange(count) * spacing, np.full(count, spacing), cpu, mem))
    return pods


@given(evenly_spaced())
def test_parallel_equals_serial_when_durations_equal_the_spacing(pods):
    serial, parallel = loads(pods, "serial"), loads(pods, "parallel")
    np.testing.assert_array_equal(serial.cpu, parallel.cpu)
    np.testing.assert_array_equal(serial.mem, parallel.mem)
    for threshold in (0.2, 0.8):
        assert above(serial, 50.0, 50.0, threshold) == above(parallel, 50.0, 50.0, threshold)


@given(
    cpu=arrays.arrays(np.float64, st.integers(1, 20), elements=st.just(0.0) | st.floats(0.001, 100.0)),
    total=st.floats(1.0, 1000.0),
)
def test_all_cpu_is_shared_and_nothing_more(cpu, total):
    given_out = share(total, 100.0, cpu, np.ones(cpu.size))
    assert given_out.assigned_cpu.sum() == pytest.approx(total)
    assert (given_out.assigned_cpu >= 0.0).all()
    assert given_out.remain_mem + given_out.assigned_mem.sum() == pytest.approx(100.0)


def test_an_empty_node_keeps_everything():
    nothing = np.empty(0)
    assert share(8.0, 16.0, nothing, nothing)[2:] == (8.0, 16.0)


def test_a_position_exactly_at_the_threshold_is_no_violation():
    tenth = Requests(np.zeros(1), np.ones(1), np.array([0.1]), np.zeros(1))
    assert loads([tenth] * 3, "serial").cpu[0] > 0.3  # by rounding
    assert above(loads([tenth] * 3, "serial"), 1.0, 1.0, 0.3) == 0
    assert above(loads([tenth] * 4, "serial"), 1.0, 1.0, 0.3) == 1


def test_memory_counts_as_cpu_does():
    pod = Requests(np.arange(3.0), np.ones(3), np.array([5.0, 5.0, 1.0]), np.array([9.0, 5.0, 5.0]))
    load = loads([pod], "serial")
    assert above(load, 10.0, 10.0, 0.8) == 1
    assert below(load, 10.0, 10.0, 0.2) == 1


def test_at_most_a_twentieth_of_the_positions_is_above_the_95th_percentile():
    assert statistics(np.array([3.0, 1.0, 2.0])) == (2.0, 3.0, 3.0, 3.0, 2.0)
    assert statistics(np.arange(19.0)).p95 == 18.0
    assert statistics(np.arange(20.0)).p95 == 18.0
    assert statistics(np.arange(100.0)).p95 == 94.0
    assert statistics(np.empty(0)) == (0.0, 0.0, 0.0, 0.0, 0.0)


@given(st.lists(st.tuples(SIZES, SIZES, st.floats(0.0, 600.0)), max_size=12))
def test_serving_smallest_first_never_gives_more_than_there_is(requests):
    cpu, mem, duration = (np.array([row[k] for row in requests]) for k in range(3))
    pods = [Requests(np.zeros(cpu.size), duration, cpu, mem)]
    missed, count = unmet(pods, 40.0, 40.0, 40.0, 40.0)
    assert 0 <= missed <= count <= cpu.size
    shares = np.minimum(duration, 300.0) / 300.0
    fits = (cpu * shares).sum() <= 40.0 and (mem * shares).sum() <= 40.0
    assert fits == (count == 0) or np.isclose((cpu * shares).sum(), 40.0) or np.isclose((mem * shares).sum(), 40.0)


def test_a_window_adds_its_nodes_up_and_a_pod_without_a_node_gets_nothing():
    counts = [2, 1, 1]
    trace = PodTrace(
        window_s=[0.0], window_rows=[0, 3], pod=[0, 1, 2], node=[0, 0, 1],
        cpu_request=np.ones(3), mem_request=np.ones(3), cpu_used=np.ones(3), mem_used=np.ones(3),
        row_requests=offsets(counts), arrival_offset_s=[0.0, 1.0, 0.0, 0.0], duration_s=np.full(4, 300.0),
        cpu=[9.0, 1.0, 0.5, 3.0], mem=np.full(4, 5.0), pod_names=("a", "b", "c"),
    )  # fmt: skip
    nodes = NodeTable(("n0", "n1", "n2"), *(np.full(3, 10.0) for _ in range(4)), np.ones(3))
    counted = score(trace, nodes, 0, np.array([0, 0, 1]))
    # n0: positions 9.5 and 1 core, 10 and 5 GiB; 15 GiB of 10 asked in all: (0.5, 5) and (1, 5) fit, (9, 5) does not.
    assert counted[:6] == (1, 1, 3, 1, 3, 4)
    assert counted.occupied.tolist() == [True, True, False]
    assert score(trace, nodes, 0, np.array([0, -1, 1]))[:6] == (1, 1, 3, 1, 1, 4)
