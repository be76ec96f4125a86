"""What a policy sees of ``functions``: one row for each node, relative to the instance that is to be placed.

Written once for scalars (compiled, inside the kernels) and for arrays (plain numpy, in the service), with operations
that give the same bits both ways; see :mod:`sched_env.functions.contention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.functions.contention import (
    MEMORY_KNEE,
    MEMORY_SLOWDOWN,
    PRESSURE_SCALE,
    SPARE_CORES,
    cold_ratio,
    factors,
    time_shares,
)
from sched_env.observation import NODE_CPU_CORES, NODE_MEM_GIB, Observation, columns, scalars
from wire.contracts.feature_spec import Feature, FeatureSpec

RESOURCES = ("cpu", "mem", "net", "disk")
FIT_TOLERANCE = 1e-9
"""Cores or GiB that rounding may leave over when a node is filled exactly."""

STATE_FIELDS: dict[str, tuple[str, float]] = {
    "cpu_capacity": ("cores", NODE_CPU_CORES),
    "mem_capacity": ("GiB", NODE_MEM_GIB),
    "net_capacity": ("MB/s", 1000.0),
    "disk_capacity": ("IOPS", 5000.0),
    "cpu_deployed": ("cores", 0.0),
    "mem_deployed": ("GiB", 0.0),
    "net_used": ("MB/s", 0.0),
    "disk_used": ("IOPS", 0.0),
    "price": ("USD/hour", 1.0),
    "active": ("flag", 1.0),
    "instances": ("count", 0.0),
    "billed_left_s": ("seconds", 600.0),
    "warm": ("count", 0.0),
}
"""Raw fields of a node: unit and the default when the live source has none. ``billed_left_s``: how long the node will
be billed without this placement; a live node is taken to be paid for two windows more. ``warm``: idle containers of
the function to be placed."""

REQUEST_FIELDS: dict[str, tuple[str, float]] = {
    "cpu": ("cores", 1.0),
    "mem": ("GiB", 1.0),
    "net": ("MB/s", 0.0),
    "disk": ("IOPS", 0.0),
    "requests": ("count", 1.0),
    "duration_s": ("seconds", 60.0),
    "response_s": ("seconds", 0.2),
    "slo_s": ("seconds", 0.4),
    "function_requests": ("count", 0.0),
    "rart": ("ratio", 1.0),
    "cold_start_s": ("seconds", 1.5),
    "cooldown_s": ("seconds", 300.0),
    "sequence": ("count", 0.0),
}
"""Raw fields of an instance. ``function_requests``: calls of the same function that running instances answer.
``rart``: the relative response time at the function's last placement. ``sequence``: placements before this one, for
round_robin."""

SPEC = FeatureSpec(
    problem="functions",
    version=1,
    candidate=(
        Feature("cpu_capacity", "cores", 16.0, "nodes.cpu_capacity_cores", 4.0),
        Feature("mem_capacity", "GiB", 64.0, "nodes.mem_capacity_gib", 16.0),
        Feature("price", "USD/hour", 1.0, "nodes.price_usd_per_hour", 1.0, droppable=True),
        Feature("instances", "count", 16.0, "count of pods by node", 0.0),
        Feature("billed", "flag", 1.0, "derived from billed_left_s", 1.0, droppable=True),
        Feature("billed_left_s", "seconds", 600.0, "latest expected end of the node's pods + cooldown", 600.0, True),
        Feature("warm", "count", 4.0, "idle pods of the function by node (state field warm:<function>)", 0.0, True),
        Feature("cpu_after", "ratio", 1.0, "(nodes.cpu_requested_cores + request) / capacity", 0.0),
        Feature("mem_after", "ratio", 1.0, "(nodes.mem_requested_gib + request) / capacity", 0.0),
        Feature("net_after", "ratio", 1.0, "(nodes.net_used_mean_mb_s + request) / capacity", 0.0, True),
        Feature("disk_after", "ratio", 1.0, "(nodes.disk_used_mean_iops + request) / capacity", 0.0, True),
        Feature("response_ratio", "ratio", 2.0, "derived: contention and cold start after the placement", 1.0),
        Feature("cost_change", "USD/hour", 1.0, "derived: what the placement adds to the hourly bill", 0.0),
    ),
    request=(
        Feature("cpu", "cores", 4.0, "pod.spec.containers[].resources.requests.cpu", 1.0),
        Feature("mem", "GiB", 8.0, "pod.spec.containers[].resources.requests.memory", 1.0),
        Feature("net", "MB/s", 100.0, "functions.net_mb_per_request x rate", 0.0, True),
        Feature("disk", "IOPS", 1000.0, "functions.disk_io_per_request x rate", 0.0, True),
        Feature("requests", "count", 100.0, "functions.requests / pods of the function", 1.0, True),
        Feature("duration_s", "seconds", 300.0, "expected life of the instance", 60.0, True),
        Feature("response_s", "seconds", 1.0, "functions.standard_response_s", 0.2, True),
        Feature("slo_ratio", "ratio", 2.0, "SLO / functions.standard_response_s", 2.0, True),
        Feature("function_requests", "count", 1000.0, "functions.requests", 0.0, True),
        Feature("rart", "ratio", 2.0, "functions.response_mean_s / standard_response_s", 1.0, True),
    ),
)

_USED = dict(zip(RESOURCES, ("cpu_deployed", "mem_deployed", "net_used", "disk_used"), strict=True))
_in_order = itemgetter(*REQUEST_FIELDS)


def utilization_after(
    cpu_inverse: Any,
    mem_inverse: Any,
    net_inverse: Any,
    disk_inverse: Any,
    cpu_deployed: Any,
    mem_deployed: Any,
    net_used: Any,
    disk_used: Any,
    cpu: Any,
    mem: Any,
    net: Any,
    disk: Any,
) -> Any:
    """Return the utilisation of cpu, memory, network and disk after the placement.

    Capacities come as inverses (1 / capacity): a division for each node and resource would double the cost of a step.
    """
    return (
        (cpu_deployed + cpu) * cpu_inverse,
        (mem_deployed + mem) * mem_inverse,
        (net_used + net) * net_inverse,
        (disk_used + disk) * disk_inverse,
    )


def cost_change(price: Any, billed_left_s: Any, span_s: Any, inverse_span: Any) -> Any:
    """Return what the placement adds to the cluster's hourly cost, averaged over the time it can matter.

    That time, ``span_s``, is the instance's life and the cool-down after it; what counts is the share of it in which
    the node would not be billed otherwise. Opening an unbilled node costs its price; joining a node that stays billed
    for longer costs nothing. Summed over placements, cost change x span is exactly the bill.
    """
    return price * (np.maximum(span_s - billed_left_s, 0.0) * inverse_span)


def fits(
    active: Any, cpu_capacity: Any, mem_capacity: Any, cpu_deployed: Any, mem_deployed: Any, cpu: Any, mem: Any
) -> Any:
    """Say whether an available node has the cpu and memory left that the instance requests."""
    return (
        (active > 0.0)
        & (cpu_deployed + cpu <= cpu_capacity + FIT_TOLERANCE)
        & (mem_deployed + mem <= mem_capacity + FIT_TOLERANCE)
    )


class Terms(NamedTuple):
    """What a placement would do, node by node, from raw fields; heuristics read it too."""

    cpu_after: Any
    mem_after: Any
    net_after: Any
    disk_after: Any
    response_ratio: Any
    cost_change: Any
    mask: Any


class Nodes(NamedTuple):
    """What of an observation is the nodes' alone: kept by who asks often, row by row (:func:`prepare`)."""

    seen: NDArray[np.float32]
    """[C, F]: the observation without what depends on the request."""
    books: NDArray[np.float64]
    """[_BOOKS, C]: what the rest of it is worked out from."""

    def take(self, rows: NDArray[np.intp] | None = None) -> Nodes:
        """Return a copy, of these rows alone when they are given."""
        if rows is None:
            return Nodes(self.seen.copy(), self.books.copy())
        return Nodes(self.seen[rows], self.books[:, rows])

    def put(self, rows: NDArray[np.intp], changed: Nodes) -> None:
        """Replace rows by others that were prepared."""
        self.seen[rows] = changed.seen
        self.books[:, rows] = changed.books


