"""The window tables of a day: which is made of which, as a plan that serves every day with the same metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace

import ibis.expr.types as ir
import pyarrow as pa

from pipeline.clean import demands, events, functions, labels, nodes, pods, presence
from pipeline.clean.config import CleanConfig
from pipeline.clean.gaps import fill
from pipeline.clean.plan import Planner, promised
from pipeline.clean.samples import Samples
from pipeline.clean.series import LONG
from pipeline.contracts.raw import METRICS
from pipeline.contracts.windows import KEYS, TABLES

INNER = {"window_start": "window", "time": "t"}
"""What columns of the contract are called before they are written: whole seconds, and microseconds."""
NAMES = ("cluster", "node", "pod", "card")
"""What a thing's number stands for."""
PRICES = pa.schema([("instance_type", pa.string()), ("price_usd_per_hour", pa.float64())])
DAY = pa.schema([("low", pa.int64()), ("high", pa.int64())])
"""First microsecond of the day and of the next."""


@dataclass(frozen=True)
class Given:
    """Tables of a day, kept as ``samples``, ``labels``, ``series``, ``source_events`` and ``requests``."""

    samples: Samples
    source_events: ir.Table | None
    """Events, if there are any."""
    requests: ir.Table | None
    """Requests, if there are any."""

    @property
    def described(self) -> list[object]:
        """All that the plan depends on."""
        tables = (self.samples.rows, self.samples.labels, self.samples.series, self.source_events, self.requests)
        return [sorted(self.samples.present), *[None if table is None else table.schema() for table in tables]]


def window_tables(plan: Planner, given: Given, config: CleanConfig) -> None:
    """Add the queries that make window tables of the given ones, and of ``long``, ``prices``, ``day``."""
    samples = replace(
        given.samples,
        rows=promised("samples", given.samples.rows.schema()),
        labels=promised("labels", given.samples.labels.schema()),
        series=promised("series", given.samples.series.schema()),
    )
    source_events = None if given.source_events is None else promised("source_events", given.source_events.schema())
    pod_lives = None if source_events is None else plan.cache(presence.lives(source_events), "pod_lives")
    away = None if source_events is None else plan.cache(presence.absences(source_events), "away")
    filled = plan.cache(fill(promised("long", LONG), config), "filled")
    seen = plan.cache(labels.sightings(samples), "seen")
    pod_rows = pods.pod_rows(filled, samples, seen, config)
    pod_rows = plan.cache(presence.with_presence(pod_rows, pod_lives, away), "seen_pods")

    of_functions = functions.named(filled, samples.series)
    function_rows = functions.from_gateway(of_functions, samples.present)
    handled = functions.counted_by_pod(of_functions)
    if given.requests is not None:
        requests = demands.with_function(promised("requests", given.requests.schema()), pod_rows)
        function_rows = functions.with_log(function_rows, functions.from_log(requests))
        pod_rows = plan.cache(presence.with_unseen(pod_rows, pod_lives, requests), "all_pods")
        dealt = plan.cache(demands.deal(requests, pod_rows), "dealt")
        handled = demands.handled(dealt, handled)
    function_rows = functions.with_standard(function_rows)
    function_rows = plan.cache(function_rows, "function_rows")
    node_rows = nodes.node_rows(filled, samples, labels.details(seen, "node"), config)
    node_rows = plan.cache(nodes.complete_nodes(node_rows, pod_rows, promised("prices", PRICES)), "node_rows")
    seen_events = events.seen(labels.lifetimes(seen), pod_rows, promised("day", DAY))
    results = {
        "demands": demands.from_counts(function_rows, pod_rows, config)
        if given.requests is None
        else demands.from_log(dealt, pod_rows),
        "pods": pods.complete_pods(pod_rows, node_rows, handled),
        "nodes": node_rows,
        "functions": function_rows,
        "events": seen_events if source_events is None else events.with_source_events(seen_events, source_events),
    }
    if functions.BUCKETS in samples.present:
        results["responses"] = functions.histograms(of_functions)
    if any(METRICS[metric].entity == "card" for metric in samples.present):
        results["cards"] = nodes.card_rows(filled, samples, labels.details(seen, "card"), config)
    for name, rows in results.items():
        plan.result(name, in_order(name, rows))


def in_order(name: str, rows: ir.Table) -> ir.Table:
    """Put the rows of a window table in order and pick its columns."""
    columns = [INNER.get(column, column) for column in TABLES[name].names]
    keys = [INNER.get(key, key) for key in KEYS[name]]
    if "thing" in rows.columns:
        # Things are numbered in the order of their names, and numbers are sorted in half the time.
        keys = [key for key in keys if key not in NAMES]
        keys.insert(keys.index("window") + 1, "thing")
    return rows.order_by(keys).select(columns)
