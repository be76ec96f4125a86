"""The raw fields of one environment's present decision, as the live service would report them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sched_env.jit import lean_kernel
from sched_env.jobs.observing import something_ahead
from sched_env.jobs.pairs import JOB_FIELDS, STATE_FIELDS
from sched_env.jobs.queueing import delays
from sched_env.jobs.state import (
    ARRIVAL,
    ATTEMPTS,
    BEST,
    BUSY,
    CORES,
    DATA,
    DEADLINE,
    EPOCHS,
    FINISH,
    FIRST,
    GPU_FREE,
    HELD,
    HELD_CARD,
    HELD_JOB,
    HOLDS,
    JOBS,
    LAST_CARD,
    MEM,
    MODEL,
    MOST_JOBS,
    NEED_CPU,
    NEED_GPU,
    NEED_MEM,
    NONE,
    NOW,
    OFFERED,
    ORIGIN,
    SHAPE,
    WAITING,
    Cards,
    Queue,
    Rules,
    Runtimes,
    State,
)
from sched_env.jobs.tables import Floats, Indices
from sched_env.jobs.whatif import completion_s, delay_caused_s

if TYPE_CHECKING:
    from sched_env.jobs.vector import CpnVectorEnv


@lean_kernel
def _predict(
    cards: Cards,
    queue: Queue,
    runtimes: Runtimes,
    rules: Rules,
    state: State,
    b: int,
    row: int,
    completion: Floats,
    delay: Floats,
    free: Floats,
) -> None:
    """Write what-ifs of each card (NaN on a full one) and whether no reserved job would be delayed."""
    for c in range(cards.type.size):
        completion[c], delay[c], free[c] = np.nan, np.nan, 1.0
        if state.kind[b, c, JOBS] < 3:
            completion[c] = completion_s(cards, queue, runtimes, rules, state, b, c, row)
            delay[c] = delay_caused_s(state, b, c)
            if state.tally[b, HELD] > 0 and delays(cards, queue, runtimes, rules, state, b, c, row):
                free[c] = 0.0


def raw_fields(env: CpnVectorEnv, b: int = 0) -> tuple[dict[str, Floats], dict[str, float]]:
    """Return the fields for the present decision of one network: those of ``features``, or of ``pairs``."""
    if env.rules.pairs > 0:
        return _pair_fields(env, b)
    return fields_of_job(env, b, int(env.state.tally[b, OFFERED]))


def _pair_fields(env: CpnVectorEnv, b: int) -> tuple[dict[str, Floats], dict[str, float]]:
    """Return the fields of ``pairs``: the jobs shown, one after another, and to wait; the request is the first."""
    state, C, slots = env.state, env.cards.type.size, env.rules.pairs
    rows = state.shown[b][state.shown[b] != NONE]
    count, shown = slots * C + 1, rows.size * C
    cards, jobs = _fields_of_jobs(env, b, rows)
    candidates = {name: np.zeros(count) for name in STATE_FIELDS}
    candidates["share"][:] = np.nan
    for name, values in cards.items():
        candidates[name][:shown].reshape(values.shape)[:] = values
    for name, values in (("gpu_mem_total", env.cards.mem), ("price", env.cards.usd_per_hour)):
        candidates[name][:-1] = np.tile(values, slots)
    for name in JOB_FIELDS:
        candidates[name][:shown] = np.repeat(jobs[name], C)
    candidates["slot"][:shown], candidates["shown"][:shown] = np.repeat(np.arange(rows.size), C), 1.0
    candidates["wait"][-1], candidates["allowed"][-1] = 1.0, float(something_ahead(state, b))
    running = np.arange(3) < state.kind[b, :, JOBS, None]
    ends = np.where(running, state.card[b, :, FINISH : FINISH + 3] - state.total[b, NOW], np.inf).min(axis=1)
    candidates["next_end_s"][:-1] = np.tile(np.where(running.any(axis=1), np.maximum(ends, 0.0), 0.0), slots)
    return candidates, _first(jobs)


def fields_of_job(env: CpnVectorEnv, b: int, row: int) -> tuple[dict[str, Floats], dict[str, float]]:
    """Return the fields of ``features.STATE_FIELDS`` and ``REQUEST_FIELDS`` for a waiting job."""
    cards, jobs = _fields_of_jobs(env, b, np.array([row], np.int32))
    return {name: values[0].copy() for name, values in cards.items()}, _first(jobs)


def _first(jobs: dict[str, Floats]) -> dict[str, float]:
    return {name: float(values[0]) for name, values in jobs.items()}


def _fields_of_jobs(env: CpnVectorEnv, b: int, rows: Indices) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return the fields of waiting jobs: [jobs, cards] of each card, not to be written to, and [jobs] of each job."""
    cards, queue, runtimes, rules, state = env.arguments
    S, C = rows.size, cards.type.size
    now = float(state.total[b, NOW])
    model, shape, origin = (queue.links[rows, column] for column in (MODEL, SHAPE, ORIGIN))
    kind, card, node = state.kind[b], state.card[b], state.node[b][cards.node]
    occupied, jobs = kind[:, JOBS] > 0, kind[:, JOBS]
    one, other = kind[:, 0], kind[:, 1]
    of_model = model[:, None]
    epochs, gb = queue.rows[rows, EPOCHS, None], queue.rows[rows, DATA, None]
    shared = runtimes.belief[of_model, cards.type, one, other] * epochs
    finish = np.maximum(card[:, FINISH : FINISH + 2] - now, 0.0)
    hurt = runtimes.harm[of_model, cards.type, one, other] * finish[:, 0]
    hurt = np.where(jobs > 1, hurt + runtimes.harm[of_model, cards.type, other, one] * finish[:, 1], hurt)
    completion, delay, free = np.empty((S, C)), np.empty((S, C)), np.empty((S, C))
    for k, row in enumerate(rows):
        _predict(*env.arguments, b, int(row), completion[k], delay[k], free[k])
    of_card = {
        "gpu_mem_total": cards.mem,
        "price": cards.usd_per_hour,
        "gpu_mem_free": card[:, GPU_FREE] if not rules.total_memory else cards.mem,
        "jobs": jobs.astype(np.float64),
        "node_cpu": (cards.node_cpu_used + state.node[b, :, CORES] * cards.share_per_core)[cards.node],
        "node_mem_free": node[:, MEM],
        "node_cpu_total": env.topology.node_cpu[cards.node],
        "node_mem_total": cards.node_mem[cards.node],
        "transfer_s": (rules.dispatch_s + rules.startup_s + gb * cards.seconds_per_gb[origin])[:, cards.node],
        "link_usd": (gb * cards.usd_per_gb[origin])[:, cards.node],
        "alone_s": runtimes.belief[of_model, cards.type, 0, 0] * epochs,
        "shared_s": np.where(jobs < 3, shared, np.inf),
        "busy_s": np.where(occupied, np.maximum(card[:, BUSY] - now, 0.0), 0.0),
        "harm_s": np.where(occupied & (jobs < 3), hurt, 0.0),
        "reserved": (state.hold[b, cards.node, HELD_CARD] == np.arange(C)).astype(np.float64),
        "allowed": free,
        "completion_s": completion,
        "delay_s": delay,
    }
    j = rows - int(state.tally[b, FIRST])
    holds = state.line[b, shape, HOLDS]
    same = np.ones(S)
    of_job = {
        "gpu_mem": queue.shapes[shape, NEED_GPU],
        "mem": queue.shapes[shape, NEED_MEM],
        "cpu": queue.shapes[shape, NEED_CPU],
        "data_gb": gb[:, 0],
        "best_s": queue.rows[rows, BEST],
        "waited_s": now - queue.rows[rows, ARRIVAL],
        "deadline_left_s": queue.rows[rows, ARRIVAL] + queue.rows[rows, DEADLINE] - now,
        "waiting": same * state.tally[b, WAITING],
        "attempts": state.job[b, j, ATTEMPTS].astype(np.float64),
        "reserves": ((holds >= 0) & (state.hold[b, holds, HELD_JOB] == j)).astype(np.float64),
        "cpu_threshold": same * rules.cpu_threshold,
        "gpu_mem_margin": same * rules.gpu_mem_margin,
        "mem_margin": same * rules.mem_margin,
        "max_jobs": same * state.way[b, MOST_JOBS],
        "last_card": same * state.tally[b, LAST_CARD],
    }
    return {name: np.broadcast_to(values, (S, C)) for name, values in of_card.items()}, of_job
