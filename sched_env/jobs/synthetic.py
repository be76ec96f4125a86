"""Generated queues, topologies and run times for ``jobs``, so that nothing needs a download.

The models and cards are of the kinds seen in shared GPU clusters; their numbers are round ones of our own, not
measurements. Two jobs on a card slow each other down by how much of it they keep busy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sched_env.jobs.runtime import RuntimeModel
from sched_env.jobs.tables import MB_PER_GB, JobTrace, RuntimeTable, Topology

LLM_MEM_GIB = 10.0
LINK_USD_PER_GB = 0.02
LINK_MB_S = 100.0
"""Upstream's test bed has 100 MB/s links."""
CONTENTION = 0.25
"""Slow-down by a co-runner that keeps the whole card busy, before the card is full: caches and memory bandwidth."""
PATIENCE = 3.0
"""Users who withdraw a job do so within this multiple of what it takes alone."""


class Model(NamedTuple):
    """A model that jobs train."""

    name: str
    seconds: float
    """An iteration alone on a card of speed 1."""
    gpu_mem: float
    mem: float
    cpu: float
    busy: float
    """Share of a card of speed 1 it keeps busy."""
    epochs: float
    """Typical number of iterations."""
    weight: float
    """Share of the jobs."""


class Card(NamedTuple):
    """A type of card."""

    name: str
    speed: float
    llm_speed: float
    """Speed for models of ``LLM_MEM_GIB`` and more, which live on memory bandwidth and tensor cores."""
    mem: float
    usd_per_hour: float
    per_node: int


MODELS = (
    Model("cnn-small", 0.012, 1.0, 2.0, 1.0, 0.25, 6000, 0.20),
    Model("cnn-medium", 0.02, 1.5, 3.0, 1.5, 0.40, 6000, 0.20),
    Model("cnn-large", 0.04, 2.5, 4.0, 2.0, 0.60, 6000, 0.18),
    Model("detector-small", 0.06, 1.5, 4.0, 3.0, 0.35, 5500, 0.12),
    Model("detector-large", 0.08, 3.0, 4.0, 3.0, 0.70, 5500, 0.12),
    Model("transformer", 0.15, 6.0, 8.0, 2.0, 0.80, 3000, 0.08),
    Model("llm-7b", 9.0, 15.5, 16.0, 2.0, 0.85, 70, 0.05),
    Model("llm-9b", 20.0, 18.0, 20.0, 2.0, 0.95, 60, 0.05),
)
CARDS = (
    Card("P100", 0.7, 0.3, 16.0, 0.60, 2),
    Card("RTX4090", 1.0, 1.0, 24.0, 0.70, 2),
    Card("A100", 1.05, 1.2, 40.0, 1.80, 1),
    Card("A6000", 0.95, 0.7, 48.0, 0.90, 2),
)
NODE_CPU, NODE_MEM = 32.0, 128.0


def runtime(card_types: tuple[str, ...]) -> RuntimeTable:
    """Return the generated run times on these types of cards."""
    models, cards = {model.name: model for model in MODELS}, {card.name: card for card in CARDS}

    def predict(card_type: str, names: tuple[str, ...]) -> list[float]:
        card, sharing = cards[card_type], [models[name] for name in names]
        speeds = [card.llm_speed if model.gpu_mem >= LLM_MEM_GIB else card.speed for model in sharing]
        busy = [min(model.busy / speed, 1.0) for model, speed in zip(sharing, speeds, strict=True)]
        excess = max(sum(busy) - 1.0, 0.0)
        return [
            model.seconds / speed * (1.0 + CONTENTION * (sum(busy) - own) + excess)
            for model, speed, own in zip(sharing, speeds, busy, strict=True)
        ]

    return RuntimeModel(predict).table(card_types, [model.name for model in MODELS])


