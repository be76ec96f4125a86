"""The ``nodes`` and ``cards`` tables."""

from __future__ import annotations

import ibis.expr.types as ir

from pipeline.clean.config import CleanConfig
from pipeline.clean.expressions import ended, exact_sum
from pipeline.clean.gaps import Column, wide
from pipeline.clean.samples import Samples, named
from pipeline.contracts.windows import STATISTICS, UNITS

GIB = 1 / 2**30
MB = 1e-6
STATISTIC = {"mean": "mean", "p95": "p95", "max": "peak"}

CAPACITY = {
    "cpu": Column(["node_cpu_capacity_cores"], "peak"),
    "mem": Column(["node_mem_capacity_bytes"], "peak", GIB),
    "net": Column(["node_net_capacity_bytes_s"], "peak", MB),
    "disk": Column(["node_disk_capacity_iops"], "peak"),
    "gpu": Column(["node_gpu_capacity_cards"], "peak"),
}
ALLOCATABLE = {
    "cpu": Column(["node_cpu_allocatable_cores"], "peak"),
    "mem": Column(["node_mem_allocatable_bytes"], "peak", GIB),
    "gpu": Column(["node_gpu_allocatable_cards"], "peak"),
}
USED = {
    "cpu": (["node_cpu_seconds", "node_cpu_used_cores"], 1.0),
    "mem": (["node_mem_used_bytes"], GIB),
    "net": (["node_net_bytes", "node_net_used_bytes_s"], MB),
    "disk": (["node_disk_ops", "node_disk_used_iops"], 1.0),
    "gpu": (["node_gpu_used_cards"], 1.0),
}
COLUMNS = {
    **{f"{resource}_capacity_{UNITS[resource]}": column for resource, column in CAPACITY.items()},
    **{f"{resource}_allocatable_{UNITS[resource]}": column for resource, column in ALLOCATABLE.items()},
    **{
        f"{resource}_used_{statistic}_{UNITS[resource]}": Column(metrics, STATISTIC[statistic], scale)
        for resource, (metrics, scale) in USED.items()
        for statistic in STATISTICS
    },
    "ready": Column(["node_ready"], "mean"),
    "cordoned": Column(["node_unschedulable"], "mean"),
    "tainted": Column(["node_tainted"], "mean"),
}
CARD_COLUMNS = {
    "gpu_mem_capacity_gib": Column(["card_mem_capacity_bytes"], "peak", GIB),
    **{
        f"gpu_mem_used_{statistic}_gib": Column(["card_mem_used_bytes"], STATISTIC[statistic], GIB)
        for statistic in STATISTICS
    },
    **{
        f"gpu_used_{statistic}_ratio": Column(["card_gpu_used_ratio"], STATISTIC[statistic]) for statistic in STATISTICS
    },
}


def node_rows(long: ir.Table, samples: Samples, details: ir.Table, config: CleanConfig) -> ir.Table:
    """Rows of ``nodes`` but for what their pods ask for and what they cost; ``details`` has the instance types."""
    rows = _rows(long, samples, details, config, "node", COLUMNS).rename(instance_type="detail")
    # What held for most of the window.
    open_ = (rows.ready.fill_null(1.0) >= 0.5) & (rows.cordoned.fill_null(0.0) < 0.5)
    open_ &= rows.tainted.fill_null(0.0) < 0.5
    seen = (rows.samples > 0) | rows.filled
    return rows.mutate(active=open_ & seen).drop("ready", "cordoned", "tainted")


def card_rows(long: ir.Table, samples: Samples, details: ir.Table, config: CleanConfig) -> ir.Table:
    """Rows of ``cards``; ``details`` has the models."""
    return _rows(long, samples, details, config, "card", CARD_COLUMNS).rename(model="detail")


def _rows(
    long: ir.Table, samples: Samples, details: ir.Table, config: CleanConfig, entity: str, columns: dict[str, Column]
) -> ir.Table:
    rows = wide(long, samples, entity, columns, config).drop("often", "outer")
    joined = rows.left_join(details, "thing").select(*[rows[name] for name in rows.columns], details.detail)
    return named(ended(joined), samples.series, entity)


def complete_nodes(nodes: ir.Table, pods: ir.Table, prices: ir.Table) -> ir.Table:
    """Add what the pods on a node ask for, each for the part of the window it was there, and the node's price."""
    asked = pods.filter(pods.node.notnull())
    asked = asked.group_by("cluster", "node", "window").agg(
        cpu_requested_cores=exact_sum(asked.cpu_request_cores * asked.present_ratio),
        mem_requested_gib=exact_sum(asked.mem_request_gib * asked.present_ratio),
        gpu_requested_cards=exact_sum(asked.gpu_request_cards * asked.present_ratio),
    )
    joined = nodes.left_join(asked, ["cluster", "node", "window"]).left_join(prices, "instance_type")
    return joined.select(
        *[nodes[name] for name in nodes.columns],
        asked.cpu_requested_cores,
        asked.mem_requested_gib,
        asked.gpu_requested_cards,
        prices.price_usd_per_hour,
    )
