"""What the job controller costs: a decision over 1,000 cards, 10,000 queued jobs, 100,000 finished ones in the store.

With ``policy`` a network of the shipped size, untrained, is asked over pairs as the service asks it, scores included;
it is shown 64 jobs.

    python benchmarks/cpn_overhead.py --out docs/results

Times are CPU time of the process, so that a busy machine matters less.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from placement.cpn.allocation import Allocator, Moment, OnCard
from placement.cpn.books import Books
from placement.cpn.config import CpnSettings
from placement.cpn.records import Attempt, Job
from placement.cpn.runtimes import FromTable, Tables
from placement.cpn.service import _by_policy, pairs_of
from placement.cpn.store import ATTEMPTS, JOBS, JobStore
from placement.cpn.topology import Network
from placement.cpn.topology import read as read_topology
from placement.decide import Decider
from placement.decision_log import DecisionLog
from placement.live import Live
from placement.metrics import Metrics
from placement.policy import open_policy
from placement.settings import Settings
from sched_env import problems
from sched_env.jobs import pairs, synthetic
from wire import bundle, sample_bundle
from wire.errors import run_cli

SHOWN = {"choice": "pair", "queue_order": "shortest", "reservation": "big", "shown_jobs": 64}
STRATEGIES = ("fifo", "min_completion_time", "min_completion_time_reserve", "easy_backfill", "shortest_predicted_first")


def network_of(cards: int) -> Network:
    kinds = [card for card in synthetic.CARDS if card.name in ("P100", "RTX4090")]
    nodes = [
        {
            "name": f"n{number:04d}", "cpu_cores": 64, "mem_gib": 512,
            "cards": [{"type": kinds[number % 2].name, "mem_gib": kinds[number % 2].mem, "count": 4}],
        }
        for number in range(cards // 4)
    ]  # fmt: skip
    places = [{"name": f"dc{c}", "clusters": [{"name": f"c{c}", "nodes": nodes[c::4]}]} for c in range(4)]
    return read_topology(yaml.safe_dump({"datacenters": places}), "overhead")


def a_job(number: int, model: synthetic.Model) -> Job:
    return Job(
        id=f"{number:020x}", seq=number, tenant="t", key=str(number), name=f"job-{number}", digest="", model=model.name,
        data_gb=float(number % 7), epochs=model.epochs, gpu_mem_gib=model.gpu_mem, mem_gib=model.mem,
        cpu_cores=model.cpu, priority=0, deadline_s=None, origin="dc0", max_attempts=3, submitted_at=number * 1e-3,
        state="waiting", attempt=0, failures=0, card=None, promised_at=None, queued_at=0.0, not_before=0.0,
        cancel_at=None, ended_at=None, reason="",
    )  # fmt: skip


def on_cards(network: Network, share: float) -> list[OnCard]:
    """Return one or two jobs on a share of the cards."""
    found = []
    names = list(network.cards.values())
    for number, card in enumerate(names[: int(len(names) * share)]):
        for k in range(1 + number % 2):
            job = a_job(1_000_000 + 2 * number + k, synthetic.MODELS[number % 4])
            job.state = "running"
            attempt = Attempt(
                job.id, 1, job.model, card.cluster, card.node, card.name, "", 0.0, 0.0, None, "", started_at=1.0
            )
            found.append(OnCard(job, attempt, 1000.0, 1.0, True))
    return found


def cpu_s(function: Callable[[], Any], times: int) -> float:
    took = []
    for _ in range(times):
        began = time.process_time()
        function()
        took.append(time.process_time() - began)
    return float(np.median(took))


class Alone:
    """One untrained policy of pairs that is always live."""

    def __init__(self) -> None:
        import torch  # here, so that it is not in the controller's memory

        from pipeline.policies.onnx_graph import to_onnx
        from pipeline.policies.scorer import Scorer

        torch.manual_seed(0)
        policy = to_onnx(Scorer(pairs.SPEC, 64), pairs.SPEC)
        files = sample_bundle.assemble(pairs.SPEC, policy, params={"workload": {"overrides": SHOWN}})
        self._live = Live(policy=open_policy(bundle.check(files, problems.spec), "none"))

    def get(self, _: str) -> Live:
        """Return it."""
        return self._live


def by_policy(tables: Tables, folder: Path) -> Allocator:
    """Return an allocator that asks the policy, as the service's does."""
    live, settings, metrics = Alone(), Settings(log_dir=folder), Metrics()
    decider = Decider(live, settings, metrics, DecisionLog(settings, metrics))  # type: ignore[arg-type]
    return Allocator(
        CpnSettings(topology="", strategy="policy"),
        tables,
        _by_policy(decider),
        lambda: pairs_of(live.get("jobs").policy),
    )


def memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def fill(store: JobStore, finished: int) -> None:
    """Write finished jobs straight into the tables."""
    with store._engine.begin() as connection:
        for start in range(0, finished, 5_000):
            jobs, attempts = [], []
            for number in range(start, min(start + 5_000, finished)):
                job = a_job(5_000_000 + number, synthetic.MODELS[number % 8])
                job.state, job.attempt, job.ended_at = "finished", 1, 100.0
                values = {name: getattr(job, name) for name in Job.__dataclass_fields__}
                jobs.append({**values, "manifest": "{}"})
                attempt = Attempt(
                    job.id, 1, job.model, "c0", "n0000", f"c0/n0000/gpu{number % 4}", "fifo", 1.0, 1.0, 90.0, "", 1.0,
                    1.0, 2.0, 100.0, "finished", exported=1,
                )  # fmt: skip
                attempts.append({name: getattr(attempt, name) for name in Attempt.__dataclass_fields__})
            connection.execute(JOBS.insert(), jobs)
            connection.execute(ATTEMPTS.insert(), attempts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", type=int, default=1000)
    parser.add_argument("--queued", type=int, default=10_000)
    parser.add_argument("--finished", type=int, default=100_000)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    network = network_of(options.cards)
    up = dict.fromkeys(network.table.nodes, True)
    tables = Tables(FromTable(synthetic.runtime(network.table.card_types)))
    result: dict[str, Any] = {"cards": len(network.cards), "load_average": os.getloadavg()[0], "one_job_ms": {}}
    half = on_cards(network, 0.5)
    for strategy in options.strategies.split(","):
        allocator = Allocator(CpnSettings(topology="", strategy=strategy), tables)
        moment = Moment(100.0, half, [a_job(1, synthetic.MODELS[2])], up)
        allocator.round(network, moment)  # compiles, and makes the environment
        result["one_job_ms"][strategy] = round(1e3 * cpu_s(partial(allocator.round, network, moment), 9), 2)
    full = on_cards(network, 1.0)
    before = memory_mib()
    queued = [a_job(number, synthetic.MODELS[number % 8]) for number in range(options.queued)]
    allocator = Allocator(CpnSettings(topology="", strategy="easy_backfill"), tables)
    crowded = Moment(100.0, full, queued, up)
    allocator.round(network, crowded)
    result["round_with_queue_ms"] = round(1e3 * cpu_s(lambda: allocator.round(network, crowded), 3), 1)
    result["queued"] = options.queued
    result["memory_mib"] = round(memory_mib(), 1)
    result["memory_of_queue_mib"] = round(memory_mib() - before, 1)
    with tempfile.TemporaryDirectory() as folder:
        for finished in (0, options.finished):
            store = JobStore(f"sqlite:///{folder}/jobs-{finished}.db")
            fill(store, finished)
            store.lead()
            for number in range(200):
                store.accept(a_job(number, synthetic.MODELS[0]), "{}", 1_000)
            given = itertools.count(200)

            def submit_and_schedule(store: JobStore = store, given: Iterator[int] = given) -> None:
                job = a_job(next(given), synthetic.MODELS[0])
                store.accept(job, "{}", 10_000)
                store.touched_since(job.seq - 1)
                with store.step("bench") as step:
                    attempt = Attempt(job.id, 1, job.model, "c0", "n0", "c0/n0/gpu0", "", 1.0, 1.0, None, "")
                    step.begin_attempt(attempt)
                    step.move(job, "scheduled", 1.0, attempt=1)

            result[f"step_ms_with_{finished}_finished"] = round(1e3 * cpu_s(submit_and_schedule, 51), 3)
            result[f"restart_ms_with_{finished}_finished"] = round(1e3 * cpu_s(partial(Books.read, store), 3), 1)
            store.close()
    with tempfile.TemporaryDirectory() as folder:
        allocator = by_policy(tables, Path(folder))
        for count, times in ((1, 9), (64, 2)):
            waiting = [a_job(1 + number, synthetic.MODELS[(2 + number) % 8]) for number in range(count)]
            moment = Moment(100.0, half, waiting, up)
            placed = len(allocator.round(network, moment).decisions)
            took_ms = 1e3 * cpu_s(partial(allocator.round, network, moment), times)
            result["one_job_ms"][f"policy, {count} waiting"] = round(took_ms / max(placed, 1), 2)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "cpn_overhead.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    run_cli(main)
