"""Pod traces: the table's checks, the public formats and the generator."""

from __future__ import annotations

import numpy as np
import pytest

from sched_env.pods import public as public_pods
from sched_env.pods import synthetic as synthetic_pods
from sched_env.pods.tables import PodTrace, offsets
from wire.errors import TraceError

BITBRAINS = (
    "Timestamp [ms];\tCPU cores;\tCPU capacity provisioned [MHZ];\tCPU usage [MHZ];\tCPU usage [%];\t"
    "Memory capacity provisioned [KB];\tMemory usage [KB];\tDisk read throughput [KB/s];\t"
    "Disk write throughput [KB/s];\tNetwork received throughput [KB/s];\tNetwork transmitted throughput [KB/s]\n"
)
GIB_IN_KIB = 1024 * 1024


def vm(*rows):
    """Write a VM of 2 cores at 1,000 MHz and 4 GiB; a row is (window, MHz used, GiB used)."""
    line = "{};\t2;\t2000.0;\t{};\t1.0;\t{};\t{};\t0.0;\t0.0;\t0.0;\t0.0\n"
    return BITBRAINS + "".join(
        line.format(int(300 * w), mhz, 4 * GIB_IN_KIB, int(gib * GIB_IN_KIB)) for w, mhz, gib in rows
    )


def make(**changes):
    columns = {
        "window_s": [0.0, 300.0], "window_rows": [0, 2, 3], "pod": [0, 1, 1], "node": [0, -1, 1],
        "cpu_request": np.ones(3), "mem_request": np.ones(3), "cpu_used": np.ones(3), "mem_used": np.ones(3),
        "row_requests": [0, 2, 2, 3], "arrival_offset_s": np.zeros(3), "duration_s": np.ones(3), "cpu": np.arange(3.0),
        "mem": np.ones(3), "pod_names": ("a", "b"),
    }  # fmt: skip
    return PodTrace(**{**columns, **changes})


