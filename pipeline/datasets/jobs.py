"""``jobs`` from windows: the queue of GPU jobs, the network they ran in, and how long they took there.

What windows do not say is assumed here and nowhere else: the data of a job lie in the cluster that it was recorded in,
a card costs its node's price over the number of its cards, and jobs that share a card slow each other down as in
``sched_env.jobs.synthetic``, times what calibration found. Clusters are separate domains: nobody measures the links
between them, so a job stays in its own (its model runs on no card of another).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline import windows
from pipeline.contracts.calibration import Calibration
from pipeline.contracts.evaluation import Origin
from pipeline.datasets.copies import Copies, mean_over, numbered
from pipeline.datasets.dataset import Dataset, Rows, later
from pipeline.datasets.lives import lives
from pipeline.datasets.origins import Tally
from pipeline.errors import DataError
from pipeline.model_folder import MEASURED_FILE
from pipeline.prices import DEFAULT_USD_PER_HOUR
from sched_env import scenarios
from sched_env.jobs.runtime import UNKNOWN_S
from sched_env.jobs.scenario import CpnScenario
from sched_env.jobs.synthetic import CONTENTION, LINK_MB_S, LINK_USD_PER_GB, NODE_CPU, NODE_MEM
from sched_env.jobs.tables import Floats, Indices, JobTrace, RuntimeTable, Topology
from sched_env.jobs.workload import Workload
from sched_env.scenarios import Scenario
from wire.contracts import decode

IN_USE = 0.01
"""Share of a card in use from which it counts as busy with a job."""
EVENLY = 1.0
"""Share that a job keeps busy where cards do not report it: two jobs then share a card's time evenly."""
_OF_NODES = ("node_cluster", "node_cpu", "node_cpu_used", "node_mem", "node_mb_s")
_NODE, _CARD, _JOB = ["cluster", "node"], ["cluster", "node", "card"], ["cluster", "entity"]
COLOCATION = "colocation_gain"
ERRORS_SEED = 17
AT_ONCE_S = 1.0
"""A job that begins so soon before another one's end came after it: times are rounded."""

ABOUT: dict[str, tuple[str, str]] = {
    "model": ("mean_completion_s", "the model (events of jobs), or the owner of GPU pods"),
    "length": ("mean_completion_s", "epochs with the submission of jobs, or their ends"),
    "run time of an epoch": ("mean_completion_s", "ends of jobs with runtime_s, on nodes of one type of card"),
    "GPU memory": ("mean_completion_s", "gpu_mem_bytes with jobs, or DCGM_FI_DEV_FB_USED"),
    "data": ("", "data_gb with the submission of jobs"),
    "recorded card": ("", "the card of each job, which no exporter tells: it is one that was free on its node"),
    "starting state": ("mean_completion_s", "ends of jobs, with node and runtime_s"),
    "card size": ("mean_completion_s", "DCGM_FI_DEV_FB_USED and _FREE"),
    "price": ("", "ingest.prices: a CSV of instance_type and usd_per_hour"),
}
"""Feature -> what it decides and what would measure it."""


class MeasuredErrors(msgspec.Struct, frozen=True):
    """What is read of that file."""

    log_error_quantiles: tuple[float, ...] = ()
    """Evenly spaced quantiles of log(predicted / happened)."""


def load(folder: Path, start: datetime, end: datetime) -> Workload:
    """Load the jobs submitted in ``[start, end)`` and the cards there were; run times as known at ``end``.

    Jobs of several GPUs have no card to go to and are left out. Run times are learned from all jobs that ended before
    ``end``, those from before ``start`` included; nothing after ``end`` is seen. Jobs submitted before that were
    running or waiting at ``start`` come first, at times below 0: episodes begin with what was there.
    """
    return _load(folder, start, end, Tally())


def origins(folder: Path, start: datetime, end: datetime) -> list[Origin]:
    """Say where the numbers of a span come from."""
    tally = Tally()
    _load(folder, start, end, tally)
    return [Origin(name, *counts, *ABOUT[name]) for name, counts in tally.counts.items()]


