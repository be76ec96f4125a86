"""Raw data as ``ingest`` lands it and ``clean`` reads it: long Parquet tables, ``date=``/``cluster=`` partitions.

``raw/<table>/date=YYYY-MM-DD/cluster=<name>/part-*.parquet`` plus ``raw/manifest.json`` (counts, time ranges, source)
and, where prices are known, ``raw/prices.csv`` (see ``pipeline.prices``). ``raw/margin/date=…`` holds the samples next
to the first and after the last day: what spans midnight is reckoned with them, and they belong to no day.
Nothing is repaired here: raw rows are what the source said, in canonical names and base units.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import pyarrow as pa

from wire.contracts import decision

TIMESTAMP = pa.timestamp("us", tz="UTC")

SAMPLES = pa.schema(
    [
        pa.field("time", TIMESTAMP, nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),  # a key of METRICS
        pa.field("node", pa.string()),
        pa.field("pod", pa.string()),
        pa.field("function", pa.string()),
        pa.field("card", pa.string()),
        pa.field("detail", pa.string()),  # what ``unit`` of METRICS says: instance type, card model, kind of owner, …
        pa.field("le", pa.float64()),  # upper bound of a histogram bucket
        pa.field("value", pa.float64()),
    ]
)

REQUESTS = pa.schema(
    [
        pa.field("time", TIMESTAMP, nullable=False),  # arrival
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("function", pa.string()),
        pa.field("pod", pa.string()),  # null: not known which pod answered; dealt round-robin
        pa.field("cpu_cores", pa.float64()),
        pa.field("mem_bytes", pa.float64()),
        pa.field("duration_s", pa.float64()),
        pa.field("id", pa.string()),  # of the request, where the log has one: rows with the same one are copies
    ]
)

EVENTS = pa.schema(
    [
        pa.field("time", TIMESTAMP, nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("entity", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),  # vm, pod or job
        pa.field("action", pa.string(), nullable=False),  # create or delete
        pa.field("node", pa.string()),
        pa.field("function", pa.string()),  # function of a pod, model of a job
        pa.field("cpu_cores", pa.float64()),
        pa.field("mem_bytes", pa.float64()),
        pa.field("gpus", pa.float64()),
        pa.field("gpu_mem_bytes", pa.float64()),  # of one card
        pa.field("data_gb", pa.float64()),  # what a job reads before its first iteration
        pa.field("epochs", pa.float64()),  # iterations of a job
        pa.field("runtime_s", pa.float64()),  # told with a deletion: how long it ran, without the wait before
        pa.field("owner_kind", pa.string()),  # of a pod: what made it (Deployment, StatefulSet, DaemonSet, Job, …)
    ]
)

TASKS = pa.schema(
    [
        pa.field("time", TIMESTAMP, nullable=False),  # start of the execution, the same for all its tasks
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("workflow", pa.string(), nullable=False),  # id of the execution
        pa.field("task", pa.string(), nullable=False),  # id within the execution; holds no space
        pa.field("function", pa.string()),
        pa.field("node", pa.string()),
        pa.field("runtime_s", pa.float64()),
        pa.field("cpu_cores", pa.float64()),
        pa.field("mem_bytes", pa.float64()),
        pa.field("parents", pa.string()),  # ids of tasks, a space between two; null or empty: none
        pa.field("parent_mb", pa.string()),  # what each parent hands over, in the order of parents; null: not known
        pa.field("input_mb", pa.float64()),  # what the task reads that no task wrote
        pa.field("start_s", pa.float64()),  # when the task began, from the start of the execution
        pa.field("estimated", pa.bool_()),  # nobody told the parents: they are who had just ended when it began
    ]
)
"""One row a task of a workflow's execution. Parents are text, not a list: every engine and every file format reads,
compares and groups text alike."""

TABLES: dict[str, pa.Schema] = {"samples": SAMPLES, "requests": REQUESTS, "events": EVENTS, "tasks": TASKS}

_LOGGED = decision.arrow_schema()
DECISIONS = pa.schema([_LOGGED.field("time"), pa.field("cluster", pa.string(), nullable=False), *list(_LOGGED)[1:]])
LANDED = TABLES | {"decisions": DECISIONS}
"""``decisions`` are the service's own, landed beside what is measured: they become no windows."""

