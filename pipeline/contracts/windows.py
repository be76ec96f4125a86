"""The window tables: Parquet, one folder a table, ``date=YYYY-MM-DD`` partitions, keys + ``window_start``.

Units are in the column names. ``window_start`` is UTC, a multiple of 300 s; a window is ``[start, start + 300 s)``.
A file's metadata carries ``loadmaster.windows`` = :data:`SCHEMA_VERSION`.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 6
"""6: when the tasks of workflows began. Files of another version are refused: cleaning makes them anew."""
VERSION_KEY = b"loadmaster.windows"

TIMESTAMP = pa.timestamp("us", tz="UTC")
RESOURCES = ("cpu", "mem", "net", "disk", "gpu")
ALLOCATABLE = ("cpu", "mem", "gpu")
UNITS = {"cpu": "cores", "mem": "gib", "net": "mb_s", "disk": "iops", "gpu": "cards"}
STATISTICS = ("mean", "p95", "max")


def _used(*resources: str) -> list[pa.Field]:
    return [
        pa.field(f"{resource}_used_{statistic}_{UNITS[resource]}", pa.float64())
        for resource in resources
        for statistic in STATISTICS
    ]


def _key(*names: str) -> list[pa.Field]:
    fields = [pa.field(name, pa.string(), nullable=False) for name in names]
    return [pa.field("window_start", TIMESTAMP, nullable=False), *fields]


_QUALITY = [
    pa.field("samples", pa.int32(), nullable=False),  # samples that fell into the window, after de-duplication
    pa.field("completeness", pa.float64(), nullable=False),  # share of the scrapes that should have been there, 0..1
    pa.field("filled", pa.bool_(), nullable=False),  # a short gap was filled from the window before
    pa.field("repaired", pa.int32(), nullable=False),  # samples whose unit, name or excess over capacity was put right
]

NODES = pa.schema(
    [
        *_key("cluster", "node"),
        *[pa.field(f"{resource}_capacity_{UNITS[resource]}", pa.float64()) for resource in RESOURCES],
        # What pods may ask for: capacity less what the system keeps for itself; null where nobody tells.
        *[pa.field(f"{resource}_allocatable_{UNITS[resource]}", pa.float64()) for resource in ALLOCATABLE],
        *_used(*RESOURCES),
        *[pa.field(f"{resource}_requested_{UNITS[resource]}", pa.float64()) for resource in ALLOCATABLE],
        pa.field("instance_type", pa.string()),
        pa.field("price_usd_per_hour", pa.float64()),
        pa.field("active", pa.bool_(), nullable=False),  # seen, ready, not cordoned, no taint against ordinary pods
        *_QUALITY,
    ]
)

PODS = pa.schema(
    [
        *_key("cluster", "pod"),
        pa.field("node", pa.string()),  # null: seen without a node; a pod that moved keeps its last node of the window
        pa.field("function", pa.string()),  # its workload: the top owner, as namespace/name where Kubernetes tells
        pa.field("owner_kind", pa.string()),  # Deployment, StatefulSet, DaemonSet, CronJob, …; null: nobody tells
        pa.field("cpu_request_cores", pa.float64()),
        pa.field("mem_request_gib", pa.float64()),
        pa.field("gpu_request_cards", pa.float64()),
        pa.field("cpu_assigned_cores", pa.float64()),
        pa.field("mem_assigned_gib", pa.float64()),
        *_used("cpu", "mem"),
        pa.field("net_used_mean_mb_s", pa.float64()),
        pa.field("disk_used_mean_iops", pa.float64()),
        pa.field("requests_handled", pa.int64()),
        pa.field("moved", pa.bool_(), nullable=False),
        pa.field("present_ratio", pa.float64(), nullable=False),  # share of the window in which the pod existed
        *_QUALITY,
    ]
)

FUNCTIONS = pa.schema(
    [
        *_key("cluster", "function"),
        pa.field("requests", pa.int64(), nullable=False),
        pa.field("response_mean_s", pa.float64()),
        pa.field("response_p95_s", pa.float64()),
        pa.field("standard_response_s", pa.float64()),  # uncontended: the fastest tenth of the day's windows
        pa.field("net_mb_per_request", pa.float64()),
        pa.field("disk_io_per_request", pa.float64()),
        *_QUALITY,
    ]
)

RESPONSES = pa.schema(
    [
        *_key("cluster", "function"),
        pa.field("le_s", pa.float64(), nullable=False),  # bound of the histogram's bucket; the last one is infinity
        # Calls answered within le_s, all shorter ones included. A fraction where a scrape interval crosses a border.
        pa.field("calls", pa.float64(), nullable=False),
    ]
)
"""The gateway's histogram as it counted: late calls are read off it, whatever the SLO turns out to be."""

