"""What a policy sees of ``pods``: one row for each node, as it would be with the offered pod on it.

Use is described by how it went in the window: mean, 95th percentile, maximum and change (last - first). Statistics of
node and pod are added up, which is exact for a mean over as many positions and from above for the others. With
foresight there is also what having the pod adds to the violations that are expected of the node (``foresight``). The
functions below are row-wise: scalars inside kernels, columns in the service, the same bits both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sched_env.observation import NODE_CPU_CORES, NODE_MEM_GIB, Fields, Observation, columns, scalars
from sched_env.pods.foresight import AHEAD, STAKES, UNITS, stakes, without
from wire.contracts.feature_spec import Feature, FeatureSpec

FIT_TOLERANCE = 1e-9
"""GiB that rounding may leave over when a node is filled exactly."""
STATISTICS = ("mean", "p95", "max", "first", "last")
"""Of a resource's use in the window, as ``cpu_mean``, ``mem_last``, …"""

_USE: dict[str, tuple[str, float]] = {
    f"{resource}_{statistic}": (unit, 0.0)
    for resource, unit in (("cpu", "cores"), ("mem", "GiB"))
    for statistic in STATISTICS
}
_AHEAD: dict[str, tuple[str, float]] = {
    name: (unit, 0.0 if name.endswith("spread") else np.nan) for name, unit in zip(AHEAD, UNITS, strict=True)
}
"""NaN: the mean of the window, and for certain."""
STATE_FIELDS: Fields = {
    "cpu_capacity": ("cores", NODE_CPU_CORES),
    "mem_capacity": ("GiB", NODE_MEM_GIB),
    "price": ("USD/hour", 1.0),
    "here": ("flag", 0.0),  # the pod is on this node now
    **_USE,  # of all pods on the node, the offered one included where it is
    "cpu_shares": ("cores", 0.0),  # cpu requests of the node's pods: they share its cpu in this proportion
    "mem_deployed": ("GiB", 0.0),  # memory requests of the node's pods
    "pods": ("count", 0.0),
    "active": ("flag", 1.0),  # up, not cordoned, and of the pod's cluster; else pods may stay there, not come
    **_AHEAD,  # of all pods on the node: what is expected of the next window, and an hour later
    "penalty": ("ratio", np.nan),  # of the cluster in the window if the pod were here, for best_single_move
}
"""Raw fields of a node: unit and the default when the live source has none."""

REQUEST_FIELDS: Fields = {
    "cpu": ("cores", 1.0),  # requested
    "mem": ("GiB", 1.0),
    **_USE,  # of the pod alone
    "moves_left": ("count", 1.0),  # of the window's migration budget
    "pod_limit": ("count", 110.0),  # Kubernetes' own
    "price_per_move": ("USD", 0.0),
    "threshold": ("ratio", 0.8),  # share of a node above which it is stressed
    **_AHEAD,  # of the pod alone
}
"""Raw fields of the offered pod and the limits of a move."""

_AFTER = tuple(
    Feature(f"{resource}_{name}_after", "ratio", 1.0, source, 0.0, droppable)
    for resource, unit in (("cpu", "cores"), ("mem", "gib"))
    for name, source, droppable in (
        ("mean", f"(nodes + pods).{resource}_used_mean_{unit} / capacity", False),
        ("p95", f"(nodes + pods).{resource}_used_p95_{unit} / capacity", True),
        ("max", f"(nodes + pods).{resource}_used_max_{unit} / capacity", True),
        ("change", f"last - first sample of (nodes + pods).{resource} in the window / capacity", True),
    )
)
_ADDED = "the bundle's model forecast: what the pod adds to"
SPEC = FeatureSpec(
    problem="pods",
    version=2,
    candidate=(
        Feature("cpu_capacity", "cores", 64.0, "nodes.cpu_capacity_cores", 4.0),
        Feature("mem_capacity", "GiB", 64.0, "nodes.mem_capacity_gib", 16.0),
        Feature("price", "USD/hour", 1.0, "nodes.price_usd_per_hour", 1.0, True),
        Feature("here", "flag", 1.0, "pod.spec.nodeName", 0.0),
        Feature("pods_after", "count", 16.0, "count of pods by node", 0.0),
        Feature("cpu_shares_after", "ratio", 1.0, "(nodes.cpu_requested_cores + request) / capacity", 0.0),
        Feature("mem_after", "ratio", 1.0, "(nodes.mem_requested_gib + request) / capacity", 0.0),
        *_AFTER,
        Feature("over_next", "share", 1.0, f"{_ADDED} the node's chance to be above the threshold next", 0.0, True),
        Feature("over_later", "share", 1.0, f"{_ADDED} the node's chance to be above it in an hour", 0.0, True),
        Feature("short_next", "ratio", 1.0, f"{_ADDED} the share of its capacity that the node lacks next", 0.0, True),
        Feature("short_later", "ratio", 1.0, f"{_ADDED} the share of its capacity that it lacks in an hour", 0.0, True),
    ),
    request=(
        Feature("cpu", "cores", 8.0, "pods.cpu_request_cores", 1.0),
        Feature("mem", "GiB", 8.0, "pods.mem_request_gib", 1.0),
        *(
            Feature(f"{resource}_{name}", unit, 8.0, f"pods.{resource}_used_{name} of the window", 0.0, name != "mean")
            for resource, unit in (("cpu", "cores"), ("mem", "GiB"))
            for name in ("mean", "p95", "max", "change")
        ),
        Feature("moves_left", "count", 8.0, "the migrator's budget", 1.0),
        Feature("price_per_move", "USD", 0.1, "the migrator's settings", 0.0, True),
    ),
)
BEFORE = msgspec.structs.replace(SPEC, version=1, candidate=SPEC.candidate[: -len(STAKES)])
"""The spec before this one, and what is seen without foresight."""


