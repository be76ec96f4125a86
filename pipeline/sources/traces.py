"""Public traces as raw tables: thin wrappers around the readers of ``sched_env.traces``.

Nothing is cleaned. What a trace does not say and a table needs is an assumption named in ``docs/sources.md``. Times
without a zone are read as UTC; times counted from a trace's own start are counted from ``origin``.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.contracts.raw import EVENTS, REQUESTS, SAMPLES, TASKS
from pipeline.errors import SourceError
from pipeline.sources import Chunk, Rows, Tally
from pipeline.sources.columns import raw_table, times
from pipeline.sources.files import FileSource
from sched_env.functions import azure as azure_functions
from sched_env.traces import alibaba_genai, alibaba_gpu, bitbrains, cpn, gpu_jobs, helios, wfinstances
from sched_env.vm import trace as vm

F8 = NDArray[np.float64]
Labels = NDArray[np.object_] | Sequence[str | None] | str | None

GIB = 2.0**30
FILES_PER_CHUNK = 25
"""Traces of one small file a machine would otherwise leave thousands of tiny partitions."""
BATCH_ROWS = 250_000
"""Rows held at a time, however many a file or a chunk has."""

Format = Literal[
    "bitbrains",
    "alibaba_genai",
    "alibaba_gpu",
    "philly",
    "helios",
    "cpn",
    "wfinstances",
    "huawei",
    "azure_vm",
    "azure_functions",
]


class TracesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which trace, of which format."""

    format: Format
    paths: list[str]
    cluster: str = ""
    """Name of the cluster; empty: the format's."""
    origin: date = date(2020, 1, 1)
    """Day that second 0 of traces without a calendar falls on."""
    assume_pod_mem_gib: float = 64.0
    """Memory of a pod where a trace tells only the share in use (alibaba_genai)."""
    skip_bad: bool = False
    """Count and leave out rows that cannot be read, instead of stopping at the first."""


class TracesSource(FileSource):
    """Chunks of a few files each."""

    def __init__(self, config: TracesConfig, days: Sequence[date]) -> None:
        super().__init__(config.paths, days, "ingest.traces")
        self._config = config
        self._context = _Context(config)

    def settings(self) -> dict[str, object]:
        """Name format, files, days and assumptions."""
        named = msgspec.to_builtins(self._config)
        del named["paths"]
        return {**super().settings(), **named}

    def chunks(self) -> list[Chunk]:
        """Put files together; a trace's rows of one day then lie in a few files instead of hundreds."""
        single = super().chunks()
        return [
            Chunk(f"{part[0].key}+{_names_of(part[1:])}", _together(part))
            for part in (single[at : at + FILES_PER_CHUNK] for at in range(0, len(single), FILES_PER_CHUNK))
        ]

    def read(self, path: Path, tally: Tally) -> Rows:
        """Read one file."""
        return _FORMATS[self._config.format](path, self._context, tally)


def _names_of(chunks: list[Chunk]) -> str:
    return hashlib.sha256("\n".join(chunk.key for chunk in chunks).encode()).hexdigest()[:12]


def _together(chunks: list[Chunk]) -> Callable[[Tally], Rows]:
    def read(tally: Tally) -> Rows:
        parts: dict[str, list[pa.Table]] = defaultdict(list)
        for chunk in chunks:
            for table, rows in chunk.read(tally):
                parts[table].append(rows)
                if sum(map(len, parts[table])) >= BATCH_ROWS:
                    yield table, pa.concat_tables(parts.pop(table)).unify_dictionaries()
        for table, found in parts.items():
            yield table, pa.concat_tables(found).unify_dictionaries()

    return read


class _Context:
    """What all formats need: names, the origin, and builders of raw rows."""

    def __init__(self, config: TracesConfig) -> None:
        self.config = config
        self.cluster = config.cluster or config.format
        self.origin_s = datetime.combine(config.origin, datetime.min.time(), UTC).timestamp()

    def skipped(self, count: int, tally: Tally) -> None:
        """Count rows the reader left out."""
        if count:
            tally.skipped["trace rows that cannot be read"] += count

    def samples(self, metric: str, time_s: F8, value: F8 | float, **labels: Labels) -> pa.Table:
        """Build rows of ``samples``; what is not given is null."""
        rows = len(time_s)
        values = np.full(rows, value) if isinstance(value, float) else value
        columns = {"time": _times(time_s), "cluster": _names(self.cluster, rows), "metric": _names(metric, rows)}
        columns |= {name: _names(labels.get(name), rows) for name in ("node", "pod", "function", "card", "detail")}
        return raw_table(SAMPLES, {**columns, "value": pa.array(values)})

    def events(
        self,
        kind: str,
        action: str,
        time_s: F8,
        entity: Sequence[str] | NDArray[np.object_],
        *,
        node: Labels = None,
        function: Labels = None,
        size: Mapping[str, F8],
    ) -> pa.Table:
        """Build rows of ``events``; rows without a time (not known) are left out."""
        known = np.flatnonzero(np.isfinite(time_s))
        rows = len(time_s)
        texts = {
            "cluster": self.cluster,
            "kind": kind,
            "action": action,
            "node": node,
            "function": function,
        }
        columns: dict[str, Any] = {"time": _times(np.where(np.isfinite(time_s), time_s, 0.0))}
        columns |= {name: _names(value, rows) for name, value in texts.items()}
        columns["entity"] = pa.array(entity, pa.string())  # hardly one twice: a list of names would only cost memory
        columns |= {name: _amounts(given) for name, given in size.items()}
        return raw_table(EVENTS, columns).take(known)


