"""What is placed where in one environment, and what changed from one decision to the next; numpy alone."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]
Times = NDArray[np.float64]


class Layout(NamedTuple):
    """The places of a cluster, as people know them."""

    kind: str
    """What a place is: ``half``, ``node`` or ``card``."""
    names: tuple[str, ...]
    """As many as there can ever be; how many there are now is a column of a replay."""
    groups: tuple[str, ...] = ()
    """What each belongs to (the server of a half, the node of a card); empty: to nothing."""


class Choice(NamedTuple):
    """What an action places, and where."""

    key: int
    place: int
    """-1: nothing is placed."""


class Present(NamedTuple):
    """All that is placed; a key names a thing for as long as the episode lasts."""

    key: Keys
    place: NDArray[np.int32]
    start_s: Times
    end_s: Times
    """As expected; NaN: nobody knows."""


class Event(NamedTuple):
    """Something that happened between two decisions; kinds are those of ``wire.contracts.replay``."""

    kind: str
    who: str
    source: int
    """Place; -1: none."""
    target: int
    time_s: float


NOTHING = Present(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0), np.empty(0))


def present(key: Keys, place: NDArray[np.integer], start_s: Times, end_s: Times) -> Present:
    """Return what is placed, in the order of the keys."""
    order = np.argsort(key, kind="stable")
    return Present(key[order].astype(np.int64), place[order].astype(np.int32), start_s[order], end_s[order])


def span(there: Present, key: int) -> tuple[float, float]:
    """Return start and expected end of what has this key; NaN where it is not there."""
    at = int(np.searchsorted(there.key, key))
    if at < there.key.size and there.key[at] == key:
        return float(there.start_s[at]), float(there.end_s[at])
    return float("nan"), float("nan")


def differences(
    before: Present,
    after: Present,
    chosen: Choice,
    times: tuple[float, float],
    label: Callable[[int], str],
    ended_s: Callable[[int, float], float],
) -> list[Event]:
    """Say what happened between two decisions, in order of time.

    Args:
        before: What was there at the first.
        after: What is there at the second.
        chosen: What the first one placed.
        times: When the two were taken.
        label: A key's name.
        ended_s: When a key ended, from when it was expected to.
    """
    now, later = times
    events = []
    was = dict(zip(before.key.tolist(), zip(before.place.tolist(), before.end_s.tolist(), strict=True), strict=True))
    if chosen.place >= 0:
        place, expected = was.get(chosen.key, (chosen.place, float("nan")))
        if place != chosen.place:
            events.append(Event("move", label(chosen.key), place, chosen.place, now))
        was[chosen.key] = (chosen.place, expected)
    still = set(after.key.tolist())
    for key, (place, expected) in was.items():
        if key not in still:
            events.append(Event("end", label(key), place, -1, ended_s(key, later if isnan(expected) else expected)))
    for key, place, start in zip(after.key.tolist(), after.place.tolist(), after.start_s.tolist(), strict=True):
        if key not in was:
            events.append(Event("start", label(key), -1, place, later if isnan(start) else start))
        elif was[key][0] != place:
            events.append(Event("move", label(key), was[key][0], place, later))
    return sorted(events, key=lambda event: event.time_s)
