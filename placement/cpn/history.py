"""Finished jobs as rows of the raw table ``events``, for the nightly run to train on.

JSON lines, one file a day of the end (``events-YYYY-MM-DD.jsonl``), in the names and units of the raw contract:
``pipeline.sources`` reads them as files. A row may be written twice when the controller dies between writing and
noting it; the cleaning merges copies, since a row says nothing but facts.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from placement.cpn.records import Attempt, Job
from placement.cpn.store import JobStore
from placement.kube.objects import GIB

log = logging.getLogger(__name__)

EVERY_S = 60.0
AT_ONCE = 1000


class History(threading.Thread):
    """Writes what has ended.

    Args:
        store: Where it is.
        folder: Where it goes.
    """

    def __init__(self, store: JobStore, folder: Path) -> None:
        super().__init__(name="cpn history", daemon=True)
        self._store, self._folder = store, folder
        self._stopped = threading.Event()

    def run(self) -> None:
        """Write for ever."""
        while not self._stopped.wait(EVERY_S):
            try:
                self.write()
            except OSError as error:
                log.warning("history: %s; tried again in %g s", error, EVERY_S)

    def stop(self) -> None:
        """Write what is left, and end."""
        self._stopped.set()
        if self.is_alive():
            self.join(timeout=10)
        try:
            self.write()
        except OSError as error:
            log.warning("history: %s", error)

    def write(self) -> int:
        """Write what has not been written; return how many attempts."""
        self._folder.mkdir(parents=True, exist_ok=True)
        written = 0
        while ended := self._store.to_export(AT_ONCE):
            by_day: dict[str, list[bytes]] = {}
            for attempt, job in ended:
                for row in rows(attempt, job):
                    by_day.setdefault(row["time"][:10], []).append(msgspec.json.encode(row))
            for day, lines in by_day.items():
                with (self._folder / f"events-{day}.jsonl").open("ab") as file:
                    file.write(b"\n".join(lines) + b"\n")
            self._store.mark_exported(attempt for attempt, _ in ended)
            written += len(ended)
        return written


def rows(attempt: Attempt, job: Job) -> list[dict[str, Any]]:
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
    made = [{"time": _utc(submitted), "action": "create", **about}]
    if attempt.ended_at is not None:
        ran = attempt.ended_at - attempt.started_at if attempt.started_at is not None else None
        made.append(
            {
                "time": _utc(attempt.ended_at),
                "action": "delete",
                **about,
                "runtime_s": ran if attempt.outcome == "finished" else None,
            }
        )
    return made


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