def _amounts(values: F8) -> pa.Array:
    """Make a column of numbers; what is not known is null."""
    return pa.array(values, mask=np.isnan(values))


def _times(time_s: F8) -> pa.Array:
    return times(np.rint(time_s * 1e6).astype(np.int64))


def _names(value: Labels, rows: int) -> pa.DictionaryArray:
    """Make a string column: one name for all rows, or one each; empty is null."""
    if value is None or isinstance(value, str):
        codes = pa.array(np.zeros(rows, np.int32), mask=np.full(rows, not value))
        return pa.DictionaryArray.from_arrays(codes, pa.array([value or ""], pa.string()))
    return pa.array([text or None for text in value], pa.string()).dictionary_encode()


def _bitbrains(path: Path, context: _Context, tally: Tally) -> Rows:
    used = bitbrains.read_vm(path, skip_bad=context.config.skip_bad)
    context.skipped(used.skipped, tally)
    for metric, value in {
        "node_cpu_capacity_cores": used.cpu_capacity,
        "node_cpu_used_cores": used.cpu_used,
        "node_mem_capacity_bytes": used.mem_capacity,
        "node_mem_used_bytes": used.mem_used,
        "node_net_used_bytes_s": used.net_used,
    }.items():
        yield "samples", context.samples(metric, used.time_s, value, node=used.vm)


_GENAI_GAUGES = {
    "pod_gpu_duty_cycle_anon": ("card_gpu_used_ratio", 0.01),
    "pod_gpu_memory_used_bytes_anon": ("card_mem_used_bytes", 1.0),
}


def _alibaba_genai(path: Path, context: _Context, tally: Tally) -> Rows:
    skip = context.config.skip_bad
    if path.name.startswith("lora_request_trace"):
        requests = alibaba_genai.read_requests(path, skip_bad=skip)
        context.skipped(requests.skipped, tally)
        rows = len(requests.time_s)
        columns = {
            "time": _times(requests.time_s),
            "cluster": _names(context.cluster, rows),
            "function": _names(requests.model, rows),
            "duration_s": _amounts(requests.duration_s),
        }
        yield "requests", raw_table(REQUESTS, columns)
        return
    read = alibaba_genai.read_metric(path, skip_bad=skip)
    context.skipped(read.skipped, tally)
    if read.metric == "pod_memory_util_anon":
        size = context.config.assume_pod_mem_gib * GIB
        yield "samples", context.samples("pod_mem_used_bytes", read.time_s, read.value * size, pod=read.pod)
        yield "samples", context.samples("pod_mem_request_bytes", read.time_s, size, pod=read.pod)
    elif read.metric in _GENAI_GAUGES:
        metric, scale = _GENAI_GAUGES[read.metric]
        # The trace names pods, not nodes; each has its card to itself.
        yield "samples", context.samples(metric, read.time_s, read.value * scale, node=read.pod, pod=read.pod, card="0")
    elif read.metric == "qps":
        yield (
            "samples",
            _counted(context, "function_requests", read, read.value * alibaba_genai.STEP_S, "requests", by_pod=True),
        )
    elif read.metric == "queue_size_raw_anon":
        tally.skipped["samples of queue_size, for which there is no canonical metric"] += len(read.value)
    else:
        ones = np.ones(len(read.value))
        yield "samples", _counted(context, "function_requests", read, ones, read.metric, by_pod=False)
        yield (
            "samples",
            _counted(context, "function_response_seconds_sum", read, read.value / 1e3, read.metric, by_pod=False),
        )


def _counted(
    context: _Context, metric: str, read: alibaba_genai.PodSamples, step: F8, function: str, *, by_pod: bool
) -> pa.Table:
    """Turn what came with each sample into a counter, in order of time, by pod or over all."""
    group = read.pod.astype(str) if by_pod else np.zeros(len(step), dtype=np.int64)
    order = np.lexsort((read.time_s, group))
    step, time_s, group, pod = step[order], read.time_s[order], group[order], read.pod[order]
    total = np.cumsum(step)
    begins = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    base = np.repeat(total[begins] - step[begins], np.diff(np.append(begins, len(group))))
    counter = total - base
    # The last of a moment stands for it: pods that answered at once are one step of the common counter.
    last = np.append((np.diff(time_s) != 0) | (group[1:] != group[:-1]), True)
    return context.samples(metric, time_s[last], counter[last], function=function, pod=pod[last] if by_pod else None)


