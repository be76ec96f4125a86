"""Workloads of ``jobs`` from public data: the upstream controller's queues, recorded ones, and measured profiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sched_env.jobs.profiles import Measured, complete
from sched_env.jobs.tables import Floats, JobTrace, RuntimeTable
from sched_env.jobs.topology import load as load_topology
from sched_env.jobs.workload import Workload
from sched_env.traces import cpn, gpu_jobs
from wire.errors import TraceError

CARD_NAMES = {"4090": "RTX4090"}
"""Names of the profiles -> ours; others are the same."""
DATA_GB = (5.0, 60.0)
"""Range of drawn data sizes (log-uniform): every public queue says 0, upstream's examples are tens of GB."""
JOB_CORES, JOB_MEM_GIB = 2.0, 4.0
"""What a job takes of its node; the queues do not say."""
CONTEXT_GIB = 0.5
"""No job takes less: a CUDA context alone does. Some rows were measured before the model was loaded."""
COLOCATIONS, QUEUE_40, QUEUE_100 = "colocation_profiles.csv", "2-normalscale.json", "3-largescale.json"


def profiles(path: Path) -> tuple[list[Measured], dict[str, float]]:
    """Read the measured sets and the GPU memory (GiB) of each model, the largest seen when it ran alone.

    A model never seen alone gets what its sets used beyond their other models, the median over those sets.
    """
    table = cpn.read_colocations(path, skip_bad=True)
    measured: list[Measured] = []
    alone: dict[str, float] = {}
    pairs: list[tuple[tuple[str, ...], float]] = []
    for gpu, models, seconds, used in zip(table.gpu, table.model, table.seconds, table.gpu_mem_used, strict=True):
        there = [slot for slot in range(models.size) if models[slot]]
        if not there:
            continue
        names = tuple(str(models[slot]) for slot in there)
        measured.append(Measured(CARD_NAMES.get(str(gpu), str(gpu)), names, tuple(float(seconds[s]) for s in there)))
        if len(names) == 1:
            alone[names[0]] = max(alone.get(names[0], 0.0), float(used))
        elif len(names) == 2:
            pairs.append((names, float(used)))
    found = dict(alone)
    for name in sorted({name for each in measured for name in each.models} - set(alone)):
        # Only what was measured alone is subtracted: no model's memory hangs on which was looked at before it.
        rest = [
            used - sum(alone[other] for other in names if other != name)
            for names, used in pairs
            if names.count(name) == 1 and all(other in alone for other in names if other != name)
        ]
        found[name] = float(np.median(rest or list(alone.values())))
    return measured, {name: max(used, CONTEXT_GIB) for name, used in found.items()}


def cpn_workload(
    queue: Path, colocations: Path, *, draw_data: int | None = None, topology: str = "testbed", cards: int = 0
) -> Workload:
    """Return one of the public queues on the upstream's test bed with measured run times.

    Args:
        queue: ``2-normalscale.json`` or ``3-largescale.json``.
        colocations: ``colocation_profiles.csv``.
        draw_data: Seed of drawn data sizes; None: as in the file, 0.
        topology: As in a scenario.
        cards: As in a scenario.
    """
    jobs = cpn.read_queue(queue)
    data = jobs.data_gb if draw_data is None else draw_sizes(len(jobs.model), draw_data)
    nothing = np.zeros(len(jobs.model))
    return _assemble(list(jobs.model), jobs.iterations, data, nothing, colocations, topology, cards=cards)


def beside(queue: Path, topology: str, cards: int) -> Workload:
    """Return a queue in upstream's form with the measured run times that lie beside it."""
    if queue.suffix != ".json":
        raise TraceError(f"trace {queue}", "the path of a queue in upstream's form, *.json, or 'synthetic'")
    if queue.exists() and not (queue.parent / COLOCATIONS).exists():
        raise TraceError(
            f"{queue.parent} has no {COLOCATIONS}",
            "measured run times of the queue's models",
            "put them beside the queue, or make a Workload with sched_env.jobs.trace.cpn_workload",
        )
    return cpn_workload(queue, queue.parent / COLOCATIONS, topology=topology, cards=cards)


