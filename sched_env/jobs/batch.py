"""Heuristics of ``jobs`` on whole batches, on the environments' own float64 state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sched_env.choosing import bind, chooser
from sched_env.jit import part
from sched_env.jobs import heuristics
from sched_env.jobs.heuristics import CARD_RULES, COMPLETION, DISCIPLINES, PAIR, SHARE
from sched_env.jobs.pairs import LATER
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
    Discipline,
)
from sched_env.jobs.tables import Floats
from sched_env.jobs.whatif import busy_share, completion_s

if TYPE_CHECKING:
    from sched_env.jobs.vector import CpnVectorEnv
    from sched_env.problem import BatchRule

card_score = part(heuristics.card_score)


@part
def value_of(rule: int, arguments: Any, shares: Floats, b: int, candidate: int, _prepared: int) -> Any:
    """Score one card, or one pair of a job and a card (``pairs.score``)."""
    cards, queue, runtimes, rules, state = arguments
    row, c, later = state.tally[b, OFFERED], candidate, 0.0
    if rules.pairs > 0:
        slot, c = divmod(candidate, cards.type.size)
        if slot == rules.pairs:
            return -LATER * (rules.pairs * cards.type.size + 1)
        row = state.shown[b, slot]
        later = LATER * slot if rule != PAIR else 0.0
    q, node = queue.links[row, SHAPE], cards.node[c]
    predicted = share = 0.0
    if rule in (COMPLETION, SHARE, PAIR):
        predicted = completion_s(cards, queue, runtimes, rules, state, b, c, row)
    if rule == SHARE:
        share = shares[b, cards.type[c]]
    value = card_score(
        rule,
        c,
        cards.type.size,
        state.tally[b, LAST_CARD],
        state.card[b, c, GPU_FREE] - queue.shapes[q, NEED_GPU],
        state.kind[b, c, JOBS],
        busy_share(cards, node, state.node[b, node, CORES]) + queue.shapes[q, NEED_CPU] * cards.share_per_core[node],
        1.0 - (state.node[b, node, MEM] - queue.shapes[q, NEED_MEM]) / cards.node_mem[node],
        predicted,
        share,
    )
    return value - later


choose = chooser(__name__, value_of)


def batch(name: str, env: CpnVectorEnv, _seed: int) -> BatchRule:
    """Bind a heuristic to a vector environment, whose queue is from then on run as the heuristic wants it."""
    env.use(discipline_of(name, env))
    rule = CARD_RULES[name]
    if rule != SHARE:
        return bind(choose, env, rule)
    from sched_env.jobs.gavel import Planner

    shares = np.zeros((env.num_envs, len(env.topology.card_types)))
    planner, by_score = Planner(env), bind(choose, env, rule, table=shares)

    def by_share(scores: Floats | None = None) -> NDArray[np.int64]:
        planner.behind(shares)
        actions = by_score(scores)
        planner.placed(actions)
        return actions

    return by_share


def discipline_of(name: str, env: CpnVectorEnv) -> Discipline:
    """Return how a heuristic runs the queue: the scenario's way, but for what it replaces."""
    scenario, own = env.scenario, DISCIPLINES.get(name, {})
    return Discipline(
        own.get("queue_order", scenario.queue_order),
        own.get("reservation", scenario.reservation),
        # A cap of the scenario's below the heuristic's own is a fact of the network, not a matter of taste.
        min(own.get("max_jobs_per_card", scenario.max_jobs_per_card), scenario.max_jobs_per_card),
    )
