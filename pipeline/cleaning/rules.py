"""Which raw rows cannot be trusted, and why: one ordered list of rules a raw table, the first that matches counts.

A rule looks at one row. What can only be seen beside other rows (a clock that jumped, use over capacity) is caught in
``series`` and has its name here too, so that this module lists every rule there is.
"""

from __future__ import annotations

from typing import NamedTuple

import ibis
import ibis.expr.types as ir

from pipeline.contracts.raw import METRICS

MAX_NODE_CORES = 2048.0
"""The largest machines that can be bought have some 1,900 vCPUs: a larger number is in millicores."""
MIN_NODE_MEM_BYTES = float(2**28)
"""No node runs a kubelet in less than 256 MiB: a smaller number is in KiB, MiB or GiB."""
MAX_VALUE = 1e18
"""Above this a double no longer counts single units; real counters never get there."""
EARLIEST_US = 946_684_800_000_000
"""2000-01-01: samples from before have a clock that was never set."""

ALIASES = {
    "node_cpu_seconds_total": "node_cpu_seconds",
    "container_cpu_usage_seconds_total": "pod_cpu_seconds",
    "container_memory_working_set_bytes": "pod_mem_used_bytes",
    "kube_node_info": "node_info",
    "kube_pod_info": "pod_info",
    "gateway_function_invocation_total": "function_requests",
    "gateway_functions_seconds_sum": "function_response_seconds_sum",
    "gateway_functions_seconds_bucket": "function_response_seconds_bucket",
}
"""Names a series may still carry where no mapping was applied: same unit, same kind, another name."""

RULES: dict[str, dict[str, str]] = {
    "samples": {
        "time_outside_day": "the time is not in the day of its partition, or before 2000",
        "unknown_metric": "the metric is neither canonical nor a known alias",
        "no_value": "the value is missing or NaN",
        "infinite_value": "the value is infinite or above 1e18",
        "negative_value": "no metric can be negative",
        "no_entity": "the node, pod, function or card it is about is missing or empty",
        "no_bucket_bound": "a histogram bucket without its upper bound",
        "zero_capacity": "a capacity of 0 (GPU cards excepted)",
        "implausible_capacity": "a capacity no unit mix-up explains",
        "ratio_above_100": "a share above 100 %",
        "clock_jump": "a counter sample out of line with both neighbours: it belongs to another time",
        "over_capacity": "use above over_capacity_ratio x capacity that no unit mix-up explains",
    },
    "requests": {
        "time_outside_day": "the time is not in the day of its partition, or before 2000",
        "no_function": "neither function nor pod is known",
        "no_duration": "the duration is missing, NaN, infinite or negative",
        "bad_size": "cpu or memory is NaN, infinite, negative or larger than any node",
    },
    "events": {
        "time_outside_day": "the time is not in the day of its partition, or before 2000",
        "no_entity": "the id is empty",
        "unknown_kind": "the kind is not vm, pod or job",
        "unknown_action": "the action is not create or delete",
        "bad_size": "cpu, memory or GPUs are NaN, infinite or negative",
    },
}
"""Every rule by raw table, with what it means; the order is the order of the tests."""


class Repair(NamedTuple):
    """A repair that is counted, flagged in ``repaired`` and listed in the metrics."""

    name: str
    meaning: str


REPAIRS = (
    Repair("renamed", "a known alias was given its canonical name"),
    Repair("millicores", "cpu in millicores (or nanocores) was divided"),
    Repair("percent", "a share in percent was divided by 100"),
    Repair("binary_unit", "memory in KiB, MiB or GiB was multiplied"),
    Repair("clamped", "use slightly above capacity was set to capacity"),
)

_BY_ENTITY = {
    entity: [name for name, metric in METRICS.items() if metric.entity == entity]
    for entity in ("node", "pod", "function", "card")
}
_ZERO_MEANS_NONE = ("node_gpu_capacity_cards",)
_CAPACITIES = [name for name in METRICS if "_capacity_" in name and name not in _ZERO_MEANS_NONE]


def canonical(metric: ir.StringColumn) -> ir.StringColumn:
    """Give known aliases their canonical name."""
    return metric.cases(*ALIASES.items(), else_=metric)


def _missing(column: ir.StringColumn) -> ir.BooleanColumn:
    return column.isnull() | (column == "")


def _outside(t: ir.IntegerColumn, day_us: tuple[int, int]) -> ir.BooleanColumn:
    low, high = max(day_us[0], EARLIEST_US), day_us[1]
    return (t < low) | (t >= high)


def _not_a_size(column: ir.FloatingColumn) -> ir.BooleanColumn:
    """NaN, infinite or negative; a missing size is allowed."""
    return column.notnull() & (column.isnan() | column.isinf() | (column < 0))


def sample_rule(samples: ir.Table, day_us: tuple[int, int]) -> ir.StringColumn:
    """Name the first rule a sample breaks, or null; ``metric`` is canonical, ``t`` is microseconds."""
    metric, value = samples.metric, samples.value
    no_entity = (
        (metric.isin(_BY_ENTITY["node"]) & _missing(samples.node))
        | (metric.isin(_BY_ENTITY["pod"]) & _missing(samples.pod))
        | (metric.isin(_BY_ENTITY["function"]) & _missing(samples.function))
        | (metric.isin(_BY_ENTITY["card"]) & (_missing(samples.card) | _missing(samples.node)))
    )
    cores = metric == "node_cpu_capacity_cores"
    return ibis.cases(
        (_outside(samples.t, day_us), "time_outside_day"),
        (~metric.isin(list(METRICS)), "unknown_metric"),
        (value.isnull() | value.isnan(), "no_value"),
        (value.isinf() | (value.abs() > MAX_VALUE), "infinite_value"),
        (value < 0, "negative_value"),
        (no_entity, "no_entity"),
        (
            (metric == "function_response_seconds_bucket") & (samples.le.isnull() | samples.le.isnan()),
            "no_bucket_bound",
        ),
        (metric.isin(_CAPACITIES) & (value == 0), "zero_capacity"),
        (cores & (value > MAX_NODE_CORES * 1000), "implausible_capacity"),
        ((metric == "card_gpu_used_ratio") & (value > 100), "ratio_above_100"),
        else_=ibis.null("string"),
    )


def request_rule(requests: ir.Table, day_us: tuple[int, int]) -> ir.StringColumn:
    """Name the first rule a request breaks, or null."""
    duration = requests.duration_s
    return ibis.cases(
        (_outside(requests.t, day_us), "time_outside_day"),
        (_missing(requests.function) & _missing(requests.pod), "no_function"),
        (duration.isnull() | duration.isnan() | duration.isinf() | (duration < 0), "no_duration"),
        (
            _not_a_size(requests.cpu_cores)
            | _not_a_size(requests.mem_bytes)
            | (requests.cpu_cores > MAX_NODE_CORES * 1000).fill_null(False)
            | (requests.mem_bytes > MAX_VALUE).fill_null(False),
            "bad_size",
        ),
        else_=ibis.null("string"),
    )


def event_rule(events: ir.Table, day_us: tuple[int, int]) -> ir.StringColumn:
    """Name the first rule an event breaks, or null."""
    return ibis.cases(
        (_outside(events.t, day_us), "time_outside_day"),
        (_missing(events.entity), "no_entity"),
        (~events.kind.isin(["vm", "pod", "job"]), "unknown_kind"),
        (~events.action.isin(["create", "delete"]), "unknown_action"),
        (_not_a_size(events.cpu_cores) | _not_a_size(events.mem_bytes) | _not_a_size(events.gpus), "bad_size"),
        else_=ibis.null("string"),
    )