def generated_cpn_workload(
    rows: int, like: Path, colocations: Path, *, seed: int, draw_data: int | None = None, topology: str = "testbed"
) -> Workload:
    """Return a longer queue with the models and iterations of a public one, drawn with replacement."""
    jobs = cpn.read_queue(like)
    pick = np.random.default_rng(seed).integers(len(jobs.model), size=rows)
    data = np.zeros(rows) if draw_data is None else draw_sizes(rows, draw_data)
    models = [jobs.model[index] for index in pick]
    return _assemble(models, jobs.iterations[pick], data, np.zeros(rows), colocations, topology)


def philly_workload(
    philly: Path, colocations: Path, *, rows: int, seed: int, topology: str = "testbed", speed_up: float = 1.0
) -> Workload:
    """Return the single-card jobs of ``philly_jobs`` as a queue, see :func:`recorded_workload`."""
    jobs = gpu_jobs.read_philly(philly, skip_bad=True)
    return recorded_workload(jobs, colocations, rows=rows, seed=seed, topology=topology, speed_up=speed_up)


def recorded_workload(
    jobs: gpu_jobs.RecordedJobs,
    colocations: Path,
    *,
    rows: int,
    seed: int,
    topology: str = "testbed",
    speed_up: float = 1.0,
    cancellations: bool = False,
) -> Workload:
    """Return recorded single-card jobs as a queue: their times of submission and durations, models drawn from profiles.

    A job's iterations are its duration over the model's time alone on the fastest card.

    Args:
        jobs: What was recorded (``sched_env.traces.gpu_jobs``).
        colocations: ``colocation_profiles.csv``.
        rows: How many, from the first on.
        seed: Draws models and data sizes.
        topology: As in a scenario.
        speed_up: Divides the times between submissions.
        cancellations: Withdraw the jobs that were withdrawn, as long after their submission as was recorded, unless
            they have ended; their work is what they had done by then, for nobody knows what was left. Otherwise they
            run to that end.
    """
    single = np.flatnonzero((jobs.gpus == 1) & (jobs.duration_s > 60.0))[:rows]
    order = single[np.argsort(jobs.submitted_s[single], kind="stable")]
    measured, memory = profiles(colocations)
    names = sorted(memory)
    fastest = {
        name: min((each.seconds[0] for each in measured if each.models == (name,)), default=np.nan) for name in names
    }
    usable = [name for name in names if np.isfinite(fastest[name])]
    models = [usable[index] for index in np.random.default_rng(seed).integers(len(usable), size=order.size)]
    iterations = np.maximum(1.0, jobs.duration_s[order] / np.array([fastest[name] for name in models]))
    arrival = (jobs.submitted_s[order] - jobs.submitted_s[order[0]]) / speed_up
    cancel = jobs.cancel_s[order] if cancellations else None
    return _assemble(models, iterations, draw_sizes(order.size, seed), arrival, colocations, topology, cancel)


def draw_sizes(rows: int, seed: int) -> Floats:
    """Draw data sizes, log-uniform over ``DATA_GB``."""
    low, high = (float(np.log(size)) for size in DATA_GB)
    sizes: Floats = np.exp(np.random.default_rng([seed, 1]).uniform(low, high, rows))
    return sizes.round(1)


def _assemble(
    models: list[str],
    iterations: Floats,
    data_gb: Floats,
    arrival_s: Floats,
    colocations: Path,
    topology: str,
    cancel_s: Floats | None = None,
    *,
    cards: int = 0,
) -> Workload:
    measured, memory = profiles(colocations)
    where = load_topology(topology, cards)
    names = tuple(sorted(set(models)))
    unknown = [name for name in names if name not in memory]
    if unknown:
        raise TraceError(f"model {unknown[0]!r} is not in {colocations}", f"one of {', '.join(sorted(memory))}")
    table: RuntimeTable = complete(measured, where.card_types, names)
    trace = JobTrace(
        arrival_s=arrival_s,
        model=np.array([names.index(name) for name in models], np.int32),
        epochs=iterations,
        gpu_mem=np.array([memory[name] for name in models]),
        data_gb=data_gb,
        mem=np.full(len(models), JOB_MEM_GIB),
        cpu=np.full(len(models), JOB_CORES),
        cancel_s=np.empty(0) if cancel_s is None else cancel_s,
        model_names=names,
    )
    return Workload(trace, where, table)
