"""What a reward that users bring to ``functions`` may look at (``sched_env.rewards`` calls it).

The built-in ones (``latency_cost``, ``slo_cost``) are in the kernels. A user's function may run any Python::

    def greener(step: RewardInputs) -> np.ndarray:
        return -step.r2 - 0.1 * step.late_share

The ``rejection_penalty`` of the scenario is taken off afterwards, as for the built-in ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.functions.state import (
    CPU,
    DURATION,
    LAST_REJECTED,
    LATE_SHARE,
    MEM,
    R1,
    R2,
    REQUESTS,
    Cluster,
    Rules,
    State,
)
from sched_env.tables import Floats


@dataclass(frozen=True)
class RewardInputs:
    """What a reward may look at: one entry an environment, of the placement just made."""

    r1: Floats
    """Relative response time of the placed function, actual / uncontended, after the placement."""

    r2: Floats
    """Change of the cluster's hourly cost, USD/hour."""
    r1_norm: Floats
    """Between the calibration bounds, clipped to [0, 1]."""
    r2_norm: Floats
    late_share: Floats
    """Share of the instance's calls expected to miss the SLO."""
    rejected: Floats
    """Arrivals that fitted nowhere since the placement."""
    node: NDArray[np.int64]
    cpu: Floats
    mem: Floats
    requests: Floats
    duration_s: Floats

    @property
    def rfrt(self) -> Floats:
        """``r1`` by its other name: relative function response time."""
        return self.r1

    @classmethod
    def of(cls, cluster: Cluster, rules: Rules, state: State, rows: NDArray[np.int64], actions: Any) -> RewardInputs:
        """Collect the inputs of the placements of trace rows on nodes."""

        def norm(values: Floats, low: float, high: float) -> Floats:
            if high - low < 1e-6:
                return np.zeros_like(values)
            return np.clip((values - low) / (high - low), 0.0, 1.0)

        r1, r2, late_share, rejected = (state.last[:, k].copy() for k in (R1, R2, LATE_SHARE, LAST_REJECTED))
        cpu, mem, requests, duration_s = (cluster.tasks[rows, k] for k in (CPU, MEM, REQUESTS, DURATION))
        return cls(
            r1=r1,
            r2=r2,
            r1_norm=norm(r1, rules.r1_low, rules.r1_high),
            r2_norm=norm(r2, rules.r2_low, rules.r2_high),
            late_share=late_share,
            rejected=rejected,
            node=np.array(actions, np.int64),
            cpu=cpu,
            mem=mem,
            requests=requests,
            duration_s=duration_s,
        )
