"""The sample's GPU clusters: cards of four types, and a queue of training jobs that each take one card for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.sources.columns import SampleColumns
from pipeline.sources.sample_cluster import GIB, NodeType
from pipeline.sources.sample_machines import DAY_S, F8, I8, Life, MachineCluster, Use
from sched_env.jobs.synthetic import CARDS, LLM_MEM_GIB, MODELS, NODE_CPU, NODE_MEM, Card, Model

GPU_NODE_TYPES = tuple(
    NodeType(
        f"gpu-{card.name.lower()}", NODE_CPU, NODE_MEM, 1_250, 20_000, card.per_node,
        round(0.4 + card.per_node * card.usd_per_hour, 2),
    )
    for card in CARDS
)  # fmt: skip
"""A price of 0.40 for the machine, and that of its cards."""
NODES = ((0, 1, 2, 0), (1, 3, 0))
"""Types of the nodes of the two clusters, as indices into ``GPU_NODE_TYPES``: 7 and 6 cards."""
SHARE = (0.52, 0.48)
"""Of the jobs, as the cards can do them."""
LONGER = 4.0
"""Jobs run four times as many epochs as in the generated queues: fewer jobs keep the cards busy."""
DATA_GB = 10.0
WAVE, PEAK_HOUR = 0.6, 15.0
"""More jobs are queued in the afternoon than the cards can run: they wait, and are done in the night."""


class _Queue(NamedTuple):
    life: Life
    card: I8
    """Number of the card in its cluster."""
    begin_s: F8
    end_s: F8
    model: I8


class JobCluster(MachineCluster):
    """Jobs start in order of submission, each on the card with enough memory that is free first, alone."""

    cards = tuple(f"gpu-{slot}" for slot in range(max(card.per_node for card in CARDS)))

    def __init__(self, name: str, jobs_per_day: int, part: int, **given: Any) -> None:
        super().__init__(name, **given)
        self._types = NODES[part]
        self._jobs = jobs_per_day * SHARE[part] * len(self._days)

    @property
    def kinds(self) -> Sequence[NodeType]:
        """The GPU nodes."""
        return [GPU_NODE_TYPES[kind] for kind in self._types]

    @property
    def details(self) -> list[str]:
        """Kinds of nodes, and models of cards."""
        return [*super().details, *(card.name for card in CARDS)]

    @cached_property
    def _of_cards(self) -> tuple[I8, list[Card]]:
        """The node and the type of each card."""
        node = np.repeat(np.arange(len(self._types)), [CARDS[kind].per_node for kind in self._types])
        return node, [CARDS[self._types[index]] for index in node]

    @cached_property
    def _queue(self) -> _Queue:
        rng = self.rng("jobs")
        days = len(self._days)
        share = rng.uniform(0.0, 1.0, rng.poisson(self._jobs))
        clock = np.linspace(0.0, days * DAY_S, 24 * 60 * days + 1)
        rate = 1.0 + WAVE * np.cos((clock / 3600.0 - PEAK_HOUR) * np.pi / 12.0)
        arrival = np.sort(np.interp(share * np.sum(rate), np.cumsum(rate), clock))
        jobs = len(arrival)
        model = rng.choice(len(MODELS), jobs, p=np.array([kind.weight for kind in MODELS]))
        column = {name: np.array([getattr(kind, name) for kind in MODELS])[model] for name in Model._fields[1:]}
        epochs = np.maximum(1.0, np.round(LONGER * column["epochs"] * rng.lognormal(-0.08, 0.4, jobs)))
        data_gb = np.round(rng.lognormal(np.log(DATA_GB) - 0.32, 0.8, jobs), 2)
        gpu_mem = np.round(column["gpu_mem"] * rng.uniform(0.95, 1.05, jobs), 2)
        luck = rng.lognormal(0.0, 0.05, jobs)
        node, cards = self._of_cards
        memory = np.array([card.mem for card in cards])
        speed = np.where(
            (column["gpu_mem"] >= LLM_MEM_GIB)[:, None], [c.llm_speed for c in cards], [c.speed for c in cards]
        )
        free, chosen, begin, end = np.zeros(len(cards)), np.zeros(jobs, np.int64), np.zeros(jobs), np.zeros(jobs)
        for job in range(jobs):
            start = np.where(memory >= gpu_mem[job] + 1.0, np.maximum(free, arrival[job]), np.inf)
            card = chosen[job] = int(np.argmin(start))
            begin[job] = start[card]
            end[job] = free[card] = start[card] + epochs[job] * column["seconds"][job] / speed[job, card] * luck[job]
        size = {
            "cpu_cores": column["cpu"],
            "mem_bytes": column["mem"] * GIB,
            "gpus": np.ones(jobs),
            "gpu_mem_bytes": gpu_mem * GIB,
            "data_gb": data_gb,
            "epochs": epochs,
        }
        life = Life(
            "job",
            [f"job-{number:05d}" for number in range(jobs)],
            arrival,
            end,
            node[chosen],
            size,
            told_at_end={"runtime_s": np.round(end - begin, 3)},
            function=[MODELS[kind].name for kind in model],
            placed_when_created=False,
        )
        return _Queue(life, chosen, begin, end, model)

    def used(self) -> tuple[F8, F8]:
        """What the jobs on a node hold, and the system's own share."""
        queue = self._queue

        def held(amount: F8) -> F8:
            return self.summed(Use(queue.life.node, queue.begin_s, queue.end_s, amount), len(self._types))

        return 1.2 + held(queue.life.columns["cpu_cores"]), 6 * GIB + held(queue.life.columns["mem_bytes"])

    @cached_property
    def _on_cards(self) -> tuple[F8, F8]:
        """Share in use and bytes held of each card, [cards, minutes]."""
        queue, (_, cards) = self._queue, self._of_cards
        speed = np.array([card.speed for card in cards])[queue.card]
        busy = np.minimum(np.array([kind.busy for kind in MODELS])[queue.model] / speed, 1.0)
        shares = self.summed(Use(queue.card, queue.begin_s, queue.end_s, busy), len(cards))
        held = Use(queue.card, queue.begin_s, queue.end_s, queue.life.columns["gpu_mem_bytes"])
        return np.minimum(shares, 1.0), self.summed(held, len(cards))

    def more_samples(self, node: int, us: I8, minute: I8) -> list[SampleColumns]:
        """Samples of the node's cards."""
        of_card, cards = self._of_cards
        shares, held = self._on_cards
        mine = np.flatnonzero(of_card == node).tolist()
        used = sum(shares[card, minute] for card in mine)
        parts = [
            SampleColumns.of("node_gpu_capacity_cards", us, float(len(mine)), node=node),
            SampleColumns.of("node_gpu_used_cards", us, np.asarray(used), node=node),
        ]
        for slot, card in enumerate(mine):
            total = cards[card].mem * GIB
            values: dict[str, F8 | float] = {
                "card_gpu_used_ratio": shares[card, minute],
                "card_mem_used_bytes": np.round(np.minimum(held[card, minute] + 0.3 * GIB, total)),
                "card_mem_capacity_bytes": total,
            }
            parts += [SampleColumns.of(metric, us, value, node=node, card=slot) for metric, value in values.items()]
            detail = self.details.index(cards[card].name)
            parts.append(SampleColumns.of("card_info", us, 1.0, node=node, card=slot, detail=detail))
        return parts

    def other_tables(self, day: int) -> Iterator[tuple[str, pa.Table]]:
        """Submissions and ends."""
        yield "events", self.events(self._queue.life, day)
