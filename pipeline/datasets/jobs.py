"""``jobs`` from windows: the queue of GPU jobs, the network they ran in, and how long they took there.

What windows do not say is assumed here and nowhere else: a cluster is a data centre, the data of a job lie in the one
that it was recorded in, links are those of ``sched_env.jobs.synthetic``, a card costs its node's price over the number
of its cards, and jobs that share a card slow each other down as there.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline import windows
from pipeline.datasets.dataset import Dataset, Rows
from pipeline.errors import DataError
from pipeline.prices import DEFAULT_USD_PER_HOUR
from sched_env.jobs.runtime import UNKNOWN_S
from sched_env.jobs.scenario import CpnScenario
from sched_env.jobs.synthetic import CONTENTION, LINK_MB_S, LINK_USD_PER_GB, NODE_CPU, NODE_MEM
from sched_env.jobs.tables import Floats, JobTrace, RuntimeTable, Topology
from sched_env.jobs.workload import Workload
from sched_env.scenarios import Scenario

IN_USE = 0.01
"""Share of a card in use from which it counts as busy with a job."""
EVENLY = 1.0
"""Share that a job keeps busy where cards do not report it: two jobs then share a card's time evenly."""
_NODE, _CARD, _JOB = ["cluster", "node"], ["cluster", "node", "card"], ["cluster", "entity"]


def load(folder: Path, start: datetime, end: datetime) -> Workload:
    """Load the jobs submitted in ``[start, end)`` and the cards there were; run times as known at ``end``.

    Jobs of several GPUs have no card to go to and are left out. Run times are learned from all jobs that ended before
    ``end``, those from before ``start`` included; nothing after ``end`` is seen.
    """
    cards, nodes = _cards(folder, start, end), _nodes(folder, start, end)
    jobs = _jobs(folder, end)
    known = cards.drop_duplicates([*_NODE, "model"]).drop_duplicates(_NODE, keep=False).set_index(_NODE)["model"]
    jobs = jobs.join(known.rename("card_type"), on=_NODE)
    models, types = np.unique(jobs["function"].to_numpy(str)), np.unique(cards["model"].to_numpy(str))
    alone = _alone(jobs, models, types)
    seconds = alone[:, :, None, None] * _slower(cards, len(models))
    runtime = RuntimeTable(tuple(types.tolist()), tuple(models.tolist()), seconds)
    queue = jobs[jobs["window_start"] >= pd.Timestamp(start)]
    if queue.empty:
        raise DataError(
            f"{folder} has no job of one GPU submitted between {start} and {end}",
            "events of kind job",
            "check the range, and that the source lands jobs (docs/sources.md)",
        )
    where = _topology(cards, nodes, sorted({*cards["cluster"], *queue["cluster"]}), types)
    return Workload(_queue(queue, start, alone, models, where, folder), where, runtime)


def _jobs(folder: Path, end: datetime) -> pd.DataFrame:
    """One row a job submitted before ``end``, with what its deletion tells, if that was before ``end`` too."""
    told = ["time", "kind", "action", "node", "function", "cpu_cores", "mem_gib", "gpus", "gpu_mem_gib", "data_gb"]
    columns = ["cluster", "entity", *told, "epochs", "runtime_s"]
    events = windows.read(folder, "events", windows.span(folder).start, end, columns).to_pandas()
    events = events[events["kind"] == "job"].sort_values(["time", *_JOB])
    jobs = events[events["action"] == "create"].drop_duplicates(_JOB)
    ended = events[events["action"] == "delete"].drop_duplicates(_JOB, keep="last").set_index(_JOB)
    jobs = jobs[~(jobs["gpus"] > 1)].join(ended[["time", "node", "runtime_s"]].add_suffix("_ended"), on=_JOB)
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
) -> JobTrace:
    model = np.searchsorted(models, jobs["function"].to_numpy(str))
    card = pd.Index(where.card_types).get_indexer(pd.Index(jobs["card_type"]))
    each = np.where(card >= 0, alone[model, card], np.median(alone, axis=1)[model])
    # Without its epochs a job is as long as it took; one that was still running is then not known at all.
    jobs = jobs.assign(model=model, iterations=jobs["epochs"].where(jobs["epochs"] > 0).fillna(jobs["run_s"] / each))
    memory = jobs["gpu_mem_gib"].where(jobs["gpu_mem_gib"] > 0)
    jobs = jobs.assign(memory=memory.fillna(memory.groupby(jobs["function"]).transform("median")))
    jobs = jobs[jobs["iterations"].notna()]
    unknown = jobs[jobs["memory"].isna()]
    if len(unknown):
        raise DataError(
            f"{folder}: no job of the model {unknown['function'].iloc[0]!r} says its GPU memory",
            "gpu_mem_gib with at least one job of every model",
            "have the source land gpu_mem_bytes with the creation of jobs",
        )
    if jobs.empty:
        raise DataError(f"{folder}: no job from {start} on has epochs or an end", "jobs whose length is known")
    return JobTrace(
        arrival_s=np.asarray((jobs["time"] - pd.Timestamp(start)).dt.total_seconds(), np.float64),
        model=jobs["model"].to_numpy(np.int32),
        epochs=jobs["iterations"].to_numpy(np.float64),
        gpu_mem=jobs["memory"].to_numpy(np.float64),
        data_gb=jobs["data_gb"].fillna(0.0).to_numpy(np.float64),
        mem=jobs["mem_gib"].fillna(0.0).to_numpy(np.float64),
        cpu=jobs["cpu_cores"].fillna(0.0).to_numpy(np.float64),
        origin=pd.Index(where.datacenters).get_indexer(pd.Index(jobs["cluster"])).astype(np.int32),
        model_names=tuple(models.tolist()),
    )


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
    return rows[fitting[rows + rules.episode_jobs] > fitting[rows]]


def times_s(workload: Workload, rows: Rows) -> NDArray[np.float64]:
    """When jobs were submitted."""
    return workload.jobs.arrival_s[rows]


def scaled(workload: Workload, load: float) -> Workload:
    """Let jobs come ``load`` times as densely; each is as long as before."""
    jobs = workload.jobs
    return workload._replace(jobs=dataclasses.replace(jobs, arrival_s=jobs.arrival_s / load))


DATASET = Dataset(load, starts, times_s, scaled)
