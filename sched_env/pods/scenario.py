"""Settings of ``pods``; the YAML files are in ``sched_env/pods/scenarios``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from sched_env.scenarios import Amount, Count, Positive, Scenario, Share, Size
from wire.errors import ConfigError

Budget = Annotated[float, msgspec.Meta(gt=0, le=1)]


class DeployScenario(Scenario, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pods on nodes, the requests they answer, and what moving them costs."""

    aliases: ClassVar[Mapping[str, str]] = {
        "n_node": "nodes",
        "N": "nodes",
        "cpu": "node_cpu_cores",
        "mem": "node_mem_gib",
    }

    nodes: Positive = 10
    """How many nodes the generated trace has; a trace that brings its own node table ignores it."""
    node_cpu_cores: Size = 100.0
    node_mem_gib: Size = 100.0
    pods_per_node: Positive = 10
    """At the start of the generated trace."""
    pod_limit: Positive = 100
    """The most pods a node may hold."""
    arrival: Literal["serial", "parallel"] = "serial"
    """How requests meet on a node: the k-th of each pod together, or by the times they come and last (docs/pods.md)."""
    threshold: Share = 0.8
    """Share of a node's cpu or memory above which a position is a resource violation, and the node is stressed."""
    under_threshold: Share = 0.2
    """Share below which a position counts as under-used."""
    offers: Literal["stressed", "all"] = "stressed"
    """Whose pods may move: those of stressed nodes; or, behind them, those of all others too, the coolest node's first,
    so that nodes can be emptied (consolidation). More decisions a window: at most one for every pod."""
    migration_budget: Budget = 0.05
    """Share of a window's pods that may move at its end (at least one); 2 to 3 % is usual where moves are dear."""
    price_per_move_usd: Amount = 0.01
    weight_over: Amount = 0.6
    """Of a resource violation in the reward; this and the next three as upstream."""
    weight_under: Amount = 0.4
    """Of an under-used position."""
    weight_unmet: Amount = 1.0
    """Of a performance violation."""
    weight_moved: Amount = 0.01
    """Of a core or GiB that a moved pod requests."""
    foresight: bool = False
    """Whether a policy sees what a move does to the violations that are expected in the next window and an hour later
    (features of spec 2), by the bundle's forecast. It costs a quarter of the decisions a second or more, and says
    nothing new where use cannot be foreseen."""
    episode_windows: Positive = 48
    """Windows that are counted in one episode: four hours."""
    node_price_usd_per_hour: Amount | None = None
    """Of a generated node. None: not known, and 1 USD is assumed; reports say so."""
    load: Size = 0.5
    """Mean share of the nodes' cpu that the generated requests use."""
    requests_per_pod: Positive = 5
    """Mean number of generated requests of a pod in a window."""
    churn: Share = 0.01
    """Share of the generated pods that leave in a window; as many new ones come."""
    trace_windows: Positive = 576
    """Length of the generated trace: two days."""
    trace_seed: Count = 0
    """Names the generated trace; the environment's seed only draws start points in it."""

    def __post_init__(self) -> None:
        """Refuse thresholds that are the wrong way round."""
        super().__post_init__()
        if self.under_threshold > self.threshold:
            raise ConfigError(
                f"{self.name}: key 'under_threshold' is {self.under_threshold}", f"at most threshold = {self.threshold}"
            )

    @property
    def price_assumed(self) -> bool:
        """Whether costs are at 1 USD a node hour because no price is known."""
        return self.node_price_usd_per_hour is None
