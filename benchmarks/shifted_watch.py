"""The part of ``shifted.py`` that sees: a recorded trace in a real Prometheus, looked at by the watch's own code.

The trace has eight hours, the watch wants days. So the days before the shift are made: three times a day the recorded
eight hours, each time begun at a drawn moment of the recording, and each day's level drawn with the spread that
``watch_alarms.py`` assumes for ``functions``. That is assumed, not recorded: no rhythm of day or week, and the noise is
eight hours' noise again and again. The shift comes where it comes in the trace, on the day after those: three trials,
one in each of that day's repeats, at another minute of the quarter of an hour each.

Every quarter of an hour ``pipeline.watch.looking.look`` asks what ``watch.yaml`` asks of functions. But for the nodes'
cpu it asks how much of it is requested: a trace of calls does not say what nodes use.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from fidelity import prometheus
from watch_alarms import WORLDS

from pipeline.sources.prometheus_http import Client
from pipeline.sources.prometheus_server import Patience, Server
from pipeline.watch import config as watch_config
from pipeline.watch import drift, looking
from pipeline.watch.drift import Floats
from sched_env.functions.tables import FunctionTrace
from sched_env.tables import NodeTable
from wire.contracts.record import PromotionRecord

STEP_S = 60
"""Distance of samples, as recording rules are evaluated; the calls are counted over the usual five minutes."""
RATE_STEPS = 5
REPEATS = 3
"""Recordings a day: each is cut at eight hours."""
RECORDING_S = drift.DAY_S // REPEATS
SERIES = 24
"""Functions that are watched by name, those with the most calls: 93 % of all calls are theirs."""
LATE_S = 300
"""How much later each repeat of the last day begins: looks come on the quarter, shifts at any minute."""
LONGEST_S = 4 * 3600
"""How long after the shift is looked, if the shifted trace lasts so long."""
BEFORE_S = 3 * 3600
"""How long before: an alarm there is a false one."""
EVERY_S = 900
LEVELS_SEED = 5
LIVE_S = datetime(2026, 3, 16, tzinfo=UTC).timestamp()
"""When the old policy went live: midnight of the day of the shift."""
REQUESTED = 'sum(kube_pod_container_resource_requests{resource="cpu"}) / sum(kube_node_status_capacity{resource="cpu"})'
"""In place of ``node_cpu`` of ``watch.yaml``, which is what nodes use."""
CALLS, PLACED = "loadmaster:requests:rate5m", "loadmaster_decisions_total"


def rates(trace: FunctionTrace, chosen: np.ndarray, span_s: float) -> Floats:
    """Return [minutes, series]: calls a second of the chosen functions, instances placed a second, cores requested.

    An instance's calls are spread evenly over its life.
    """
    ends = np.arange(0.0, span_s + STEP_S, STEP_S)
    number = len(trace.function_names)
    calls, placed, cores = [], [], []
    for end in ends:
        lived_s = np.clip(end - trace.arrival_s, 0.0, trace.duration_s)
        answered = trace.requests * lived_s / trace.duration_s
        calls.append(np.bincount(trace.function, answered, number)[chosen])
        placed.append(float((trace.arrival_s < end).sum()))
        cores.append(float((trace.cpu * lived_s).sum()))
    return np.column_stack([np.diff(one, axis=0) / STEP_S for one in (calls, placed, cores)])


def days(recorded: Floats, shifted: Floats, repeat: int, reference_days: int) -> Floats:
    """Lay recordings end to end: reference days, and the day of the shift, which is in one of its repeats."""
    rng = np.random.default_rng([LEVELS_SEED, repeat])
    levels = np.exp(rng.normal(0.0, WORLDS["functions"]["days"], reference_days + 1))

    def some(level: float) -> Floats:
        return np.asarray(level * np.roll(recorded, int(rng.integers(len(recorded))), axis=0))

    parts = [some(level) for level in levels[:-1] for _ in range(REPEATS)]
    parts += [some(levels[-1]) for _ in range(repeat)]
    parts += [some(levels[-1])[: repeat * LATE_S // STEP_S]]
    return np.concatenate([*parts, levels[-1] * shifted])


def write(path: Path, table: Floats, names: list[str], begin_s: float, capacity: float) -> int:
    """Write OpenMetrics text; returns the number of samples."""
    at = (begin_s + STEP_S * np.arange(1, len(table) + 1)).astype(np.int64)
    # The mean of the five minutes before a sample, as a recording rule takes it.
    sums = np.concatenate([np.zeros((1, table.shape[1])), np.cumsum(table, axis=0)])
    reach = np.maximum(np.arange(1, len(sums)) - RATE_STEPS, 0)
    means = (sums[1:] - sums[reach]) / (np.arange(1, len(sums)) - reach)[:, None]
    columns = {f'{CALLS}{{revision_name="{name}"}}': means[:, place] for place, name in enumerate(names)}
    columns[f'{PLACED}{{problem="functions"}}'] = sums[1:, -2] * STEP_S
    columns['kube_pod_container_resource_requests{resource="cpu"}'] = table[:, -1]
    columns['kube_node_status_capacity{resource="cpu"}'] = np.full(len(table), capacity)
    with path.open("w") as file:
        for head, values in columns.items():
            file.writelines(f"{head} {value:.6f} {time}\n" for time, value in zip(at, values, strict=True))
        file.write("# EOF\n")
    return len(columns) * len(at)


def config() -> watch_config.WatchConfig:
    """Return the project's own ``watch.yaml``, with what a trace of calls can tell of the nodes' cpu."""
    shipped = watch_config.load()
    asked = shipped.problems["functions"]
    features = {**asked.features, "node_cpu": REQUESTED}
    return msgspec.structs.replace(
        shipped, problems={"functions": msgspec.structs.replace(asked, features=features)}, every_seconds=EVERY_S
    )


def seen(
    trace: FunctionTrace, shifted: FunctionTrace, nodes: NodeTable, moment_s: float, live: PromotionRecord, folder: Path
) -> list[dict[str, Any]]:
    """Look at a shift in each repeat of a day until a training would start; returns what was seen of each."""
    calls = np.bincount(trace.function, trace.requests, len(trace.function_names))
    chosen = np.argsort(-calls, kind="stable")[:SERIES]
    lasts_s = min(LONGEST_S, float(shifted.arrival_s[-1]) - moment_s)
    recorded = rates(trace, chosen, RECORDING_S)
    moved = rates(shifted, chosen, moment_s + lasts_s)
    names, asked = [f"f{number}" for number in chosen], config()
    found = []
    for repeat in range(REPEATS):
        place = folder / f"repeat-{repeat}"
        place.mkdir(parents=True)
        begin_s = LIVE_S - asked.reference_days * drift.DAY_S
        table = days(recorded, moved, repeat, asked.reference_days)
        samples = write(place / "text", table, names, begin_s, float(nodes.cpu.sum()))
        shift_s = LIVE_S + repeat * (RECORDING_S + LATE_S) + moment_s
        with prometheus(place, place / "text") as address:
            client = Client(Server(name="shifted", url=address), Patience(attempts=2))
            one = looks(client, asked, live, shift_s, shift_s + lasts_s, place / "no-log")
        found.append({"repeat": repeat, "samples": samples, "looked_minutes": int(lasts_s // 60), **one})
    return found


def looks(
    client: Client, asked: watch_config.WatchConfig, live: PromotionRecord, shift_s: float, end_s: float, log: Path
) -> dict[str, Any]:
    """Look every quarter of an hour from some hours before the shift on; minutes are counted from the shift."""
    state, false, since = looking.State(), [], datetime.fromtimestamp(LIVE_S, UTC).isoformat()
    first_s = max(math.ceil((shift_s - BEFORE_S) / EVERY_S) * EVERY_S, LIVE_S + EVERY_S)
    for now_s in np.arange(first_s, end_s, EVERY_S).tolist():
        one = looking.look(
            "functions", live, since, state, client=client, config=asked, now_s=now_s, decisions=log
        )  # fmt: skip
        minutes = round((now_s - shift_s) / 60, 1)
        if one.retrain and now_s <= shift_s:
            false.append({"minutes": minutes, "said": one.retrain})
        elif one.retrain:
            return {"minutes": minutes, "said": one.retrain, "density": one.density, "false_alarms": false}
    return {"minutes": None, "said": "", "density": None, "false_alarms": false}