def _alibaba_gpu(path: Path, context: _Context, tally: Tally) -> Rows:
    skip, name = context.config.skip_bad, path.name
    if name.startswith(("openb_node", "spot_gpu_node")):
        read = alibaba_gpu.read_openb_nodes if name.startswith("openb") else alibaba_gpu.read_spot_nodes
        nodes = read(path, skip_bad=skip)
        context.skipped(nodes.skipped, tally)
        prefix = "" if name.startswith("openb") else "spot-"
        named = np.array([f"{prefix}{node}" for node in nodes.name], dtype=object)
        at = np.full(len(named), context.origin_s)
        told = np.isfinite(nodes.mem)
        yield "samples", context.samples("node_cpu_capacity_cores", at, nodes.cpu, node=named)
        yield "samples", context.samples("node_mem_capacity_bytes", at[told], nodes.mem[told] * GIB, node=named[told])
        yield "samples", context.samples("node_gpu_capacity_cards", at, nodes.gpus, node=named)
        yield "samples", context.samples("node_info", at, 1.0, node=named, detail=nodes.model)
        return
    if not name.startswith(("openb_pod", "dlrm_instances")):
        raise SourceError(
            f"{path} is no known file of alibaba_gpu", "openb_node*, openb_pod*, dlrm_instances*, spot_gpu_node*"
        )
    pods = (alibaba_gpu.read_openb_pods if name.startswith("openb") else alibaba_gpu.read_dlrm_instances)(
        path, skip_bad=skip
    )
    context.skipped(pods.skipped, tally)
    before = np.isnan(pods.created_s)
    if before.any():
        tally.skipped["pods that were there before the trace, told as created at its start"] += int(before.sum())
    size = {"cpu_cores": pods.cpu, "mem_bytes": pods.mem * GIB, "gpus": pods.gpus}
    created = context.origin_s + np.where(before, 0.0, pods.created_s)
    for action, time_s in (("create", created), ("delete", context.origin_s + pods.deleted_s)):
        yield "events", context.events("pod", action, time_s, pods.name, function=pods.app, size=size)


def _philly(path: Path, context: _Context, tally: Tally) -> Rows:
    jobs = gpu_jobs.read_philly(path, skip_bad=context.config.skip_bad)
    context.skipped(jobs.skipped, tally)
    names = [f"philly-{number:06d}" for number in range(len(jobs.gpus))]
    size = {"gpus": jobs.gpus}
    yield "events", context.events("job", "create", jobs.submitted_s, names, node=jobs.cluster, size=size)
    size["runtime_s"] = jobs.duration_s
    ended_s = jobs.submitted_s + jobs.duration_s
    yield "events", context.events("job", "delete", ended_s, names, node=jobs.cluster, size=size)


def _helios(path: Path, context: _Context, tally: Tally) -> Rows:
    vc = helios.read_vc(path, skip_bad=context.config.skip_bad)
    context.skipped(vc.skipped, tally)
    yield "samples", context.samples("node_gpu_capacity_cards", vc.time_s, vc.gpus, node=vc.vc)
    yield "samples", context.samples("node_gpu_used_cards", vc.time_s, vc.gpus_running, node=vc.vc)


def _cpn(path: Path, context: _Context, tally: Tally) -> Rows:
    skip = context.config.skip_bad
    if path.suffix == ".json":
        queue = cpn.read_queue(path, skip_bad=skip)
        context.skipped(queue.skipped, tally)
        names = [f"{path.stem}-{name}" for name in queue.name]
        time_s = np.full(len(names), context.origin_s)
        size = {"gpus": np.ones(len(names)), "data_gb": queue.data_gb, "epochs": queue.iterations}
        yield "events", context.events("job", "create", time_s, names, function=queue.model, size=size)
        return
    read = cpn.read_colocations(path, skip_bad=skip)
    context.skipped(read.skipped, tally)
    tally.skipped["shares of cpu without a number of cores"] += len(read.cpu_used)
    for metric, value in {
        "card_gpu_used_ratio": read.gpu_used,
        "card_mem_used_bytes": read.gpu_mem_used * GIB,
        "card_mem_capacity_bytes": (read.gpu_mem_used + read.gpu_mem_free) * GIB,
        "card_info": np.ones(len(read.gpu)),
    }.items():
        detail = read.gpu if metric == "card_info" else None
        yield "samples", context.samples(metric, read.time_s, value, node=read.gpu, card="0", detail=detail)
    used = read.mem_total - read.mem_available
    yield "samples", context.samples("node_mem_used_bytes", read.time_s, used, node=read.gpu)
    yield "samples", context.samples("node_mem_capacity_bytes", read.time_s, read.mem_total, node=read.gpu)


