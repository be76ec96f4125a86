"""Random and adversarial steps: nothing infeasible, nothing lost, no NaN, no exception."""

from __future__ import annotations

import numpy as np
import pytest

from sched_env import heuristics
from sched_env.heap import ITEM
from sched_env.vector import make_vec
from sched_env.vm.huawei import events_of
from wire.errors import InfeasibleActionError

BATCH = 64
NORMAL, SOAK = 300, 16_000  # batched steps: 19 thousand and a million environment steps
SETTINGS = {
    "fading": {"releases": False, "double_threshold": 32},
    "recovering": {"double_threshold": 10},
    "expanding": {"double_threshold": 10, "growing_servers": 2, "max_servers": 9, "expand_threshold": 0.6},
    "waiting": {"double_threshold": 10, "ending": "wait"},
}


def nasty_trace(seed):
    """Fractions that floats cannot hold, exact fits, ties, bursts, instant deaths, immortals and giants."""
    rng = np.random.default_rng(seed)
    count = 3000
    cpu = rng.choice(
        [0.1, 0.3, 1 / 3, 1, 2, 4, 7.7, 20, 40, 64, 80, 500], count, p=[*[0.11] * 8, 0.05, 0.04, 0.02, 0.01]
    )
    mem = rng.choice([0.1, 0.7, 1.1, 2, 8, 16, 45, 90, 128, 180], count, p=[*[0.15] * 5, 0.1, 0.06, 0.05, 0.03, 0.01])
    arrival = np.floor(np.cumsum(rng.exponential(2.0, count)))
    life = np.where(rng.random(count) < 0.03, np.inf, np.floor(rng.exponential(60.0, count)))
    return events_of(np.arange(count), cpu, mem, arrival, arrival + life)


def check(env):
    """Hold the invariants: what is free and what is held add up to what there is."""
    state, params = env.state, env.params
    width = 2 * params.max_servers
    for array in (env.buffers.candidates, env.buffers.request, env.buffers.reward, env.buffers.metrics):
        assert np.isfinite(array).all()
    for free, capacity in ((state.cpu, params.half_cpu), (state.mem, params.half_mem)):
        assert free[: env.num_envs, :width].min() >= -1e-9
        assert free[: env.num_envs, :width].max() <= capacity + 1e-9
    held_cpu, held_mem = np.zeros((env.num_envs, width)), np.zeros((env.num_envs, width))
    for b, half, row in holdings(env):
        cpu, mem, halves, _ = env.events.rows[row]
        for at in (half, half ^ 1) if halves == 2.0 else (half,):
            held_cpu[b, at] += cpu
            held_mem[b, at] += mem
    np.testing.assert_allclose(state.cpu[: env.num_envs] + held_cpu, params.half_cpu, atol=1e-9)
    np.testing.assert_allclose(state.mem[: env.num_envs] + held_mem, params.half_mem, atol=1e-9)
    full = (state.vms[: env.num_envs].reshape(env.num_envs, -1, 2).sum(axis=2) > 0).sum(axis=1)
    np.testing.assert_array_equal(full, state.env.occupied[: env.num_envs])


def holdings(env):
    """Yield (environment, half, creation row) of every VM that is placed, from a ledger kept apart from the kernels."""
    for b, ledger in enumerate(env.ledger):
        for row, half in ledger.items():
            yield b, half, row


def follow(env, rows_before, actions, over):
    """Keep the ledger: what was placed, and who left since, found in the trace and not in the kernels' memory."""
    for b in range(env.num_envs):
        if over[b]:
            env.ledger[b] = {}
            continue
        env.ledger[b][int(rows_before[b])] = int(actions[b])
        if env.params.waits:
            alive = set((env.state.leaving[b, : env.state.env.leaving[b], ITEM] // env.state.cpu.shape[1]).tolist())
            env.ledger[b] = {row: half for row, half in env.ledger[b].items() if row in alive}
        elif env.params.releases:
            for row in range(int(rows_before[b]) + 1, int(env.state.env.row[b])):
                if env.trace.kind[row] == 1:
                    gone = [r for r in env.ledger[b] if env.trace.vmid[r] == env.trace.vmid[row]]
                    for r in gone:
                        del env.ledger[b][r]


def adversary(env, rng):
    """Choose the feasible half that hurts most: mixes first, last, fullest and emptiest."""
    mask = env.buffers.mask
    way = rng.integers(4)
    if way == 0:
        return mask.argmax(axis=1)
    if way == 1:
        return mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
    free = np.where(mask, env.state.cpu[: env.num_envs], np.nan)
    return np.nanargmin(free, axis=1) if way == 2 else np.nanargmax(free, axis=1)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("steps", [NORMAL, pytest.param(SOAK, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_random_and_adversarial_steps_keep_every_promise(name, steps):
    env = make_vec(
        "vm/recovering", BATCH, seed=7, trace=nasty_trace(7), servers=3, start_min=0, start_max=0, **SETTINGS[name]
    )
    env.ledger = [{} for _ in range(BATCH)]
    env.reset()
    rng = np.random.default_rng(0)
    rule = heuristics.batch("random_feasible", env)
    for step in range(steps):
        before = env.state.env.row[:BATCH].copy()
        actions = np.array(rule() if step % 2 else adversary(env, rng))
        assert env.buffers.mask[np.arange(BATCH), actions].all()
        if step % 50 == 0:
            refuse_something(env, actions, rng)
        _, _, terminated, truncated, _ = env.step(actions)
        follow(env, before, actions, terminated | truncated)
        assert (env.buffers.feasible > 0).all()
        if step % (1 + steps // 300) == 0:
            check(env)
    assert env.buffers.episode.min() > 1


def refuse_something(env, actions, rng):
    """Try an infeasible action in one environment; nothing may change."""
    b = int(rng.integers(BATCH))
    off = np.flatnonzero(~env.buffers.mask[b])
    wrong = actions.copy()
    wrong[b] = rng.choice([-1, -5, env.buffers.mask.shape[1], 10**9, *off[:1]])
    before = [array.copy() for array in (*env.buffers, *env.state)]
    with pytest.raises(InfeasibleActionError):
        env.step(wrong)
    assert all(np.array_equal(old, new) for old, new in zip(before, (*env.buffers, *env.state), strict=True))
