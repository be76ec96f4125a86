"""VM traces: formats, bad rows, the synthetic generator."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from sched_env.vector import make_vec
from sched_env.vm.synthetic import FLAVOURS, generate
from sched_env.vm.trace import read, read_pieces
from wire.errors import TraceError

EVENTS = "vmid,cpu,memory,time,type\n0,4,16,0,0\n1,1,2,5,0\n0,4,16,9,1\n"
VMS = "vmid,cpu,memory,arrival,lifetime\n0,4,16,0,9\n1,1,2,5,100\n"


def write(tmp_path, text, name="trace.csv"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_huawei_events(tmp_path, name):
    trace, skipped = read(write(tmp_path, EVENTS, name))
    assert skipped == 0
    assert (trace.vmid.tolist(), trace.kind.tolist(), trace.mem.tolist()) == ([0, 1, 0], [0, 0, 1], [16, 2, 16])


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path, name):
    path = write(tmp_path, "\ufeff" + EVENTS, name)
    assert read(path)[0].vmid.tolist() == [0, 1, 0]
    assert next(read_pieces(path))[0].vmid.tolist() == [0, 1, 0]


def test_huawei_vms_become_events_with_deletions_first_in_a_second(tmp_path):
    trace, _ = read(write(tmp_path, VMS.replace("1,1,2,5,100", "1,1,2,9,100")))
    assert trace.time.tolist() == [0, 9, 9, 109]
    assert trace.kind.tolist() == [0, 1, 0, 1]


def test_a_vm_of_no_lifetime_is_created_before_it_is_deleted(tmp_path):
    trace, _ = read(write(tmp_path, "vmid,cpu,memory,arrival,lifetime\n0,4,16,3,0\n"))
    assert trace.kind.tolist() == [0, 1]


def test_azure_arrivals_with_and_without_durations(tmp_path):
    timed = "arrival_bin_s,batch_id,vcpu,memory_gb,censored,duration_bin,duration_lo_s,duration_hi_s\n"
    timed += "300,0,2,3.5,0,1,300,900\n300,1,1,0.75,1,9,600,600\n"
    trace, _ = read(write(tmp_path, timed))
    assert trace.kind.tolist() == [0, 0, 1]
    assert trace.time.tolist() == [300, 300, 900]
    trace, _ = read(write(tmp_path, "arrival_bin_s,batch_id,vcpu,memory_gb\n300,0,2,3.5\n600,1,1,0.75\n"))
    assert trace.kind.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2,four,8,9,0", "could not convert string to float: 'four'"),
        ("2,4,8,9", "4 cells, the header has 5"),
        ("2,-4,8,9,0", "cpu is not positive"),
        ("2,4,0,9,0", "memory is not positive"),
        ("2,4,8,9,2", "type is neither 0"),
        ("2,4,8,nan,0", "time is not finite"),
        ("2.5,4,8,9,0", "vmid is not a whole number"),
    ],
)
def test_a_bad_row_is_named_or_counted_and_skipped(tmp_path, line, reason):
    path = write(tmp_path, EVENTS + line + "\n" + "3,1,1,10,0\n")
    with pytest.raises(TraceError, match=f"trace.csv, line 5: {reason}"):
        read(path)
    trace, skipped = read(path, skip_bad=True)
    assert (len(trace), skipped) == (4, 1)
    with pytest.warns(UserWarning, match="1 bad rows skipped"):
        env = make_vec("vm/fading", 1, trace=path, skip_bad_rows=True)
    assert len(env.trace) == 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b\n1,2\n", "line 1: columns a, b; expected Huawei events"),
        ("vmid,cpu,memory,type\n1,2,3,0\n", "line 1: column 'time' is missing"),
        ("vmid,cpu,memory,time,type\n", "has no usable rows"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path, text, reason):
    with pytest.raises(TraceError, match=reason):
        read(write(tmp_path, text))


def test_a_broken_gzip_file_is_named(tmp_path):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(b"no gzip")
    with pytest.raises(TraceError, match="cannot be read"):
        read(path)


def test_the_synthetic_trace_is_seeded_and_calibrated():
    trace, again, other = generate(20_000, 0), generate(20_000, 0), generate(20_000, 1)
    np.testing.assert_array_equal(trace.time, again.time)
    assert not np.array_equal(trace.cpu, other.cpu)
    created, deleted = trace.kind == 0, trace.kind == 1
    assert created.sum() == deleted.sum() == 20_000
    assert (np.diff(trace.time) >= 0).all()
    gap = np.diff(trace.time[created])
    assert 0.40 < (gap == 0).mean() < 0.55
    assert 15 < gap.mean() < 32
    life = dict(zip(trace.vmid[deleted], trace.time[deleted], strict=True))
    lives = np.array([life[vm] - at for vm, at in zip(trace.vmid[created], trace.time[created], strict=True)])
    assert 1500 < np.median(lives) < 3500  # 2,592 s in the public trace
    assert lives.min() >= 1
    shares = FLAVOURS[:, 2] / FLAVOURS[:, 2].sum()
    measured = [((trace.cpu[created] == c) & (trace.mem[created] == m)).mean() for c, m, _ in FLAVOURS]
    np.testing.assert_allclose(measured, shares, atol=0.01)
    assert generate(1000, 0, load=2.0).time.max() < generate(1000, 0).time.max()
