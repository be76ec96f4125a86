"""Public traces as pod traces: Bitbrains VMs, Alibaba GenAI pods, Alibaba GPU pods.

None of them says everything. What is missing is derived by one rule each, given below and in docs/pods.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.pods.tables import WINDOW_S, PodTrace, offsets
from sched_env.tables import Floats, NodeTable
from sched_env.traces import alibaba_genai, alibaba_gpu, bitbrains
from wire.errors import TraceError

GIB = 1024.0**3
FILL = 0.6
"""Share of the derived nodes' memory that is requested when most pods are there: there is room to move."""
GENAI_POD_GIB = 32.0
"""Memory of a GenAI pod, whose use is told as a share; as ``assume_pod_mem_gib`` of the pipeline's source."""
GENAI_FILES = ("pod_gpu_duty_cycle_anon", "pod_memory_util_anon")
GPU_PODS, GPU_NODES = "openb_pod_list_default", "openb_node_list_all_node"
GPU_WINDOWS = 2016
"""A week: where the trace has most pods."""
GPU_USE = (0.1, 0.9)
"""A GPU pod's mean use as a share of its request, drawn: the trace tells only requests."""
GPU_SWING = 0.3
"""Spread of that use from window to window (of its logarithm)."""


class Samples(NamedTuple):
    """What pods used, sample by sample; one entry each."""

    time_s: Floats
    pod: NDArray[np.int64]
    cpu: Floats
    mem: Floats
    duration_s: Floats


def read(path: Path, *, pods_per_node: int, load: float, seed: int = 0) -> tuple[PodTrace, NodeTable]:
    """Read a folder of one of the public traces.

    Args:
        path: ``rnd-2013-8`` of Bitbrains, ``alibaba-genai-pods`` or ``alibaba-gpu-k8s``.
        pods_per_node: Where nodes are derived: how many pods for each.
        load: Where nodes are derived: mean share of their cpu in use.
        seed: Names what is drawn.
    """
    if find(path, GENAI_FILES[0]):
        return _genai(path, pods_per_node, load)
    if find(path, GPU_PODS):
        return _gpu(path, load, seed)
    files = sorted(path.glob("*.csv*")) if path.is_dir() else []
    if files:
        return _bitbrains(files, pods_per_node, load)
    raise TraceError(f"{path} is no known pod trace", "a folder of Bitbrains, Alibaba GenAI or Alibaba GPU files")


def find(folder: Path, stem: str) -> Path | None:
    """Return the file of this name in a folder, gzipped or not."""
    return next((folder / f"{stem}{end}" for end in (".csv", ".csv.gz") if (folder / f"{stem}{end}").exists()), None)


def _bitbrains(files: Sequence[Path], pods_per_node: int, load: float) -> tuple[PodTrace, NodeTable]:
    """Take each VM as a pod and each five-minute sample as one request that lasts the window.

    A VM requests the most it ever had provisioned. It is there from its first sample to its last; a window without a
    sample repeats the one before.
    """
    parts: list[Samples] = []
    names: list[str] = []
    requests: list[tuple[float, float]] = []
    for file in files:
        vm = bitbrains.read_vm(file, skip_bad=True)
        if np.isnan(vm.cpu_used).any() or vm.cpu_capacity.max(initial=0.0) <= 0.0:
            continue  # it never had a cpu
        window = np.floor(vm.time_s / WINDOW_S).astype(np.int64)
        last = {int(w): k for k, w in enumerate(window)}  # of two samples in a window the later counts
        every = np.arange(window.min(), window.max() + 1)
        known = np.array(sorted(last))
        row = np.array([last[int(w)] for w in known])[np.searchsorted(known, every, side="right") - 1]
        pod = np.full(every.size, len(names), np.int64)
        parts.append(
            Samples(every * WINDOW_S, pod, vm.cpu_used[row], vm.mem_used[row] / GIB, np.full(every.size, WINDOW_S))
        )
        names.append(vm.vm)
        requests.append((float(vm.cpu_capacity.max()), float(vm.mem_capacity.max()) / GIB))
    if not parts:
        raise TraceError(f"{files[0].parent} has no VM with a cpu", "files of Bitbrains GWA-T-12")
    return _derived(_joined(parts), names, np.array(requests), pods_per_node, load)


