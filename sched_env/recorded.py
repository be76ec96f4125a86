"""``as_recorded``: the placements that the cluster's own scheduler made, as a policy like any other.

Where a trace tells on which candidate a request was recorded, that one is chosen. Where it does not tell, or the
candidate has no room (arrivals are denser than recorded, or the request never found a place), a rule decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sched_env import heuristics
from wire.errors import ConfigError

if TYPE_CHECKING:
    from sched_env.vector import PlacementVectorEnv

NAME = "as_recorded"


class AsRecorded:
    """Chooses what was recorded; counts how often it could.

    Args:
        otherwise: The rule for the rest; left out: the problem's own for this, or its fallback.
    """

    name = NAME

    def __init__(self, otherwise: str | None = None) -> None:
        self.otherwise = otherwise
        self.followed = self.decided = 0

    def bind(self, env: PlacementVectorEnv, seed: int = 0) -> Any:
        """Return the function that chooses for every environment."""
        recorded = getattr(env, "recorded", None)
        if recorded is None:
            raise ConfigError(f"episodes of {env.problem.name} do not tell where requests were recorded")
        problem = env.problem
        rule = heuristics.batch(self.otherwise or problem.replayed or problem.fallback, env, seed)

        def choose(scores: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
            actions, homes = rule(scores), recorded()
            mask = env.observe()["mask"]
            there = (homes >= 0) & np.take_along_axis(mask, np.maximum(homes, 0)[:, None], axis=1)[:, 0]
            active = env.buffers.active
            self.followed += int((there & active).sum())
            self.decided += int(active.sum())
            if scores is not None:  # what was chosen must score highest
                rows = np.flatnonzero(there)
                scores[rows, homes[rows]] = np.inf
            chosen: NDArray[np.int64] = np.where(there, homes, actions)
            return chosen

        return choose


def told(trace: Any) -> bool:
    """Say whether a trace, or a part of it, tells on which node or card anything was recorded."""
    for part in trace if isinstance(trace, tuple) else (trace,):
        for name in ("node", "card"):
            home = getattr(part, name, None)
            if isinstance(home, np.ndarray) and bool((home >= 0).any()):
                return True
    return False