def _load(folder: Path, start: datetime, end: datetime, tally: Tally) -> Workload:
    cards, nodes = _cards(folder, start, end), _nodes(folder, start, end)
    jobs = _jobs(folder, end)
    known = cards.drop_duplicates([*_NODE, "model"]).drop_duplicates(_NODE, keep=False).set_index(_NODE)["model"]
    jobs = jobs.join(known.rename("card_type"), on=_NODE)
    models, types = np.unique(jobs["function"].to_numpy(str)), np.unique(cards["model"].to_numpy(str))
    alone = _alone(jobs, models, types)
    seconds = alone[:, :, None, None] * _slower(cards, len(models))
    first = pd.Timestamp(start)
    if not (jobs["time"] >= first).any():
        raise DataError(
            f"{folder} has no job of one GPU submitted between {start} and {end}",
            "events of kind job, or pods that ask for a GPU",
            "check the range, and that the source lands jobs (docs/sources.md)",
        )
    queue = jobs[(jobs["time"] >= first) | (jobs["time_ended"] > first)]
    clusters = sorted({*cards["cluster"], *queue["cluster"]})
    where = _topology(cards, nodes, clusters, types)
    # Names are always spelled with their cluster here, and elsewhere where there are several.
    names = where.nodes if len(clusters) > 1 else [name.partition("/")[2] for name in where.nodes]
    where = dataclasses.replace(where, node_up=windows.up(folder, start, end, clusters, names))
    queue = _queue(queue, start, alone, models, where, folder)
    trace = _recorded(queue, start, where, tuple(models.tolist()))
    _count(tally, queue, cards, nodes, start)
    runtime = RuntimeTable(tuple(types.tolist()), tuple(models.tolist()), seconds)
    return _apart(Workload(trace, where, runtime)) if len(clusters) > 1 else Workload(trace, where, runtime)


def _apart(workload: Workload) -> Workload:
    """Make clusters domains of their own: models and types of cards are spelled with theirs, and never meet."""
    jobs, where, runtime = workload.jobs, workload.topology, cast(RuntimeTable, workload.runtime)
    card_cluster = where.node_cluster[where.card_node]
    D, K, T = len(where.clusters), len(runtime.model_names), len(runtime.card_types)
    # The data centre of a job is its cluster; one without cards has no domain, and its jobs fit nowhere.
    domain = {int(d): k for k, d in enumerate(where.cluster_datacenter)}
    of_job = np.array([domain.get(int(d), D) for d in jobs.origin])
    names = [*where.clusters, "-"]
    pairs = np.unique(np.stack([of_job, jobs.model], axis=1), axis=0)
    kinds = np.unique(np.stack([card_cluster, where.card_type], axis=1), axis=0)
    model, kind = pairs[:, 1], kinds[:, 1]
    beside = np.append(0, model + 1)
    seconds = runtime.seconds[np.ix_(model, kind, beside, beside)]
    seconds[pairs[:, :1] != kinds[:, 0]] = np.inf
    spelled = tuple(f"{names[d]}/{runtime.model_names[k]}" for d, k in pairs.tolist())
    types = tuple(f"{names[d]}/{runtime.card_types[k]}" for d, k in kinds.tolist())
    number = np.full((D + 1, K), -1)
    number[pairs[:, 0], model] = np.arange(len(pairs))
    place = np.full((D, T), -1)
    place[kinds[:, 0], kind] = np.arange(len(kinds))
    return Workload(
        dataclasses.replace(jobs, model=number[of_job, jobs.model], model_names=spelled),
        dataclasses.replace(where, card_type=place[card_cluster, where.card_type], card_types=types),
        RuntimeTable(types, spelled, seconds),
    )


