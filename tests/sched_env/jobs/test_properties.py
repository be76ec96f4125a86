"""Random and adversarial steps: nothing infeasible, nothing lost, no NaN, and what the policy sees is the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sched_env import heuristics, problems
from sched_env.jobs.raw_state import raw_fields
from sched_env.jobs.state import (
    ARRIVED,
    CANCEL,
    CANCELLED,
    CORES,
    FAILED,
    FIFO,
    FINISHED,
    FOLLOWING,
    GPU_FREE,
    HEAD,
    HELD,
    HELD_CARD,
    HELD_JOB,
    JOBS,
    MEM,
    MOST_JOBS,
    NEED_CPU,
    NEED_GPU,
    NEED_MEM,
    NO_RESERVATION,
    NONE,
    NOW,
    OFFERED,
    ORDER,
    OUTCOME,
    RESERVATION,
    ROW,
    SHAPE,
    SINCE,
    UNDECIDED,
    WAITING,
    WITHDRAWN,
)
from sched_env.vector import ENDED, FULL, make_vec
from wire.errors import InfeasibleActionError

BATCH = 16
SOAK_STEPS = 62_500  # times the batch: a million environment steps, over all settings
SETTINGS = {
    "plain": {},
    "crowded": {"load": 6.0, "cpu_threshold": 0.4},
    "failing": {"load": 3.0, "failure_rate": 0.3, "max_attempts": 2},
    "out of memory": {"load": 4.0, "memory_check": "total"},
    "exclusive": {"load": 2.0, "max_jobs_per_card": 1},
    "big reserve": {"load": 5.0, "reservation": "big", "topology": "testbed"},
    "easy": {"load": 5.0, "reservation": "easy", "topology": "testbed", "failure_rate": 0.1},
    "shortest and easy": {"load": 5.0, "reservation": "easy", "queue_order": "shortest"},
    "least attained": {"load": 5.0, "queue_order": "least_attained", "reservation": "big"},
    "withdrawn": {"load": 5.0, "cancel_rate": 0.5},
    "delayed": {"load": 4.0, "dispatch_s": 40.0, "startup_s": 20.0, "reservation": "big", "topology": "testbed"},
    "all of it": {
        "load": 5.0,
        "reservation": "easy",
        "topology": "testbed",
        "failure_rate": 0.2,
        "cancel_rate": 0.4,
        "dispatch_s": 30.0,
        "startup_s": 10.0,
    },
    "all at once": {"load": 0.0, "data_gb": 0.0, "topology": "testbed"},
}


def check(env, in_order=True, capped=True):
    """Hold the invariants, counted again from the slots."""
    cards, queue, _, rules, state = env.arguments
    assert np.isfinite(env.buffers.candidates).all()
    assert np.isfinite(env.buffers.request).all()
    assert np.isfinite(env.buffers.metrics).all()
    for b in range(env.num_envs):
        gpu, cores, mem = np.zeros(cards.type.size), np.zeros(cards.node_mem.size), np.zeros(cards.node_mem.size)
        rows = []
        for c, n in enumerate(state.kind[b, :, JOBS]):
            assert 0 <= n <= (state.way[b, MOST_JOBS] if capped else 3)
            for i in range(n):
                row = int(state.slot[b, c, i, ROW])
                need = queue.shapes[queue.links[row, SHAPE]]
                gpu[c] += need[NEED_GPU]
                cores[cards.node[c]] += need[NEED_CPU]
                mem[cards.node[c]] += need[NEED_MEM]
                rows.append(row)
        np.testing.assert_allclose(state.card[b, :, GPU_FREE] + gpu, cards.mem, atol=1e-9)
        np.testing.assert_allclose(state.node[b, :, CORES], cores, atol=1e-9)
        np.testing.assert_allclose(state.node[b, :, MEM] + mem, cards.node_mem, atol=1e-9)
        if not rules.total_memory:
            assert state.card[b, :, GPU_FREE].min() >= rules.gpu_mem_margin - 1e-9 or not rows
        assert state.node[b, :, MEM].min() >= 0.0
        waiting = []
        for q in range(state.line.shape[1]):
            j = state.line[b, q, HEAD]
            while j != NONE:
                waiting.append(int(j) + int(state.tally[b, 0]))
                j = state.job[b, j, FOLLOWING]
        assert len(waiting) == state.tally[b, WAITING]
        assert len(set(rows + waiting)) == len(rows) + len(waiting)  # nobody twice, nobody on a card and in line
        over = state.tally[b, FINISHED] + state.tally[b, FAILED] + state.tally[b, CANCELLED]
        assert state.tally[b, ARRIVED] == over + len(rows) + len(waiting)
        held = state.hold[b]
        assert (held[:, HELD_CARD] != NONE).sum() == state.tally[b, HELD] == (held[:, HELD_JOB] != NONE).sum()
        for j in held[held[:, HELD_JOB] != NONE, HELD_JOB]:
            assert int(j) + int(state.tally[b, 0]) in waiting
        outcome = state.job[b, : state.tally[b, ARRIVED], OUTCOME]
        assert (outcome == UNDECIDED).sum() == len(rows) + len(waiting)
        assert (outcome == WITHDRAWN).sum() == state.tally[b, CANCELLED]
        due = queue.rows[state.tally[b, 0] :][: outcome.size, CANCEL] <= state.total[b, NOW]
        assert not (due & (outcome == UNDECIDED)).any()  # withdrawn when it was time to
        if in_order and state.way[b, ORDER] == FIFO and state.way[b, RESERVATION] == NO_RESERVATION:
            assert state.tally[b, OFFERED] == min(row for row in waiting if fits_somewhere(env, b, row))


def fits_somewhere(env, b, row):
    """Look at every card, whatever the lines remember of earlier attempts."""
    cards, queue, _, rules, state = env.arguments
    need = queue.shapes[queue.links[row, SHAPE]]
    free = cards.mem if rules.total_memory else state.card[b, :, GPU_FREE]
    card = (free - rules.gpu_mem_margin >= need[NEED_GPU]) & (state.kind[b, :, JOBS] < state.way[b, MOST_JOBS])
    busy = cards.node_cpu_used + state.node[b, :, CORES] * cards.share_per_core
    node = (busy <= rules.cpu_threshold) & (state.node[b, :, MEM] - rules.mem_margin >= need[NEED_MEM])
    return (card & node[cards.node]).any()


def compare(env, b):
    """The service's features of the raw fields are the kernel's observation, bit for bit; so is the mask."""
    candidates, request = raw_fields(env, b)
    seen = problems.get("jobs").builder(env.feature_spec.version)(candidates, request)
    np.testing.assert_array_equal(seen.candidates, env.buffers.candidates[b])
    np.testing.assert_array_equal(seen.request, env.buffers.request[b])
    np.testing.assert_array_equal(seen.mask, env.buffers.mask[b])


def choose(env, style, rng):
    mask = env.buffers.mask
    if style == "first":
        return mask.argmax(axis=1)
    if style == "last":
        return mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
    jobs = env.state.kind[:, :, JOBS].astype(float)
    if style == "fullest":
        return np.where(mask, jobs, -1.0).argmax(axis=1)
    return np.where(mask, rng.random(mask.shape), -1.0).argmax(axis=1)


def run(setting, style, seed, steps, every):
    env = make_vec("jobs/cpn", BATCH, seed=seed, episode_jobs=40, trace_rows=2000, cards=9, **SETTINGS[setting])
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    for step in range(steps):
        assert env.buffers.mask.any(axis=1).all()  # a decision is asked for only when there is one
        actions = choose(env, style, rng)
        before = env.state.total[:, NOW].copy(), env.buffers.episode.copy()
        if step % every == 0:
            wrong = actions.copy()
            bad = np.flatnonzero(~env.buffers.mask[0])
            wrong[0] = bad[0] if bad.size else -1
            with pytest.raises(InfeasibleActionError):
                env.step(wrong)
        _, _, terminated, truncated, infos = env.step(actions)
        same = env.buffers.episode == before[1]
        assert (env.state.total[same, NOW] >= before[0][same]).all()
        if infos:
            assert (infos["episode"]["ended"][terminated | truncated] != FULL).all(), ENDED
        if step % every == 0:
            check(env)
            compare(env, step % BATCH)


@pytest.mark.parametrize("setting", SETTINGS)
def test_nothing_is_lost_or_overbooked(setting):
    for style in ("random", "first", "fullest"):
        run(setting, style, seed=len(setting), steps=60, every=6)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    setting=st.sampled_from(sorted(SETTINGS)),
    style=st.sampled_from(["random", "first", "last", "fullest"]),
    seed=st.integers(0, 2**31),
)
def test_nothing_is_lost_or_overbooked_whatever_the_seed(setting, style, seed):
    run(setting, style, seed, steps=50, every=10)


@pytest.mark.soak
@pytest.mark.parametrize("style", ["random", "fullest"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_million_steps(setting, style):
    run(setting, style, seed=1, steps=SOAK_STEPS // len(SETTINGS), every=100)


def run_live(setting, steps, every):
    """Random placements with a random job withdrawn now and then, whatever its state: nothing leaks."""
    env = make_vec("jobs/cpn", BATCH, seed=9, episode_jobs=40, trace_rows=2000, cards=9, **SETTINGS[setting])
    rng = np.random.default_rng(9)
    env.reset(seed=9)
    withdrawn = 0
    for step in range(steps):
        if rng.random() < 0.3:
            jobs = np.full(BATCH, -1)
            for b in np.flatnonzero(rng.random(BATCH) < 0.5):
                jobs[b] = rng.choice(
                    np.flatnonzero(env.state.job[b, : env.state.tally[b, ARRIVED], OUTCOME] == UNDECIDED)
                )
            env.cancel(jobs)
            withdrawn += int((jobs >= 0).sum())
        else:
            env.step(choose(env, "random", rng))
        assert env.buffers.mask.any(axis=1).all()
        if step % every == 0:
            check(env)
            compare(env, step % BATCH)
    assert withdrawn > steps


@pytest.mark.parametrize("setting", SETTINGS)
def test_nothing_is_lost_or_overbooked_by_live_withdrawals(setting):
    run_live(setting, steps=80, every=4)


@pytest.mark.soak
def test_many_live_withdrawals():
    run_live("all of it", steps=SOAK_STEPS // len(SETTINGS), every=100)


@pytest.mark.parametrize(
    "name", [n for n in problems.get("jobs").heuristics if n not in {"random_feasible", "gavel_lp"}]
)
def test_a_heuristic_chooses_alike_for_one_decision_and_for_a_batch(name):
    env = make_vec("jobs/cpn", 4, seed=2, episode_jobs=40, load=4.0, trace_rows=2000)
    rule = heuristics.batch(name, env)
    env.reset(seed=2)
    scores = np.empty((4, env.width))
    for step in range(40):
        actions = rule(scores)
        b = step % 4
        candidates, request = raw_fields(env, b)
        alone = heuristics.score("jobs", name, candidates, request, env.buffers.mask[b])
        np.testing.assert_array_equal(alone, scores[b])
        assert alone.argmax() == actions[b]
        env.step(actions)


def test_time_passes_only_when_no_waiting_job_fits_anywhere():
    env = make_vec("jobs/cpn", 4, seed=5, episode_jobs=60, load=6.0, trace_rows=2000)
    env.reset(seed=5)
    rng = np.random.default_rng(5)
    cards, queue, _, rules, state = env.arguments
    checked = 0
    for _ in range(150):
        before, actions = state.total[:, NOW].copy(), choose(env, "random", rng)
        free, rows = state.card[:, :, GPU_FREE].copy(), state.tally[:, OFFERED].copy()
        _, _, terminated, truncated, _ = env.step(actions)
        for b in np.flatnonzero((state.total[:, NOW] > before) & ~terminated & ~truncated):
            # Time passed after the placement. Whoever waited then and waits still must not have fitted by memory and
            # places alone on a card that nothing has happened to since.
            c = int(actions[b])
            free[b, c] -= queue.shapes[queue.links[rows[b], SHAPE], NEED_GPU]
            quiet = (state.card[b, :, SINCE] < before[b]) & (state.kind[b, :, JOBS] < state.way[b, MOST_JOBS])
            cpu = cards.node_cpu_used + state.node[b, :, CORES] * cards.share_per_core
            quiet &= (cpu <= rules.cpu_threshold)[cards.node] & (state.node[b, :, MEM] > 32.0)[cards.node]
            for q in range(len(queue.shapes)):
                j = state.line[b, q, HEAD]
                if j != NONE and state.queued_s[b, j] <= before[b]:
                    fits = free[b] - rules.gpu_mem_margin >= queue.shapes[q, NEED_GPU]
                    assert not (quiet & fits & (np.arange(cards.type.size) != c)).any()
                    checked += 1
    assert checked > 0
