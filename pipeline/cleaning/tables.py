"""The window tables of a day: which is made of which, as a plan that serves every day with the same metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace

import ibis
import ibis.expr.types as ir
import pyarrow as pa

from pipeline.cleaning import demands, events, functions, labels, nodes, pods, presence
from pipeline.cleaning.config import CleanConfig
from pipeline.cleaning.engine import Plan
from pipeline.cleaning.gaps import fill
from pipeline.cleaning.samples import Samples
from pipeline.cleaning.series import LONG
from pipeline.contracts.windows import KEYS, TABLES

INNER = {"window_start": "window", "time": "t"}
"""What columns of the contract are called before they are written: whole seconds, and microseconds."""
NAMES = ("cluster", "node", "pod", "card")
"""What a thing's number stands for."""
EARLIER = pa.schema([("cluster", pa.string()), ("function", pa.string()), ("standard_response_s", pa.float64())])
"""The fastest responses of the days before."""
PRICES = pa.schema([("instance_type", pa.string()), ("price_usd_per_hour", pa.float64())])
DAY = pa.schema([("low", pa.int64()), ("high", pa.int64())])
"""First microsecond of the day and of the next."""


@dataclass(frozen=True)
class Given:
    """Tables that a day has: kept under the names ``samples``, ``labels``, ``series``, ``told`` and ``requests``."""

    samples: Samples
    told: ir.Table
    requests: ir.Table
    logged: bool
    """Whether there is any request."""

    @property
    def key(self) -> tuple[frozenset[str], bool]:
        """What the plan depends on."""
        return self.samples.present, self.logged


def _promised(name: str, schema: ibis.Schema | pa.Schema) -> ir.Table:
    """Speak of a table by its name; it need not exist yet."""
    return ibis.table(ibis.schema(schema), name=name)


def window_tables(plan: Plan, given: Given, config: CleanConfig) -> Plan:
    """Add the queries that make window tables of the given ones, and of ``long``, ``earlier``, ``prices``, ``day``."""
    samples = replace(
        given.samples,
        rows=_promised("samples", given.samples.rows.schema()),
        labels=_promised("labels", given.samples.labels.schema()),
        series=_promised("series", given.samples.series.schema()),
    )
    told = _promised("told", given.told.schema())
    requests = _promised("requests", given.requests.schema())
    filled = plan.cache(fill(_promised("long", LONG), config), "filled")
    seen = plan.cache(labels.sightings(samples), "seen")
    living = plan.cache(presence.lives(told), "living")
    pod_rows = pods.pod_rows(filled, samples, seen, config)
    pod_rows = plan.cache(presence.with_presence(pod_rows, living), "seen_pods")

    of_functions = functions.named(filled, samples.series)
    gateway, counted = functions.from_gateway(of_functions), functions.counted_by_pod(of_functions)
    requests = demands.with_function(requests, pod_rows)
    log = functions.from_log(requests)
    function_rows = functions.function_rows(gateway, log, _promised("earlier", EARLIER))
    function_rows = plan.cache(function_rows, "function_rows")
    if given.logged:
        pod_rows = plan.cache(presence.with_unseen(pod_rows, living, requests), "all_pods")
        dealt = plan.cache(demands.deal(requests, pod_rows), "dealt")
        handled = demands.handled(dealt, counted)
        demand_rows = demands.from_log(dealt, pod_rows)
    else:
        handled = counted.rename(requests_handled="counted")
        demand_rows = demands.from_counts(function_rows, pod_rows, config)

    node_rows = nodes.node_rows(filled, samples, labels.details(seen, "node"), config)
    node_rows = plan.cache(nodes.complete_nodes(node_rows, pod_rows, _promised("prices", PRICES)), "node_rows")
    seen_events = events.seen(labels.lifetimes(seen), pod_rows, _promised("day", DAY))
    results = {
        "nodes": node_rows,
        "pods": pods.complete_pods(pod_rows, node_rows, handled),
        "functions": function_rows,
        "demands": demand_rows,
        "events": events.event_rows(told, seen_events),
        "cards": nodes.card_rows(filled, samples, labels.details(seen, "card"), config),
    }
    for name, rows in results.items():
        plan.result(name, in_order(name, rows))
    return plan


def in_order(name: str, rows: ir.Table) -> ir.Table:
    """Put the rows of a window table in order and pick its columns."""
    columns = [INNER.get(column, column) for column in TABLES[name].names]
    keys = [INNER.get(key, key) for key in KEYS[name]]
    if "thing" in rows.columns:
        # Things are numbered in the order of their names, and numbers are sorted in half the time.
        keys = [key for key in keys if key not in NAMES]
        keys.insert(keys.index("window") + 1, "thing")
    return rows.order_by(keys).select(columns)
