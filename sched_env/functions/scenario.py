"""Settings of the ``functions`` environments; the YAML files are in ``sched_env/functions/scenarios``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec

from sched_env.scenarios import Amount, Count, Positive, Range, Scenario, Share, Size
from wire.errors import ConfigError


class ServerlessScenario(Scenario, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Function instances placed one by one on priced nodes."""

    aliases: ClassVar[Mapping[str, str]] = {
        "num_nodes": "nodes",
        "num_functions": "functions",
        "initial_rfrt": "initial_rart",
    }

    rewards: ClassVar[tuple[str, ...]] = ("latency_cost", "slo_cost")

    nodes: Positive = 10
    """How many nodes, of the generated table; a trace that brings its own node table ignores it."""
    functions: Positive = 40
    """How many different functions the generated trace has."""
    net_mb_s: Size = 1000.0
    """Network of a generated node."""
    disk_iops: Size = 5000.0
    """Disk of a generated node."""
    episode_s: Amount = 0.0
    """Seconds of arrivals after which an episode is cut; 0: no limit."""
    cold_start_s: Amount = 1.5
    """What an instance needs before its first answer when no idle container of its function is on the node."""
    keep_alive_s: Amount = 600.0
    """How long idle containers stay; ten minutes, as the public FaaS platforms do."""
    cpu_gain: Amount = 1.0
    net_gain: Amount = 1.0
    disk_gain: Amount = 1.0
    """How much steeper this cluster slows down than the model of ``contention.py`` says, resource by resource; from
    stage ``calibrate``. What policies see is the model's own curve, so that training and service agree."""
    contention: Literal["requested", "used"] = "requested"
    """What slows calls down on a node: the cores that its instances request, or those they were measured to use."""
    busy_gain: Amount = 0.0
    """With ``used``: slowdown in proportion to the share of cores in use (shared caches, memory, hyper-threads)."""
    system_cores: Amount = 0.0
    """Cores that a node uses beside its instances."""
    cooldown_s: Amount = 300.0
    """How long a node is billed after its last instance has left."""
    reward: str = "latency_cost"
    """``latency_cost``, ``slo_cost``, or ``module:function`` of the user's (``sched_env.functions.rewards``)."""
    beta: Share = 0.7
    """Weight of latency against cost."""
    r1: Literal["contention", "utilization"] = "contention"
    """Response: relative response time by the contention model, or the tutorial's 0.1 + 4.9 x mean utilisation."""
    r2: Literal["lifetime", "instant", "price"] = "lifetime"
    """Cost: change of the hourly cost averaged over the time the placement matters; at this instant; or, as the
    tutorial, the price of the node."""
    r1_range: Range = msgspec.field(default_factory=lambda: [1.0, 3.0])
    """Calibration bounds of R1, from ``python -m sched_env.functions.calibration``; fixed, never running ones."""
    r2_range: Range | None = None
    """Calibration bounds of R2; left out: 0 (with ``price``: the lowest price) to the highest price."""
    rejection_penalty: Amount = 1.0
    """Taken from the reward for each arrival that fitted nowhere: as bad as the worst placement."""
    initial_rart: Amount = 1.0
    """Relative response time of a function that has not been placed yet."""
    workload: Literal["serverless", "tutorial"] = "serverless"
    """Which generator makes the trace."""
    load: Size = 0.5
    """Mean share of the nodes' cpu that the generated trace asks for."""
    outages_per_hour: Amount = 0.0
    """How often a node fails, in a generated trace; 0: never. A trace of the user's own says it itself (``up``)."""
    outage_s: Size = 600.0
    """How long a failed node stays away on average; at least a minute."""
    exceeded: Literal["slow", "inactive"] = "slow"
    """What becomes of a node whose instances ask for more of a resource than it has, which placements can do to network
    and disk only: it is slow, for all; or inactive, as in the tutorial: it takes nothing new until enough has left."""
    skip_bad_rows: bool = False
    """Leave out bad rows of the trace, with a warning that counts them, instead of stopping."""
    trace_rows: Positive = 40_000
    """Length of the generated trace."""
    trace_seed: Count = 0
    """Names the generated trace; the environment's seed only draws start points in it."""

    def __post_init__(self) -> None:
        """Refuse calibration bounds that are the wrong way round."""
        super().__post_init__()
        for name, bounds in (("r1_range", self.r1_range), ("r2_range", self.r2_range)):
            if bounds is not None and bounds[0] > bounds[1]:
                raise ConfigError(f"{self.name}: key {name!r} is {bounds}", "[low, high]")
