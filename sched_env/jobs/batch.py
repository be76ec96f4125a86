"""Heuristics of ``jobs`` on whole batches, on the environments' own float64 state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sched_env.jit import inline, lean_kernel
from sched_env.jobs import heuristics
from sched_env.jobs.heuristics import CARD_RULES, COMPLETION, DISCIPLINES, SHARE
from sched_env.jobs.state import (
    CORES,
    GPU_FREE,
    JOBS,
    LAST_CARD,
    MEM,
    NEED_CPU,
    NEED_GPU,
    NEED_MEM,
    OFFERED,
    SHAPE,
    Cards,
    Discipline,
    Queue,
    Rules,
    Runtimes,
    State,
)
from sched_env.jobs.tables import Bools, Floats
from sched_env.jobs.whatif import busy_share, completion_s

if TYPE_CHECKING:
    from sched_env.jobs.vector import CpnVectorEnv
    from sched_env.problem import BatchRule

card_score = inline(heuristics.card_score)


@lean_kernel
def choose(
    rule: int,
    cards: Cards,
    queue: Queue,
    runtimes: Runtimes,
    rules: Rules,
    state: State,
    mask: Bools,
    active: Bools,
    shares: Floats,
    actions: NDArray[np.int64],
    scores: Floats,
) -> None:
    """Write each environment's best action and, when ``scores`` has room, the score of every feasible card."""
    C = cards.type.size
    for b in range(actions.size):
        actions[b] = 0
        if not active[b]:
            continue
        row = state.tally[b, OFFERED]
        q = queue.links[row, SHAPE]
        best = -np.inf
        for c in range(C):
            if not mask[b, c]:
                continue
            node = cards.node[c]
            predicted = share = 0.0
            if rule in (COMPLETION, SHARE):
                predicted = completion_s(cards, queue, runtimes, rules, state, b, c, row)
            if rule == SHARE:
                share = shares[b, cards.type[c]]
            value = card_score(
                rule,
                c,
                C,
                state.tally[b, LAST_CARD],
                state.card[b, c, GPU_FREE] - queue.shapes[q, NEED_GPU],
                state.kind[b, c, JOBS],
                busy_share(cards, node, state.node[b, node, CORES])
                + queue.shapes[q, NEED_CPU] * cards.share_per_core[node],
                1.0 - (state.node[b, node, MEM] - queue.shapes[q, NEED_MEM]) / cards.node_mem[node],
                predicted,
                share,
            )
            if scores.size > 0:
                scores[b, c] = value
            if value > best:
                best = value
                actions[b] = c


def batch(name: str, env: CpnVectorEnv, _seed: int) -> BatchRule:
    """Bind a heuristic to a vector environment, whose queue is from then on run as the heuristic wants it."""
    env.use(discipline_of(name, env))
    rule = CARD_RULES[name]
    actions, unwanted, buffers = np.zeros(env.num_envs, np.int64), np.empty((0, 0)), env.buffers
    shares = np.zeros((env.num_envs, len(env.topology.card_types)))
    planner = None
    if rule == SHARE:
        from sched_env.jobs.gavel import Planner

        planner = Planner(env)

    def choose_all(scores: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
        if planner is not None:
            planner.behind(shares)
        if scores is not None:
            scores[:] = -np.inf
        choose(
            rule, *env.arguments, buffers.mask, buffers.active, shares, actions,
            unwanted if scores is None else scores,
        )  # fmt: skip
        if planner is not None:
            planner.placed(actions)
        return actions

    return choose_all


def discipline_of(name: str, env: CpnVectorEnv) -> Discipline:
    """Return how a heuristic runs the queue: the scenario's way, but for what it replaces."""
    scenario, own = env.scenario, DISCIPLINES.get(name, {})
    return Discipline(
        own.get("queue_order", scenario.queue_order),
        own.get("reservation", scenario.reservation),
        # A cap of the scenario's below the heuristic's own is a fact of the network, not a matter of taste.
        min(own.get("max_jobs_per_card", scenario.max_jobs_per_card), scenario.max_jobs_per_card),
    )
