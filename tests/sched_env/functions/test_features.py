from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from sched_env import problems
from sched_env.functions.features import REQUEST_FIELDS, SPEC, STATE_FIELDS
from sched_env.vector import make_vec


def test_the_spec_names_every_column_once_with_a_unit_a_scale_and_a_source():
    for part in (SPEC.candidate, SPEC.request):
        assert len({feature.name for feature in part}) == len(part)
        for feature in part:
            assert feature.unit in {"cores", "GiB", "MB/s", "IOPS", "seconds", "USD/hour", "count", "ratio", "flag"}
            assert feature.scale > 0
            assert feature.live_source


def test_one_node_worked_out_by_hand():
    node = {
        "cpu_capacity": 8.0, "mem_capacity": 16.0, "net_capacity": 1000.0, "disk_capacity": 5000.0, "price": 0.34,
        "cpu_deployed": 3.0, "mem_deployed": 6.0, "net_used": 100.0, "disk_used": 500.0, "instances": 3.0,
        "billed_left_s": 100.0, "warm": 2.0,
    }  # fmt: skip
    request = {
        "cpu": 1.0, "mem": 2.0, "net": 100.0, "disk": 0.0, "requests": 11.0, "duration_s": 100.0, "response_s": 0.5,
        "slo_s": 1.5, "function_requests": 40.0, "rart": 1.2, "cold_start_s": 10.0, "cooldown_s": 100.0,
    }  # fmt: skip
    seen = problems.get("functions").build({name: np.array([value]) for name, value in node.items()}, request)
    row = dict(zip([feature.name for feature in SPEC.candidate], seen.candidates[0].tolist(), strict=True))
    # Half of a call's time is cpu (half the cores are taken, four are free), half network (a fifth is used).
    slowed = 0.5 * (1.0 + 0.5**4 / 4.5) + 0.5 * (1.0 + 0.5 * 0.2**4)
    assert row == pytest.approx(
        {
            "cpu_capacity": 8.0, "mem_capacity": 16.0, "price": 0.34, "instances": 3.0, "billed": 1.0,
            "billed_left_s": 100.0, "warm": 2.0, "cpu_after": 0.5, "mem_after": 0.5, "net_after": 0.2,
            "disk_after": 0.1, "response_ratio": slowed, "cost_change": 0.34 * 0.5,
        }
    )  # fmt: skip
    assert seen.request.tolist() == pytest.approx([1.0, 2.0, 100.0, 0.0, 11.0, 100.0, 0.5, 3.0, 40.0, 1.2])
    assert seen.mask.tolist() == [True]

    cold = problems.get("functions").build(
        {name: np.array([value]) for name, value in {**node, "warm": 0.0}.items()}, request
    )
    # The first of 11 calls waits 10 s, the one that comes meanwhile 5 s: 15 s over 11 calls of half a second.
    assert float(cold.candidates[0, 11]) == pytest.approx(slowed + 15.0 / 5.5)


def test_what_is_left_out_takes_its_default():
    seen = problems.get("functions").build({"cpu_capacity": np.array([8.0, 8.0])}, {})
    defaults = {name: np.full(2, default) for name, (_, default) in STATE_FIELDS.items()} | {
        "cpu_capacity": np.array([8.0, 8.0])
    }
    full = problems.get("functions").build(defaults, {name: default for name, (_, default) in REQUEST_FIELDS.items()})
    np.testing.assert_array_equal(seen.candidates, full.candidates)
    np.testing.assert_array_equal(seen.request, full.request)
    assert seen.candidates.dtype == seen.request.dtype == np.float32
    assert seen.mask.dtype == np.bool_


@pytest.mark.parametrize(
    ("change", "feasible"),
    [
        ({}, True),
        ({"cpu_deployed": 7.5}, False),
        ({"mem_deployed": 15.5}, False),
        ({"cpu_deployed": 7.0, "mem_deployed": 15.0}, True),
        ({"active": 0.0}, False),
        ({"net_used": 1e6, "disk_used": 1e6}, True),  # slow, but it fits
    ],
)
def test_the_mask_is_cpu_memory_and_availability(change, feasible):
    node = {"cpu_capacity": 8.0, "mem_capacity": 16.0, **change}
    seen = problems.get("functions").build(
        {name: np.array([value]) for name, value in node.items()}, {"cpu": 1.0, "mem": 1.0}
    )
    assert seen.mask.tolist() == [feasible]


def test_rows_follow_their_nodes_when_the_nodes_are_shuffled():
    env = make_vec("functions/serverless", 1, 0)
    env.reset()
    for _ in range(50):
        env.step(env.buffers.candidates[..., 11].argmin(1) if env.buffers.mask.all() else env.buffers.mask.argmax(1))
    nodes, request = env.raw_fields(0)
    order = np.random.default_rng(0).permutation(len(env.table))
    straight = problems.get("functions").build(nodes, request)
    shuffled = problems.get("functions").build({name: column[order] for name, column in nodes.items()}, request)
    np.testing.assert_array_equal(shuffled.candidates, straight.candidates[order])
    np.testing.assert_array_equal(shuffled.mask, straight.mask[order])


def test_the_service_needs_numpy_alone():
    code = (
        "import sys; from sched_env import heuristics, problems; import numpy as np;"
        "o = problems.get('functions').build({'cpu_capacity': np.ones(3)}, {});"
        "heuristics.score('functions', 'warm_first', {'cpu_capacity': np.ones(3)}, {}, o.mask);"
        "print([m for m in ('numba', 'torch', 'pyarrow', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
