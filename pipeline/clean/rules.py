"""Which raw rows cannot be trusted, and why: an ordered list of rules a raw table, the first that matches counts.

What one row's labels tell is asked once a label set, what its value tells once a row. What can only be seen beside
other rows (a clock that jumped, use over capacity) is found in ``series`` and ``units``; all names are listed here.
"""

from __future__ import annotations

import functools
import operator

import ibis
import ibis.expr.types as ir
import pyarrow as pa

from pipeline.contracts.raw import METRICS

MAX_NODE_CORES = 2048.0
"""The largest machines that can be bought have some 1,900 vCPUs: a larger number is in millicores."""
MAX_VALUE = 1e18
"""Above this a double no longer counts single units; real counters never get there."""
MAX_DURATION_S = 7 * 86_400.0
MAX_RUNTIME_S = 30 * 86_400.0
EARLIEST_US = 946_684_800_000_000
"""2000-01-01: rows from before have a clock that was never set."""

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
        "no_entity": "the node, pod, function or card it is about is missing or empty",
        "no_bucket_bound": "a histogram bucket without its upper bound",
        "no_value": "the value is missing or NaN",
        "infinite_value": "the value is infinite or above 1e18",
        "negative_value": "no metric can be negative",
        "zero_capacity": "a capacity of 0 (GPU cards excepted)",
        "implausible_value": "a share above 100 %, or more cores than any unit mix-up explains",
        "clock_jump": "a counter sample out of line with both neighbours: it belongs to another time",
        "over_capacity": "use above over_capacity_ratio x capacity that no unit mix-up explains",
        "doubtful_unit": "a series that is in another unit all day, but nothing tells in which",
    },
    "requests": {
        "time_outside_day": "the time is not in the day of its partition, or before 2000",
        "no_function": "neither function nor pod is known",
        "no_duration": "the duration is missing, NaN, infinite or negative",
        "endless_duration": "the duration is above seven days: another unit, or no duration",
        "bad_size": "cpu or memory is NaN, infinite, negative or larger than any node",
    },
    "events": {
        "time_outside_day": "the time is not in the day of its partition, or before 2000",
        "no_entity": "the id is empty",
        "unknown_kind": "the kind is not vm, pod or job",
        "unknown_action": "the action is not create or delete",
        "bad_size": "cpu, memory, GPUs, their memory, data, epochs or run time are NaN, infinite or negative",
    },
    "tasks": {
        "time_outside_day": "the time is not in the day of its partition, or before 2000",
        "bad_id": "the id of execution or task is empty, or that of the task holds a space",
        "no_runtime": "the run time is missing, NaN, infinite or negative",
        "endless_runtime": "run time, or start within the execution, above thirty days: another unit, or no run time",
        "bad_size": "cpu, memory, input or start are NaN, infinite or negative",
        "own_parent": "the task is its own parent",
        "bad_parents": "parents are not single ids with one space between, or parent_mb not one amount for each",
        "doubled_task": "the execution has the task twice, with different contents",
        "parent_twice": "a parent is named twice",
        "unknown_parent": "a parent is not a task of the same execution, which is one workflow, cluster and time",
        "broken_workflow": "another task of the execution was put aside: half a workflow is another workflow",
    },
}
"""Every rule by raw table, with what it means; the order is the order of the tests."""

REPAIRS = {
    "renamed": "a known alias was given its canonical name",
    "millicores": "cpu in millicores was divided by 1000",
    "percent": "a share in percent was divided by 100",
    "binary_unit": "memory in KiB, MiB or GiB was multiplied",
    "clamped": "use above capacity, but not by more than over_capacity_ratio, was set to capacity",
}
"""What is put right instead of put aside; windows count the samples in ``repaired``."""

CODE = {name: code for code, name in enumerate(METRICS)}
"""Numbers of the metrics: a million comparisons of numbers cost less than of names."""

_ZERO_MEANS_NONE = ("node_gpu_capacity_cards",)
_EVENT_SIZES = ("cpu_cores", "mem_bytes", "gpus", "gpu_mem_bytes", "data_gb", "epochs", "runtime_s")
_AMOUNT = r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_LARGEST = {"card_gpu_used_ratio": 100.0, "node_cpu_capacity_cores": MAX_NODE_CORES * 1000}


def metric_table() -> pa.Table:
    """What is known of each metric, under each of its names, for joining to rows by ``metric``."""
    rows = [
        {
            "metric": name,
            "canonical": ALIASES.get(name, name),
            "code": CODE[ALIASES.get(name, name)],
            "entity": METRICS[ALIASES.get(name, name)].entity,
            "counter": METRICS[ALIASES.get(name, name)].kind == "counter",
            "renamed": name in ALIASES,
            "never_zero": "_capacity_" in name and name not in _ZERO_MEANS_NONE,
            "largest": _LARGEST.get(name, MAX_VALUE),
        }
        for name in (*METRICS, *ALIASES)
    ]
    return pa.Table.from_pylist(rows)


def _missing(column: ir.StringColumn) -> ir.BooleanColumn:
    return column.isnull() | (column == "")


def outside(t: ir.IntegerColumn, span_us: tuple[int, int]) -> ir.BooleanColumn:
    """Tell whether a time in microseconds is outside a span, or before clocks were set."""
    return (t < max(span_us[0], EARLIEST_US)) | (t >= span_us[1])


