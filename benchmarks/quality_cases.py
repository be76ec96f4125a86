"""What ``quality.py`` trains and tests on: splits, seeds and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env import scenarios
from sched_env.functions import trace as function_traces
from sched_env.jobs import trace as job_traces
from sched_env.jobs.tables import RuntimeTable
from sched_env.jobs.workload import Workload
from sched_env.workflow import trace as workflow_traces
from sched_env.workflow.tables import Dag

SEEDS = 5
"""Trainings of every kind, but those of the front."""
NIGHTS, NIGHT = 3, 2
"""Nights as they end, where they are judged too, and the trainings of each."""
AZURE = "azure-functions-2019"
HORIZON = 1000
"""Decisions of an episode of functions."""
TRAIN, VALIDATION = 0.5, 0.62
"""Ends of the train and validation parts of a trace; the rest is test."""
STUDENT_GOES_ON = {"decisions": 40, "states": 16_000, "segments": 2, "student_from": 2, "kept": 1, "student_share": 0.9,
                   "polish": 40}  # fmt: skip
"""Of functions: the first segment improves on the rule, the second on the student of the first. A third makes things
worse at 10 nodes (docs/decisions/0049-learn-what-was-tried.md), whole episodes do not (decision 62)."""
FRONT_BETAS, FRONT_SEEDS, FRONT = (0.1, 0.3, 0.5, 0.7, 0.9), 5, ("cost_usd", "response_ratio")
"""Weights of latency against cost, the most trainings of each, and what their front is of."""
FRONT_BASE = "first_fit"
"""The rule by which trials of the front's students go on. At beta 0.1 (validation, seed 0) a student of it is cheaper
than one of the best rule, and as fast: 1.111 USD and 3.59 times the standard time against 1.125 and 3.60."""
QUEUE = 100
ROWS = 50_000
"""Jobs drawn from the public queue: the first 20,000 train, the next 10,000 validate, the last 20,000 test."""
ERROR, LLM_ERROR = 0.028, 0.098
"""Mean absolute error of the runtime predictor on sets it has not seen, and of its language models
(docs/results/runtime_model.md)."""
LANGUAGE_MODELS = ("glm4", "llama3", "qwen2.5")


@dataclass(frozen=True)
class Part:
    """Episodes to be judged on."""

    scenario: scenarios.Scenario
    trace: Any
    starts: NDArray[np.int64]
    blocks: NDArray[np.int64]
    """Which episodes hang together: neighbours in time, or each for itself where queues were drawn apart."""
    rules: Mapping[str, scenarios.Scenario] = field(default_factory=dict)
    """Rules that are run in another scenario than the policy, e.g. because they run the queue in their own way."""
    ahead: int = 24
    """Episodes in which to look ahead at every decision, which is what a policy saves: the square of their length."""


@dataclass(frozen=True)
class Case:
    """One problem: what is trained on, judged on, and by what."""

    problem: str
    train: tuple[scenarios.Scenario, Any]
    validation: Part
    tests: Mapping[str, Part]
    primary: str
    shown: Mapping[str, float]
    """Further metrics -> the margin within which each must not be worse."""
    settings: Mapping[str, Any]
    """Over the algorithm's file."""
    other: tuple[str, Mapping[str, Any]] = ("", MappingProxyType({}))
    """The control with another rule to begin at: its name, and what changes in the settings."""
    targets: Mapping[str, float] = field(default_factory=dict)
    """Test -> least gain on the primary metric, as a share."""
    algorithm: str = "expert"
    within: bool = False
    """Whether validation chooses within half of the margins above over the best rule, as a night does."""
    nights: int = 0
    """Nights of two trainings each, of seeds of their own, of which the better on validation is judged: what ships."""


def _spread(first: int, last: int, count: int) -> NDArray[np.int64]:
    return np.linspace(first, last - HORIZON, count).astype(np.int64)


def functions(data: Path, *, beta: float = 0.7, tests: int = 96) -> Case:
    """Azure's arrivals on 10 nodes, tested on 10 and 23 from the same starts; blocks of consecutive episodes."""
    parts = {}
    for nodes in (10, 23):
        world = scenarios.load("functions/serverless", {"horizon": HORIZON, "nodes": nodes, "beta": beta})
        parts[nodes] = world, function_traces.load(data / AZURE, world)  # type: ignore[arg-type]
    world, trace = parts[10]
    rows = trace[0].arrival_s.size
    train_end, validation_end = int(TRAIN * rows), int(VALIDATION * rows)
    train = scenarios.load(world, {"start_min": 0, "start_max": train_end - HORIZON})
    held = _spread(validation_end, rows, tests)
    # Instances live for a minute, containers for ten: what happens in one stretch of 1,000 arrivals (11 minutes) does
    # not reach the one after the next; a block is all starts within 1,000 rows.
    blocks = (held - held[0]) // HORIZON
    return Case(
        "functions",
        (train, trace),
        Part(world, trace, _spread(train_end, validation_end, 32), np.arange(32)),
        {f"{nodes} nodes": Part(*parts[nodes], held, blocks) for nodes in parts},
        "return",
        {"sla_violation_rate": 0.05, "cost_usd": 0.01},
        STUDENT_GOES_ON,
        ("least_allocated", {"base": "least_allocated"}),
        {"10 nodes": 0.04, "23 nodes": 0.06},
        nights=NIGHTS,
    )