def _genai(path: Path, pods_per_node: int, load: float) -> tuple[PodTrace, NodeTable]:
    """Take each sample as a request that lasts until the next scrape; the GPU's duty cycle stands for cpu.

    A pod requests one card (its ``cpu``) and ``GENAI_POD_GIB``. Pods that tell only one of the metrics are left out.
    """
    duty, memory = (
        alibaba_genai.read_metric(found, skip_bad=True)
        for found in (find(path, stem) for stem in GENAI_FILES)
        if found is not None
    )
    names = sorted(set(duty.pod.astype(str)) & set(memory.pod.astype(str)) - {""})
    number = {name: k for k, name in enumerate(names)}
    at = {(pod, float(time)): value for pod, time, value in zip(memory.pod, memory.time_s, memory.value, strict=True)}
    rows = sorted(
        (float(time), number[pod], max(float(value), 0.0) / 100.0, max(at[pod, float(time)], 0.0) * GENAI_POD_GIB)
        for pod, time, value in zip(duty.pod, duty.time_s, duty.value, strict=True)
        if pod in number and (pod, float(time)) in at
    )
    if not rows:
        raise TraceError(f"{path} has no pod with duty cycle and memory at one time")
    time, pod, cpu, mem = (np.array(column) for column in zip(*rows, strict=True))
    samples = Samples(time, pod.astype(np.int64), cpu, mem, np.full(time.size, alibaba_genai.STEP_S))
    return _derived(samples, names, np.tile([1.0, GENAI_POD_GIB], (len(names), 1)), pods_per_node, load)


def _gpu(path: Path, load: float, seed: int) -> tuple[PodTrace, NodeTable]:
    """Take the pods of the busiest week with their own requests and lives; what they use is drawn.

    Nodes are taken evenly from the inventory, as many as are needed for ``load`` at the busiest window and for the
    largest pod. Where a pod was is not told: it comes to the node with most memory left.
    """
    pods_file, nodes_file = find(path, GPU_PODS), find(path, GPU_NODES)
    if pods_file is None or nodes_file is None:
        raise TraceError(f"{path} has no {GPU_NODES}", f"{GPU_PODS} and {GPU_NODES}")
    pods, inventory = (
        alibaba_gpu.read_openb_pods(pods_file, skip_bad=True),
        alibaba_gpu.read_openb_nodes(nodes_file, skip_bad=True),
    )
    born = np.floor(np.nan_to_num(pods.created_s, nan=0.0) / WINDOW_S).astype(np.int64)
    horizon = np.nanmax(np.concatenate([pods.created_s, pods.deleted_s]))
    gone = np.ceil(np.nan_to_num(pods.deleted_s, nan=horizon) / WINDOW_S).astype(np.int64)
    gone = np.maximum(gone, born + 1)
    alive = np.cumsum(np.bincount(born, minlength=gone.max() + 1) - np.bincount(gone, minlength=gone.max() + 1))
    week = np.convolve(alive, np.ones(min(GPU_WINDOWS, alive.size)), "valid").argmax()
    there = np.flatnonzero((born < week + GPU_WINDOWS) & (gone > week) & (pods.cpu > 0) & (pods.mem > 0))
    born, gone = np.maximum(born[there], week), np.minimum(gone[there], week + GPU_WINDOWS)
    life = gone - born
    rng = np.random.default_rng(seed)
    pod = np.repeat(np.arange(there.size), life)
    time = (np.arange(pod.size) - np.repeat(offsets(life)[:-1], life) + np.repeat(born, life)).astype(
        np.float64
    ) * WINDOW_S
    use = np.clip(
        np.repeat(rng.uniform(*GPU_USE, there.size), life) * rng.lognormal(0.0, GPU_SWING, (2, pod.size)), 0.0, 1.0
    )
    samples = Samples(
        time, pod, pods.cpu[there][pod] * use[0], pods.mem[there][pod] * use[1], np.full(pod.size, WINDOW_S)
    )
    requests = np.stack([pods.cpu[there], pods.mem[there]], axis=1)
    names = [str(name) for name in pods.name[there]]
    trace = _trace(samples, names, requests, np.full(there.size, -1))
    asked_cpu, asked_mem = _busiest(trace)
    for count in range(2, len(inventory.name) + 1):
        chosen = np.linspace(0, len(inventory.name) - 1, count).astype(np.int64)
        cpu, mem = inventory.cpu[chosen], inventory.mem[chosen]
        if cpu.sum() * load >= asked_cpu and mem.sum() * FILL >= asked_mem and mem.max() >= requests[:, 1].max():
            break
    return trace, _table([str(name) for name in inventory.name[chosen]], cpu, mem)


