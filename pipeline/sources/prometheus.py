"""Raw samples from live Prometheus servers, several clusters at once, in chunks that are fetched once.

``query_range`` answers a value at each step. Every query takes the last sample within one step and none that is older,
so a gap in the scrapes stays a gap in the data instead of being papered over with old values for five minutes. What
is measured (not what is merely known, like a capacity) gets the time of its scrape back, by a second query that all
metrics of an exporter share: counted at the end of its step, a rate would be off by up to a step.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.contracts.raw import MARGIN_S, METRICS, SAMPLES
from pipeline.errors import SourceError
from pipeline.sources import Chunk, Rows, Source, Tally
from pipeline.sources.columns import coded, times
from pipeline.sources.kube_names import WORKLOAD_LABELS, Names
from pipeline.sources.metric_map import LABELS, RATE_STEPS, REQUESTS, Entry, load_map, parse_matchers
from pipeline.sources.pod_events import pod_events
from pipeline.sources.prometheus_http import Client, Series
from pipeline.sources.prometheus_server import Patience, Server
from wire.contracts.window import WINDOW_SECONDS
from wire.errors import ConfigError

F8 = NDArray[np.float64]

log = logging.getLogger(__name__)

DAY_S = 86_400
NAMES_STEP_S = 300
"""How finely it is known when an address went to another node."""
_NAMES = {
    "kube_node_info": ("node", "internal_ip"),
    "kube_node_status_addresses": ("node", "address"),
    "node_uname_info": ("instance", "nodename"),
    "kube_replicaset_owner": ("namespace", "replicaset", "owner_kind", "owner_name", "owner_is_controller"),
    "kube_job_owner": ("namespace", "job_name", "owner_kind", "owner_name", "owner_is_controller"),
    "kube_pod_labels": ("namespace", "pod", *WORKLOAD_LABELS),
}
"""What tells who is who, and by which labels."""

MAX_POINTS = 11_000
"""Prometheus refuses more points than this in one series of an answer."""
BATCH_ROWS = 2_000_000
"""Rows held before they are written."""


class PrometheusConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which servers, which metrics, and how they are asked."""

    clusters: list[Server] = []
    groups: tuple[str, ...] | None = None
    """Groups of the metric map; name only one that counts requests (knative, openfaas, istio, nginx), or they count
    twice. Null: all that count none, and of the others the first that the server has series of."""
    metrics: str | None = None
    """A metric map of the user's; null: ``pipeline/metrics.yaml``."""
    step_seconds: float = 15.0
    """The scrape interval. A longer step thins the samples out; a shorter one asks for what is not there."""
    chunk_seconds: int = 3600
    """Length of one chunk: what a kill can cost, and what memory must hold. Divides a day."""
    events: bool = True
    """Also derive pod create and delete events from kube-state-metrics."""
    workers: int = 4
    """Chunks asked for at once, over all clusters."""
    reopen_days: int = 0
    """Days before the last that are asked for again each night, for samples that reach the server late (an agent that
    was cut off, a remote write that caught up). Other days are asked for once: what comes later is not seen."""
    patience: Patience = msgspec.field(default_factory=Patience)

    def __post_init__(self) -> None:
        """Refuse what Prometheus would refuse, before the first query."""
        if self.chunk_seconds < 60 or 86_400 % self.chunk_seconds:
            raise ConfigError(
                f"ingest.prometheus.chunk_seconds is {self.chunk_seconds}", "a divisor of 86400, at least 60"
            )
        # What is asked has three decimals; a finer step would drift away from the grid that answers are put on.
        if not 1.0 <= self.step_seconds <= WINDOW_SECONDS or round(self.step_seconds, 3) != self.step_seconds:
            raise ConfigError(
                f"ingest.prometheus.step_seconds is {self.step_seconds}",
                f"1 to {WINDOW_SECONDS}, with at most three decimals",
            )
        if self.groups is not None and not self.groups:
            raise ConfigError("ingest.prometheus.groups is empty", "groups of the metric map")
        if self.chunk_seconds / self.step_seconds >= MAX_POINTS:
            raise ConfigError(
                f"{self.chunk_seconds} s in steps of {self.step_seconds} s are more than {MAX_POINTS} points",
                fix="lower ingest.prometheus.chunk_seconds",
            )
        names = [server.name for server in self.clusters]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"ingest.prometheus.clusters has the names {names}", "at least one, all different")
        if self.reopen_days < 0:
            raise ConfigError(f"ingest.prometheus.reopen_days is {self.reopen_days}", "at least 0")
        if not 1 <= self.workers <= 64:
            raise ConfigError(f"ingest.prometheus.workers is {self.workers}", "1 to 64")