def test_a_part_of_a_trace_is_a_trace():
    part = make().windows(1, 2)
    assert len(part) == 1
    assert (part.pod.tolist(), part.cpu.tolist(), part.row_requests.tolist()) == ([1], [2.0], [0, 1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window_s": [300.0, 0.0]}, "window_s does not rise"),
        ({"window_rows": [0, 2, 4]}, "window_rows does not lead"),
        ({"window_rows": [0, 3, 3]}, "window 1 of the trace has no pods"),
        ({"row_requests": [0, 2, 1, 3]}, "row_requests does not lead"),
        ({"pod": [0, 2, 1]}, "pod row 1"),
        ({"pod": [1, 1, 1]}, "twice in one window"),
        ({"node": [0, -2, 1]}, "node row 1"),
        ({"cpu": [0.0, np.nan, 1.0]}, "cpu row 1"),
        ({"mem_request": [0.0, -1.0, 1.0]}, "mem_request row 1"),
        ({"duration_s": np.ones(2)}, "duration_s has shape"),
        (
            {
                "window_s": [],
                "window_rows": [0],
                "pod": [],
                "node": [],
                "row_requests": [0],
                **{key: [] for key in ("cpu_request", "mem_request", "cpu_used", "mem_used", "cpu", "mem")},
                **{key: [] for key in ("arrival_offset_s", "duration_s")},
            },
            "no pods",
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused(changes, message):
    with pytest.raises(TraceError, match=message):
        make(**changes)


def test_bitbrains_vms_are_pods_with_a_request_a_window(tmp_path):
    (tmp_path / "1.csv").write_text(vm((10, 500, 1.0), (11, 1000, 2.0), (14, 1500, 3.0)))
    (tmp_path / "2.csv").write_text(vm((11, 2000, 1.0), (11, 1000, 1.0), (12, 4000, 1.0)))
    (tmp_path / "3.csv").write_text(vm((10, 0, 1.0)).replace("\t2;\t2000.0", "\t0;\t0.0"))  # never had a cpu
    trace, nodes = public_pods.read(tmp_path, pods_per_node=1, load=0.5)
    assert [name.rpartition("/")[2] for name in trace.pod_names] == ["1", "2"]
    assert np.diff(trace.window_rows).tolist() == [1, 2, 2, 1, 1]
    assert trace.cpu.tolist() == [0.5, 1.0, 1.0, 1.0, 4.0, 1.0, 1.5]  # a window without a sample repeats the last
    assert set(trace.duration_s.tolist()) == {300.0}
    assert (set(trace.cpu_request.tolist()), set(trace.mem_request.tolist())) == ({2.0}, {4.0})
    assert trace.node.tolist() == [0, 0, 1, 0, 1, 0, 0]
    assert nodes.cpu.tolist() == [2.0, 2.0]  # 10 core-windows in 5 windows: 2 cores, of two nodes at half load
    assert nodes.mem.tolist() == pytest.approx([4 / 0.6, 4 / 0.6])


def test_genai_samples_are_requests_until_the_next_scrape(tmp_path):
    duty = "timestamp_anon,value,container_ip\n0,50,x\n57,100,x\n310,20,x\n0,10,y\n57,30,z\n"
    memory = "container_ip,timestamp_anon,value\nx,0,0.5\nx,57,0.25\nx,310,-0.1\ny,0,1.0\n,57,0.1\n"
    (tmp_path / "pod_gpu_duty_cycle_anon.csv").write_text(duty)
    (tmp_path / "pod_memory_util_anon.csv").write_text(memory)
    trace, nodes = public_pods.read(tmp_path, pods_per_node=1, load=0.5)
    assert trace.pod_names == ("x", "y")
    assert trace.window_rows.tolist() == [0, 2, 3]
    assert trace.row_requests.tolist() == [0, 2, 3, 4]
    assert trace.cpu.tolist() == [0.5, 1.0, 0.1, 0.2]
    assert trace.mem.tolist() == [16.0, 8.0, 32.0, 0.0]
    assert trace.arrival_offset_s.tolist() == [0.0, 57.0, 0.0, 10.0]
    assert set(trace.duration_s.tolist()) == {57.0}
    assert len(nodes) == 2


def test_gpu_pods_keep_their_requests_and_lives_and_come_without_a_node(tmp_path):
    (tmp_path / "openb_node_list_all_node.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{k},32000,{(k + 1) * 65536},2,T4\n" for k in range(4))
    )
    (tmp_path / "openb_pod_list_default.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "a,4000,16384,1,1000,,LS,Running,0,899,0\nb,8000,98304,1,500,,LS,Running,310,,320\nc,2000,1024,0,0,,LS,R,1800,1801,1\n"
    )
    trace, nodes = public_pods.read(tmp_path, pods_per_node=10, load=0.5, seed=3)
    assert set(trace.node.tolist()) == {-1}
    rows = {name: np.flatnonzero(trace.pod == k) for k, name in enumerate(trace.pod_names)}
    assert {name: len(found) for name, found in rows.items()} == {"a": 3, "b": 6, "c": 1}
    assert set(trace.cpu_request[rows["b"]].tolist()) == {8.0}
    assert (trace.cpu <= np.repeat(trace.cpu_request, np.diff(trace.row_requests))).all()
    assert nodes.mem.max() >= 96.0
    again, _ = public_pods.read(tmp_path, pods_per_node=10, load=0.5, seed=3)
    np.testing.assert_array_equal(trace.cpu, again.cpu)


def test_an_unknown_folder_is_refused(tmp_path):
    with pytest.raises(TraceError, match="no known pod trace"):
        public_pods.read(tmp_path, pods_per_node=10, load=0.5)


def test_generated_requests_are_of_equal_duration_dealt_evenly_and_of_the_wanted_load():
    table = synthetic_pods.nodes(20)
    trace = synthetic_pods.generate(table, 288, load=0.5, churn=0.02, seed=1)
    counts = np.diff(trace.row_requests).reshape(288, 200)
    assert (counts == counts[:, :1]).all()  # round-robin: all pods of a window get as many
    for window in (0, 100):
        first, stop = trace.row_requests[trace.window_rows[window : window + 2]]
        assert np.unique(trace.duration_s[first:stop]).size == 1
        assert np.unique(trace.cpu[first:stop]).size == stop - first
        order = np.argsort(trace.arrival_offset_s[first:stop], kind="stable")
        dealt = np.repeat(np.arange(200), counts[window])[order]
        np.testing.assert_array_equal(dealt, np.arange(dealt.size) % 200)  # the k-th to pod k mod n
    assert trace.cpu_used.reshape(288, 200).sum(axis=1).mean() / table.cpu.sum() == pytest.approx(0.5, rel=0.15)
    assert np.bincount(trace.node[:200]).tolist() == [10] * 20
    assert len(trace.pod_names) > 200 + 0.5 * 0.02 * 200 * 288


def test_generated_traces_are_named_by_their_seed():
    table = synthetic_pods.nodes(2)
    one, same, other = (synthetic_pods.generate(table, 5, seed=seed) for seed in (4, 4, 5))
    np.testing.assert_array_equal(one.cpu, same.cpu)
    assert (one.cpu != other.cpu).any()
    assert offsets([2, 0, 3]).tolist() == [0, 2, 2, 5]