def _joined(parts: Sequence[Samples]) -> Samples:
    return Samples(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _busiest(trace: PodTrace) -> tuple[float, float]:
    """Return the most cpu in use, and the most memory requested, in any window."""
    starts = trace.window_rows[:-1]
    return float(np.add.reduceat(trace.cpu_used, starts).max()), float(np.add.reduceat(trace.mem_request, starts).max())


def _derived(
    samples: Samples, names: Sequence[str], requests: Floats, pods_per_node: int, load: float
) -> tuple[PodTrace, NodeTable]:
    """Put the pods on equal nodes, dealt in the order of their names, sized by load and by what is requested."""
    count = max(-(-len(names) // pods_per_node), 2)
    trace = _trace(samples, names, requests, np.arange(len(names)) % count)
    mean_cpu = float(trace.cpu_used.sum()) / len(trace)
    most_mem = _busiest(trace)[1]
    cpu = np.full(count, mean_cpu / count / load)
    mem = np.full(count, max(most_mem / count / FILL, 1.1 * float(requests[:, 1].max())))
    return trace, _table([f"node-{n:03d}" for n in range(count)], cpu, mem)


def _table(names: Sequence[str], cpu: Floats, mem: Floats) -> NodeTable:
    size = len(names)
    return NodeTable(tuple(names), cpu, mem, np.full(size, 1000.0), np.full(size, 5000.0), np.ones(size))


def _trace(samples: Samples, names: Sequence[str], requests: Floats, node: NDArray[np.int64]) -> PodTrace:
    """Lay samples out by window, pod and time; a pod is in a window in which it has a sample."""
    window = np.floor(samples.time_s / WINDOW_S).astype(np.int64)
    order = np.lexsort((samples.time_s, samples.pod, window))
    window, pod = window[order], samples.pod[order]
    begins = np.flatnonzero(np.append(True, (window[1:] != window[:-1]) | (pod[1:] != pod[:-1])))
    counts = np.diff(np.append(begins, order.size))
    of_window, first_rows = np.unique(window[begins], return_index=True)
    cpu, mem, row_pod = samples.cpu[order], samples.mem[order], pod[begins]
    return PodTrace(
        window_s=(of_window - of_window[0]) * WINDOW_S,
        window_rows=np.append(first_rows, begins.size),
        pod=row_pod.astype(np.int32),
        node=node[row_pod].astype(np.int32),
        cpu_request=requests[row_pod, 0],
        mem_request=requests[row_pod, 1],
        cpu_used=np.add.reduceat(cpu, begins) / counts,
        mem_used=np.add.reduceat(mem, begins) / counts,
        row_requests=offsets(counts),
        arrival_offset_s=samples.time_s[order] - window * WINDOW_S,
        duration_s=samples.duration_s[order],
        cpu=cpu,
        mem=mem,
        pod_names=tuple(names),
    )
