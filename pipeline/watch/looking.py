"""One look at one problem: what Prometheus and the decision log say now, beside what was promised and what is usual."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np

from pipeline.registry.nights import COST, SLA, figures
from pipeline.sources.prometheus_http import Client
from pipeline.watch import drift, load
from pipeline.watch.config import ProblemWatch, WatchConfig
from wire.contracts.decision import DecisionLine
from wire.contracts.record import PromotionRecord

FALLBACKS = (
    'sum(rate(loadmaster_fallback_decisions_total{{problem="{0}"}}[15m])) '
    '/ sum(rate(loadmaster_decisions_total{{problem="{0}"}}[15m]))'
)
ACTIONS = "actions"
"""Name of the signal that is read from the decision log: decisions a window, by what was chosen."""


LEARNED = 2
"""Version of what is learned of the reference days."""


class Figure(msgspec.Struct, frozen=True):
    """A figure beside its limit."""

    name: str
    now: float
    promised: float
    limit: float

    @property
    def beyond(self) -> bool:
        """Whether it is an alarm, if the next look agrees."""
        return self.now > self.limit


class State(msgspec.Struct):
    """What is kept between looks, a file a problem."""

    version: int = 0
    """Of what was learned; what another release learned is learned anew."""
    digest: str = ""
    references: dict[str, drift.Reference] = {}
    loads: dict[str, load.Usual] = {}
    usual_cost: float | None = None
    in_a_row: dict[str, int] = {}
    """Name of a figure or signal -> looks in a row beyond its limit."""
    counted_s: dict[str, float] = {}
    """Name of a figure or signal -> when the newest of those looks was."""


class Seen(msgspec.Struct, frozen=True):
    """All that one look found."""

    problem: str
    digest: str
    at_s: float
    figures: list[Figure]
    drift: dict[str, drift.Look]
    loads: dict[str, load.Look]
    rollback: str
    """Why a person should be asked to go back; empty: no reason."""
    retrain: str
    """Why training should start early; empty: no reason."""
    density: float | None
    """How many times as dense as before arrivals are, where that is why; None: train on what was recorded."""
    notes: list[str]


def look(
    problem: str,
    live: PromotionRecord,
    since: str,
    state: State,
    *,
    client: Client,
    config: WatchConfig,
    now_s: float,
    decisions: Path,
) -> Seen:
    """Look at one problem and move its state on.

    Args:
        problem: Which one.
        live: The record of what is live: its gate is the promise.
        since: When it began to answer; what is usual is what was before.
        state: What was kept from the look before.
        client: The Prometheus that watches the cluster.
        config: What is asked, and the limits.
        now_s: The time.
        decisions: The service's decision log; it may be elsewhere.
    """
    asked = config.problems.get(problem, ProblemWatch())
    notes: list[str] = []
    if (state.digest, state.version) != (live.digest, LEARNED):
        state.digest, state.version, state.in_a_row, state.counted_s = live.digest, LEARNED, {}, {}
        end_s = datetime.fromisoformat(since).timestamp()
        state.references, state.loads, state.usual_cost = _learn(asked, client, config, end_s, notes)
    found = [*_promised(asked, live, state, client, config, now_s)]
    rates = [values[-1] for _, values in _samples(client, FALLBACKS.format(problem), now_s, 0, config).values()]
    found += [Figure("fallback rate", float(rate), 0.0, config.fallback_limit) for rate in rates if math.isfinite(rate)]
    moved, changed = {}, {}
    for name in {**state.references, **state.loads}:
        if name == ACTIONS:
            continue
        series = _samples(client, asked.features[name], now_s, load.SPAN_S, config)
        if name in state.loads and (step := load.look(state.loads[name], now_s, series)) is not None:
            changed[name] = step
        late = {key: values[at > now_s - drift.SLOT_S] for key, (at, values) in series.items()}
        if name in state.references and (seen := drift.look(state.references[name], now_s, late)) is not None:
            moved[name] = seen
    if (acted := _acted(problem, decisions, state, now_s, config)) is not None:
        moved[ACTIONS] = acted
    beyond = {one.name: one.beyond for one in found} | {name: one.beyond for name, one in moved.items()}
    beyond |= {f"load of {name}": one.beyond for name, one in changed.items()}
    for name, is_beyond in beyond.items():
        count(state, name, is_beyond=is_beyond, now_s=now_s, config=config)
    sure = {name for name, times in state.in_a_row.items() if times >= drift.LOOKS}
    worse = [f"{one.name} {one.now:.4g}, promised {one.promised:.4g}" for one in found if one.name in sure]
    drifted = [f"{name}: PSI {one.psi:.2f}, usual up to {one.limit:.2f}" for name, one in moved.items() if name in sure]
    drifted += [
        f"{name}: {one.times:.2f} times the load of an hour ago, usual up to {math.exp(one.limit):.2f}"
        for name, one in changed.items()
        if f"load of {name}" in sure
    ]
    density = round(changed[asked.load].times, 3) if asked.load and f"load of {asked.load}" in sure else None
    return Seen(
        problem, live.digest, now_s, found, moved, changed, "; ".join(worse), "; ".join(drifted), density, notes
    )


def count(state: State, name: str, *, is_beyond: bool, now_s: float, config: WatchConfig) -> None:
    """Count a look at a figure or signal among those in a row.

    One that comes less than half an interval after the last that was counted sees the same samples: started by hand
    beside the schedule, or tried again, it agrees with the last because it is the last, and is no second one.
    """
    if not is_beyond:
        state.in_a_row[name] = 0
        state.counted_s.pop(name, None)
        return
    last_s = state.counted_s.get(name)
    if last_s is None or now_s - last_s >= config.every_seconds / 2:
        state.in_a_row[name] = state.in_a_row.get(name, 0) + 1
        state.counted_s[name] = now_s


def _learn(
    asked: ProblemWatch, client: Client, config: WatchConfig, end_s: float, notes: list[str]
) -> tuple[dict[str, drift.Reference], dict[str, load.Usual], float | None]:
    """Learn what was usual before a policy went live: whole days."""
    end_s -= end_s % drift.DAY_S
    span = config.reference_days * drift.DAY_S
    known, loads = {}, {}
    for name, query in asked.features.items():
        series = _samples(client, query, end_s, span, config)
        if (learned := drift.reference(series)) is None:
            notes.append(f"{name}: Prometheus has fewer than three days before this policy; not watched")
        else:
            known[name] = learned
        if (usual := load.learn(series)) is not None:
            loads[name] = usual
    cost = None
    if asked.cost:
        values = [values for _, values in _samples(client, asked.cost, end_s, span, config).values()]
        cost = float(np.nanmedian(np.concatenate(values))) if values else None
    return known, loads, cost


def _promised(
    asked: ProblemWatch, live: PromotionRecord, state: State, client: Client, config: WatchConfig, now_s: float
) -> list[Figure]:
    """Hold service level and cost of the last hour against what the gate promised."""
    reference = str(live.gate.get("reference"))
    promised = {one.metric: one for one in figures(dict(live.gate)) if one.reference == reference}
    found = []
    if asked.sla and SLA in promised:
        now = _mean(client, asked.sla, now_s, config)
        level = promised[SLA].challenger
        if now is not None:
            # The mean less two standard errors: an hour has twelve windows, which is not much.
            found.append(Figure("SLA violations", now[0] - 2 * now[1], level, level + config.sla_margin))
    if asked.cost and COST in promised and state.usual_cost and promised[COST].rival:
        now = _mean(client, asked.cost, now_s, config)
        level = state.usual_cost * promised[COST].challenger / promised[COST].rival
        if now is not None:
            found.append(Figure("cost USD/h", now[0] - 2 * now[1], level, level * (1 + config.cost_margin)))
    return found


def _mean(client: Client, query: str, now_s: float, config: WatchConfig) -> tuple[float, float] | None:
    """Mean of the last hour and its standard error; None without samples."""
    values = [values for _, values in _samples(client, query, now_s, 3600, config).values()]
    flat = np.concatenate(values) if values else np.empty(0)
    flat = flat[np.isfinite(flat)]
    if len(flat) == 0:
        return None
    return float(flat.mean()), float(flat.std(ddof=1) / math.sqrt(len(flat))) if len(flat) > 1 else 0.0


def _samples(client: Client, query: str, end_s: float, span_s: float, config: WatchConfig) -> drift.Samples:
    """Ask for a span that ends at ``end_s``, a day at a time: servers limit how many samples one answer may have."""
    parts: dict[str, list[tuple[drift.Floats, drift.Floats]]] = defaultdict(list)
    begin = end_s - span_s
    while True:
        until = min(begin + drift.DAY_S - config.step_seconds, end_s)
        series, _ = client.range(query, begin, until, config.step_seconds)
        for one in series:
            parts[",".join(f"{key}={value}" for key, value in sorted(one.labels.items()))].append(
                (one.time_s, one.value)
            )
        begin = until + config.step_seconds
        if begin > end_s:
            break
    return {
        name: (np.concatenate([at for at, _ in found]), np.concatenate([values for _, values in found]))
        for name, found in parts.items()
    }


def _acted(problem: str, path: Path, state: State, now_s: float, config: WatchConfig) -> drift.Look | None:
    """Look at what was chosen: decisions a window by candidate, from the service's log where it is at hand."""
    if not path.is_file():
        return None
    step = config.step_seconds
    counted: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    decoder = msgspec.json.Decoder(DecisionLine)
    with path.open("rb") as lines:
        for line in lines:
            try:
                one = decoder.decode(line)
            except msgspec.DecodeError:
                continue  # The last line may be half written; lines of another release are not comparable.
            if one.problem == problem and one.digest == state.digest and one.chosen is not None:
                at = datetime.fromisoformat(one.at).timestamp()
                counted[one.chosen][at - at % step] += 1.0
    recent = {
        name: np.array([count for at, count in found.items() if at > now_s - drift.SLOT_S])
        for name, found in counted.items()
    }
    if ACTIONS not in state.references:
        today = (now_s - drift.SLOT_S) // drift.DAY_S * drift.DAY_S
        whole = {name: {at: count for at, count in found.items() if at < today} for name, found in counted.items()}
        pairs = {name: (np.array([*found]), np.array([*found.values()])) for name, found in whole.items() if found}
        learned = drift.reference(pairs)
        if learned is None:
            return None
        state.references[ACTIONS] = learned
    acted = {name: values for name, values in recent.items() if len(values)}
    return drift.look(state.references[ACTIONS], now_s, acted)
