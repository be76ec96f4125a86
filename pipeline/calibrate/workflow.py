"""``workflow``: how long a start takes, how fast nodes are, and the test windows replayed beside what was measured.

The engine of a workflow takes its time to notice that a task may start, and a container to come up: the median of what
lies between the moment at which a task's data could have been on its node and its recorded start. How fast a type of
node is: the same functions took longer on one than on another. What tasks use of the cores that they hold: node by
node, without what other pods were measured to use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline import windows
from pipeline.calibrate.shares import share_used
from pipeline.contracts.calibration import Calibration, Value
from pipeline.contracts.evaluation import Backtest, Promise
from pipeline.datasets import Workload, calibration
from pipeline.datasets.lives import overlaps
from pipeline.datasets.responses import NORMAL_95
from pipeline.datasets.workflow import OWNER, SPEED, Executions, Trace, load
from pipeline.statistics.estimators import Floats
from sched_env import scenarios
from sched_env.recorded import AsRecorded
from sched_env.rollout import Policy, chooser
from sched_env.tables import NodeTable
from sched_env.vector import make_vec
from sched_env.workflow.scenario import WorkflowScenario
from sched_env.workflow.state import DEADLINE, FINISH, NODE, START
from sched_env.workflow.tables import Dag
from sched_env.workflow.vector import WorkflowVectorEnv
from wire.contracts.window import WINDOW_SECONDS

SHARE = "used_share_of_held_cores"
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, where values are normal."""
PRIOR = 0.1
"""Standard deviation of the logarithm of speeds before anything was seen: what is called a core is much alike."""
MOST_TIMES = 5.0
"""A start that would have to take longer than so many times the median of what it took is something else."""
LEAST = 3
NEEDED = "start_s of tasks, from the workflow engine, or from its pods"
NEEDED_USE = "use of the nodes that run tasks (node-exporter)"


def fit(
    folder: Path, span: windows.Span, make: Callable[[Mapping[str, Any] | None], scenarios.Scenario]
) -> Calibration:
    """Fit what the record of the train windows tells."""
    trace = load(folder, span.start, span.end)
    dispatch = _dispatch(trace, cast(WorkflowScenario, make(None)).dispatch_s)
    if dispatch.origin == "estimated":
        dispatch = _lengthened(dispatch, trace, make)
    values = [dispatch, *_speeds(trace[0]), _share(folder, span.start, span.end, trace)]
    overrides: dict[str, int | float | str | list[float]] = {"dispatch_s": round(dispatch.value, 3)}
    return Calibration("workflow", span.start.isoformat(), span.end.isoformat(), overrides, values, {})


def _ready(dag: Dag, start_s: Floats, nodes: NodeTable) -> Floats:
    """Return when the data of each task could have been on its node, given when its parents really ended."""
    home = dag.node
    ready = np.where(home >= 0, dag.input_mb / nodes.net[home], 0.0)
    for (parent, child), mb in zip(dag.edges.tolist(), dag.edge_mb.tolist(), strict=True):
        apart = home[parent] != home[child] and min(home[parent], home[child]) >= 0
        moving = mb / min(nodes.net[home[parent]], nodes.net[home[child]]) if apart else 0.0
        ready[child] = max(ready[child], start_s[parent] + dag.runtime_s[parent] + moving)
    return ready


def _dispatch(trace: Trace, default: float) -> Value:
    """The median of what a start takes; tasks that waited for room are in the upper half."""
    delays = [
        start_s - _ready(dag, start_s, trace[1])
        for dag, start_s in zip(trace[0], trace[0].start_s, strict=True)
        if not np.isnan(start_s).any()
    ]
    delay = np.concatenate(delays) if delays else np.empty(0)
    if delay.size < LEAST:
        return Value("dispatch_s", "s", default, None, None, int(delay.size), "assumed", NEEDED)
    middle = max(float(np.median(delay)), 0.0)
    spread = float(np.subtract(*np.quantile(delay, [0.75, 0.25]))) / 1.349  # of the middle half: waits are not normal
    width = NORMAL_95 * MEDIAN_ERROR * spread / float(np.sqrt(delay.size))
    return Value("dispatch_s", "s", middle, max(middle - width, 0.0), middle + width, int(delay.size), "estimated")