def _jobs(folder: Path, end: datetime) -> pd.DataFrame:
    """One row a job submitted before ``end``, with what its deletion tells, if that was before ``end`` too."""
    told = ["time", "kind", "action", "node", "function", "cpu_cores", "mem_gib", "gpus", "gpu_mem_gib", "data_gb"]
    columns = ["cluster", "entity", *told, "epochs", "runtime_s"]
    events = windows.read(folder, "events", windows.span(folder).start, end, columns).to_pandas()
    events = events[events["kind"] == "job"].sort_values(["time", *_JOB])
    jobs = events[events["action"] == "create"].drop_duplicates(_JOB)
    ended = events[events["action"] == "delete"].drop_duplicates(_JOB, keep="last").set_index(_JOB)
    jobs = jobs.join(ended[["time", "node", "runtime_s"]].add_suffix("_ended"), on=_JOB)
    if jobs.empty:
        jobs = _gpu_pods(folder, end)
    jobs = jobs[~(jobs["gpus"] > 1)]
    nameless = jobs[jobs["function"].isna()]
    if len(nameless):
        raise DataError(
            f"{folder}: {len(nameless)} of {len(jobs)} jobs have no model, e.g. {nameless['entity'].iloc[0]}",
            "the model of every job, in the column function of its event",
            "have the source name it (docs/sources.md); run times are known by model",
        )
    took = (jobs["time_ended"] - jobs["time"]).dt.total_seconds()
    run = jobs["runtime_s_ended"].where(jobs["runtime_s_ended"] > 0).fillna(took)
    known: pd.DataFrame = jobs.assign(node=jobs["node_ended"].fillna(jobs["node"]), run_s=run.where(run > 0))
    return known


def _gpu_pods(folder: Path, end: datetime) -> pd.DataFrame:
    """Pods that ask for a GPU, where no source tells of jobs: a workload is a model, and a life is a run."""
    start = windows.span(folder).start
    pods = windows.frame_of(folder, "pods", start, end, ["pod", "node", "gpu_request_cards"])
    pods = pods[pods["gpu_request_cards"] > 0]
    cards = windows.frame_of(folder, "cards", start, end, ["node", "gpu_mem_used_max_gib"])
    used = cards.groupby(["window_start", *_NODE])["gpu_mem_used_max_gib"].max()
    memory = pods.join(used, on=["window_start", *_NODE]).groupby(["cluster", "pod"])
    asked = memory.agg(gpus=("gpu_request_cards", "max"), gpu_mem_gib=("gpu_mem_used_max_gib", "max"))
    rows = lives(folder, start, end).join(asked, on=_JOB, how="inner")
    begin, finish = (pd.Timestamp(start) + pd.to_timedelta(rows[name], unit="s") for name in ("begin_s", "end_s"))
    return rows.rename(columns={"cpu": "cpu_cores", "mem": "mem_gib"}).assign(
        time=begin,
        time_ended=finish.where(rows["ended"]),
        node_ended=rows["node"],
        runtime_s_ended=np.nan,
        data_gb=np.nan,
        epochs=np.nan,
    )


def _alone(jobs: pd.DataFrame, models: NDArray[np.str_], types: NDArray[np.str_]) -> Floats:
    """Seconds an iteration of each model on each type of card: the median of its jobs there.

    Where a model has not been seen on a type, it is as much faster or slower there as other models are; a model of
    which no job says its epochs has iterations of a second.
    """
    seen = jobs[(jobs["epochs"] > 0) & jobs["run_s"].notna() & jobs["card_type"].notna()]
    each = (seen["run_s"] / seen["epochs"]).groupby([seen["function"], seen["card_type"]]).median()
    table = each.unstack().reindex(index=models, columns=types).to_numpy(np.float64)
    model, card = np.nonzero(~np.isnan(table))
    # Least squares of log seconds = model + type of card.
    terms = np.zeros((len(model), len(models) + len(types)))
    terms[np.arange(len(model)), model] = terms[np.arange(len(card)), len(models) + card] = 1.0
    solved = np.linalg.lstsq(terms, np.log(table[model, card]))[0]
    of_model, of_type = solved[: len(models)], solved[len(models) :]
    seen_model, seen_type = np.isin(np.arange(len(models)), model), np.isin(np.arange(len(types)), card)
    # Only their sum is known: types are put around 0, where one that was never seen is too.
    usual = of_type[seen_type].mean() if seen_type.any() else 0.0
    of_model = np.where(seen_model, of_model + usual, np.log(UNKNOWN_S))
    of_type = np.where(seen_type, of_type - usual, 0.0)
    return np.where(np.isnan(table), np.exp(np.add.outer(of_model, of_type)), table)


