"""Calls dealt to the pods that were there: the exact count of every function and window, no call lost or made up.

Where windows say how many calls a pod answered, those are its calls. What is left of the function's count goes to the
pods of which nobody says: one to each that came in the window (a call starts the container), the rest by the time
they were there. A count for a window without a pod goes to the function's life that is nearest in time.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline import windows
from pipeline.datasets.lives import overlaps
from wire.contracts.window import WINDOW_SECONDS

Ints = NDArray[np.int64]


class Dealt(NamedTuple):
    """What became of the calls of a span."""

    calls: Ints
    """Of each life."""
    measured: int
    """Calls whose pod the windows name."""
    dealt: int
    """Calls whose function and window the windows name, and not the pod."""
    homeless: int
    """Calls of functions that had no pod in the whole span: nobody can answer them."""


def deal(folder: Path, start: datetime, end: datetime, lives: pd.DataFrame) -> Dealt:
    """Give every life (``pipeline.datasets.lives``) its calls."""
    # Where no life has a function, or none is left, pandas would take the column for objects and refuse to join it.
    lives = lives.astype({"cluster": "str", "function": "str"})
    counts = windows.frame_of(folder, "functions", start, end, ["function", "requests"])
    counts = counts[counts["requests"] > 0]
    handled = windows.frame_of(folder, "pods", start, end, ["pod", "requests_handled"]).dropna()
    for frame in (counts, handled):
        frame["window"] = ((frame["window_start"] - pd.Timestamp(start)).dt.total_seconds() // WINDOW_SECONDS).astype(
            int
        )
    life, window, seconds = overlaps(lives["begin_s"].to_numpy(), lives["end_s"].to_numpy())
    pairs = pd.DataFrame(
        {
            "life": life,
            "window": window,
            "seconds": seconds,
            "came": lives["begin_s"].to_numpy()[life] >= window * WINDOW_SECONDS,
            **{name: lives[name].to_numpy()[life] for name in ("cluster", "entity", "function")},
        }
    )
    pairs = pairs[pairs["function"].notna()]
    handled = handled.rename(columns={"pod": "entity"})[["cluster", "entity", "window", "requests_handled"]]
    pairs = pairs.merge(handled, on=["cluster", "entity", "window"], how="left")
    # A name with two lives in one window: they share what was told of it.
    twice = pairs.duplicated(["cluster", "entity", "window"], keep=False)
    pairs.loc[twice, "requests_handled"] = np.nan
    key = ["cluster", "function", "window"]
    known = pairs.groupby(key)["requests_handled"].sum().rename("known").reset_index()
    left = counts.merge(known, on=key, how="outer").fillna({"requests": 0, "known": 0})
    left["left"] = (left["requests"] - left["known"]).clip(lower=0).astype(np.int64)
    left = left.loc[left["left"] > 0, [*key, "left"]]

    calls = np.zeros(len(lives), np.int64)
    told = pairs["requests_handled"].fillna(0).to_numpy(np.int64)
    np.add.at(calls, pairs["life"].to_numpy(), told)
    open_pairs = pairs.merge(left, on=key)
    unknown = open_pairs["requests_handled"].isna()
    everyone_known = ~unknown.groupby([open_pairs[name] for name in key]).transform("any")
    open_pairs = open_pairs[unknown | everyone_known].sort_values([*key, "life"], kind="stable")
    dealt = _shares(open_pairs, key)
    np.add.at(calls, open_pairs["life"].to_numpy(), dealt)
    homes = open_pairs.drop_duplicates(key)[key].assign(housed=True)
    rest = left.merge(homes, on=key, how="left")
    nearest, homeless = _nearest(rest[rest["housed"].isna()], lives)
    np.add.at(calls, nearest["life"].to_numpy(np.int64), nearest["left"].to_numpy(np.int64))
    return Dealt(calls, int(told.sum()), int(dealt.sum() + nearest["left"].sum()), homeless)


def _shares(pairs: pd.DataFrame, key: list[str]) -> Ints:
    """Deal the calls ``left`` of each group to its pairs, which lie together; every group's sum is exact."""
    if pairs.empty:
        return np.zeros(0, np.int64)
    groups = pairs.groupby(key, sort=False)
    left, came = pairs["left"].to_numpy(np.int64), pairs["came"].to_numpy(bool)
    turn = groups["came"].cumsum().to_numpy(np.int64)
    first = came & (turn <= left)
    rest = left - groups["came"].transform("sum").clip(upper=pairs["left"]).to_numpy(np.int64)
    share = groups["seconds"].cumsum().to_numpy() / groups["seconds"].transform("sum").to_numpy()
    # Rounding the running total loses nothing over the group: its last share is 1.
    upto = np.floor(share * rest + 0.5).astype(np.int64)
    last = ~pairs.duplicated(key, keep="last").to_numpy()
    upto[last] = rest[last]
    before = np.concatenate([[0], upto[:-1]])
    before[~pairs.duplicated(key).to_numpy()] = 0
    dealt: Ints = upto - before + first
    return dealt


def _nearest(rest: pd.DataFrame, lives: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Give counts of windows without a pod to the function's life that begins nearest to the window."""
    begun = lives.loc[lives["function"].notna(), ["cluster", "function", "begin_s"]]
    begun = begun.assign(life=begun.index).sort_values("begin_s", kind="stable")
    wanted = rest.assign(begin_s=(rest["window"] + 0.5) * WINDOW_SECONDS).sort_values("begin_s", kind="stable")
    if wanted.empty:
        return wanted.assign(life=np.zeros(0, np.int64)), 0
    found = pd.merge_asof(wanted, begun, on="begin_s", by=["cluster", "function"], direction="nearest")
    lost = found["life"].isna()
    return found[~lost], int(found.loc[lost, "left"].sum())
