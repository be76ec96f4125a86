"""Scenarios of ``vm``: cluster, threshold of split requests, growth, ending, reward and prices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from sched_env.scenarios import Amount, Count, Positive, Scenario, Share, Size
from sched_env.vm.features import HALF_CPU_CORES, HALF_MEM_GIB
from wire.errors import ConfigError

NEVER = 1e10
"""Upstream's ``double_thr`` for "no request is split"."""


class VmScenario(Scenario, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Servers of two halves, the trace they serve and when an episode ends."""

    aliases: ClassVar[Mapping[str, str]] = {
        "N": "servers",
        "cpu": "half_cpu_cores",
        "mem": "half_mem_gib",
        "allow_release": "releases",
        "double_thr": "double_threshold",
        "growing_nums": "growing_servers",
    }

    rewards: ClassVar[tuple[str, ...]] = ("default", "+1", "cpu", "wait", "1")

    servers: Positive = 5
    """Servers at the start of an episode."""
    half_cpu_cores: Size = HALF_CPU_CORES
    half_mem_gib: Size = HALF_MEM_GIB
    releases: bool = True
    """Whether deletions free what their VM held; without, they are skipped."""
    double_threshold: Size = NEVER
    """A request strictly above it takes half from each half of one server."""
    double_resource: Literal["mem", "cpu"] = "mem"
    """What the threshold looks at: memory as upstream's code does, cpu as its documentation says."""
    growing_servers: Count = 0
    """Servers bought at a time when the allocated share passes ``expand_threshold``; 0: the cluster stays as it is."""
    expand_threshold: Share = 0.7
    """Allocated share, the larger of cpu and memory, above which servers are bought."""
    max_servers: Count = 0
    """Where growth stops; 0: at ``servers``."""
    ending: Literal["terminate", "wait"] = "terminate"
    """At the first request that fits nowhere the episode ends (as upstream), or the request waits for departures."""
    queue_extra: Count = 40
    """With ``wait``: requests in the queue beyond those that first_fit places before its first misfit."""
    reward: str | int = "default"  # type: ignore[assignment]  # YAML reads +1 as a number
    """``+1`` a placement, ``cpu``: the request's cores, ``wait``: minus the seconds that requests wait until the next
    decision; ``default`` is ``+1`` with ``terminate`` and ``wait`` with ``wait``. Or ``module:function`` of the
    user's."""
    judged_by: Literal["default", "placed", "wait_s", "cost_usd"] = "default"
    """The metric policies are compared by; ``default`` is ``placed`` with ``terminate`` and ``wait_s`` with ``wait``.
    ``cost_usd`` is for clusters that place everything: server hours, where placing less is not cheaper but worse."""
    sla_wait_s: Amount = 300.0
    """A request that waits longer breaks the SLA; so does one that is never placed."""
    server_price_usd_per_hour: Amount | None = None
    """None: not known, and 1 USD is assumed; reports say so."""
    start_min: Count = 1000
    """Upstream draws start points from rows 1000 to 9998."""
    start_max: Count = 9999
    skip_bad_rows: bool = False
    """Leave out bad rows of the trace, with a warning that counts them, instead of stopping."""
    synthetic_vms: Positive = 20_000
    """Length of the synthetic trace."""
    trace_seed: Count = 0
    """Seed of the synthetic trace."""

    def __post_init__(self) -> None:
        """Refuse a cluster that may grow to less than it starts with, and a metric that the ending does not have."""
        super().__post_init__()
        other = "placed" if self.ending == "wait" else "wait_s"
        if self.judged_by == other or (self.judged_by == "cost_usd" and self.ending == "wait"):
            raise ConfigError(
                f"{self.name}: judged_by is {self.judged_by} with ending {self.ending}",
                "placed or cost_usd with terminate, wait_s with wait",
            )
        if self.growing_servers and self.max_servers < self.servers:
            raise ConfigError(
                f"{self.name}: max_servers is {self.max_servers}",
                f"at least servers = {self.servers} when growing_servers is {self.growing_servers}",
            )

    @property
    def metric(self) -> Literal["placed", "wait_s", "cost_usd"]:
        """The metric policies are compared by, with ``default`` resolved."""
        if self.judged_by == "default":
            return "wait_s" if self.ending == "wait" else "placed"
        return self.judged_by

    @property
    def price_assumed(self) -> bool:
        """Whether costs are at 1 USD a server hour because no price is known."""
        return self.server_price_usd_per_hour is None

    @property
    def most_servers(self) -> int:
        """The largest number of servers an episode can have."""
        return self.max_servers if self.growing_servers else self.servers

    @property
    def reward_kind(self) -> Literal["+1", "cpu", "wait"]:
        """The built-in reward, with ``default`` resolved; beside one of the user's it is the default."""
        if self.reward in ("cpu", "wait"):
            return self.reward  # type: ignore[return-value]
        return "+1" if str(self.reward) in ("+1", "1") or self.ending != "wait" else "wait"
