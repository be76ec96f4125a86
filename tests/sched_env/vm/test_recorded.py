"""Episodes begin with the VMs that were there, on the servers of the record."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from sched_env.recorded import AsRecorded
from sched_env.rollout import run_episodes
from sched_env.vector import make_vec
from sched_env.vm.bounds import of_starts
from sched_env.vm.events import creation_of

KEYS = {"half_cpu_cores": 8.0, "half_mem_gib": 16.0, "double_threshold": 12.0, "start_min": 0, "start_max": 0}


def record(vms, seed, servers=3):
    """A random trace whose VMs are recorded on a server with room in whole; some are recorded nowhere."""
    rng = np.random.default_rng(seed)
    rows = [(float(t), float(rng.integers(1, 60)), *SIZES[rng.integers(len(SIZES))]) for t in range(1, 301)]
    trace = vms(*rows)
    free = np.tile([16.0, 32.0], (servers, 1))
    node, created_by = np.full(len(trace), -1), creation_of(trace)
    for row in range(len(trace)):
        need = np.array([trace.cpu[row], trace.mem[row]])
        if trace.kind[row] == 1:
            if node[created_by[row]] >= 0:
                free[node[created_by[row]]] += need
        elif rng.random() < 0.9 and (free >= need).all(axis=1).any():
            node[row] = int(rng.choice(np.flatnonzero((free >= need).all(axis=1))))
            free[node[row]] -= need
    return dataclasses.replace(trace, node=node, servers=[servers], up=np.ones((1, 1, servers), bool))


SIZES = [(1.0, 2.0), (2.0, 2.0), (2.0, 8.0), (4.0, 16.0), (0.3, 0.7)]


def there(trace, home, row):
    """Rows of the VMs on a recorded half when a row comes, found by looking at all of them."""
    created_by = creation_of(trace)
    gone = {int(created_by[k]): k for k in np.flatnonzero(created_by >= 0)}
    return [k for k in range(row) if trace.kind[k] == 0 and home[k] >= 0 and gone.get(k, len(trace)) > row]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ending", ["terminate", "wait"])
def test_an_episode_begins_with_what_was_there(vms, seed, ending):
    trace = record(vms, seed)
    env = make_vec("vm/recovering", 1, trace=trace, servers=3, ending=ending, **KEYS)
    home, rows = env.events.home, env.events.rows
    assert (home[trace.node < 0] == -1).all()
    assert (home[home >= 0] >> 1 == trace.node[home >= 0]).all()
    assert (home >= 0).sum() > 0.8 * (trace.node >= 0).sum(), "few VMs fit their server and neither half of it"
    startable = np.flatnonzero(env.events.next_start[:-1] == np.arange(len(trace)))
    for start in startable[:: len(startable) // 12]:
        env.reset(options={"starts": [start], "park": True})
        cpu, mem = np.full(6, 8.0), np.full(6, 16.0)
        alive = there(trace, home, int(start))
        for row in alive:
            for half in (home[row], home[row] ^ 1)[: int(rows[row, 2])]:
                cpu[half] -= rows[row, 0]
                mem[half] -= rows[row, 1]
        np.testing.assert_allclose(env.state.cpu[0], cpu, atol=1e-9)
        np.testing.assert_allclose(env.state.mem[0], mem, atol=1e-9)
        assert env.buffers.feasible[0] > 0
        assert env.recorded()[0] == home[start]
        if ending == "wait":
            assert env.state.env.leaving[0] == len(alive)


def test_what_was_recorded_is_played_and_its_vms_leave(vms):
    trace = record(vms, 5)
    env = make_vec("vm/recovering", 1, trace=trace, servers=3, **KEYS)
    policy = AsRecorded("first_fit")
    choose = policy.bind(env)
    home = env.events.home
    for start in range(20, 520, 20):
        env.reset(options={"starts": [start], "park": True})
        diverged = False
        while env.buffers.active[0] and not diverged:
            row, action = int(env.state.env.row[0]), choose(None)
            diverged = home[row] < 0  # a rule decides: from here on the state is another
            if not diverged:
                assert action[0] == home[row]
            env.step(action)
            if env.buffers.active[0] and not diverged:
                held = sum(trace.cpu[k] for k in there(trace, home, int(env.state.env.row[0])))
                assert 48.0 - env.state.cpu[0].sum() == pytest.approx(held)
    assert policy.followed > 30


def test_a_server_that_is_down_takes_nothing_and_holds_nothing(vms):
    trace = record(vms, 1)
    up = np.ones((1, 10, 3), bool)
    up[0, 5:, 1] = False
    trace = dataclasses.replace(trace, up=up, up_s=30.0)
    env = make_vec("vm/recovering", 1, trace=trace, servers=3, **KEYS)
    late = int(np.flatnonzero((trace.time > 200) & (env.events.next_start[:-1] == np.arange(len(trace))))[0])
    env.reset(options={"starts": [late]})
    assert (env.state.cpu[0, 2:4] == 0.0).all()
    assert not env.buffers.mask[0, 2:4].any()
    early = int(np.flatnonzero(env.events.next_start[:-1] == np.arange(len(trace)))[0])
    env.reset(options={"starts": [early]})
    assert env.state.cpu[0, 2:4].sum() > 0.0


def test_an_episode_stays_in_its_cluster(vms):
    one, other = record(vms, 2, servers=2), record(vms, 3, servers=3)
    names = ("cpu", "mem", "time", "kind", "node")
    columns = {name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in names}
    trace = dataclasses.replace(
        one, vmid=np.concatenate([one.vmid, other.vmid + 1000]), **columns, stop=[len(one), len(one) + len(other)],
        servers=[2, 3], up=np.ones((2, 1, 3), bool),
    )  # fmt: skip
    env = make_vec("vm/recovering", 2, trace=trace, servers=3, **KEYS)
    env.reset(options={"starts": [len(one) - 40, len(one)], "park": True})
    assert env.state.env.servers[:2].tolist() == [2, 3]
    assert not env.buffers.mask[0, 4:].any()
    assert env.state.cpu[1].sum() == 48.0, "nobody of the first cluster is in the second"
    assert of_starts(env, [0]) == [None]
    roomy = run_episodes(
        "vm/recovering",
        "first_fit",
        [len(one) - 40],
        trace=trace,
        **{**KEYS, "servers": 5, "half_cpu_cores": 999.0, "half_mem_gib": 999.0},
    )
    assert roomy[0]["ended"] == "end_of_trace"
    assert roomy[0]["end_row"] >= len(one)
    assert roomy[0]["placed"] <= 40


def test_other_servers_than_those_of_the_record_are_empty_at_first(vms):
    env = make_vec("vm/recovering", 1, trace=record(vms, 4), servers=2, **KEYS)
    env.reset(options={"starts": [100]})
    assert env.state.cpu[0].sum() == 32.0
    assert env.recorded()[0] == -1
