"""A stretch of windows played through the simulator, window by window: what it predicts, beside what was measured.

One episode over the whole stretch, from the state the cluster was in. At every window's end the accounts are brought
up to date and read. ``as_recorded`` makes it the test of the simulator; our own live policy makes it the back-test.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from sched_env import scenarios
from sched_env.functions import kernels
from sched_env.functions.state import BILLED_UNTIL, CORE_SECONDS, COST, HISTOGRAM_WIDTH, LATE, RATIO, ROW
from sched_env.functions.tables import FunctionTrace
from sched_env.functions.vector import ServerlessVectorEnv
from sched_env.rollout import Policy, chooser
from sched_env.tables import NodeTable
from sched_env.vector import make_vec

SECONDS_PER_HOUR = 3600.0
NOTHING = 1e-9
"""Cores and GiB of a mark in the trace: a decision that nobody takes, at a window's end."""


def marked(trace: FunctionTrace, times_s: np.ndarray) -> tuple[FunctionTrace, np.ndarray]:
    """Return the trace with a mark at each time, and which rows are marks; of equal times the mark comes first."""
    rows, marks = len(trace), len(times_s)
    order = np.argsort(np.concatenate([times_s, trace.arrival_s]), kind="stable")
    values: dict[str, Any] = {"cpu": NOTHING, "mem": NOTHING, "net": 0.0, "disk": 0.0, "requests": 0, "node": -1}
    # A function of its own: no idle container of another one comes of it.
    values |= {
        "function": len(trace.function_names),
        "duration_s": NOTHING,
        "slo_s": 1e9,
        "response_s": 1.0,
        "held": False,
        "domain": 0,
        "idle_use": 0.0,
        "work_s": 0.0,
        "mem_use": 0.0,
    }
    columns: dict[str, Any] = {
        name: np.concatenate([np.full(marks, value, getattr(trace, name).dtype), getattr(trace, name)])[order]
        for name, value in values.items()
    }
    columns["function_names"] = (*trace.function_names, "(mark)")
    if trace.tails.size:
        columns["tails"] = np.concatenate([trace.tails, np.zeros_like(trace.tails[:1])])
    if trace.pace.size:
        columns["pace"] = np.concatenate([trace.pace, np.ones_like(trace.pace[:, :1])], axis=1)
    columns["arrival_s"] = np.concatenate([times_s, trace.arrival_s])[order]
    return dataclasses.replace(trace, **columns), order < marks if rows else np.ones(marks, bool)


def replay(
    scenario: scenarios.Scenario, trace: tuple[FunctionTrace, NodeTable], policy: Policy, window_s: float
) -> pd.DataFrame:
    """Play a stretch and return one row a window: ``calls, late, ratio, cost_usd, used_cores, p95_ratio``.

    ``late`` and ``ratio`` are sums over the calls answered in the window, the bill is what accrued in it, and cores
    are its mean. The window in which the first instance arrives is left out: it is not whole.
    """
    functions, nodes = trace
    last = float(functions.arrival_s[-1])
    first = int(np.searchsorted(functions.arrival_s, 0.0, side="right"))
    times = np.arange(
        np.ceil(functions.arrival_s[min(first, len(functions) - 1)] / window_s) * window_s, last, window_s
    )
    with_marks, marks = marked(functions, times)
    whole = scenarios.load(scenario, {"horizon": 0, "episode_s": 0.0})
    env = make_vec(whole, 1, 0, (with_marks, nodes))
    if not isinstance(env, ServerlessVectorEnv):
        raise TypeError(f"{type(env).__name__} cannot be read window by window")
    choose = chooser(env, policy)
    start = int(np.flatnonzero(marks)[0])
    env.reset(options={"starts": [start], "park": True})
    state, books, seen = env.state, [], 0
    while seen < len(times):
        if marks[int(state.cursor[0, ROW])]:
            now = float(env.buffers.time_s[0])
            kernels.settle_until(env.arguments, 0, now)
            ahead = np.maximum(state.nodes[0, :, BILLED_UNTIL] - now, 0.0) @ nodes.price_usd_per_hour
            totals, histogram = state.totals[0], state.histogram[0]
            bill = float(totals[COST]) - float(ahead) / SECONDS_PER_HOUR
            seconds = float(totals[CORE_SECONDS])
            books.append((now, histogram.copy(), float(totals[LATE]), float(totals[RATIO]), bill, seconds))
            seen += 1
            _pass_mark(env)
            if not env.buffers.active[0]:
                break
            continue
        env.step(choose(None))
        if not env.buffers.active[0]:
            break
    return _differences(books, window_s)


def _pass_mark(env: ServerlessVectorEnv) -> None:
    """Go on to the next decision: the mark takes a node for no time, and what that would bill is taken back."""
    state = env.state
    billed, cost = state.nodes[0, :, BILLED_UNTIL].copy(), float(state.totals[0, COST])
    node = int(np.where(env.buffers.mask[0], billed, -np.inf).argmax())
    env.step(np.array([node]))
    if env.buffers.active[0]:
        state.nodes[0, node, BILLED_UNTIL], state.totals[0, COST] = billed[node], cost


def _differences(books: list[tuple[Any, ...]], window_s: float) -> pd.DataFrame:
    rows = []
    for before, after in pairwise(books):
        histogram = after[1] - before[1]
        calls = float(histogram.sum())
        upto = np.searchsorted(np.cumsum(histogram), 0.95 * calls)
        rows.append(
            {
                "window": int(before[0] // window_s),
                "calls": calls,
                "late": after[2] - before[2],
                "ratio": after[3] - before[3],
                "cost_usd": after[4] - before[4],
                "used_cores": (after[5] - before[5]) / window_s,
                "p95_ratio": 1.0 + (min(int(upto), histogram.size - 1) + 0.5) * HISTOGRAM_WIDTH,
            }
        )
    total = books[-1][1] - books[0][1] if books else np.zeros(0)
    names = ["window", "calls", "late", "ratio", "cost_usd", "used_cores", "p95_ratio"]
    table = pd.DataFrame(rows, columns=names).set_index("window")
    table.attrs["histogram"] = total
    return table