class PrometheusSource(Source):
    """Chunks of one cluster and span of time; all metrics of the span come together, in one file."""

    about_range = ("from", "to")

    def __init__(self, config: PrometheusConfig, days: Sequence[date]) -> None:
        if not days:
            raise ConfigError(
                "the source prometheus has no range of days", fix="set data.from and data.to, or --from, --to"
            )
        self._config = config
        self._spans = [(start := _second(day), start + DAY_S) for day in days]
        first_s, end_s = self._spans[0][0], self._spans[-1][1]
        self._margins = [(first_s - MARGIN_S, first_s), (end_s, end_s + MARGIN_S)]
        self.workers = config.workers
        self._map = load_map(Path(config.metrics) if config.metrics else None)
        if config.groups is not None:
            self._map.entries(config.groups)  # what is wrong with them is said now
        self._chosen: dict[str, list[tuple[str, Entry]]] = {}
        self._names: dict[tuple[str, tuple[int, int]], Names] = {}
        self._naming = threading.Lock()
        for server in config.clusters:
            parse_matchers(server.matchers)
        self._beyond_s = MARGIN_S
        self._clients = {server.name: Client(server, config.patience) for server in config.clusters}

    @classmethod
    def of_span(cls, config: PrometheusConfig, start_s: int, end_s: int) -> PrometheusSource:
        """Read a span that ends now instead of whole days: for a first look."""
        source = cls(config, [_moment(start_s).date()])
        source._spans, source._margins, source._beyond_s = [(start_s, end_s)], [], 0
        return source

    def settings(self) -> dict[str, object]:
        """Name servers, queries and days; patience and workers may change between two attempts at the same data."""
        config = self._config
        return {
            "clusters": {server.name: server.identity() for server in config.clusters},
            "groups": {server.name: self.groups(server) for server in config.clusters},
            "queries_sha256": hashlib.sha256(
                msgspec.json.encode([self._entries(server) for server in config.clusters])
            ).hexdigest(),
            "step_seconds": config.step_seconds,
            "chunk_seconds": config.chunk_seconds,
            "events": config.events,
            "from": _moment(self._spans[0][0]).date().isoformat(),
            "to": _moment(self._spans[-1][1] - 1).date().isoformat(),
        }

    def chunks(self) -> list[Chunk]:
        """List spans in time order, all clusters of a span together; then what lies next to the days asked for."""
        chunks = []
        for number, (start, end) in enumerate(self._spans):
            again = 0 < len(self._spans) - 1 - number <= self._config.reopen_days
            for begin in range(start, end, self._config.chunk_seconds):
                for server in self._config.clusters:
                    stop = min(begin + self._config.chunk_seconds, end)
                    key = f"{server.name}-{_moment(begin):%Y-%m-%dT%H%M}"
                    chunks.append(Chunk(key, partial(self._read, server, begin, stop), again=again))
            if self._config.events:
                chunks += [
                    Chunk(
                        f"{server.name}-{_moment(start).date()}-events",
                        partial(self._events, server, start, end),
                        again=again,
                    )
                    for server in self._config.clusters
                ]
        return chunks + [
            Chunk(f"{server.name}-{_moment(begin):%Y-%m-%dT%H%M}-margin", partial(self._read, server, begin, end), True)
            for begin, end in self._margins
            for server in self._config.clusters
        ]

    def check(self) -> None:
        """Ask every server once before the work starts, and refuse days that are not over by its clock."""
        last_s, end_s = self._spans[-1]
        end = _moment(end_s + self._beyond_s)
        for name, client in self._clients.items():
            now = client.now()
            if now < end:
                day = _moment(last_s).date()
                raise SourceError(
                    f"{name}: day {day} is not over; the server's clock says {now:%Y-%m-%d %H:%M:%S} UTC",
                    "whole days in the past",
                    "set data.to (or --to) to an earlier day, or mend the server's clock",
                )

    def groups(self, server: Server) -> list[str]:
        """Groups that a server is asked for."""
        return list(dict.fromkeys(group for group, _ in self._entries(server)))

    def _entries(self, server: Server) -> list[tuple[str, Entry]]:
        """List what is asked of a server; which of the groups that count requests it has is asked once."""
        if server.name not in self._chosen:
            groups = self._config.groups
            if groups is None:
                counting = self._map.counting()
                there = [group for group in counting if self._has(server, group)]
                groups = (*(group for group in self._map.groups if group not in counting), *there[:1])
                log.info(
                    "%s: requests are counted by %s",
                    server.name,
                    there[0] if there else "none of " + ", ".join(counting),
                )
                if len(there) > 1:
                    log.info("%s: so do %s; set ingest.prometheus.groups to choose", server.name, ", ".join(there[1:]))
            self._chosen[server.name] = self._map.entries(groups)
        return self._chosen[server.name]

    def _has(self, server: Server, group: str) -> bool:
        """Tell whether a server has requests of a group on the first or the last day."""
        [entry] = [entry for entry in self._map.groups[group] if entry.metric == REQUESTS][:1]
        return any(
            self._clients[server.name].instant(
                f"count(last_over_time({entry.selector(entry.sources, server.matchers)}[{end_s - start_s}s]))", end_s
            )
            for start_s, end_s in {self._spans[0], self._spans[-1]}
        )

    def names(self, server: Server, time_s: int) -> Names:
        """Learn who is who in the day, or other span, that a moment is in; asked once."""
        [span] = [span for span in (*self._spans, *self._margins) if span[0] <= time_s < span[1]]
        with self._naming:
            if (server.name, span) not in self._names:
                self._names[server.name, span] = learn_names(self._clients[server.name], server.matchers, *span)
            return self._names[server.name, span]

    def stop(self) -> None:
        """Let no worker ask any more."""
        for client in self._clients.values():
            client.stop()

    def _read(self, server: Server, start_s: int, end_s: int, tally: Tally) -> Rows:
        client, step = self._clients[server.name], self._config.step_seconds
        names = self.names(server, start_s)
        # The grid is that of 1970 whatever the chunk. It reaches over the end, where the last scrapes are told; what
        # was scraped outside [start, end) is the neighbour's.
        first, last = np.ceil(start_s / step) * step, np.ceil(end_s / step) * step
        # One millisecond short of a step: Prometheus before 3.0 counts both ends of the window.
        windows = {rate: f"{round(step * 1000) * (RATE_STEPS if rate else 1) - 1}ms" for rate in (False, True)}
        told: dict[str, set[str]] = defaultdict(set)
        scraped: dict[tuple[str, ...], dict[tuple[str, ...], F8]] = {}
        parts: list[pa.Table] = []
        for group, entry in self._entries(server):
            query = entry.promql(windows[entry.rate], server.matchers)
            series, warnings = client.range(query, first, last, step)
            for warning in warnings:
                tally.skipped[f"server warned: {warning}"] += 1
            if not series:
                tally.skipped[f"chunks without {group}.{entry.metric}"] += 1
                continue
            if _measured(entry.metric):
                # What fills in for others is of other series, which need not be there whenever theirs are.
                shared = (group, entry.where if entry.fallback else "", *entry.used_labels())
                if shared not in scraped:
                    answer, _ = client.range(entry.time_promql(server.matchers), first, last, step)
                    scraped[shared] = _scrape_times(entry, answer, first, last, step)
                series = [_timed(one, entry, scraped[shared], first, step) for one in series]
            series = [_within(one, start_s, end_s) for one in series]
            parts.append(_table(server.name, entry, series, names, told, tally))
            if sum(part.num_rows for part in parts) > BATCH_ROWS:
                yield "samples", pa.concat_tables(parts).unify_dictionaries()
                parts = []
        if parts:
            yield "samples", pa.concat_tables(parts).unify_dictionaries()

    def _events(self, server: Server, start_s: int, end_s: int, tally: Tally) -> Rows:
        names = self.names(server, start_s)
        events, tasks = pod_events(self._clients[server.name], server, (start_s, end_s), names, self._beyond_s, tally)
        for name, table in (("events", events), ("tasks", tasks)):
            if table.num_rows:
                yield name, table


