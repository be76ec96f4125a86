from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sched_env.functions import kernels
from sched_env.functions.contention import cold_calls, cold_ratio, factors, time_shares

SHARE = st.floats(0.0, 1.0)
DEMAND = st.floats(0.0, 5.0)


def test_an_empty_node_slows_nothing_down():
    assert factors(0.0, 8.0, 0.0, 0.0, 0.0) == (1.0, 1.0, 1.0)


def test_a_full_node_is_three_times_slower_for_pure_compute():
    assert factors(1.0, 0.0, 0.0, 0.0, 0.0)[0] == pytest.approx(3.0)


def test_a_disk_asked_for_twice_its_capacity_takes_twice_the_time_and_its_queue():
    assert factors(0.0, 8.0, 0.0, 0.0, 2.0)[2] == pytest.approx(2.5)


def test_the_same_utilisation_hurts_less_on_a_larger_node():
    assert factors(0.8, 3.2, 0.0, 0.0, 0.0)[0] < factors(0.8, 0.8, 0.0, 0.0, 0.0)[0]


def test_full_memory_slows_everything_by_half():
    assert factors(0.0, 8.0, 1.0, 0.0, 0.0) == pytest.approx((1.5, 1.5, 1.5))


@given(cpu=SHARE, mem=SHARE, net=DEMAND, disk=DEMAND, more=st.floats(0.0, 1.0))
def test_more_use_of_anything_never_makes_a_call_faster(cpu, mem, net, disk, more):
    before = factors(cpu, 8.0 * (1.0 - cpu), mem, net, disk)
    fuller = min(cpu + more, 1.0)
    for after in (
        factors(fuller, 8.0 * (1.0 - fuller), mem, net, disk),
        factors(cpu, 8.0 * (1.0 - cpu), min(mem + more, 1.0), net, disk),
        factors(cpu, 8.0 * (1.0 - cpu), mem, net + more, disk),
        factors(cpu, 8.0 * (1.0 - cpu), mem, net, disk + more),
    ):
        assert all(late >= early >= 1.0 for early, late in zip(before, after, strict=True))


@settings(deadline=None)  # the first call compiles
@given(cpu=SHARE, mem=SHARE, net=DEMAND, disk=DEMAND)
def test_compiled_scalars_and_plain_arrays_give_the_same_bits(cpu, mem, net, disk):
    free = 8.0 * (1.0 - cpu)
    compiled = kernels.factors(cpu, free, mem, net, disk)
    plain = factors(*(np.array([value]) for value in (cpu, free, mem, net, disk)))
    assert [float(value[0]) for value in plain] == list(compiled)


def test_the_time_of_a_call_is_shared_by_what_it_asks_for():
    cpu, net, disk = time_shares(1.0, 100.0, 2000.0)
    assert (cpu, net, disk) == pytest.approx((0.25, 0.25, 0.5))


def test_a_cold_start_delays_the_first_call_and_those_that_come_meanwhile():
    # 101 calls in 100 s: one at once, then one a second. A start of 10 s holds 11 of them up.
    assert cold_calls(10.0, 100.0, 101.0) == pytest.approx(11.0)
    # They wait 10 s, and 5 s on average: 10 + 10 x 5 = 60 s in all, over 101 calls of half a second.
    assert cold_ratio(10.0, 100.0, 101.0, 0.5) == pytest.approx(60.0 / (101 * 0.5))


def test_an_instance_shorter_than_its_cold_start_has_all_calls_waiting():
    assert cold_calls(10.0, 5.0, 6.0) == pytest.approx(6.0)
    assert cold_ratio(10.0, 5.0, 6.0, 1.0) == pytest.approx((10.0 + 5 * 7.5) / 6.0)


def test_without_a_cold_start_nothing_is_added():
    assert cold_ratio(0.0, 100.0, 10.0, 1.0) == 0.0