def _lengthened(found: Value, trace: Trace, make: Callable[[Mapping[str, Any] | None], scenarios.Scenario]) -> Value:
    """Let a start take so long that executions, replayed as recorded, take as long on average as they did.

    Delays add up along a workflow, so their mean counts, in which waits for others that came later are too; replays
    say how much of it is a start. They are about linear in it, so two are enough.
    """
    dags, nodes = trace
    whole = _recorded_whole(dags)
    if not whole:
        return found
    measured = float(np.mean([(dags.start_s[k] + dags[k].runtime_s).max() for k in whole]))

    def replayed(seconds: float) -> float:
        scenario = scenarios.load(make({"dispatch_s": seconds}), {"horizon": 0})
        env = cast(WorkflowVectorEnv, make_vec(scenario, 1, 0, (dags, nodes)))
        choose = chooser(env, AsRecorded())
        return float(np.mean([play(env, choose, k)[:, FINISH].max() for k in whole]))

    low, high = replayed(found.value), replayed(found.value + 1.0)
    more = (measured - low) / (high - low) if high > low else 0.0
    seconds = float(np.clip(found.value + more, 0.0, MOST_TIMES * found.value))
    low, high = (max((end or 0.0) + seconds - found.value, 0.0) for end in (found.low, found.high))
    return msgspec.structs.replace(found, value=seconds, low=low, high=high)


def _recorded_whole(dags: Executions) -> list[int]:
    """List the executions of which the start and the node of every task are known."""
    rows = enumerate(zip(dags, dags.start_s, strict=True))
    return [index for index, (dag, start_s) in rows if not np.isnan(start_s).any() and (dag.node >= 0).all()]


def _speeds(executions: Executions) -> list[Value]:
    """How fast each type of node is, by functions that ran on several; drawn to 1 where little is known."""
    rows = pd.DataFrame(
        {
            "function": [name for names in executions.functions for name in names],
            "kind": [executions.types[n] if n >= 0 else "" for n in executions.node.tolist()],
            "seconds": np.concatenate([dag.runtime_s for dag in executions]),
        }
    )
    rows = rows[(rows["function"] != "") & (rows["kind"] != "") & (rows["seconds"] > 0)]
    if rows["kind"].nunique() < 2:
        return []
    rows["log"] = np.log(rows["seconds"])
    rows["rest"] = rows["log"] - rows.groupby("function")["log"].transform("mean")
    values = []
    for kind, mine in rows.groupby("kind")["rest"]:
        if len(mine) < LEAST:
            values.append(Value(f"{SPEED}{kind}", "x", 1.0, None, None, len(mine), "assumed", "tasks of every node"))
            continue
        error = float(mine.std(ddof=1) / np.sqrt(len(mine)))
        kept = PRIOR**2 / (PRIOR**2 + error**2)
        mean, width = -float(mine.mean()) * kept, NORMAL_95 * error * np.sqrt(kept)
        low, high = float(np.exp(mean - width)), float(np.exp(mean + width))
        # A difference that is none by its own interval is left alone.
        speed = float(np.exp(mean)) if not low <= 1.0 <= high else 1.0
        values.append(Value(f"{SPEED}{kind}", "x", speed, low, high, len(mine), "estimated"))
    return values


def _measured(trace: Trace) -> tuple[Floats, Floats, Floats, NDArray[np.int64]]:
    """Return begin and end (from the start of the span), cores and node of all tasks whose start and node are told."""
    dags, _ = trace
    begin = np.concatenate([at + start for at, start in zip(dags.time_s, dags.start_s, strict=True)])
    run, cores = (np.concatenate([getattr(dag, name) for dag in dags]) for name in ("runtime_s", "cpu"))
    known = ~np.isnan(begin) & (dags.node >= 0)
    return begin[known], (begin + run)[known], cores[known], dags.node[known]


