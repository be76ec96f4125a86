"""Compiles what rounds of decisions run, before the first job is there: it takes seconds, on a new machine a minute."""

from __future__ import annotations

import time
from collections.abc import Sequence

from placement.cpn.allocation import Allocator, Moment, OnCard
from placement.cpn.config import CpnSettings
from placement.cpn.records import Attempt, Job
from placement.cpn.runtimes import FromTable, Tables
from placement.cpn.topology import Network, read
from sched_env.jobs import synthetic
from sched_env.jobs.live import LiveEnv
from sched_env.jobs.raw_state import raw_fields

NETWORK = """
datacenters:
  - name: here
    clusters:
      - name: c
        nodes: [{name: n, cpu_cores: 8, mem_gib: 64, cards: [{type: P100, mem_gib: 16, count: 2}]}]
"""


def warm_up(settings: CpnSettings) -> float:
    """Run a round of a small network with the strategy of the settings; return the seconds it took."""
    began = time.perf_counter()
    network = read(NETWORK, "warm-up")
    tables = Tables(FromTable(synthetic.runtime(network.table.card_types)))
    Allocator(settings, tables).round(network, small_moment(network))
    if settings.strategy == "policy":  # of cards or of pairs: the next promotion says which
        Allocator(settings, tables, _first).round(network, small_moment(network))
        Allocator(settings, tables, _first, lambda: {"choice": "pair"}).round(network, small_moment(network))
    return time.perf_counter() - began


def _first(env: LiveEnv, _job: Job, _names: Sequence[str]) -> int:
    """Look at the candidates as a policy does, and take the first that is feasible."""
    raw_fields(env, 0)
    return int(env.buffers.mask[0].argmax())


def small_moment(network: Network) -> Moment:
    """A job on a card, two that can be placed, and a large one that cannot and may reserve."""
    small, large = synthetic.MODELS[0], max(synthetic.MODELS, key=lambda model: model.gpu_mem)
    jobs = [_job(number, small if number < 3 else large, 12.0 if number == 3 else 1.0) for number in range(4)]
    card = next(iter(network.cards.values()))
    attempt = Attempt(jobs[0].id, 1, small.name, card.cluster, card.node, card.name, "", 0.0, 0.0, None, "")
    attempt.started_at = 0.0
    held = OnCard(jobs[0], attempt, 10.0, 0.0, True)
    return Moment(1.0, [held], jobs[1:], dict.fromkeys(network.table.nodes, True))


def _job(number: int, model: synthetic.Model, gpu_mem_gib: float) -> Job:
    return Job(
        id=str(number), seq=number, tenant="", key="", name="", digest="", model=model.name, data_gb=0.0, epochs=10.0,
        gpu_mem_gib=gpu_mem_gib, mem_gib=1.0, cpu_cores=1.0, priority=0, deadline_s=None, origin="here",
        max_attempts=1, submitted_at=0.0, state="waiting", attempt=0, failures=0, card=None, promised_at=None,
        queued_at=0.0, not_before=0.0, cancel_at=None, ended_at=None, reason="",
    )  # fmt: skip