def label_rule(labels: ir.Table) -> ir.StringColumn:
    """Name the first rule a label set breaks, or null; ``labels`` are joined to :func:`metric_table`."""
    entity = labels.entity
    no_entity = (
        (entity.isin(["node", "card"]) & _missing(labels.node))
        | ((entity == "pod") & _missing(labels.pod))
        | ((entity == "function") & _missing(labels.function))
        | ((entity == "card") & _missing(labels.card))
    )
    bucket = labels.canonical == "function_response_seconds_bucket"
    return ibis.cases(
        (entity.isnull(), "unknown_metric"),
        (no_entity, "no_entity"),
        (bucket & (labels.le.isnull() | labels.le.isnan()), "no_bucket_bound"),
        else_=ibis.null("string"),
    )


def value_rule(value: ir.FloatingColumn, never_zero: ir.BooleanColumn, largest: ir.FloatingColumn) -> ir.StringColumn:
    """Name the first rule a value breaks, or null."""
    return ibis.cases(
        (value.isnull() | value.isnan(), "no_value"),
        (value.isinf() | (value.abs() > MAX_VALUE), "infinite_value"),
        (value < 0, "negative_value"),
        (never_zero & (value == 0), "zero_capacity"),
        (value > largest, "implausible_value"),
        else_=ibis.null("string"),
    )


def value_is_good(
    value: ir.FloatingColumn, never_zero: ir.BooleanColumn, largest: ir.FloatingColumn
) -> ir.BooleanColumn:
    """Tell whether a value breaks no rule: as :func:`value_rule`, which takes five times as long to name the rule.

    Both engines hold NaN to be larger than any number. A row that the two judge differently would be missing in the
    account, which is an error.
    """
    return (value >= 0) & (value <= largest) & (value <= MAX_VALUE) & ((value > 0) | ~never_zero)


def _not_a_size(column: ir.FloatingColumn) -> ir.BooleanColumn:
    """NaN, infinite or negative; a missing size is allowed."""
    return column.notnull() & (column.isnan() | column.isinf() | (column < 0))


def _no_amount(column: ir.FloatingColumn) -> ir.BooleanColumn:
    return column.isnull() | column.isnan() | column.isinf() | (column < 0)


def _any_not_a_size(rows: ir.Table, *names: str) -> ir.BooleanColumn:
    return functools.reduce(operator.or_, (_not_a_size(rows[name]) for name in names))


def request_rule(requests: ir.Table, span_us: tuple[int, int]) -> ir.StringColumn:
    """Name the first rule a request breaks, or null."""
    duration = requests.duration_s
    too_large = (requests.cpu_cores > MAX_NODE_CORES) | (requests.mem_bytes > MAX_VALUE)
    return ibis.cases(
        (outside(requests.t, span_us), "time_outside_day"),
        (_missing(requests.function) & _missing(requests.pod), "no_function"),
        (_no_amount(duration), "no_duration"),
        (duration > MAX_DURATION_S, "endless_duration"),
        (_any_not_a_size(requests, "cpu_cores", "mem_bytes") | too_large.fill_null(False), "bad_size"),
        else_=ibis.null("string"),
    )


def event_rule(events: ir.Table, span_us: tuple[int, int]) -> ir.StringColumn:
    """Name the first rule an event breaks, or null."""
    return ibis.cases(
        (outside(events.t, span_us), "time_outside_day"),
        (_missing(events.entity), "no_entity"),
        (~events.kind.isin(["vm", "pod", "job"]), "unknown_kind"),
        (~events.action.isin(["create", "delete"]), "unknown_action"),
        (_any_not_a_size(events, *_EVENT_SIZES), "bad_size"),
        else_=ibis.null("string"),
    )


def task_rule(tasks: ir.Table, span_us: tuple[int, int]) -> ir.StringColumn:
    """Name the first rule that a task breaks by itself, or null; what its execution breaks is found in ``tasks``."""
    parents, parent_mb = tasks.parents.fill_null(""), tasks.parent_mb.fill_null("")
    ids = parents.re_search("^[^ ]+( [^ ]+)*$") | (parents == "")
    amounts = parent_mb.re_search(f"^{_AMOUNT}( {_AMOUNT})*$") & (_spaces(parent_mb) == _spaces(parents))
    return ibis.cases(
        (outside(tasks.t, span_us), "time_outside_day"),
        ((tasks.workflow == "") | (tasks.task == "") | tasks.task.contains(" "), "bad_id"),
        (_no_amount(tasks.runtime_s), "no_runtime"),
        ((tasks.runtime_s > MAX_RUNTIME_S) | (tasks.start_s > MAX_RUNTIME_S).fill_null(False), "endless_runtime"),
        (_any_not_a_size(tasks, "cpu_cores", "mem_bytes", "input_mb", "start_s"), "bad_size"),
        ((ibis.literal(" ") + parents + " ").contains(ibis.literal(" ") + tasks.task + " "), "own_parent"),
        (~ids | ~((parent_mb == "") | (amounts & (parents != ""))), "bad_parents"),
        else_=ibis.null("string"),
    )


def _spaces(text: ir.StringColumn) -> ir.IntegerColumn:
    return text.length() - text.replace(" ", "").length()
