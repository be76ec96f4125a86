"""Clusters of the sample whose machines are known minute by minute: how they look when scraped, and their events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.contracts.raw import EVENTS
from pipeline.sources import Rows, Tally
from pipeline.sources.columns import NONE, SampleColumns, coded, raw_table, times
from pipeline.sources.sample_cluster import GIB, MINUTE, MINUTES_PER_DAY, NodeType
from pipeline.sources.sample_dirt import LOST_SCRAPES, soil_events

F8 = NDArray[np.float64]
I8 = NDArray[np.int64]

DAY_S = 86_400
MOST_USED = 0.98
"""No machine reports more of its cpu or memory in use."""


class Use(NamedTuple):
    """Something that a machine held from one moment to another; arrays of the same length, seconds."""

    node: I8
    begin_s: F8
    end_s: F8
    amount: F8


class Life(NamedTuple):
    """Things that were created and deleted; arrays of the same length."""

    kind: str
    names: list[str]
    created_s: F8
    deleted_s: F8
    """Infinite: not in this sample."""
    node: I8
    """-1: never placed."""
    columns: dict[str, F8]
    """More columns of ``events``, told with both."""
    told_at_end: Mapping[str, F8] = MappingProxyType({})
    """Columns told with the deletion alone."""
    function: Sequence[str] | None = None
    placed_when_created: bool = True
    """False: only the deletion names the node, because the thing waited for one."""


class MachineCluster(ABC):
    """One cluster; what happens in it is drawn once for all days, from numbers of its own."""

    def __init__(self, name: str, *, seed: int, days: list[date], scrape_seconds: float, dirt: bool) -> None:
        self.name, self._days, self._interval, self._dirt = name, days, scrape_seconds, dirt
        self._seed = [seed, days[0].toordinal(), *name.encode()]
        self._origin_us = int(datetime.combine(days[0], datetime.min.time(), UTC).timestamp()) * 1_000_000
        self._minutes = len(days) * MINUTES_PER_DAY

    @property
    @abstractmethod
    def kinds(self) -> Sequence[NodeType]:
        """The machines."""

    @abstractmethod
    def used(self) -> tuple[F8, F8]:
        """Cores and bytes in use, [nodes, minutes] each."""

    @abstractmethod
    def other_tables(self, day: int) -> Iterator[tuple[str, pa.Table]]:
        """Rows of the other raw tables."""

    def more_samples(self, _node: int, _us: I8, _minute: I8) -> list[SampleColumns]:
        """Samples of what only some machines have."""
        return []

    @property
    def details(self) -> list[str]:
        """Names that samples give as detail: kinds of machines first."""
        return list(dict.fromkeys(kind.name for kind in self.kinds))

    @property
    def nodes(self) -> list[str]:
        """Names of the machines."""
        return [f"{self.name}-{node + 1:02d}" for node in range(len(self.kinds))]

    def rng(self, use: str, day: int = 0) -> np.random.Generator:
        """Numbers for one use."""
        return np.random.default_rng([*self._seed, day, *use.encode()])

    def us(self, seconds: F8) -> I8:
        """Microseconds since 1970, in whole milliseconds."""
        return self._origin_us + np.round(seconds * 1e3).astype(np.int64) * 1_000

    def summed(self, use: Use, rows: int) -> F8:
        """Add up what was held in each minute, [rows, minutes]; minutes at both ends count for their part."""
        change = np.zeros((rows, self._minutes + 1))
        for time_s, sign in ((use.begin_s, 1.0), (use.end_s, -1.0)):
            at = np.minimum(time_s / MINUTE, float(self._minutes))
            minute = np.floor(at).astype(np.int64)
            part = at - minute
            # A step inside a minute reaches its full height in the next.
            np.add.at(change, (use.node, minute), sign * use.amount * (1.0 - part))
            np.add.at(change, (use.node, np.minimum(minute + 1, self._minutes)), sign * use.amount * part)
        return np.maximum(np.cumsum(change, axis=1)[:, :-1], 0.0)

    def day(self, day: int, _tally: Tally) -> Rows:
        """Read one day."""
        names = {"node": self.nodes, "pod": [], "function": [], "card": self.cards, "detail": self.details}
        yield "samples", self._samples(day).table(self.name, names)
        yield from self.other_tables(day)

    cards: Sequence[str] = ()
    """Names of the cards of a machine."""

    @cached_property
    def _use(self) -> tuple[F8, F8]:
        return self.used()

    def _samples(self, day: int) -> SampleColumns:
        phases = self.rng("phase").uniform(0.0, self._interval, len(self.kinds))
        parts: list[SampleColumns] = []
        for node, kind in enumerate(self.kinds):
            first = np.ceil((day * DAY_S - phases[node]) / self._interval)
            last = np.ceil(((day + 1) * DAY_S - phases[node]) / self._interval)
            steps = np.arange(first, last) * self._interval + phases[node]
            us, minute = self.us(steps), (steps // MINUTE).astype(np.int64)
            cores, held = (use[node, minute] for use in self._use)
            values: dict[str, F8 | float] = {
                "node_cpu_used_cores": np.minimum(cores, MOST_USED * kind.cpu),
                "node_mem_used_bytes": np.round(np.minimum(held, MOST_USED * kind.mem_gib * GIB)),
                "node_cpu_capacity_cores": float(kind.cpu),
                "node_mem_capacity_bytes": kind.mem_gib * GIB,
                "node_net_capacity_bytes_s": kind.net_mb_s * 1e6,
                "node_ready": 1.0,
            }
            parts += [SampleColumns.of(metric, us, value, node=node) for metric, value in values.items()]
            detail = self.details.index(kind.name)
            parts.append(SampleColumns.of("node_info", us, 1.0, node=node, detail=detail))
            parts += self.more_samples(node, us, minute)
        samples = SampleColumns.join(parts)
        if self._dirt:
            samples = samples.take(self.rng("lost", day).random(len(samples.value)) >= LOST_SCRAPES)
        return samples

    def events(self, life: Life, day: int) -> pa.Table:
        """Rows of ``events`` of one day, some told twice or late."""
        things = len(life.names)
        when = np.concatenate([life.created_s, life.deleted_s])
        rows = np.flatnonzero((when >= day * DAY_S) & (when < (day + 1) * DAY_S))
        rows = rows[np.argsort(when[rows], kind="stable")]
        if self._dirt:
            rows = soil_events(self.rng("events", day), rows)
        thing, deleted = rows % things, rows >= things
        zeros = np.zeros(len(rows), np.int32)
        node = np.where(deleted | life.placed_when_created, life.node[thing], NONE).astype(np.int32)
        columns: dict[str, pa.Array] = {
            "time": times(self.us(when[rows])),
            "cluster": coded(zeros, [self.name]),
            "entity": pa.array([life.names[index] for index in thing.tolist()], pa.string()),
            "kind": coded(zeros, [life.kind]),
            "action": coded(deleted.astype(np.int32), ["create", "delete"]),
            "node": coded(node, self.nodes),
            **{name: pa.array(values[thing]) for name, values in life.columns.items()},
            **{name: pa.array(values[thing], mask=~deleted) for name, values in life.told_at_end.items()},
        }
        if life.function is not None:
            columns["function"] = pa.array([life.function[index] for index in thing.tolist()], pa.string())
        return raw_table(EVENTS, columns)