def topology(counts: dict[str, int], datacenters: int = 3) -> Topology:
    """Return a network with so many cards of each type, nodes dealt over the data centres in turn.

    Data come from a store outside, or from another data centre, at ``LINK_MB_S``; inside one they take no time.
    """
    cards = {card.name: card for card in CARDS}
    nodes: list[tuple[Card, int]] = []
    for name, count in counts.items():
        card = cards[name]
        nodes += [(card, min(card.per_node, count - first)) for first in range(0, count, card.per_node)]
    D, N = datacenters, len(nodes)
    sizes = [size for _, size in nodes]
    types = tuple(counts)
    link = np.full((D + 1, D + 1), LINK_MB_S)
    np.fill_diagonal(link, np.inf)
    return Topology(
        datacenters=("store", *(f"dc-{index}" for index in range(D))),
        link_mb_s=link,
        link_usd_per_gb=np.where(np.isinf(link), 0.0, LINK_USD_PER_GB),
        clusters=tuple(f"cluster-{index}" for index in range(D)),
        cluster_datacenter=np.arange(1, D + 1, dtype=np.int32),
        nodes=tuple(f"node-{index:04d}" for index in range(N)),
        node_cluster=np.arange(N, dtype=np.int32) % D,
        node_cpu=np.full(N, NODE_CPU),
        node_cpu_used=np.full(N, 0.05),
        node_mem=np.full(N, NODE_MEM),
        node_mb_s=np.full(N, np.inf),
        cards=tuple(f"node-{node:04d}-gpu{slot}" for node in range(N) for slot in range(sizes[node])),
        card_node=np.repeat(np.arange(N, dtype=np.int32), sizes),
        card_type=np.repeat(np.array([types.index(card.name) for card, _ in nodes], np.int32), sizes),
        card_mem=np.repeat([card.mem for card, _ in nodes], sizes),
        card_usd_per_hour=np.repeat([card.usd_per_hour for card, _ in nodes], sizes),
        card_types=types,
    )


def mixed(cards: int, datacenters: int = 3) -> Topology:
    """Return a network of so many cards: 40 % P100, 30 % RTX4090, 20 % A6000, the rest A100 (at least one)."""
    shares = {"RTX4090": 0.3, "P100": 0.4, "A6000": 0.2}
    counts = {name: int(share * cards) for name, share in shares.items()}
    counts["A100"] = cards - sum(counts.values())
    return topology({name: count for name, count in counts.items() if count}, datacenters)


def queue(
    rows: int,
    where: Topology,
    *,
    load: float,
    data_gb: float,
    seed: int,
    cancel_rate: float = 0.0,
    table: RuntimeTable | None = None,
) -> JobTrace:
    """Generate a queue that asks for ``load`` times what the cards can do one job at a time.

    Args:
        rows: Jobs.
        where: The network it is meant for.
        load: Above 1 the queue grows and sharing cards pays; 0: all jobs are there at the start.
        data_gb: Mean size of a job's data; log-normal. 0: nothing to move.
        seed: Names the queue.
        cancel_rate: Share of the jobs that their users withdraw; when is uniform over ``PATIENCE`` times transfer and
            run alone, so that it happens in every state, and some have ended before.
        table: Run times; the generated ones when left out.
    """
    rng = np.random.default_rng(seed)
    table = table or runtime(where.card_types)
    model = rng.choice(len(MODELS), rows, p=np.array([kind.weight for kind in MODELS]))
    column = {name: np.array([getattr(kind, name) for kind in MODELS])[model] for name in Model._fields[1:]}
    epochs = np.maximum(1.0, np.round(column["epochs"] * rng.lognormal(-0.08, 0.4, rows)))
    alone = table.seconds[:, where.card_type, 0, 0]  # [K, C]
    work = epochs * alone.mean(axis=1)[model]
    gaps = rng.exponential(float(work.mean()) / (load * len(where)), rows) if load else np.zeros(rows)
    sizes = rng.lognormal(np.log(data_gb) - 0.32, 0.8, rows) if data_gb else np.zeros(rows)
    arrival = np.cumsum(gaps)
    cancel = np.empty(0)
    if cancel_rate:
        whims = np.random.default_rng([seed, 1])  # their own: the queue is the same with and without
        alone_s = work + sizes * MB_PER_GB / LINK_MB_S
        cancel = np.where(whims.random(rows) < cancel_rate, whims.uniform(0.0, PATIENCE, rows) * alone_s, np.inf)
    return JobTrace(
        arrival_s=arrival - arrival[0],
        model=model.astype(np.int32),
        epochs=epochs,
        gpu_mem=column["gpu_mem"],
        data_gb=sizes,
        mem=column["mem"],
        cpu=column["cpu"],
        origin=rng.integers(len(where.datacenters), size=rows, dtype=np.int32),
        cancel_s=cancel,
        model_names=tuple(kind.name for kind in MODELS),
    )