def _slower(cards: pd.DataFrame, models: int) -> Floats:
    """Factors by which none, one or two co-runners slow a job down, [T, K + 1, K + 1]; types in order of name."""
    busy = cards.groupby("model")["busy"].mean().fillna(EVENLY).to_numpy(np.float64)[:, None, None]
    others = (np.arange(models + 1) > 0).astype(np.float64)
    others = others[:, None] + others
    return 1.0 + CONTENTION * busy * others + np.maximum(busy * (1.0 + others) - 1.0, 0.0)


def _queue(
    jobs: pd.DataFrame, start: datetime, alone: Floats, models: NDArray[np.str_], where: Topology, folder: Path
) -> pd.DataFrame:
    """Return the jobs whose length and memory are known, with their ``model`` and ``iterations``, in order of time."""
    model = np.searchsorted(models, jobs["function"].to_numpy(str))
    card = pd.Index(where.card_types).get_indexer(pd.Index(jobs["card_type"]))
    each = np.where(card >= 0, alone[model, card], np.median(alone, axis=1)[model])
    # Without its epochs a job is as long as it took; one that was still running is then not known at all.
    jobs = jobs.assign(model=model, iterations=jobs["epochs"].where(jobs["epochs"] > 0).fillna(jobs["run_s"] / each))
    memory = jobs["gpu_mem_gib"].where(jobs["gpu_mem_gib"] > 0)
    jobs = jobs.assign(memory=memory.fillna(memory.groupby(jobs["function"]).transform("median")))
    jobs = jobs[jobs["iterations"].notna()].sort_values(["time", *_JOB])
    unknown = jobs[jobs["memory"].isna()]
    if len(unknown):
        raise DataError(
            f"{folder}: no job of the model {unknown['function'].iloc[0]!r} says its GPU memory",
            "gpu_mem_gib with at least one job of every model",
            "have the source land gpu_mem_bytes with the creation of jobs",
        )
    if not (jobs["time"] >= pd.Timestamp(start)).any():
        raise DataError(f"{folder}: no job from {start} on has epochs or an end", "jobs whose length is known")
    return jobs


def _recorded(jobs: pd.DataFrame, start: datetime, where: Topology, models: tuple[str, ...]) -> JobTrace:
    """Make the queue, with where and when each job was recorded to run."""
    arrival, ended = (
        np.asarray((jobs[name] - pd.Timestamp(start)).dt.total_seconds(), np.float64) for name in ("time", "time_ended")
    )
    began = ended - jobs["run_s"].to_numpy(np.float64)
    began = np.where(began < arrival + AT_ONCE_S, arrival, began)
    at = pd.Index(where.nodes).get_indexer(pd.Index(jobs["cluster"] + "/" + jobs["node"]))
    memory = jobs["memory"].to_numpy(np.float64)
    return JobTrace(
        arrival_s=arrival,
        model=jobs["model"].to_numpy(np.int32),
        epochs=jobs["iterations"].to_numpy(np.float64),
        gpu_mem=memory,
        data_gb=jobs["data_gb"].fillna(0.0).to_numpy(np.float64),
        mem=jobs["mem_gib"].fillna(0.0).to_numpy(np.float64),
        cpu=jobs["cpu_cores"].fillna(0.0).to_numpy(np.float64),
        origin=pd.Index(where.datacenters).get_indexer(pd.Index(jobs["cluster"])).astype(np.int32),
        card=_cards_of(at, began, ended, memory, where),
        began_s=began,
        ended_s=ended,
        model_names=models,
    )