_COLUMN = {feature.name: column for column, feature in enumerate(SPEC.candidate)}
_FROM_NODE = tuple((column, name) for name, column in _COLUMN.items() if name in STATE_FIELDS)
_BILLED = _COLUMN["billed"]
_EFFECT = slice(_COLUMN["cpu_after"], _COLUMN["cost_change"] + 1)
"""What the request changes: the last six, in the order of ``Terms``."""
_BOOKS = 14
_TAKEN, _INVERSE, _ROOM = slice(0, 4), slice(4, 8), slice(8, 10)
_CPU, _PRICE, _LEFT, _COLD = 10, 11, 12, 13
_DEFAULTS = {name: default for name, (_, default) in REQUEST_FIELDS.items()}
_ZERO, _ONE, _KNEE, _SPARE, _SLOWDOWN, _PRESSURE_SCALE = (
    np.array(value) for value in (0.0, 1.0, MEMORY_KNEE, SPARE_CORES, MEMORY_SLOWDOWN, PRESSURE_SCALE)
)
"""As arrays: numpy takes as long to read a Python float as to add a hundred."""


class Asked(NamedTuple):
    """What of a placement's effect is the request's alone."""

    amounts: NDArray[np.float64]
    """[4, 1]"""
    shares: tuple[float, float, float]
    computes_only: bool
    cold: NDArray[np.float64]
    span_s: NDArray[np.float64]
    inverse_span: NDArray[np.float64]
    seen: NDArray[np.float32]
    """[R]: the request's side of the observation."""