MARGIN = "margin"
"""Folder beside the tables, of samples of the days before the first and after the last."""
MARGIN_S = 900
"""How much of those days it holds: what ``clean`` looks at beyond midnight, at its default settings."""


class Metric(NamedTuple):
    """How a canonical metric is to be read."""

    kind: Literal["counter", "gauge", "info"]
    entity: Literal["node", "pod", "function", "card"]
    unit: str


METRICS: dict[str, Metric] = {
    "node_cpu_seconds": Metric("counter", "node", "core-seconds busy"),
    "node_cpu_used_cores": Metric("gauge", "node", "cores"),
    "node_cpu_capacity_cores": Metric("gauge", "node", "cores"),
    "node_cpu_allocatable_cores": Metric("gauge", "node", "cores that pods may ask for"),
    "node_mem_used_bytes": Metric("gauge", "node", "bytes"),
    "node_mem_capacity_bytes": Metric("gauge", "node", "bytes"),
    "node_mem_allocatable_bytes": Metric("gauge", "node", "bytes that pods may ask for"),
    "node_net_bytes": Metric("counter", "node", "bytes, both directions"),
    "node_net_used_bytes_s": Metric("gauge", "node", "bytes/s"),
    "node_net_capacity_bytes_s": Metric("gauge", "node", "bytes/s"),
    "node_disk_ops": Metric("counter", "node", "operations, reads and writes"),
    "node_disk_used_iops": Metric("gauge", "node", "operations/s"),
    "node_disk_capacity_iops": Metric("gauge", "node", "operations/s"),
    "node_gpu_used_cards": Metric("gauge", "node", "cards"),
    "node_gpu_capacity_cards": Metric("gauge", "node", "cards"),
    "node_gpu_allocatable_cards": Metric("gauge", "node", "cards that pods may ask for"),
    "node_info": Metric("info", "node", "1; detail = instance type"),
    "node_ready": Metric("gauge", "node", "1 ready, 0 not"),
    "node_unschedulable": Metric("gauge", "node", "1 cordoned, 0 not"),
    "node_tainted": Metric("gauge", "node", "1 where a taint keeps ordinary pods away, 0 where none does"),
    "pod_cpu_seconds": Metric("counter", "pod", "core-seconds"),
    "pod_cpu_used_cores": Metric("gauge", "pod", "cores"),
    "pod_mem_used_bytes": Metric("gauge", "pod", "bytes"),
    "pod_cpu_request_cores": Metric("gauge", "pod", "cores"),
    "pod_mem_request_bytes": Metric("gauge", "pod", "bytes"),
    "pod_gpu_request_cards": Metric("gauge", "pod", "cards"),
    "pod_net_bytes": Metric("counter", "pod", "bytes, both directions"),
    "pod_net_used_bytes_s": Metric("gauge", "pod", "bytes/s"),
    "pod_disk_ops": Metric("counter", "pod", "operations"),
    "pod_disk_used_iops": Metric("gauge", "pod", "operations/s"),
    "pod_info": Metric("info", "pod", "1; carries node and function; detail = kind of its owner"),
    "function_requests": Metric(
        "counter", "function", "requests; pod: who answered; detail: who counted, where several do"
    ),
    "function_response_seconds_sum": Metric("counter", "function", "seconds"),
    "function_response_seconds_bucket": Metric("counter", "function", "requests at most le seconds"),
    "function_net_bytes": Metric("counter", "function", "bytes"),
    "function_disk_ops": Metric("counter", "function", "operations"),
    "card_gpu_used_ratio": Metric("gauge", "card", "0..1"),
    "card_mem_used_bytes": Metric("gauge", "card", "bytes"),
    "card_mem_capacity_bytes": Metric("gauge", "card", "bytes"),
    "card_info": Metric("info", "card", "1; detail = card model"),
}