def after(value: Any, added: Any, moved: Any, inverse: Any) -> Any:
    """Return the share of a capacity in use with the pod there.

    Args:
        value: In use now.
        added: What the pod brings.
        moved: 1 where it would come from another node, 0 where it is already.
        inverse: 1 / capacity.
    """
    return (value + added * moved) * inverse


def fits(here: Any, mem_capacity: Any, mem_deployed: Any, pods: Any, mem: Any, moves_left: Any, pod_limit: Any) -> Any:
    """Say whether the pod can stay (always) or go there: by memory, the pod limit and the budget; cpu is shared."""
    return (here > 0.0) | (
        (mem_deployed + mem <= mem_capacity + FIT_TOLERANCE) & (pods + 1.0 <= pod_limit) & (moves_left > 0.0)
    )


def complete(
    candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]
) -> tuple[dict[str, NDArray[np.float64]], dict[str, float]]:
    """Return both mappings as float64 with the defaults of what was left out, and what follows from them."""
    node: dict[str, Any] = dict(zip(STATE_FIELDS, columns(STATE_FIELDS, candidates), strict=True))
    pod = dict(zip(REQUEST_FIELDS, scalars(REQUEST_FIELDS, request), strict=True))
    moved = 1.0 - node["here"]
    inverse = {"cpu": 1.0 / node["cpu_capacity"], "mem": 1.0 / node["mem_capacity"]}
    for resource in ("cpu", "mem"):
        for each in (node, pod):
            each[f"{resource}_change"] = each[f"{resource}_last"] - each[f"{resource}_first"]
        for name in ("mean", "p95", "max", "change"):
            use = f"{resource}_{name}"
            node[f"{use}_after"] = after(node[use], pod[use], moved, inverse[resource])
    node["cpu_shares_after"] = after(node["cpu_shares"], pod["cpu"], moved, inverse["cpu"])
    node["mem_after"] = after(node["mem_deployed"], pod["mem"], moved, inverse["mem"])
    node["pods_after"] = node["pods"] + moved
    return node, pod


def build(candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]) -> Observation:
    """Build the observation from raw fields; what is left out takes its default."""
    node, pod = complete(candidates, request)
    return _seen(node | at_stake(node, pod), pod, SPEC)


def build_before(candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]) -> Observation:
    """Build the observation of the spec before."""
    return _seen(*complete(candidates, request), BEFORE)


def at_stake(node: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return what having the pod adds to what is at stake on each node."""
    less, more = [], []
    for name in AHEAD:
        of_node, of_pod = node[name], pod[name]
        if not name.endswith("spread"):
            mean = f"{name[:3]}_mean"
            of_node = np.where(np.isnan(of_node), node[mean], of_node)
            of_pod = pod[mean] if np.isnan(of_pod) else of_pod
        less.append(without(of_node, of_pod, node["here"]))
        more.append(less[-1] + of_pod)
    limits = [1.0 / node["cpu_capacity"], 1.0 / node["mem_capacity"], pod["threshold"]]
    there, gone = stakes(*more, *limits), stakes(*less, *limits)
    return {name: there[k] - gone[k] for k, name in enumerate(STAKES)}


def _seen(node: Mapping[str, Any], pod: Mapping[str, Any], spec: FeatureSpec) -> Observation:
    mask = fits(
        node["here"], node["mem_capacity"], node["mem_deployed"], node["pods"],
        pod["mem"], pod["moves_left"], pod["pod_limit"],
    )  # fmt: skip
    mask &= (node["here"] > 0.0) | (node["active"] > 0.0)
    return Observation(
        np.stack([node[feature.name] for feature in spec.candidate], axis=-1, dtype=np.float32),
        np.array([pod[feature.name] for feature in spec.request], np.float32),
        mask,
    )


def ruled_out(candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]) -> dict[str, int]:
    """Say how many other nodes lack memory, are down or at the pod limit, or that no move is left."""
    node, pod = complete(candidates, request)
    away = node["here"] <= 0.0
    return {
        "too little mem": int(
            (away & (node["mem_deployed"] + pod["mem"] > node["mem_capacity"] + FIT_TOLERANCE)).sum()
        ),
        "not active": int((away & (node["active"] <= 0.0)).sum()),
        "at the pod limit": int((away & (node["pods"] + 1.0 > pod["pod_limit"])).sum()),
        "beyond the migration budget": int(away.sum()) if pod["moves_left"] <= 0.0 else 0,
    }


def gauges(candidates: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """Return the mean share of each node's cpu and memory that was in use in the window."""
    node, _ = complete(candidates, {})
    return {name: node[f"{name}_mean"] / node[f"{name}_capacity"] for name in ("cpu", "mem")}