@lru_cache(1024)
def _asked(*values: float) -> Asked:
    """Work it out from the values of ``REQUEST_FIELDS``; kept, because pods of one template come by the hundred."""
    asked = dict(zip(REQUEST_FIELDS, values, strict=True))
    asked["slo_ratio"] = asked["slo_s"] / asked["response_s"]
    span_s = asked["duration_s"] + asked["cooldown_s"]
    seen = np.array([asked[feature.name] for feature in SPEC.request], np.float32)
    seen.flags.writeable = False
    shares = time_shares(asked["cpu"], asked["net"], asked["disk"])
    cold = cold_ratio(asked["cold_start_s"], asked["duration_s"], asked["requests"], asked["response_s"])
    return Asked(
        np.array([[asked[resource]] for resource in RESOURCES]),
        shares,
        shares[1] == 0.0 == shares[2],
        np.array(cold),
        np.array(span_s),
        np.array(1.0 / span_s),
        seen,
    )


def _books(node: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return what is taken and 1 / capacity of each resource, room, cores, price, time billed, and who starts cold.

    A node that is not available has room for less than nothing.
    """
    books = np.empty((_BOOKS, len(node["cpu_capacity"])))
    for row, (resource, used) in enumerate(_USED.items()):
        books[row] = node[used]
        books[_INVERSE.start + row] = node[f"{resource}_capacity"]
    closed = ~(node["active"] > 0.0)
    np.add(books[_INVERSE][:2], FIT_TOLERANCE, out=books[_ROOM])
    books[_ROOM, closed] = -np.inf
    books[_CPU] = node["cpu_capacity"]
    np.divide(1.0, books[_INVERSE], out=books[_INVERSE])
    books[_PRICE], books[_LEFT] = node["price"], node["billed_left_s"]
    books[_COLD] = ~(node["warm"] > 0.0)
    return books


def _effect(books: NDArray[np.float64], asked: Asked) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return [6, C]: the utilisation of the four resources, response ratio and cost change after it; and the mask.

    A live decision over a hundred nodes costs as much as the calls it makes: what can be is worked out as one array,
    and numbers are arrays already. The formulas are those of :func:`utilization_after`, :func:`fits`,
    :func:`cost_change` and ``contention.factors``, to the bit (``tests/sched_env/functions/test_features.py``).
    """
    effect, above = np.empty((6, books.shape[1])), np.empty((3, books.shape[1]))
    taken = books[_TAKEN] + asked.amounts
    np.multiply(taken, books[_INVERSE], out=effect[:4])
    fit = taken[:2] <= books[_ROOM]
    cpu_after = effect[0]
    free, pressure, unpaid = above
    np.subtract(books[_CPU], taken[0], out=free)
    np.subtract(effect[1], _KNEE, out=pressure)
    np.subtract(asked.span_s, books[_LEFT], out=unpaid)
    np.maximum(above, _ZERO, out=above)
    if asked.computes_only:  # the usual pod says nothing of network and disk: then they take no part in its time
        square = cpu_after * cpu_after
        contended = square * square / (free + _SPARE) + _ONE
        pressure *= _PRESSURE_SCALE
        contended *= _SLOWDOWN * (pressure * pressure) + _ONE
    else:
        cpu_share, net_share, disk_share = asked.shares
        cpu_factor, net_factor, disk_factor = factors(cpu_after, books[_CPU] - taken[0], *effect[1:4])
        contended = cpu_share * cpu_factor + net_share * net_factor + disk_share * disk_factor
    np.add(contended, books[_COLD] * asked.cold, out=effect[4])
    unpaid *= asked.inverse_span
    np.multiply(books[_PRICE], unpaid, out=effect[5])
    return effect, fit[0] & fit[1]


def terms(node: Mapping[str, Any], request: Mapping[str, float]) -> Terms:
    """Work out the placement's effect on every node; all fields must be there, see :func:`complete`."""
    effect, mask = _effect(_books(node), _asked(*(request[name] for name in REQUEST_FIELDS)))
    return Terms(effect[0], effect[1], effect[2], effect[3], effect[4], effect[5], mask)


def complete(candidates: Mapping[str, Any], request: Mapping[str, float]) -> tuple[dict[str, Any], dict[str, float]]:
    """Return both mappings as float64 with the defaults of what was left out."""
    return (
        dict(zip(STATE_FIELDS, columns(STATE_FIELDS, candidates), strict=True)),
        dict(zip(REQUEST_FIELDS, scalars(REQUEST_FIELDS, request), strict=True)),
    )


def build(candidates: Mapping[str, Any], request: Mapping[str, float]) -> Observation:
    """Build the observation from raw fields; what is left out takes its default."""
    return _finished(prepare(candidates), request)


def prepare(candidates: Mapping[str, Any]) -> Nodes:
    """Do what of :func:`build` is the nodes' alone; row by row, so that what changed can be prepared by itself."""
    node = dict(zip(STATE_FIELDS, columns(STATE_FIELDS, candidates), strict=True))
    seen = np.empty((len(node["active"]), len(SPEC.candidate)), np.float32)
    for column, name in _FROM_NODE:
        seen[:, column] = node[name]
    seen[:, _BILLED] = node["billed_left_s"] > 0.0
    return Nodes(seen, _books(node))


def finish(nodes: Nodes, request: Mapping[str, float]) -> Observation:
    """Do the rest of :func:`build`; the nodes stay as they are."""
    return _finished(Nodes(nodes.seen.copy(), nodes.books), request)


def _finished(nodes: Nodes, request: Mapping[str, float]) -> Observation:
    asked, seen = _asked(*_in_order({**_DEFAULTS, **request})), nodes.seen
    effect, mask = _effect(nodes.books, asked)
    seen[:, _EFFECT] = effect.T
    return Observation(seen, asked.seen, mask)


def quick(candidates: Mapping[str, Any], request: Mapping[str, float]) -> tuple[Any, tuple[Any, ...]]:
    """Say which nodes are feasible, and score them by room left, by room taken, and by price for a core."""
    node, asked = candidates, {name: request.get(name, REQUEST_FIELDS[name][1]) for name in ("cpu", "mem")}
    cpu_capacity, mem_capacity = node["cpu_capacity"], node["mem_capacity"]
    cpu_taken, mem_taken = node["cpu_deployed"] + asked["cpu"], node["mem_deployed"] + asked["mem"]
    mask = (cpu_taken <= cpu_capacity + FIT_TOLERANCE) & (mem_taken <= mem_capacity + FIT_TOLERANCE)
    mask &= node["active"] > 0.0
    taken = np.maximum(cpu_taken / cpu_capacity, mem_taken / mem_capacity)
    # Among equal prices the fuller node, which is the likelier one to be billed anyway.
    return mask, (-taken, taken, 1e-3 * taken - node["price"] / cpu_capacity)


def ruled_out(candidates: Mapping[str, Any], request: Mapping[str, float]) -> dict[str, int]:
    """Say how many nodes are not active, or lack cores or memory."""
    node, asked = complete(candidates, request)
    counts = {"not active": int((node["active"] <= 0.0).sum())}
    for name in ("cpu", "mem"):
        full = node[f"{name}_deployed"] + asked[name] > node[f"{name}_capacity"] + FIT_TOLERANCE
        counts[f"too little {name}"] = int(full.sum())
    return counts


def gauges(candidates: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """Return the share of each node's resources in use; a link or disk asked for more than it has is fully used."""
    node, _ = complete(candidates, {})
    return {name: np.minimum(node[field] / node[f"{name}_capacity"], 1.0) for name, field in _USED.items()}