DEMANDS = pa.schema(
    [
        *_key("cluster", "pod"),
        pa.field("position", pa.int32(), nullable=False),  # k-th request dealt to this pod in the window, from 0
        pa.field("arrival_offset_s", pa.float64(), nullable=False),
        pa.field("duration_s", pa.float64(), nullable=False),
        pa.field("cpu_cores", pa.float64(), nullable=False),
        pa.field("mem_gib", pa.float64(), nullable=False),
        pa.field("estimated", pa.bool_(), nullable=False),  # only aggregates were known: spread evenly
    ]
)

EVENTS = pa.schema(
    [
        *_key("cluster", "entity"),  # entity: id of the VM, pod or job
        pa.field("time", TIMESTAMP, nullable=False),
        pa.field("kind", pa.string(), nullable=False),  # vm, pod or job
        pa.field("action", pa.string(), nullable=False),  # create or delete
        pa.field("node", pa.string()),
        pa.field("function", pa.string()),  # function of a pod, model of a job
        pa.field("cpu_cores", pa.float64()),
        pa.field("mem_gib", pa.float64()),
        pa.field("gpus", pa.float64()),
        pa.field("gpu_mem_gib", pa.float64()),  # of one card
        pa.field("data_gb", pa.float64()),  # what a job reads before its first iteration
        pa.field("epochs", pa.float64()),  # iterations of a job
        pa.field("runtime_s", pa.float64()),  # of a deletion: how long it ran, without the wait before; null: not told
        pa.field("owner_kind", pa.string()),  # of a pod, as in ``pods``
    ]
)

TASKS = pa.schema(
    [
        *_key("cluster", "workflow", "task"),  # workflow: id of the execution; task: id within it
        pa.field("time", TIMESTAMP, nullable=False),  # start of the execution
        pa.field("function", pa.string()),
        pa.field("node", pa.string()),
        pa.field("runtime_s", pa.float64(), nullable=False),
        pa.field("cpu_cores", pa.float64()),
        pa.field("mem_gib", pa.float64()),
        pa.field("parents", pa.string()),  # tasks of the same execution, a space between two; null: none
        pa.field("parent_mb", pa.string()),  # what each parent hands over, in their order; null: not known
        pa.field("input_mb", pa.float64()),  # what the task reads that no task wrote
        pa.field("start_s", pa.float64()),  # when it began, from the start of the execution; null: not known
        pa.field("estimated", pa.bool_()),  # nobody told the parents: they are who had just ended when it began
    ]
)

CARDS = pa.schema(
    [
        *_key("cluster", "node", "card"),
        pa.field("model", pa.string()),
        pa.field("gpu_mem_capacity_gib", pa.float64()),
        *[pa.field(f"gpu_mem_used_{statistic}_gib", pa.float64()) for statistic in STATISTICS],
        *[pa.field(f"gpu_used_{statistic}_ratio", pa.float64()) for statistic in STATISTICS],
        *_QUALITY,
    ]
)

QUARANTINE = pa.schema(
    [
        *_key("cluster"),
        pa.field("table", pa.string(), nullable=False),  # the raw table the row came from
        pa.field("rule", pa.string(), nullable=False),
        pa.field("raw", pa.string(), nullable=False),  # the row as it was, as JSON
    ]
)

TABLES: dict[str, pa.Schema] = {
    "nodes": NODES,
    "pods": PODS,
    "functions": FUNCTIONS,
    "responses": RESPONSES,
    "demands": DEMANDS,
    "events": EVENTS,
    "cards": CARDS,
    "tasks": TASKS,
    "quarantine": QUARANTINE,
}

KEYS: dict[str, tuple[str, ...]] = {
    "nodes": ("window_start", "cluster", "node"),
    "pods": ("window_start", "cluster", "pod"),
    "functions": ("window_start", "cluster", "function"),
    "responses": ("window_start", "cluster", "function", "le_s"),
    "demands": ("window_start", "cluster", "pod", "position"),
    "events": ("window_start", "cluster", "entity", "time", "action"),
    "cards": ("window_start", "cluster", "node", "card"),
    "tasks": ("window_start", "cluster", "workflow", "time", "task"),
}
"""Columns that name a row uniquely; quarantine has none, it keeps everything."""
