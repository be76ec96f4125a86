"""``vm``: how much of what VMs hold they use, and the test windows replayed beside what was measured in them.

Sizes, lives and servers of VMs are in the events, to the moment: nothing of them is fitted. What windows measure of a
server is its use, and that is fitted: the share of the cores held that is used, on the train windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline import windows
from pipeline.calibrate.shares import share_used
from pipeline.contracts.calibration import Calibration
from pipeline.contracts.evaluation import Backtest, Promise
from pipeline.datasets import Workload, calibration
from pipeline.datasets.lives import overlaps
from pipeline.datasets.vm import RecordedVms, recorded, servers
from pipeline.statistics.estimators import Floats
from sched_env import scenarios
from sched_env.rollout import Policy, chooser
from sched_env.vector import FULL, make_vec
from sched_env.vm.events import STOP, creation_of
from sched_env.vm.vector import VmVectorEnv
from wire.contracts.window import WINDOW_SECONDS

SHARE = "used_share_of_held_cores"
NEEDED = "use of the nodes that hold VMs (node-exporter), and the node in their events"


def fit(folder: Path, span: windows.Span, _load: Callable[[Mapping[str, Any] | None], Any]) -> Calibration:
    """Fit use to what is held, server by server and window by window."""
    rows = recorded(folder, span.start, span.end)
    hosts = servers(folder, span.start, span.end, sorted(set(rows["cluster"])))
    several = rows["cluster"].nunique() > 1
    rows = rows.assign(server=pd.Index(hosts["name"]).get_indexer(pd.Index(windows.spelled(rows, "node", several))))
    rows = rows[rows["server"] >= 0]
    count = _windows(span.start, span.end)
    begin, finish, cores = (rows[name].to_numpy(np.float64) for name in ("begin_s", "end_s", "cpu"))
    held = held_cores(begin, finish, cores, rows["server"].to_numpy(np.int64), (count, len(hosts)))
    seen = _used(folder, span.start, span.end, hosts)
    given = held[seen["window"].to_numpy(np.int64), seen["server"].to_numpy(np.int64)] if len(seen) else np.empty(0)
    used = seen["cpu_used_mean_cores"].to_numpy(np.float64)
    share = share_used(SHARE, "cores used a core held", given, used, seen["window_start"], NEEDED)
    return Calibration("vm", span.start.isoformat(), span.end.isoformat(), {}, [share], {})


def _windows(start: datetime, end: datetime) -> int:
    return int((end - start).total_seconds()) // WINDOW_SECONDS


def _used(folder: Path, start: datetime, end: datetime, hosts: pd.DataFrame) -> pd.DataFrame:
    """Return what was used of the servers, with the numbers of window and server."""
    seen = windows.frame_of(folder, "nodes", start, end, ["node", "cpu_used_mean_cores"]).dropna()
    several = hosts["cluster"].nunique() > 1
    seen = seen[seen["cluster"].isin(hosts["cluster"])]
    seen = seen.assign(
        server=pd.Index(hosts["name"]).get_indexer(pd.Index(windows.spelled(seen, "node", several))),
        window=((seen["window_start"] - pd.Timestamp(start)).dt.total_seconds() // WINDOW_SECONDS).astype(int),
    )
    return seen[seen["server"] >= 0]


def held_cores(
    begin_s: Floats, end_s: Floats, cores: Floats, server: NDArray[np.int64], shape: tuple[int, int]
) -> Floats:
    """Return the cores that VMs held of each server in each window, on average: [windows, servers]."""
    life, window, seconds = overlaps(begin_s, end_s)
    inside = window < shape[0]
    life, window, seconds = life[inside], window[inside], seconds[inside]
    at = window * shape[1] + server[life]
    summed = np.bincount(at, cores[life] * seconds / WINDOW_SECONDS, shape[0] * shape[1]).astype(np.float64)
    return summed.reshape(shape)


def play(env: VmVectorEnv, policy: Policy) -> NDArray[np.int64]:
    """Play the whole record under a policy; returns the half of each creation, -1 where it was not placed.

    After a request that fits nowhere the replay goes on from the recorded state.
    """
    choose, events = chooser(env, policy), env.events
    placed = np.where(cast(RecordedVms, env.trace).there_before, events.home, -1).astype(np.int64)
    row = int(events.next_start[0])
    while row < events.slot.size:
        env.reset(options={"starts": [row], "park": True})
        while env.buffers.active[0]:
            row, action = int(env.state.env.row[0]), choose(None)
            placed[row] = action[0]
            env.step(action)
        stopped = int(env.state.env.row[0]) + 1
        if env.buffers.ended[0] != FULL:
            stopped = int(events.parts[np.searchsorted(events.parts[:, STOP], row, side="right"), STOP])
        row = int(events.next_start[stopped])
    return placed


def check(data: Workload, folder: Path, policy: Policy, name: str) -> tuple[Backtest, pd.DataFrame]:
    """Replay a split under a policy: requests placed, cores held and used, and the bill, beside what was measured."""
    trace, start, end = (
        cast(RecordedVms, data.trace),
        *(datetime.fromisoformat(time) for time in (data.start, data.end)),
    )
    env = make_vec(
        scenarios.load(data.scenario, {"horizon": 0, "ending": "terminate", "reward": "default"}), 1, 0, trace
    )
    if not isinstance(env, VmVectorEnv) or not env.params.recorded:
        reason = "the scenario's servers are set by hand: they are not those of the record"
        return Backtest(name, data.start, data.end, [], skipped=reason), pd.DataFrame()
    created, count = trace.kind == 0, _windows(start, end)
    until = np.full(len(trace), (end - start).total_seconds())
    created_by = creation_of(trace)
    ends = np.flatnonzero(created_by >= 0)
    until[created_by[ends]] = trace.time[ends]
    offset = (np.cumsum(trace.servers) - trace.servers).repeat(np.diff(trace.stop, prepend=0))
    sides = {"predicted": play(env, policy) >> 1, "measured": trace.node}
    both = pd.DataFrame({"window_start": [start + timedelta(seconds=WINDOW_SECONDS * k) for k in range(count)]})
    figures: dict[str, dict[str, float]] = {}
    requests = created & ~trace.there_before
    for side, server in sides.items():
        rows = np.flatnonzero(created & (server >= 0) & (until > trace.time))
        place = (server + offset)[rows]
        shape = (count, int(trace.servers.sum()))
        held = held_cores(trace.time[rows], until[rows], trace.cpu[rows], place, shape).sum(axis=1)
        both[f"{side}_held_cores"] = held
        figures.setdefault("placed_rate", {})[side] = float((server[requests] >= 0).mean())
        figures.setdefault("held_cores", {})[side] = float(held.mean())
        usd = trace.usd_per_hour if np.isfinite(trace.usd_per_hour) else 1.0
        figures.setdefault("cost_usd", {})[side] = usd * _covered_hours(trace.time[rows], until[rows], place)
    _compare_use(both, figures, folder, start, end, trace)
    compared = [Promise.of(metric, pair["predicted"], pair["measured"]) for metric, pair in figures.items()]
    return Backtest(name, data.start, data.end, compared), both


def _compare_use(
    both: pd.DataFrame, figures: dict[str, dict[str, float]], folder: Path, start: datetime, end: datetime,
    trace: RecordedVms,
) -> None:  # fmt: skip
    """Add the cores in use, where they were measured in the windows and fitted before them."""
    found = calibration("vm")
    fitted = {value.name: value.value for value in found.values if value.origin != "assumed"} if found else {}
    hosts = servers(folder, start, end, sorted(set(recorded(folder, start, end)["cluster"])))
    seen = _used(folder, start, end, hosts).groupby("window")["cpu_used_mean_cores"].agg(["sum", "size"])
    whole = seen[seen["size"] == trace.servers.sum()]  # where a server is silent the sum is of less
    if not fitted or whole.empty:
        return
    both["predicted_used_cores"] = fitted[SHARE] * both["predicted_held_cores"]
    both["measured_used_cores"] = whole["sum"].reindex(both.index)
    told = both.dropna(subset=["measured_used_cores"])
    figures["used_cores"] = {side: float(told[f"{side}_used_cores"].mean()) for side in ("predicted", "measured")}


def _covered_hours(begin_s: Floats, end_s: Floats, server: NDArray[np.int64]) -> float:
    """Return the hours in which servers held a VM, added up: VMs at the same time do not bill a server twice."""
    total = 0.0
    for index in np.unique(server):
        mine = np.flatnonzero(server == index)
        mine = mine[np.argsort(begin_s[mine], kind="stable")]
        reached = np.maximum.accumulate(end_s[mine])
        total += float(np.maximum(reached - np.maximum(begin_s[mine], np.append(0.0, reached[:-1])), 0.0).sum())
    return total / 3600.0
