"""The embedded sample: a seeded cluster scraped like a real one, with the dirt real metrics have.

It stands in for a live Prometheus: the same canonical metrics, pod events and a request log, day by day. The ground
truth it was made from can be written beside it, so that tests can compare what ``clean`` makes of it. Beside the
cluster of functions there are smaller ones for VMs, GPU jobs and workflows (``sample_vms``, ``sample_jobs``,
``sample_workflows``).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.contracts.raw import EVENTS, REQUESTS
from pipeline.sources import Chunk, Rows, Source, Tally
from pipeline.sources.columns import NONE, SampleColumns, coded, raw_table, times
from pipeline.sources.sample_cluster import (
    CARD_GIB,
    CARD_MODEL,
    GIB,
    MINUTE,
    NODE_TYPES,
    PRICES,
    ClusterTruth,
    function_specs,
    simulate,
)
from pipeline.sources.sample_dirt import Faults, soil_events, soil_requests, soil_samples
from pipeline.sources.sample_jobs import GPU_NODE_TYPES, JobCluster
from pipeline.sources.sample_machines import MachineCluster
from pipeline.sources.sample_vms import HOST_TYPE, VmCluster
from pipeline.sources.sample_workflows import WorkflowCluster
from wire.contracts.window import WINDOW_SECONDS
from wire.errors import ConfigError

F8 = NDArray[np.float64]
I8 = NDArray[np.int64]

DAY_S = 86_400
BUCKETS_S = (2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, np.inf)


class SampleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and seed of the sample; the defaults make a run of a few seconds."""

    seed: int = 7
    """The same seed and range give the same bytes."""
    start: date = date(2026, 1, 5)
    """First day (a Monday) when no data range is asked for."""
    days: int = 4
    """Days when no data range is asked for: enough for train | validation | test with gaps."""
    clusters: int = 1
    nodes: int = 10
    """Ten nodes of four kinds; pods then ask for 70-85 % of all cores at the top of a day, so placement matters."""
    functions: int = 12
    scrape_seconds: float = 60.0
    """Any interval; it need not divide the window."""
    vms_per_day: int = 1500
    """VMs created on the hosts of ``sample-vm``; 0: no such cluster. Each of these clusters has nodes of its own."""
    jobs_per_day: int = 600
    """GPU jobs queued in ``sample-gpu-1`` and ``sample-gpu-2``: 0.85 of what their cards do one job at a time."""
    workflows_per_day: int = 100
    """Workflows executed in ``sample-flow``, of 5 to 60 tasks."""
    dirt: bool = True
    """False: clean samples, to separate faults of cleaning from faults of repair."""

    def __post_init__(self) -> None:
        """Refuse sizes that make no cluster."""
        for name in ("days", "clusters", "nodes", "functions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"ingest.sample.{name} is {getattr(self, name)}", "at least 1")
        for name in ("vms_per_day", "jobs_per_day", "workflows_per_day"):
            if getattr(self, name) < 0:
                raise ConfigError(f"ingest.sample.{name} is {getattr(self, name)}", "at least 0")
        if not 1.0 <= self.scrape_seconds <= WINDOW_SECONDS:
            raise ConfigError(f"ingest.sample.scrape_seconds is {self.scrape_seconds}", f"1 to {WINDOW_SECONDS}")


class SampleSource(Source):
    """Chunks of one day and cluster each."""

    def __init__(self, config: SampleConfig, days: Sequence[date]) -> None:
        self._config = config
        self._days = list(days) or [config.start + timedelta(days=n) for n in range(config.days)]
        self._clusters = [_Scraped(config, index, self._days) for index in range(config.clusters)]
        self._all: list[_Scraped | MachineCluster] = [*self._clusters, *_other_clusters(config, self._days)]

    def settings(self) -> dict[str, object]:
        """Name size, seed and days."""
        named = msgspec.to_builtins(self._config)
        del named["start"], named["days"]
        return {**named, "from": self._days[0].isoformat(), "to": self._days[-1].isoformat()}

    def chunks(self) -> list[Chunk]:
        """List day after day, cluster after cluster."""
        return [
            Chunk(f"{cluster.name}-{day.isoformat()}", partial(cluster.day, index))
            for index, day in enumerate(self._days)
            for cluster in self._all
        ]

    def prices(self) -> dict[str, float]:
        """Prices of the machines in the sample."""
        return PRICES | {kind.name: kind.usd_per_hour for kind in (HOST_TYPE, *GPU_NODE_TYPES)}

    def write_truth(self, folder: Path) -> None:
        """Write what really happened, minute by minute: ``pods``, ``nodes`` and ``requests`` as Parquet."""
        folder.mkdir(parents=True, exist_ok=True)
        parts = [cluster.truth_tables() for cluster in self._clusters]
        for name in parts[0]:
            pq.write_table(pa.concat_tables([part[name] for part in parts]), folder / f"{name}.parquet")


def _other_clusters(config: SampleConfig, days: list[date]) -> list[MachineCluster]:
    """Make the clusters of the other problems; they draw their own numbers, so the functions' never change."""
    given = {"seed": config.seed, "days": days, "scrape_seconds": config.scrape_seconds, "dirt": config.dirt}
    others: list[MachineCluster] = []
    if config.vms_per_day:
        others.append(VmCluster("sample-vm", config.vms_per_day, **given))
    if config.jobs_per_day:
        others += [JobCluster(f"sample-gpu-{part + 1}", config.jobs_per_day, part, **given) for part in range(2)]
    if config.workflows_per_day:
        others.append(WorkflowCluster("sample-flow", config.workflows_per_day, **given))
    return others


class _Scraped:
    """One cluster seen through its metrics."""

    def __init__(self, config: SampleConfig, index: int, days: list[date]) -> None:
        self._config, self._days = config, days
        self.name = f"sample-{index + 1}"
        # The first day is part of the seed: another night is another load, not the same one under a new date.
        self._seed = [config.seed, index, days[0].toordinal()]
        self._origin_us = int(datetime.combine(days[0], datetime.min.time(), UTC).timestamp()) * 1_000_000
        self._specs = function_specs(config.functions)

    @cached_property
    def truth(self) -> ClusterTruth:
        seed = int(np.random.SeedSequence(self._seed).generate_state(1)[0])
        config = self._config
        return simulate(seed, len(self._days), config.nodes, config.functions, self._days[0].weekday())

    @cached_property
    def _faults(self) -> Faults:
        return Faults.draw(self._rng(0, "faults"), self.truth, len(self._days), enabled=self._config.dirt)

    @cached_property
    def _phase_s(self) -> F8:
        """When in the interval each node is scraped, to the millisecond; the last entry is the gateway."""
        phase = self._rng(0, "phase").uniform(0.0, self._config.scrape_seconds, self._config.nodes + 1)
        return np.floor(phase * 1e3) / 1e3

    @cached_property
    def _names(self) -> dict[str, Sequence[str]]:
        truth = self.truth
        return {
            "node": [f"node-{node + 1:02d}" for node in range(len(truth.node_type))],
            "pod": [
                f"{self._specs[function].name}-{pod:05d}" for pod, function in enumerate(truth.pod_function.tolist())
            ],
            "function": [spec.name for spec in self._specs],
            "card": ["gpu-0"],
            "detail": [kind.name for kind in NODE_TYPES] + [CARD_MODEL],
        }

    def _rng(self, day: int, use: str) -> np.random.Generator:
        return np.random.default_rng([*self._seed, day, *use.encode()])

    def _us(self, seconds: F8) -> I8:
        return self._origin_us + np.round(seconds * 1e3).astype(np.int64) * 1_000

    def day(self, day: int, _tally: Tally) -> Rows:
        """Read one day: samples, the request log and the events."""
        samples = SampleColumns.join([*self._node_samples(day), *self._pod_samples(day), *self._function_samples(day)])
        if self._config.dirt:
            samples = soil_samples(self._rng(day, "samples"), samples, self._faults, day, self._origin_us)
        yield "samples", samples.table(self.name, self._names)
        yield "requests", self._requests(day)
        yield "events", self._events(day)

    def _scrapes(self, day: int, phase_s: float) -> F8:
        """Times of a target's scrapes within a day."""
        interval = self._config.scrape_seconds
        first = np.ceil((day * DAY_S - phase_s) / interval)
        count = int(np.ceil(((day + 1) * DAY_S - phase_s) / interval) - first)
        return np.asarray((first + np.arange(count)) * interval + phase_s)

    def _node_samples(self, day: int) -> list[SampleColumns]:
        truth, faults = self.truth, self._faults
        total = np.concatenate(
            [np.zeros((len(truth.node_type), 1, 4)), np.cumsum(truth.node_use * MINUTE, axis=1)], axis=1
        )
        parts = []
        for node, kind in enumerate(truth.node_type.tolist()):
            t = self._scrapes(day, self._phase_s[node])
            minute = (t // MINUTE).astype(np.int64)
            use = truth.node_use[node, minute]
            counter = total[node, minute] + use * (t - minute * MINUTE)[:, None]
            for reset in faults.node_resets(node):
                at = int(reset // MINUTE)
                base = total[node, at] + truth.node_use[node, at] * (reset - at * MINUTE)
                counter = np.where((t >= reset)[:, None], counter - base, counter)
            us = self._us(t)
            values: dict[str, F8 | float] = {
                "node_cpu_seconds": counter[:, 0],
                "node_mem_used_bytes": np.round(use[:, 1]),
                "node_net_bytes": np.floor(counter[:, 2]),
                "node_disk_ops": np.floor(counter[:, 3]),
                "node_cpu_capacity_cores": float(truth.capacity[node, 0]),
                "node_mem_capacity_bytes": float(truth.capacity[node, 1]),
                "node_net_capacity_bytes_s": float(truth.capacity[node, 2]),
                "node_disk_capacity_iops": float(truth.capacity[node, 3]),
                "node_ready": 1.0,
            }
            parts += [SampleColumns.of(metric, us, value, node=node) for metric, value in values.items()]
            parts.append(SampleColumns.of("node_info", us, 1.0, node=node, detail=kind))
            if NODE_TYPES[kind].cards:
                parts += self._card_samples(node, us, minute)
        return parts

    def _card_samples(self, node: int, us: I8, minute: I8) -> list[SampleColumns]:
        ratio = self._card_use[node, minute]
        values: dict[str, F8 | float] = {
            "card_gpu_used_ratio": ratio,
            "card_mem_used_bytes": np.round((0.05 + 0.7 * ratio) * CARD_GIB * GIB),
            "card_mem_capacity_bytes": CARD_GIB * GIB,
        }
        return [
            SampleColumns.of("node_gpu_capacity_cards", us, 1.0, node=node),
            SampleColumns.of("node_gpu_used_cards", us, ratio, node=node),
            SampleColumns.of("card_info", us, 1.0, node=node, card=0, detail=len(NODE_TYPES)),
            *(SampleColumns.of(metric, us, value, node=node, card=0) for metric, value in values.items()),
        ]

    @cached_property
    def _card_use(self) -> F8:
        """Share of a node's card that is busy, [nodes, minutes]."""
        truth = self.truth
        slot = truth.pod_node[truth.pair_pod] * truth.minutes + truth.pair_minute
        busy = np.bincount(slot, truth.pair_card, len(truth.node_type) * truth.minutes)
        return np.minimum(1.0, busy).reshape(-1, truth.minutes)

    def _pod_samples(self, day: int) -> list[SampleColumns]:
        """Every pod is scraped with its node from its creation to its deletion; it uses nothing before it serves."""
        truth, interval = self.truth, self._config.scrape_seconds
        alive = (truth.pod_node >= 0) & (truth.pod_minutes > 0)
        begin, end = np.maximum(truth.pod_created_s, day * DAY_S), np.minimum(truth.pod_deleted_s, (day + 1) * DAY_S)
        pods = np.flatnonzero(alive & (begin < end))
        phase = self._phase_s[truth.pod_node[pods]]
        first = np.ceil((begin[pods] - phase) / interval)
        count = np.maximum(np.ceil((end[pods] - phase) / interval) - first, 0).astype(np.int64)
        offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        pod = np.repeat(pods, count)
        t = (np.repeat(first, count) + offset) * interval + np.repeat(phase, count)

        counter, use = self._pod_state(pod, t)
        base, _ = self._pod_state(pod, np.minimum(self._faults.pod_reset_s[pod], t))
        counter -= np.where((t >= self._faults.pod_reset_s[pod])[:, None], base, 0.0)
        us, node, function = self._us(t), truth.pod_node[pod], truth.pod_function[pod]
        spec_cpu, spec_mem = (np.array([getattr(spec, name) for spec in self._specs]) for name in ("cpu", "mem_gib"))
        values: dict[str, F8 | float] = {
            "pod_cpu_seconds": counter[:, 0],
            "pod_mem_used_bytes": np.round(use[:, 1]),
            "pod_net_bytes": np.floor(counter[:, 2]),
            "pod_disk_ops": np.floor(counter[:, 3]),
            "pod_cpu_request_cores": spec_cpu[function],
            "pod_mem_request_bytes": spec_mem[function] * GIB,
        }
        parts = [SampleColumns.of(metric, us, value, node=node, pod=pod) for metric, value in values.items()]
        parts.append(SampleColumns.of("pod_info", us, 1.0, node=node, pod=pod, function=function))
        return parts

    @cached_property
    def _pair_total(self) -> F8:
        """Counters of a pod at the start of each of its minutes; it runs on over pods, differences are what counts."""
        return np.concatenate([np.zeros((1, 4)), np.cumsum(self.truth.pair_use * MINUTE, axis=0)])

    def _pod_state(self, pod: I8, t: F8) -> tuple[F8, F8]:
        """Counters and present use of pods at given times."""
        truth = self.truth
        minute = (t // MINUTE).astype(np.int64) - truth.pod_first[pod]
        pair = truth.pair_start[pod] + np.clip(minute, 0, truth.pod_minutes[pod] - 1)
        serving = (minute >= 0) & (minute < truth.pod_minutes[pod])
        within = np.where(minute < 0, 0.0, np.where(serving, t % MINUTE, MINUTE))
        counter = self._pair_total[pair] - self._pair_total[truth.pair_start[pod]]
        counter += truth.pair_use[pair] * within[:, None]
        return counter, np.where(serving[:, None], truth.pair_use[pair], 0.0)

    def _function_samples(self, day: int) -> list[SampleColumns]:
        """The gateway counts a request when it has been answered."""
        t = self._scrapes(day, self._phase_s[-1])
        us, parts = self._us(t), []
        for function, spec in enumerate(self._specs):
            done, duration = self._answered[function]
            total = np.concatenate([[0.0], np.cumsum(duration)])
            shown = np.searchsorted(done, t, side="right")
            hidden = np.searchsorted(done, self._faults.gateway_reset_s, side="right")
            lost = np.where(t >= self._faults.gateway_reset_s, hidden, 0)
            count = (shown - lost).astype(np.float64)
            parts += [
                SampleColumns.of("function_requests", us, count, function=function),
                SampleColumns.of("function_response_seconds_sum", us, total[shown] - total[lost], function=function),
                SampleColumns.of("function_net_bytes", us, count * spec.net_mb * 1e6, function=function),
                SampleColumns.of("function_disk_ops", us, count * spec.disk_ops, function=function),
            ]
            for le in BUCKETS_S:
                within = np.concatenate([[0], np.cumsum(duration <= le)])
                value = (within[shown] - within[lost]).astype(np.float64)
                name = "function_response_seconds_bucket"
                parts.append(SampleColumns.of(name, us, value, function=function, le=le))
        return parts

    @cached_property
    def _answered(self) -> list[tuple[F8, F8]]:
        """By function: when its requests were answered, in order, and how long each took."""
        truth, answered = self.truth, []
        done = truth.request_s + truth.request_duration_s
        for function in range(len(self._specs)):
            mine = np.flatnonzero(truth.request_function == function)
            order = mine[np.argsort(done[mine], kind="stable")]
            answered.append((done[order], truth.request_duration_s[order]))
        return answered

    def _requests(self, day: int) -> pa.Table:
        truth = self.truth
        low, high = np.searchsorted(truth.request_s, [day * DAY_S, (day + 1) * DAY_S])
        rows = slice(low, high)
        function, pod = truth.request_function[rows].astype(np.int32), truth.request_pod[rows].astype(np.int32)
        duration = truth.request_duration_s[rows].copy()
        order = np.arange(high - low)
        if self._config.dirt:
            order = soil_requests(self._rng(day, "requests"), function, pod, duration)
        columns = [
            times(self._us(truth.request_s[rows])[order]),
            coded(np.zeros(len(order), np.int32), [self.name]),
            coded(function[order], self._names["function"]),
            coded(pod[order], self._names["pod"]),
            pa.array(np.round(truth.request_cpu[rows], 4)[order]),
            pa.array(np.round(truth.request_mem[rows])[order]),
            pa.array(np.round(duration, 6)[order]),
            pa.array(np.arange(low, high)[order]).cast(pa.string()),
        ]
        return pa.table(columns, names=REQUESTS.names)

    def _events(self, day: int) -> pa.Table:
        truth = self.truth
        when = np.concatenate([truth.pod_created_s, truth.pod_deleted_s])
        rows = np.flatnonzero((when >= day * DAY_S) & (when < (day + 1) * DAY_S))
        rows = rows[np.argsort(when[rows], kind="stable")]
        if self._config.dirt:
            rows = soil_events(self._rng(day, "events"), rows)
        pods = len(truth.pod_created_s)
        pod = rows % pods
        function = truth.pod_function[pod]
        size = [np.array([getattr(spec, name) for spec in self._specs])[function] for name in ("cpu", "mem_gib")]
        node = np.where(truth.pod_node[pod] < 0, NONE, truth.pod_node[pod]).astype(np.int32)
        zeros = np.zeros(len(rows), np.int32)
        columns = {
            "time": times(self._us(when[rows])),
            "cluster": coded(zeros, [self.name]),
            "entity": coded(pod.astype(np.int32), self._names["pod"]),
            "kind": coded(zeros, ["pod"]),
            "action": coded((rows >= pods).astype(np.int32), ["create", "delete"]),
            "node": coded(node, self._names["node"]),
            "function": coded(function.astype(np.int32), self._names["function"]),
            "cpu_cores": pa.array(size[0]),
            "mem_bytes": pa.array(size[1] * GIB),
            "gpus": pa.array(zeros.astype(np.float64)),
        }
        return raw_table(EVENTS, columns)

    def truth_tables(self) -> dict[str, pa.Table]:
        """Tables of what really happened: use by pod and minute, by node and minute, and every request."""
        truth, names = self.truth, self._names
        minute = timedelta(minutes=1) // timedelta(microseconds=1)

        def use(values: F8) -> dict[str, F8]:
            return dict(zip(("cpu_cores", "mem_bytes", "net_bytes_s", "disk_iops"), values.T, strict=True))

        pod, place = truth.pair_pod, truth.pod_node[truth.pair_pod]
        nodes = len(truth.node_type)
        node = np.repeat(np.arange(nodes), truth.minutes)
        return {
            "pods": pa.table(
                {
                    "time": times(self._origin_us + truth.pair_minute * minute),
                    "cluster": pa.array([self.name] * len(pod)),
                    "pod": coded(pod.astype(np.int32), names["pod"]),
                    "node": coded(place.astype(np.int32), names["node"]),
                    "function": coded(truth.pod_function[pod].astype(np.int32), names["function"]),
                    "requests": truth.pair_requests,
                    **use(truth.pair_use),
                }
            ),
            "nodes": pa.table(
                {
                    "time": times(self._origin_us + np.tile(np.arange(truth.minutes), nodes) * minute),
                    "cluster": pa.array([self.name] * len(node)),
                    "node": coded(node.astype(np.int32), names["node"]),
                    "gpu_cards": self._card_use.ravel(),
                    **use(truth.node_use.reshape(-1, 4)),
                }
            ),
            "requests": pa.table(
                {
                    "time": times(self._us(truth.request_s)),
                    "cluster": pa.array([self.name] * len(truth.request_s)),
                    "function": coded(truth.request_function.astype(np.int32), names["function"]),
                    "pod": coded(truth.request_pod.astype(np.int32), names["pod"]),
                    "cpu_cores": truth.request_cpu,
                    "mem_bytes": truth.request_mem,
                    "duration_s": truth.request_duration_s,
                }
            ),
        }