def learn_names(client: Client, matchers: str, start_s: int, end_s: int) -> Names:
    """Ask what kube-state-metrics and node-exporter tell of addresses, hosts, owners and labels of a span."""
    names = Names()
    for metric, labels in _NAMES.items():
        by, over = ", ".join(labels), f"{metric}{{{matchers}}}"
        if metric.startswith("kube_node_"):
            query = f"max by ({by}) (last_over_time({over}[{NAMES_STEP_S}s]))"
            found, _ = client.range(query, start_s + NAMES_STEP_S, end_s, NAMES_STEP_S)
        else:
            found = client.instant(f"max by ({by}) (last_over_time({over}[{end_s - start_s}s]))", end_s)
        for one in found:
            names.learn(metric, one.labels, (one.time_s - NAMES_STEP_S).tolist())
    return names.settled()


def _second(day: date) -> int:
    return int(datetime.combine(day, datetime.min.time(), UTC).timestamp())


def _moment(time_s: float) -> datetime:
    return datetime.fromtimestamp(time_s, UTC)


def _measured(metric: str) -> bool:
    """Tell what is measured at a moment from what is only known (sizes, names, states)."""
    return METRICS[metric].kind == "counter" or "_used_" in metric


def _entity(entry: Entry, labels: dict[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in entry.used_labels() if name != "le")


def _scrape_times(
    entry: Entry, answer: list[Series], first: float, last: float, step: float
) -> dict[tuple[str, ...], F8]:
    """By entity: when the last scrape before each step of the grid was."""
    found = {}
    for one in answer:
        times_s = np.full(round((last - first) / step) + 1, np.nan)
        times_s[_position(one.time_s, first, step)] = one.value
        found[_entity(entry, one.labels)] = times_s
    return found


def _position(time_s: F8, first: float, step: float) -> NDArray[np.int64]:
    return np.rint((time_s - first) / step).astype(np.int64)


def _timed(series: Series, entry: Entry, scraped: dict[tuple[str, ...], F8], first: float, step: float) -> Series:
    """Move samples from the end of their step to when they were scraped, where that is known.

    A rate looks back further than a step: where its step has no scrape it tells of the steps before.
    """
    known = scraped.get(_entity(entry, series.labels))
    if known is None:
        return series
    scrape = known[_position(series.time_s, first, step)]
    plausible = (scrape > series.time_s - step) & (scrape <= series.time_s)
    if entry.rate:
        return Series(series.labels, scrape[plausible], series.value[plausible])
    return series._replace(time_s=np.where(plausible, scrape, series.time_s))


def _within(series: Series, start_s: float, end_s: float) -> Series:
    keep = (series.time_s >= start_s) & (series.time_s < end_s)
    return series if keep.all() else Series(series.labels, series.time_s[keep], series.value[keep])


def _by_owner_of_address(series: list[Series], names: Names) -> list[Series]:
    """Cut a series where its address went to another node."""
    parts = []
    for one in series:
        borders = np.searchsorted(one.time_s, names.changes(one.labels))
        for low, high in zip([0, *borders], [*borders, len(one.time_s)], strict=True):
            if high > low:
                parts.append(Series(one.labels, one.time_s[low:high], one.value[low:high]))
    return parts


def _bound(cluster: str, entry: Entry, labels: dict[str, str]) -> float:
    """Read the upper bound of a histogram's bucket; NaN where there is none."""
    try:
        return float(labels.get("le") or np.nan) * entry.le_scale
    except ValueError as error:
        raise SourceError(f"{cluster}: {entry.sources[0]} has le={labels['le']!r}", "a number, or +Inf") from error


def _table(
    cluster: str, entry: Entry, series: list[Series], names: Names, told: dict[str, set[str]], tally: Tally
) -> pa.Table:
    """Put the series of one answer under one another; ``told`` are the things that each metric has told of."""
    entity = METRICS[entry.metric].entity
    known = told[entry.fallback] if entry.fallback else set()
    known = set(known)  # as it was before this entry
    kept: list[Series] = []
    labels: list[dict[str, str]] = []
    bounds: list[float] = []
    for one in _by_owner_of_address(series, names):
        filled = entry.canonical(one.labels, names, float(one.time_s[0]) if len(one.time_s) else 0.0)
        if filled is not None and filled[entity] in known:
            continue
        if filled is None:
            tally.skipped[f"series of {entry.metric} without what they measure"] += 1
            continue
        kept.append(one)
        labels.append(filled)
        told[entry.metric].add(filled[entity])
        bounds.append(_bound(cluster, entry, one.labels))
    lengths = np.array([len(one.time_s) for one in kept], dtype=np.int64)
    which = np.repeat(np.arange(len(kept), dtype=np.int32), lengths)

    def column(name: str) -> pa.DictionaryArray:
        found = sorted({filled[name] for filled in labels if name in filled})
        code = {text: number for number, text in enumerate(found)}
        codes = np.array([code.get(filled.get(name, ""), -1) for filled in labels], dtype=np.int32)
        return coded(codes[which] if len(codes) else which, found)

    time_s: NDArray[np.float64] = np.concatenate([one.time_s for one in kept]) if kept else np.empty(0)
    value: NDArray[np.float64] = np.concatenate([one.value for one in kept]) if kept else np.empty(0)
    le = np.array(bounds)[which] if kept else np.empty(0)
    zeros = np.zeros(len(which), dtype=np.int32)
    columns = [
        times(np.round(time_s * 1e3).astype(np.int64) * 1_000),
        coded(zeros, [cluster]),
        coded(zeros, [entry.metric]),
        *(column(name) for name in LABELS),
        pa.array(le, mask=np.isnan(le)),
        pa.array(value * entry.scale),
    ]
    return pa.table(columns, names=SAMPLES.names)
