"""Features of ``vm``: a candidate is a NUMA half of a server, described by its own state and its sibling's.

No feature depends on the request, so that a placement changes the rows of one server only; time changes two columns,
one of them only where something is expected of the VMs' lives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sched_env.observation import Fields, Observation, columns, scalars
from wire.contracts.feature_spec import Feature, FeatureSpec

HALF_CPU_CORES, HALF_MEM_GIB = 40.0, 90.0
"""The half of the upstream's server: default capacity, and the scale of every amount."""

STATE_FIELDS: Fields = {
    "cpu_free": ("cores", 0.0),
    "mem_free": ("GiB", 0.0),
    "other_cpu_free": ("cores", 0.0),  # the other half of the same server
    "other_mem_free": ("GiB", 0.0),
    "cpu_capacity": ("cores", HALF_CPU_CORES),
    "mem_capacity": ("GiB", HALF_MEM_GIB),
    "occupied_s": ("seconds", 0.0),  # since the server was last empty; 0 while it is
    "ends_s": ("seconds", 0.0),  # until its last VM is expected to be gone; 0: it is empty, or nothing is known
}
REQUEST_FIELDS: Fields = {
    "cpu": ("cores", 0.0),
    "mem": ("GiB", 0.0),
    "double": ("flag", 0.0),  # 1: half of it on each half of one server
    "waiting": ("count", 0.0),  # requests in the queue, this one included; 0 where nobody waits
    "life_s": ("seconds", 0.0),  # expected life, the median; 0: not known
}

SPEC = FeatureSpec(
    problem="vm",
    version=3,
    candidate=(
        Feature("cpu_free", "cores", HALF_CPU_CORES, "state cpu_free", 0.0),
        Feature("mem_free", "GiB", HALF_MEM_GIB, "state mem_free", 0.0),
        Feature("other_cpu_free", "cores", HALF_CPU_CORES, "state other_cpu_free", 0.0),
        Feature("other_mem_free", "GiB", HALF_MEM_GIB, "state other_mem_free", 0.0),
        Feature("cpu_capacity", "cores", HALF_CPU_CORES, "state cpu_capacity", HALF_CPU_CORES),
        Feature("mem_capacity", "GiB", HALF_MEM_GIB, "state mem_capacity", HALF_MEM_GIB),
        Feature("occupied", "flag", 1.0, "derived: the server holds a VM", 0.0),
        Feature("occupied_s", "seconds", 86_400.0, "state occupied_s", 0.0),
        Feature("ends_s", "seconds", 86_400.0, "state ends_s", 0.0),
    ),
    request=(
        Feature("cpu", "cores", HALF_CPU_CORES, "request cpu", 0.0),
        Feature("mem", "GiB", HALF_MEM_GIB, "request mem", 0.0),
        Feature("double", "flag", 1.0, "request double", 0.0),
        Feature("cpu_per_half", "cores", HALF_CPU_CORES, "derived: cores taken from each half used", 0.0),
        Feature("mem_per_half", "GiB", HALF_MEM_GIB, "derived: GiB taken from each half used", 0.0),
        Feature("waiting", "count", 64.0, "request waiting", 0.0),
        Feature("life_s", "seconds", 86_400.0, "request life_s", 0.0),
    ),
)
BEFORE = msgspec.structs.replace(SPEC, version=2, candidate=SPEC.candidate[:-1], request=SPEC.request[:-1])
"""The spec before this one: without lives."""


def occupied_for(clock: Any, since: Any) -> Any:
    """Return the seconds since a server was last empty; ``since`` is infinite while it is."""
    return np.maximum(clock - since, 0.0)


def candidate_features(
    cpu_free: Any,
    mem_free: Any,
    other_cpu_free: Any,
    other_mem_free: Any,
    cpu_capacity: Any,
    mem_capacity: Any,
    occupied_s: Any,
    ends_s: Any,
) -> tuple[Any, Any, Any, Any, Any, Any, Any, Any, Any]:
    """Return the feature columns of halves (arrays) or of one half (scalars)."""
    occupied = (
        (cpu_free < cpu_capacity)
        | (other_cpu_free < cpu_capacity)
        | (mem_free < mem_capacity)
        | (other_mem_free < mem_capacity)
    )
    return (
        cpu_free, mem_free, other_cpu_free, other_mem_free, cpu_capacity, mem_capacity, occupied * 1.0, occupied_s,
        ends_s,
    )  # fmt: skip


def request_features(
    cpu: float, mem: float, double: float, waiting: float, life_s: float
) -> tuple[float, float, float, float, float, float, float]:
    """Return the features of a request; ``double`` is 0 or 1."""
    share = 1.0 - 0.5 * double
    return cpu, mem, double, cpu * share, mem * share, waiting, life_s


def build(candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]) -> Observation:
    """Build the observation of one decision from raw fields."""
    state = columns(STATE_FIELDS, candidates)
    cpu_free, mem_free, other_cpu_free, other_mem_free = state[:4]
    cpu, mem, double, waiting, life_s = scalars(REQUEST_FIELDS, request)
    wanted = request_features(cpu, mem, double, waiting, life_s)
    rows = candidate_features(*state)
    mask = (cpu_free >= wanted[3]) & (mem_free >= wanted[4])
    if double:
        mask &= (other_cpu_free >= wanted[3]) & (other_mem_free >= wanted[4])
    return Observation(np.stack(rows, axis=1).astype(np.float32), np.array(wanted, np.float32), mask)


def ruled_out(candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]) -> dict[str, int]:
    """Say how many halves lack what; a split request needs both halves of a server."""
    state = dict(zip(STATE_FIELDS, columns(STATE_FIELDS, candidates), strict=True))
    _, _, double, cpu, mem, *_ = request_features(*scalars(REQUEST_FIELDS, request))
    short = {}
    for name, need in (("cpu", cpu), ("mem", mem)):
        free = state[f"{name}_free"]
        short[name] = (np.minimum(free, state[f"other_{name}_free"]) if double else free) < need
    return {f"too little {name}": int(lacks.sum()) for name, lacks in short.items()}


def gauges(candidates: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """Return the share of each half's cores and memory in use."""
    state = dict(zip(STATE_FIELDS, columns(STATE_FIELDS, candidates), strict=True))
    return {name: 1.0 - state[f"{name}_free"] / state[f"{name}_capacity"] for name in ("cpu", "mem")}