def _cards_of(node: NDArray[np.int64], began: Floats, ended: Floats, memory: Floats, where: Topology) -> Indices:
    """Find a card for each job whose node and times are known: of those of its node, the one that was free first.

    A job that found none free shares the one with the fewest jobs on it.
    """
    card = np.full(node.size, -1, np.int32)
    until: list[list[float]] = [[] for _ in range(len(where))]
    order = np.argsort(began, kind="stable")
    for job in order[(node[order] >= 0) & np.isfinite(began[order])].tolist():
        mine = np.flatnonzero((where.card_node == node[job]) & (where.card_mem >= memory[job]))
        for c in mine.tolist():
            until[c] = [time for time in until[c] if time > began[job] + AT_ONCE_S]
        if mine.size:
            card[job] = min(mine.tolist(), key=lambda c: len(until[c]))
            until[card[job]].append(ended[job])
    return card


def _count(tally: Tally, jobs: pd.DataFrame, cards: pd.DataFrame, nodes: pd.DataFrame, start: datetime) -> None:
    """Count where the numbers of the queue, of what was there before, and of the cards come from."""
    before = (jobs["time"] < pd.Timestamp(start)).to_numpy()
    asked = jobs[~before]
    some = np.ones(len(asked), bool)
    placed = (jobs["run_s"].notna() & jobs["node"].notna()).to_numpy()
    tally.add("model", some)
    tally.add("length", (asked["epochs"] > 0).to_numpy(), asked["run_s"].notna().to_numpy())
    seen = jobs[(jobs["epochs"] > 0) & jobs["run_s"].notna()]["function"]
    # A job without epochs has iterations of a second, as many as it took: their time is as good as its length.
    timed = asked["function"].isin(set(seen)) | (~(asked["epochs"] > 0) & asked["run_s"].notna())
    tally.add("run time of an epoch", np.zeros(len(asked), bool), timed.to_numpy())
    tally.add("GPU memory", (asked["gpu_mem_gib"] > 0).to_numpy(), some)
    tally.add("data", asked["data_gb"].notna().to_numpy())
    tally.add("recorded card", np.zeros(len(jobs), bool), placed)
    tally.add("starting state", np.zeros(len(jobs), bool), placed)
    tally.add("card size", np.ones(len(cards), bool))
    tally.add("price", nodes["price_usd_per_hour"].reindex(pd.MultiIndex.from_frame(cards[_NODE])).notna().to_numpy())


def _cards(folder: Path, start: datetime, end: datetime) -> pd.DataFrame:
    """Each card as it was last, in order of cluster, node and name, with the mean share in which it was busy."""
    columns = ["model", "gpu_mem_capacity_gib", "gpu_used_mean_ratio"]
    seen = windows.read(folder, "cards", start, end, [*_CARD, *columns]).to_pandas()
    busy = seen["gpu_used_mean_ratio"].where(seen["gpu_used_mean_ratio"] > IN_USE).groupby([seen[k] for k in _CARD])
    cards = seen[seen["gpu_mem_capacity_gib"] > 0].sort_values([*_CARD, "window_start"])
    cards = cards.drop_duplicates(_CARD, keep="last", ignore_index=True).fillna({"model": "unknown"})
    if cards.empty:
        raise DataError(
            f"{folder} has no GPU card with its memory between {start} and {end}",
            "cards with gpu_mem_capacity_gib",
            "check that the source reports cards (DCGM: DCGM_FI_DEV_FB_USED and _FREE)",
        )
    joined: pd.DataFrame = cards.join(busy.mean().rename("busy"), on=_CARD)
    return joined


def _nodes(folder: Path, start: datetime, end: datetime) -> pd.DataFrame:
    """Capacity and price of each node as it was last, and the least that it was seen to use: not the jobs' share."""
    amounts = ["cpu_capacity_cores", "mem_capacity_gib", "net_capacity_mb_s", "price_usd_per_hour"]
    used = ["cpu_used_mean_cores", "mem_used_mean_gib"]
    nodes = windows.read(folder, "nodes", start, end, [*_NODE, *amounts, *used]).to_pandas()
    nodes = nodes.sort_values("window_start").groupby(_NODE)
    joined: pd.DataFrame = nodes[amounts].last().join(nodes[used].min())
    return joined


