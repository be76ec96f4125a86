"""``vm`` from windows: creations and deletions of VMs, in order of time."""

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
from sched_env.scenarios import Scenario
from sched_env.vm.events import compile_events, creation_of
from sched_env.vm.scenario import VmScenario
from sched_env.vm.tables import VmTrace

_COLUMNS = ["entity", "time", "kind", "action", "cpu_cores", "mem_gib"]


def load(folder: Path, start: datetime, end: datetime) -> VmTrace:
    """Load the creations and deletions of ``[start, end)``, deletions first within one moment.

    Clusters are pooled, as one stream of requests: the servers are the scenario's.
    """
    files = windows.files_of(folder, "events", start, end)
    arrays = windows.mapped(__name__, files, [start, end], lambda: _build(folder, start, end))
    return VmTrace(**arrays)  # type: ignore[arg-type]


def _build(folder: Path, start: datetime, end: datetime) -> windows.Arrays:
    events = windows.read(folder, "events", start, end, ["cluster", *_COLUMNS]).to_pandas()
    events = events[events["kind"] == "vm"]
    key = ["cluster", "entity"]
    created = events[events["action"] == "create"].groupby(key)[["cpu_cores", "mem_gib"]].first()
    known = events[key].join(created, on=key)
    # A deletion seldom says how large its VM was; one of a VM from before the span has no size and is left out.
    events = events.assign(
        cpu=events["cpu_cores"].where(events["cpu_cores"] > 0).fillna(known["cpu_cores"]),
        mem=events["mem_gib"].where(events["mem_gib"] > 0).fillna(known["mem_gib"]),
    )
    events = events[(events["cpu"] > 0) & (events["mem"] > 0)]
    if not (events["action"] == "create").any():
        raise DataError(
            f"{folder} has no VM with a size created between {start} and {end}",
            "events of kind vm with cpu and memory",
            "check the range, and that the source lands VMs (docs/sources.md)",
        )
    events = events.sort_values(["time", "action", *key], ascending=[True, False, True, True])
    numbers, _ = pd.factorize(events["cluster"] + "/" + events["entity"])
    return {
        "vmid": numbers.astype(np.int64),
        "cpu": events["cpu"].to_numpy(np.float64),
        "mem": events["mem"].to_numpy(np.float64),
        "time": (events["time"] - pd.Timestamp(start)).dt.total_seconds().to_numpy(np.float64),
        "kind": (events["action"] == "delete").to_numpy(np.int8),
    }


def starts(trace: VmTrace, scenario: Scenario) -> Rows:
    """Creations that an empty cluster can hold, with more from them on than an episode has decisions.

    Without a horizon an episode goes on to its first misfit, or to the end of the trace.
    """
    events = compile_events(trace, cast(VmScenario, scenario))
    left = np.cumsum((trace.kind == 0)[::-1])[::-1]
    begins = events.next_start[:-1] == np.arange(len(trace))
    return np.flatnonzero(begins & (left > scenario.horizon))


def times_s(trace: VmTrace, rows: Rows) -> NDArray[np.float64]:
    """When VMs were asked for."""
    return trace.time[rows]


def scaled(trace: VmTrace, load: float) -> VmTrace:
    """Let VMs come ``load`` times as densely; they live as long as before, so rows change their order."""
    created_by = creation_of(trace)
    ends = np.flatnonzero(created_by >= 0)
    time = trace.time / load
    time[ends] = time[created_by[ends]] + trace.time[ends] - trace.time[created_by[ends]]
    order = np.lexsort((-trace.kind, time))
    columns = {field.name: getattr(trace, field.name) for field in dataclasses.fields(trace)} | {"time": time}
    return VmTrace(**{name: values[order] for name, values in columns.items()})


DATASET = Dataset(load, starts, times_s, scaled)