def _held(begin: Floats, end: Floats, cores: Floats, node: NDArray[np.int64], shape: tuple[int, int]) -> Floats:
    """Return the cores that tasks held of each node in each window, on average: [windows, nodes]."""
    life, window, seconds = overlaps(begin, end)
    inside = window < shape[0]
    life, window, seconds = life[inside], window[inside], seconds[inside]
    at = window * shape[1] + node[life]
    summed = np.bincount(at, cores[life] * seconds / WINDOW_SECONDS, shape[0] * shape[1]).astype(np.float64)
    return summed.reshape(shape)


def _used(folder: Path, start: datetime, end: datetime, nodes: NodeTable, clusters: int) -> Floats:
    """Return [windows, nodes]: cores used, without what pods that are no tasks use; NaN: not measured."""
    count = int((end - start).total_seconds()) // WINDOW_SECONDS

    def laid(table: str, column: str, keep: Callable[[pd.DataFrame], pd.DataFrame]) -> Floats:
        rows = keep(windows.frame_of(folder, table, start, end, column.split()).dropna(subset=["cpu_used_mean_cores"]))
        home: NDArray[np.int64] = pd.Index(nodes.names).get_indexer(
            pd.Index(windows.spelled(rows, "node", clusters > 1))
        )
        elapsed = (rows["window_start"] - pd.Timestamp(start)).dt.total_seconds()
        window = np.asarray(elapsed // WINDOW_SECONDS, np.int64)
        inside = (home >= 0) & (window < count)
        sums = np.full((count, len(nodes)), np.nan)
        sums[window[inside], home[inside]] = 0.0
        cores = rows["cpu_used_mean_cores"].to_numpy(np.float64)
        if table == "pods":
            cores = cores * rows["present_ratio"].fillna(1.0).to_numpy(np.float64)
        np.add.at(sums, (window[inside], home[inside]), cores[inside])
        return sums

    whole = laid("nodes", "node cpu_used_mean_cores", lambda rows: rows)
    others = laid(
        "pods",
        "node owner_kind present_ratio cpu_used_mean_cores",
        lambda rows: rows[(rows["owner_kind"] != OWNER) & rows["node"].notna()],
    )
    return np.maximum(whole - np.nan_to_num(others), 0.0)


def _share(folder: Path, start: datetime, end: datetime, trace: Trace) -> Value:
    _, nodes = trace
    begin, finish, cores, node = _measured(trace)
    used = _used(folder, start, end, nodes, len(set(nodes.domain.tolist())))
    held = _held(begin, finish, cores, node, (len(used), len(nodes)))
    there = ~np.isnan(used)
    times = pd.Series(pd.Timestamp(start) + pd.to_timedelta(np.arange(len(used)) * WINDOW_SECONDS, unit="s"))
    of = times.repeat(len(nodes))[there.ravel()]
    return share_used(SHARE, "cores used a core held", held[there], used[there], of, NEEDED_USE)


def check(data: Workload, folder: Path, policy: Policy, name: str) -> tuple[Backtest, pd.DataFrame]:
    """Replay every execution of a split under a policy: makespans, late ones, use and bill, beside what was measured.

    Of the executions that are recorded whole: where every task began, and on which node.
    """
    start, end = (datetime.fromisoformat(time) for time in (data.start, data.end))
    dags, nodes = cast(Trace, data.trace)
    whole = _recorded_whole(dags)
    if not whole:
        reason = "the windows hold no execution of which every task's start and node are known"
        return Backtest(name, data.start, data.end, [], skipped=reason), pd.DataFrame()
    env = cast(WorkflowVectorEnv, make_vec(scenarios.load(data.scenario, {"horizon": 0}), 1, 0, data.trace))
    choose = chooser(env, policy)
    count = int((end - start).total_seconds()) // WINDOW_SECONDS
    spans: dict[str, list[Floats]] = {"predicted": [], "measured": []}
    late: dict[str, list[bool]] = {side: [] for side in spans}
    cost: dict[str, list[float]] = {side: [] for side in spans}
    makespan: dict[str, list[float]] = {side: [] for side in spans}
    for index in whole:
        dag, began = dags[index], float(dags.time_s[index])
        placed = play(env, choose, index)
        run = (placed[:, FINISH] - placed[:, START]) if len(placed) else np.empty(0)
        real = dags.start_s[index]
        order = env.plan.tasks  # tasks of the environment are in the order in which they are offered
        cores = order[env.plan.first[index] : env.plan.first[index + 1], 0]
        sides = {
            "predicted": (placed[:, START], run, placed[:, NODE].astype(np.int64), cores),
            "measured": (real, dag.runtime_s / nodes.speed[dag.node], dag.node, dag.cpu),
        }
        for side, (begin, seconds, node, held) in sides.items():
            spans[side].append(np.column_stack([began + begin, began + begin + seconds, held, node]))
            ends = float((begin + seconds).max())
            makespan[side].append(ends)
            late[side].append(ends > env.plan.flows[index, DEADLINE])
            cost[side].append(_billed_usd(begin, begin + seconds, node, dag, nodes))
    pairs: dict[str, dict[str, Any]] = {
        "sla_violation_rate": {side: np.mean(some) for side, some in late.items()},
        "makespan_s": {side: np.mean(some) for side, some in makespan.items()},
        "makespan_p95_s": {side: np.quantile(some, 0.95) for side, some in makespan.items()},
        "cost_usd": {side: np.sum(some) for side, some in cost.items()},
    }
    figures = [Promise.of(metric, float(two["predicted"]), float(two["measured"])) for metric, two in pairs.items()]
    both = pd.DataFrame({"window_start": pd.Timestamp(start) + pd.to_timedelta(np.arange(count) * 300, unit="s")})
    for side, rows in spans.items():
        table = np.concatenate(rows)
        node = table[:, 3].astype(np.int64)
        held = _held(table[:, 0], table[:, 1], table[:, 2], node, (count, len(nodes)))
        both[f"{side}_held_cores"] = held.sum(axis=1)
    _compare_use(both, figures, folder, start, end, nodes)
    return Backtest(name, data.start, data.end, figures), both


def play(env: WorkflowVectorEnv, choose: Callable[[None], Any], index: int) -> Floats:
    """Place one execution; returns node, start and end of its tasks, in the order in which they are offered."""
    env.reset(options={"starts": [index], "park": True})
    while env.buffers.active[0]:
        env.step(choose(None))
    placed: Floats = env.state.placed[0, : len(env.dags[index])].copy()
    return placed


def _compare_use(
    both: pd.DataFrame, figures: list[Promise], folder: Path, start: datetime, end: datetime, nodes: NodeTable
) -> None:
    """Add the cores in use, where they were measured in the windows and fitted before them."""
    found = calibration("workflow")
    fitted = {value.name: value.value for value in found.values if value.origin != "assumed"} if found else {}
    used = _used(folder, start, end, nodes, len(set(nodes.domain.tolist())))
    told = ~np.isnan(used).any(axis=1)  # where a node is silent the sum is of less
    if SHARE not in fitted or not told.any():
        return
    both["predicted_used_cores"] = fitted[SHARE] * both["predicted_held_cores"]
    both["measured_used_cores"] = np.where(told, used.sum(axis=1), np.nan)
    mine = both[told]
    said, seen = (float(mine[f"{side}_used_cores"].mean()) for side in ("predicted", "measured"))
    figures.append(Promise.of("used_cores", said, seen))


def _billed_usd(begin: Floats, end: Floats, node: NDArray[np.int64], dag: Dag, nodes: NodeTable) -> float:
    """Return what an execution adds to the bill: nodes are paid for while a task runs there, also one of others."""
    total = 0.0
    for index in np.unique(node):
        mine = np.flatnonzero((node == index) & (end > begin))
        mine = mine[np.argsort(begin[mine], kind="stable")]
        others = dag.around.there[dag.around.there[:, 0] == index, 1] if dag.around else np.empty(0)
        reached = float(others.max(initial=0.0))
        for row in mine.tolist():
            total += max(end[row] - max(begin[row], reached), 0.0) * nodes.price_usd_per_hour[index] / 3600.0
            reached = max(reached, end[row])
    return total