def _topology(cards: pd.DataFrame, nodes: pd.DataFrame, centres: list[str], types: NDArray[np.str_]) -> Topology:
    homes = cards[_NODE].drop_duplicates(ignore_index=True)
    table = homes.join(nodes, on=_NODE)
    cpu = table["cpu_capacity_cores"].fillna(NODE_CPU)
    mem = table["mem_capacity_gib"].fillna(NODE_MEM)
    held = table["mem_used_mean_gib"].fillna(0.0).clip(upper=0.9 * mem)
    clusters = np.unique(homes["cluster"].to_numpy(str))
    node_names, card_names = (_spelled(frame, names) for frame, names in ((homes, _NODE), (cards, _CARD)))
    on = pd.Index(node_names).get_indexer(pd.Index(_spelled(cards, _NODE)))
    price = table["price_usd_per_hour"].fillna(DEFAULT_USD_PER_HOUR).to_numpy(np.float64)
    link = np.full((len(centres), len(centres)), LINK_MB_S)
    np.fill_diagonal(link, np.inf)
    return Topology(
        datacenters=tuple(centres),
        link_mb_s=link,
        link_usd_per_gb=np.where(np.isinf(link), 0.0, LINK_USD_PER_GB),
        clusters=tuple(clusters.tolist()),
        cluster_datacenter=pd.Index(centres).get_indexer(pd.Index(clusters)).astype(np.int32),
        nodes=tuple(node_names),
        node_cluster=np.searchsorted(clusters, homes["cluster"].to_numpy(str)).astype(np.int32),
        node_cpu=cpu.to_numpy(np.float64),
        node_cpu_used=(table["cpu_used_mean_cores"].fillna(0.0) / cpu).clip(0.0, 1.0).to_numpy(np.float64),
        node_mem=(mem - held).to_numpy(np.float64),
        node_mb_s=table["net_capacity_mb_s"].fillna(np.inf).to_numpy(np.float64),
        cards=tuple(card_names),
        card_node=on.astype(np.int32),
        card_type=np.searchsorted(types, cards["model"].to_numpy(str)).astype(np.int32),
        card_mem=cards["gpu_mem_capacity_gib"].to_numpy(np.float64),
        card_usd_per_hour=(price / np.bincount(on, minlength=len(price)))[on],
        card_types=tuple(types.tolist()),
    )


def _spelled(frame: pd.DataFrame, names: list[str]) -> list[str]:
    return ["/".join(row) for row in frame[names].itertuples(index=False)]


def starts(workload: Workload, scenario: Scenario) -> Rows:
    """Jobs that have a whole episode from them on, of which at least one fits the largest card."""
    rules, jobs = cast(CpnScenario, scenario), workload.jobs
    fits = jobs.gpu_mem + rules.gpu_mem_margin_gib <= workload.topology.card_mem.max()
    fitting = np.append(0, np.cumsum(fits))
    rows = np.arange(max(len(jobs) - rules.episode_jobs + 1, 0))
    return rows[(fitting[rows + rules.episode_jobs] > fitting[rows]) & (jobs.arrival_s[rows] >= 0.0)]


def times_s(workload: Workload, rows: Rows) -> NDArray[np.float64]:
    """When jobs were submitted."""
    return workload.jobs.arrival_s[rows]


def scaled(workload: Workload, load: float) -> Workload:
    """Let jobs come ``load`` times as densely; each is as long as before, so the record holds no more."""
    if load == 1.0:
        return workload
    jobs, nobody = workload.jobs, np.empty(0, np.int32)
    arrival = jobs.arrival_s / load
    return workload._replace(
        jobs=dataclasses.replace(jobs, arrival_s=arrival, card=nobody, began_s=np.empty(0), ended_s=np.empty(0)),
        topology=dataclasses.replace(workload.topology, up_s=workload.topology.up_s / load),
    )


