"""What an episode of ``jobs`` replays."""

from __future__ import annotations

from typing import NamedTuple

from sched_env.jobs.runtime import RuntimeModel
from sched_env.jobs.tables import JobTrace, RuntimeTable, Topology


class Workload(NamedTuple):
    """Everything an episode replays."""

    jobs: JobTrace
    topology: Topology
    runtime: RuntimeTable | RuntimeModel
    """What happens; a model is asked once for each set."""
    predicted: RuntimeTable | RuntimeModel | None = None
    """What schedulers believe; left out: the truth."""
