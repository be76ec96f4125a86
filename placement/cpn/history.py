"""What happened, as raw tables for the nightly run: finished jobs as ``events``, cards and nodes as ``samples``.

Parquet in the columns of the raw contract (docs/cpn.md says how ``ingest`` reads them). A row may be written twice when
the controller dies between writing and noting it; the cleaning merges copies, since a row says nothing but facts.
Samples are what the books and Prometheus say of a minute; those of the last minutes may be lost with the process.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from placement.cpn.books import Books
from placement.cpn.records import Attempt, Job
from placement.cpn.states import ON_A_CARD
from placement.cpn.store import JobStore
from placement.cpn.topology import Network
from placement.kube.objects import GIB

log = logging.getLogger(__name__)

EVERY_S = 300.0
"""A file of what has ended: a window's length."""
SAMPLE_S = 60.0
AT_ONCE = 1000
EVENT_NUMBERS = ("cpu_cores", "mem_bytes", "gpus", "gpu_mem_bytes", "data_gb", "epochs", "runtime_s")
EVENT_TEXTS = ("cluster", "entity", "kind", "action", "node", "function")
SAMPLE_TEXTS = ("cluster", "metric", "node", "card", "detail")

Row = dict[str, Any]


class History(threading.Thread):
    """Writes what has ended, and what there is.

    Args:
        store: Where it is.
        folder: Where it goes.
        seen: Returns samples of this moment; none: only events are written.
    """

    def __init__(self, store: JobStore, folder: Path, seen: Callable[[], Sequence[Row]] | None = None) -> None:
        super().__init__(name="cpn history", daemon=True)
        self._store, self._folder, self._seen = store, folder, seen
        self._samples: list[Row] = []
        self._stopped = threading.Event()

    def run(self) -> None:
        """Write for ever."""
        written_at = time.monotonic()
        while not self._stopped.wait(SAMPLE_S):
            self.sample()
            if time.monotonic() - written_at >= EVERY_S:
                written_at = time.monotonic()
                self._try()

    def stop(self) -> None:
        """Write what is left, and end."""
        self._stopped.set()
        if self.is_alive():
            self.join(timeout=10)
        self._try()

    def _try(self) -> None:
        try:
            self.write()
        except OSError as error:
            log.warning("history: %s; tried again in %g s", error, EVERY_S)

    def sample(self) -> None:
        """Note what there is now."""
        if self._seen is not None:
            self._samples += self._seen()

    def write(self) -> int:
        """Write what has not been written; return how many attempts. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        written = 0
        while ended := self._store.to_export(AT_ONCE):
            made = [row for attempt, job in ended for row in rows(attempt, job)]
            _write(self._folder, "events", made, EVENT_TEXTS, EVENT_NUMBERS)
            self._store.mark_exported(attempt for attempt, _ in ended)
            written += len(ended)
        samples = self._samples
        if samples:
            _write(self._folder, "samples", samples, SAMPLE_TEXTS, ("value",))
            self._samples = self._samples[len(samples) :]
        return written


def rows(attempt: Attempt, job: Job) -> list[Row]:
    """Return the rows of an attempt: its creation, and if it finished its end with the time it ran."""
    about = {
        "cluster": attempt.cluster,
        "entity": f"{job.tenant}/{job.name}/{attempt.number}",
        "kind": "job",
        "node": attempt.node,
        "function": job.model,
        "cpu_cores": job.cpu_cores,
        "mem_bytes": job.mem_gib * GIB,
        "gpus": 1.0,
        "gpu_mem_bytes": job.gpu_mem_gib * GIB,
        "data_gb": job.data_gb,
        "epochs": job.epochs,
    }
    submitted = job.submitted_at if attempt.number == 1 else attempt.decided_at
    made = [{"time": _utc(submitted), "action": "create", **about, "runtime_s": None}]
    if attempt.ended_at is not None:
        ran = attempt.ended_at - attempt.started_at if attempt.started_at is not None else None
        told = ran if attempt.outcome == "finished" else None
        made.append({"time": _utc(attempt.ended_at), "action": "delete", **about, "runtime_s": told})
    return made


def samples(
    network: Network, books: Books, others: Mapping[str, Mapping[str, float]], now: float, up: Mapping[str, bool]
) -> list[Row]:
    """Return what nodes and cards are and hold: what our jobs are booked with, and what others were measured to use."""
    table, at = network.table, _utc(now)
    cores, mem, gpu = (dict.fromkeys(names, 0.0) for names in (table.nodes, table.nodes, table.cards))
    for attempt in list(books.attempts.values()):
        job, node = books.jobs.get(attempt.job), f"{attempt.cluster}/{attempt.node}"
        if job is not None and job.state in ON_A_CARD and attempt.card in gpu and node in cores:
            cores[node] += job.cpu_cores
            mem[node] += job.mem_gib
            gpu[attempt.card] += job.gpu_mem_gib
    found: list[Row] = []
    for n, name in enumerate(table.nodes):
        cluster, node = name.split("/", 1)
        used = others.get("cpu", {}).get(name, float(table.node_cpu_used[n])) * float(table.node_cpu[n])
        values = {
            "node_cpu_capacity_cores": float(table.node_cpu[n]),
            "node_cpu_used_cores": min(used + cores[name], float(table.node_cpu[n])),
            "node_mem_capacity_bytes": float(table.node_mem[n]) * GIB,
            "node_mem_used_bytes": (others.get("mem_gib", {}).get(name, 0.0) + mem[name]) * GIB,
            "node_gpu_capacity_cards": float((table.card_node == n).sum()),
            "node_ready": float(up.get(name, False)),
        }
        about = {"time": at, "cluster": cluster, "node": node, "card": None, "detail": None}
        found += [{**about, "metric": metric, "value": value} for metric, value in values.items()]
    for c, card in enumerate(network.cards.values()):
        about = {"time": at, "cluster": card.cluster, "node": card.node, "card": f"{card.node}/gpu{card.number}"}
        used = others.get("gpu_gib", {}).get(card.name, 0.0) + gpu[card.name]
        for metric, value, detail in (
            ("card_info", 1.0, card.type),
            ("card_mem_capacity_bytes", float(table.card_mem[c]) * GIB, None),
            ("card_mem_used_bytes", used * GIB, None),
        ):
            found.append({**about, "metric": metric, "value": value, "detail": detail})
    return found


def _write(folder: Path, table: str, made: Sequence[Row], texts: Sequence[str], numbers: Sequence[str]) -> None:
    """Write a file whole or not at all, named by what is in it: the same rows again are the same file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"time": pa.array([row["time"] for row in made], pa.timestamp("us", tz="UTC"))}
    columns |= {name: pa.array([row[name] for row in made], pa.string()) for name in texts}
    columns |= {name: pa.array([row[name] for row in made], pa.float64()) for name in numbers}
    digest = hashlib.sha256(repr([sorted(row.items()) for row in made]).encode()).hexdigest()[:12]
    target = folder / f"{table}-{min(row['time'] for row in made):%Y%m%dT%H%M%S}-{digest}.parquet"
    scratch = target.with_suffix(f".{uuid.uuid4().hex}.new")
    try:
        pq.write_table(pa.table(columns), scratch, compression="zstd")
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
