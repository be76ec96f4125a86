"""Heuristics of ``vm`` on whole batches, compiled, on the environments' own float64 state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sched_env.choosing import bind, chooser
from sched_env.jit import part
from sched_env.vm import heuristics
from sched_env.vm.events import CPU, HALVES, MEM
from sched_env.vm.heuristics import FIRST_FIT, NAMES, TYPICAL_REQUESTS

if TYPE_CHECKING:
    from sched_env.problem import BatchRule
    from sched_env.vm.vector import VmVectorEnv

half_score = part(heuristics.half_score)


@part
def prepare(_rule: int, arguments: Any, b: int) -> tuple[float, float, float, float]:
    """Return what the request takes from each half used, cores and GiB, whether it uses both, and its expected life."""
    S, P, E = arguments
    need = E.rows[S.env[b].row]
    return need[CPU], need[MEM], need[HALVES] - 1.0, E.expected[S.env[b].row, 0] if P.expects else 0.0


@part
def value_of(
    rule: int, arguments: Any, shapes: NDArray[np.float64], b: int, half: int, need: tuple[float, float, float, float]
) -> Any:
    """Score one half."""
    S, P, _ = arguments
    need_cpu, need_mem, split, life_s = need
    other = half ^ 1
    ends_s = S.ends[b, half >> 1] if P.expects else 0.0
    return half_score(
        rule, half, S.cpu[b, half], S.mem[b, half], S.cpu[b, other], S.mem[b, other],
        P.half_cpu, P.half_mem, need_cpu, need_mem, split, ends_s, life_s, shapes,
    )  # fmt: skip


choose = chooser(__name__, value_of, prepare)


def batch(name: str, env: VmVectorEnv, _seed: int) -> BatchRule:
    """Bind a heuristic to a vector environment."""
    rule = NAMES.index(name)
    return bind(choose, env, rule, first=rule == FIRST_FIT, table=TYPICAL_REQUESTS)