def _wfinstances(path: Path, context: _Context, tally: Tally) -> Rows:
    flow = wfinstances.read_workflow(path)
    if np.isnan(flow.executed_s):
        tally.skipped["tasks of workflows without a time"] += len(flow)
        return
    yield "tasks", _tasks(flow, context)


def _tasks(flow: wfinstances.Workflow, context: _Context) -> pa.Table:
    """Build rows of ``tasks``; a space in an id, which separates parents, becomes an underscore."""
    ids = ["_".join(task.split()) for task in flow.task]
    parents: list[list[str]] = [[] for _ in ids]
    handed: list[list[str]] = [[] for _ in ids]
    for (parent, child), mb in zip(flow.edges.tolist(), flow.edge_mb.tolist(), strict=True):
        parents[child].append(ids[parent])
        handed[child].append(repr(mb))
    columns = {
        "time": _times(np.full(len(ids), flow.executed_s)),
        "cluster": _names(context.cluster, len(ids)),
        "workflow": _names(flow.name, len(ids)),
        "task": pa.array(ids, pa.string()),
        "node": _names(flow.machine, len(ids)),
        "runtime_s": pa.array(flow.runtime_s),
        "cpu_cores": _amounts(
            np.maximum(np.ceil(flow.cpu), 1.0)
        ),  # told is what it used on average; it holds whole ones
        "mem_bytes": _amounts(flow.mem * GIB),
        "parents": pa.array([" ".join(some) or None for some in parents], pa.string()),
        "parent_mb": pa.array([" ".join(some) or None for some in handed], pa.string()),
        "input_mb": pa.array(flow.input_mb),
    }
    return raw_table(TASKS, columns)


def _vms(path: Path, context: _Context, tally: Tally) -> Rows:
    stem = path.name.partition(".")[0]
    for trace, skipped in vm.read_pieces(path, skip_bad=context.config.skip_bad):
        context.skipped(skipped, tally)
        for kind, action in enumerate(("create", "delete")):
            mine = np.flatnonzero(trace.kind == kind)
            names = [f"{stem}-{number}" for number in trace.vmid[mine].tolist()]
            size = {"cpu_cores": trace.cpu[mine], "mem_bytes": trace.mem[mine] * GIB}
            yield "events", context.events("vm", action, context.origin_s + trace.time[mine], names, size=size)


def _azure_functions(path: Path, context: _Context, tally: Tally) -> Rows:
    """Containers of a minute as pods, and the calls they answer as counters that tick every minute."""
    if not path.name.startswith("invocations"):
        return  # durations and memory are read with the invocations they belong to
    trace, skipped = azure_functions.read(path.parent, skip_bad=context.config.skip_bad)
    context.skipped(skipped, tally)
    names = np.array(trace.function_names, dtype=object)
    pods = [f"azure-{number:07d}" for number in range(len(trace))]
    size = {"cpu_cores": trace.cpu, "mem_bytes": trace.mem * GIB}
    begin_s = context.origin_s + trace.arrival_s
    for action, time_s in (("create", begin_s), ("delete", begin_s + trace.duration_s)):
        yield "events", context.events("pod", action, time_s, pods, function=names[trace.function], size=size)
    minute = (trace.arrival_s // azure_functions.MINUTE_S).astype(np.int64)
    minutes = int(minute.max()) + 1
    slot = trace.function * minutes + minute
    time_s = context.origin_s + np.tile(np.arange(minutes + 1) * azure_functions.MINUTE_S, len(names))
    for metric, each in (
        ("function_requests", trace.requests.astype(np.float64)),
        ("function_response_seconds_sum", trace.requests * trace.response_s),
    ):
        steps = np.bincount(slot, each, len(names) * minutes).reshape(len(names), minutes)
        counter = np.concatenate([np.zeros((len(names), 1)), np.cumsum(steps, axis=1)], axis=1)
        yield "samples", context.samples(metric, time_s, counter.ravel(), function=np.repeat(names, minutes + 1))


_FORMATS: dict[Format, Callable[[Path, _Context, Tally], Iterator[tuple[str, pa.Table]]]] = {
    "bitbrains": _bitbrains,
    "alibaba_genai": _alibaba_genai,
    "alibaba_gpu": _alibaba_gpu,
    "philly": _philly,
    "helios": _helios,
    "cpn": _cpn,
    "wfinstances": _wfinstances,
    "huawei": _vms,
    "azure_vm": _vms,
    "azure_functions": _azure_functions,
}