def resized(workload: Workload, scenario: Scenario, factor: float) -> tuple[Workload, Scenario]:
    """Let there be ``factor`` times as many nodes with cards, and queues as many times as long and as dense."""
    dense, top = scaled(workload, factor), workload.topology
    on = np.searchsorted(top.card_node, np.arange(len(top.nodes)))  # the first card of each node
    kind = top.node_cluster * len(top.card_types) + top.card_type[on]  # what a job can run on may be of one kind alone
    copies = Copies.of(factor, kind, top.card_mem[on], np.bincount(top.card_node))
    cards = [np.flatnonzero(top.card_node == node) for node in copies.source]
    chosen = np.concatenate(cards)
    grown = dataclasses.replace(
        top,
        nodes=numbered([top.nodes[node] for node in copies.source]),
        **{name: getattr(top, name)[copies.source] for name in _OF_NODES},
        cards=numbered([top.cards[card] for card in chosen]),
        card_node=np.repeat(np.arange(len(cards)), [len(each) for each in cards]),
        **{name: getattr(top, name)[chosen] for name in ("card_type", "card_mem", "card_usd_per_hour")},
        node_up=dense.topology.node_up[:, copies.source],
        up_s=dense.topology.up_s,
    )
    count = max(round(cast(CpnScenario, scenario).episode_jobs * factor), 1)
    return dense._replace(topology=grown), scenarios.load(scenario, {"episode_jobs": count})


def asked(workload: Workload, scenario: Scenario, rows: Rows) -> NDArray[np.float64]:
    """Mean of the GPU memory that the jobs of an episode need."""
    every = np.ones(len(workload.jobs), np.bool_)
    return mean_over(workload.jobs.gpu_mem, every, rows, cast(CpnScenario, scenario).episode_jobs)


def brings(workload: Workload) -> Mapping[str, Any]:
    """Episodes begin within the span: not with the jobs that were there before it."""
    return {"start_min": int(np.searchsorted(workload.jobs.arrival_s, 0.0))}


def calibrated(workload: Workload, found: Calibration) -> Workload:
    """Let jobs that share a card slow each other down as much as was found."""
    gain = next((value.value for value in found.values if value.name == COLOCATION), 1.0)
    runtime = cast(RuntimeTable, workload.runtime)
    alone = runtime.seconds[:, :, :1, :1]
    with np.errstate(invalid="ignore"):  # what cannot run at all stays so
        seconds = np.where(np.isfinite(runtime.seconds), alone + gain * (runtime.seconds - alone), np.inf)
    return workload._replace(runtime=dataclasses.replace(runtime, seconds=seconds))


def believed(workload: Workload, models: Path, _folder: Path, _span: windows.Span) -> Workload:
    """Let schedulers see run times with the error that the runtime model was measured to have on held-out sets.

    Its error, not its answers: the truth of a simulation is its own table. An error is drawn once for each set, from
    the quantiles of the measured ones, the same whenever the table is the same.
    """
    path = models / "runtime" / MEASURED_FILE
    if not path.exists():
        return workload
    runtime = cast(RuntimeTable, workload.runtime)
    errors = np.array(decode(path.read_bytes(), MeasuredErrors, source=str(path)).log_error_quantiles)
    if not errors.size:
        return workload
    drawn = np.random.default_rng(ERRORS_SEED).choice(errors, runtime.seconds.shape)
    # Beside the same two, in whichever order: one set, one error.
    drawn = np.where(np.tri(drawn.shape[-1], dtype=bool), drawn, drawn.swapaxes(-1, -2))
    return workload._replace(predicted=dataclasses.replace(runtime, seconds=runtime.seconds * np.exp(drawn)))


DATASET = Dataset(
    load,
    starts,
    times_s,
    scaled,
    origins=origins,
    calibrated=calibrated,
    believed=believed,
    fit=later("pipeline.calibrate.jobs", "fit"),
    check=later("pipeline.calibrate.jobs", "check"),
    brings=brings,
    decisive={COLOCATION: "mean_completion_s"},
    resized=resized,
    asked=asked,
    asked_in="GiB of GPU memory",
)
