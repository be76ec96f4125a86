"""Settings of ``jobs``; the YAML files are in ``sched_env/jobs/scenarios``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from sched_env.scenarios import Amount, Count, Positive, Scenario, Share, Size

Order = Literal["fifo", "shortest", "least_attained"]
Reservation = Literal["none", "big", "easy"]
Cap = Annotated[int, msgspec.Meta(ge=1, le=3)]
Delay = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
"""Seconds, up to a day: without a limit an infinite one would pass, and no job would ever start."""


class CpnScenario(Scenario, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queue of GPU jobs, the network they run in and the rules of its queue."""

    aliases: ClassVar[Mapping[str, str]] = {"cpu_thr": "cpu_threshold"}

    rewards: ClassVar[tuple[str, ...]] = ("completion", "makespan")

    topology: str = "mixed"
    """``testbed`` (upstream's: 2 RTX4090, 1 A100, 6 P100), ``mixed`` (``cards`` of four types), or a YAML or JSON
    file (``sched_env.jobs.topology``)."""
    cards: Positive = 20
    """How many cards ``mixed`` has."""
    episode_jobs: Positive = 100
    """Jobs of the queue in one episode."""
    choice: Literal["card", "pair"] = "card"
    """What an action says: a card for the job that the queue offers; or a pair of a waiting job and a card, or to wait
    for the next event."""
    shown_jobs: Annotated[int, msgspec.Meta(ge=1, le=256)] = 8
    """With ``pair``: jobs to choose from, the first in ``queue_order`` that fit somewhere."""
    queue_order: Order = "fifo"
    """Which waiting job is offered first: the oldest, the one with the shortest predicted time on its best card, or
    one of the model that has had the least card time so far. Jobs that fit nowhere are passed over."""
    reservation: Reservation = "none"
    """``big``: a job of ``big_job_gib`` or more that fits nowhere reserves the card where it is predicted to end
    first; ``easy``: the first job in the queue that fits nowhere does, where it is predicted to start first. Others
    are placed on that card's node only if the reserved job can still start when promised."""
    max_jobs_per_card: Cap = 3
    """Measured profiles go up to three; 1: cards are exclusive."""
    cpu_threshold: Share = 0.7
    """A node busier than this takes no job; upstream's value, to be ablated at 0.8 and 0.9."""
    gpu_mem_margin_gib: Amount = 1.0
    """Left free on a card: a job's peak is above what it is known to need. Upstream's 1024 MB."""
    mem_margin_gib: Amount = 10.0 / 1024.0
    """Left free on a node; upstream's 10 MB."""
    big_job_gib: Size = 10.0
    """GPU memory from which a job may reserve with ``big``; upstream's 10,240 MB."""
    memory_check: Literal["free", "total"] = "free"
    """``total`` reproduces upstream's FIFO fault: the mask looks at a card's whole memory, and jobs run out of it."""
    failure_rate: Share = 0.0
    """Share of the attempts that fail somewhere on the way; drawn by (seed, job, attempt), whatever the policy."""
    dispatch_s: Delay = 0.0
    """From the decision until the transfer begins: a controller that polls acts on it only then. As in the transfer,
    the job holds its place, slows nobody down and makes no progress."""
    startup_s: Delay = 0.0
    """From the end of the transfer until the first iteration: image, container, framework. As above."""
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    """After so many failed attempts a job has failed."""
    deadline_factor: Size = 2.0
    """Deadline = this x (dispatch, transfer, start-up and run alone on the best card), where the queue has none of its
    own."""
    reward: str = "completion"
    """Minus the seconds that jobs spend in the system until the next decision, over the number of jobs; or minus the
    seconds until the next decision. Both over ``reward_scale_s``: the return is minus the mean completion (minus the
    makespan) in that unit. Or ``module:function`` of the user's."""
    reward_scale_s: Size = 1000.0
    """Keeps returns near 1 for queues of ten minutes to an hour."""
    load: Amount = 1.2
    """Work offered by the generated queue over what its cards do one job at a time; 0: all jobs at the start."""
    data_gb: Amount = 10.0
    """Mean data size of generated jobs."""
    cancel_rate: Share = 0.0
    """Share of the generated jobs that their users withdraw, at a drawn time, unless they have ended by then."""
    trace_rows: Positive = 20_000
    """Length of the generated queue."""
    trace_seed: Count = 0
    """Names the generated queue; the environment's seed draws start points and failures."""