def mistaken(table: RuntimeTable, seed: int) -> RuntimeTable:
    """Return what a predictor with the measured error would say instead of the truth: the same for a set every time."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=table.seconds.shape)
    noise = (noise + noise.transpose(0, 1, 3, 2)) / np.sqrt(2.0)
    spread = np.array([LLM_ERROR if name in LANGUAGE_MODELS else ERROR for name in table.model_names])
    # The mean of |normal| is its deviation x sqrt(2 / pi).
    factor = np.exp(noise * spread[:, None, None, None] * np.sqrt(np.pi / 2.0))
    return RuntimeTable(table.card_types, table.model_names, table.seconds * factor)


PAIRS = {"choice": "pair", "shown_jobs": QUEUE, "queue_order": "shortest"}


def _queues(load: Workload, count: int, starts: NDArray[np.int64], ahead: int = 0) -> Part:
    """Return queues of so many jobs; rules of cards run them in their own order."""
    chosen = scenarios.load("jobs/testbed", {"episode_jobs": count, **PAIRS})
    plain = scenarios.load("jobs/testbed", {"episode_jobs": count})
    return Part(chosen, load, starts, np.arange(starts.size), dict.fromkeys(RULES_OF_CARDS, plain), ahead)


def jobs(data: Path, *, tests: int = 200) -> Case:
    """Queues drawn from the public one, pairs of a waiting job and a card; longer queues, Philly, mistaken times.

    Trained and validated with a predictor's errors; judged with the truth, and with errors of another draw.
    """
    profiles, like = data / "cpn-gpu-profiles" / job_traces.COLOCATIONS, data / "cpn-job-queues" / job_traces.QUEUE_100
    drawn = job_traces.generated_cpn_workload(ROWS, like, profiles, seed=1)
    train = scenarios.load("jobs/testbed", {"episode_jobs": QUEUE, **PAIRS, "start_max": 20_000 - QUEUE})
    starts = np.arange(30_000, ROWS, QUEUE)[:tests]
    longer = job_traces.generated_cpn_workload(20 * 500, like, profiles, seed=2)
    philly = job_traces.philly_workload(
        data / "gpu-jobs" / "philly_jobs.csv.gz", profiles, rows=6_000, seed=3, speed_up=PHILLY_SPEED_UP
    )
    believed, learned = (drawn._replace(predicted=mistaken(drawn.runtime, seed)) for seed in (4, 5))  # type: ignore[arg-type]
    philly_starts = np.arange(0, philly.jobs.arrival_s.size - QUEUE, 2 * QUEUE)[:24]
    return Case(
        "jobs",
        (train, learned),
        _queues(learned, QUEUE, np.arange(20_000, 30_000, QUEUE)[:48]),
        {
            "resampled queues": _queues(drawn, QUEUE, starts, 8),
            "mistaken predictions": _queues(believed, QUEUE, starts, 8),
            "500 jobs": _queues(longer, 500, np.arange(0, 20 * 500, 500)),
            "Philly arrivals": _queues(philly, QUEUE, philly_starts),
        },
        "mean_completion_s",
        {"makespan_s": 0.02, "oom": 0.0},
        JOBS_SEARCH,
        ("shortest_predicted_first", {"start": SHORTEST_FIRST}),
        dict.fromkeys(("resampled queues", "mistaken predictions", "500 jobs", "Philly arrivals"), 0.10),
        "evolution",
        within=True,
    )


PHILLY_ENDS = (10_000, 12_400, 20_000)
"""Ends of the parts that train, validate and test where Philly learns from jobs of its own, by number of the job."""


def philly(data: Path) -> Case:
    """Philly's single-card jobs, learned from earlier ones of their own, as a night of such a cluster would."""
    trace, profiles = data / "gpu-jobs" / "philly_jobs.csv.gz", data / "cpn-gpu-profiles" / job_traces.COLOCATIONS
    first, second, end = PHILLY_ENDS
    load = job_traces.philly_workload(trace, profiles, rows=end, seed=3, speed_up=PHILLY_SPEED_UP)
    truth: RuntimeTable = load.runtime  # type: ignore[assignment]
    believed, learned = (load._replace(predicted=mistaken(truth, seed)) for seed in (4, 5))
    train = scenarios.load("jobs/testbed", {"episode_jobs": QUEUE, **PAIRS, "start_max": first - QUEUE})
    # Every second queue: jobs of days reach into the one that follows.
    starts = np.arange(second, end - QUEUE, 2 * QUEUE)
    return Case(
        "jobs",
        (train, learned),
        _queues(learned, QUEUE, np.arange(first, second - QUEUE, QUEUE // 2)),
        {"later jobs": _queues(load, QUEUE, starts, 8), "mistaken predictions": _queues(believed, QUEUE, starts)},
        "mean_completion_s",
        {"makespan_s": 0.02, "oom": 0.0},
        JOBS_SEARCH,
        ("shortest_predicted_first", {"start": SHORTEST_FIRST}),
        dict.fromkeys(("later jobs", "mistaken predictions"), 0.10),
        "evolution",
        within=True,
    )


def workflow(data: Path, *, beta: float = 0.7) -> Case:
    """Recorded workflows on four nodes, split by instance; some kinds of workflows are a test of their own alone.

    Within a kind instances are sorted by size; of each five two train, one validates and two test. Those that train,
    the largest left out, are joined by copies whose run times and data were drawn anew around the recorded ones.
    """
    world = scenarios.load("workflow/dag", {"beta": beta, "horizon": 0})
    dags, nodes = workflow_traces.load(data / "wfinstances", world)  # type: ignore[arg-type]
    kinds: dict[str, list[Dag]] = {}
    for dag in dags:
        kinds.setdefault(dag.name.split("-")[0], []).append(dag)
    parts: dict[str, list[Dag]] = {"train": [], "validation": [], "test": [], "unseen": []}
    for kind, found in kinds.items():
        for place, dag in enumerate(sorted(found, key=lambda each: (len(each), each.name))):
            if len(found) == 1 or kind == UNSEEN:  # nextflow has one instance of each kind
                parts["unseen"].append(dag)
            else:
                parts[("train", "test", "train", "validation", "test")[place % 5]].append(dag)
    small = [dag for dag in parts["train"] if len(dag) <= MOST_TASKS]
    known = [*small, *(_like(dag, seed) for seed in range(COPIES) for dag in small)]
    train = scenarios.load(world, {"start_min": 0, "start_max": len(known)})

    def part(name: str) -> Part:
        chosen = parts[name]
        # Instances of one kind and size are the same graph run again.
        alike = [(dag.name.split("-")[0], len(dag)) for dag in chosen]
        blocks = np.array([sorted(set(alike)).index(each) for each in alike])
        return Part(world, (tuple(chosen), nodes), np.arange(len(chosen)), blocks)

    return Case(
        "workflow",
        (train, (tuple(known), nodes)),
        part("validation"),
        {"other instances": part("test"), "unseen kinds": part("unseen")},
        "return",
        {"response_ratio": 0.0, "cost_ratio": 0.0},
        WORKFLOW_SEARCH,
        algorithm="evolution",
    )


WORKFLOW_BETAS = (0.1, 0.3, 0.7)
WORKFLOW_TERMS = [{"late": 1.0, "slack": -1.0}, {"cost": 1.0}, {"late": 1.0}, {"growth": 1.0}, {"run": 1.0}]
THRIFTY = [-0.9, -0.1, -1e-6, 0.0, 0.0]
"""Where the search over weights of those terms begins: the rule ``thrifty``, the best on validation."""
WORKFLOW_SEARCH = {"terms": WORKFLOW_TERMS, "start": THRIFTY, "hidden": 8, "envs": 48, "segments": 3, "generations": 4}
UNSEEN = "soykb"
COPIES, MOST_TASKS = 4, 350
"""Copies of each workflow that trains, and their size: a trial goes on to the end, so it costs the square of that."""


def _like(dag: Dag, seed: int) -> Dag:
    """Return a workflow like another: run times drawn around its own, task by task, and more or less data in all."""
    rng = np.random.default_rng([seed, len(dag), int(dag.runtime_s.sum())])
    data = float(np.exp(rng.normal(0.0, 0.5)))
    return replace(
        dag,
        name=f"{dag.name}-{seed}",
        runtime_s=dag.runtime_s * np.exp(rng.normal(0.0, 0.3, len(dag))),
        edge_mb=dag.edge_mb * data,
        input_mb=dag.input_mb * data,
    )


JOBS_TERMS = [
    {"completion_s": 1 / 600}, {"wait": 50.0},
    {"delay_s": 1 / 40}, {"alone_s": 1 / 80}, {"shared_s": 1 / 80}, {"busy_s": 1 / 80}, {"transfer_s": 1 / 80},
    {"gpu_mem": 1 / 2}, {"gpu_mem_after": 1 / 2}, {"jobs": 2.5}, {"best_s": 1 / 80}, {"waited_s": 1 / 80},
    {"slot": 1.0}, {"estimate_s": 1 / 80, "best_s": -1 / 80}, {"cpu": 1.0}, {"estimate_s": 1 / 80}, {"harm_s": 1 / 40},
]  # fmt: skip
"""What a pair would be: its end, what it does to those on the card, the job, the card, how long it has waited. Those
that the rules below do not look at are written larger, because the first draws of their weights are small."""
MIN_MIN = [-1.0, -1.0, *[0.0] * 15]
SHORTEST_FIRST = [-0.1, -1.0, *[0.0] * 10, -1.0, *[0.0] * 4]
"""Where the search begins, and where its control does: the pair that ends first; the first in line where it ends first.
To wait comes last in both."""
JOBS_SEARCH = {"terms": JOBS_TERMS, "start": MIN_MIN, "hidden": 24, "envs": 32, "segments": 5, "generations": 5,
               "population": 20, "spread": 0.2, "beside": {"makespan_s": 0.5}}  # fmt: skip

VM_TRAIN, VM_VALIDATION, VM_TEST = 50_000, 70_000, 110_000
"""Ends of the parts of huawei-east-1, by the number of the VM."""
VM_QUEUE = {5: 870, 20: 5_000}
"""Servers -> VMs from the start of one queue to that of the next; longer than nearly all."""
VM_REST = (("vm/fading", 5), ("vm/fading", 20), ("vm/recovering", 5), ("vm/recovering", 20))
VM_HOURS, VM_PLACEMENTS = ("vm/recovering-l", "vm/expanding"), 4_000
"""Where server hours are counted, and the placements of such an episode: everything is placed."""
VM_TERMS = [
    {"occupied_s": 1.0 / 86_400.0},
    {"cpu_free": 1 / 40, "cpu_per_half": -1 / 40, "other_cpu_free": -1 / 40},
    {"cpu_free": -1 / 40, "cpu_per_half": 1 / 40, "other_cpu_free": 1 / 40},
    {"mem_free": 1 / 90, "mem_per_half": -1 / 90, "other_mem_free": -1 / 90},
    {"mem_free": -1 / 90, "mem_per_half": 1 / 90, "other_mem_free": 1 / 90},
    {"cpu_free": 1 / 40},
    {"mem_free": 1 / 90},
    {"other_cpu_free": 1 / 40},
    {"occupied": 1.0},
]
NUMA_FIRST_FIT = [1.0, -1e-5, -1e-5, -1e-5, -1e-5, 0.0, 0.0, 0.0, 0.0]
"""``numa_first_fit`` for a scorer that sees no order: the server that was empty longest ago, in it the half that leaves
the halves most alike."""
VM_SEARCH = {"terms": VM_TERMS, "start": NUMA_FIRST_FIT, "hidden": 16, "envs": 16, "segments": 3, "generations": 4}

PODS_LOADS = {"generated": 0.58, "Bitbrains": 0.5}
"""At which the rule leaves 5 to 15 % of the positions in violation."""
PODS_TRACES = ((*range(6), *range(40, 70)), (*range(10, 16), *range(70, 88)), range(20, 32))
"""Seeds of the generated traces that train, validate and test; 8 starts each."""
PODS_ENDS, PODS_STARTS = (0, 1 / 2, 9 / 14, 1), (16, 12, 24)
"""Parts of Bitbrains by time, and starts in each."""
PODS_FURTHER = range(200, 224)
"""Generated test traces beside those: not looked at before the search was what it is."""
PODS_EPISODE = 48
"""Windows."""

RULES_OF_CARDS = ("fifo", "round_robin", "min_completion_time", "min_completion_time_reserve", "memory_best_fit",
                  "easy_backfill", "least_attained_service", "gavel_lp", "shortest_predicted_first",
                  "fifo_exclusive", "kube_default", "random_feasible")  # fmt: skip
"""Run with a card for the job that their own queue offers, as whole schedulers; ``min_min`` chooses pairs."""
PHILLY_SPEED_UP = 20.0
"""Philly had thousands of cards; on nine its arrivals are as dense as the cards can serve at about this."""
