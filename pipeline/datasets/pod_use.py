"""What pods used, window by window, and what a forecast says of the next: the same file that goes into the bundle."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline import model_folder, windows
from sched_env.pods import forecast
from sched_env.pods.forecast import MOST_AT_ONCE, NAME, RESOURCES, SPEC
from sched_env.pods.foresight import AHEAD
from sched_env.tables import Floats
from wire import models
from wire.contracts.window import WINDOW_SECONDS

USED = ("cpu_used_mean_cores", "mem_used_mean_gib")


class Block(NamedTuple):
    """Some pods that came one after another, laid out by window: few windows where they did not live long."""

    pods: NDArray[np.int64]
    """Numbers of them, as :attr:`Use.pod`."""
    first: int
    """Window of the first row."""
    mean: NDArray[np.float64]
    """[windows, pods, 2]: cores and GiB; NaN where a pod was not there."""


class Use(NamedTuple):
    """What the pods of a span used: a row for each window of each pod that was there, pods one after another."""

    names: list[str]
    """Of the pods, in order."""
    pod: NDArray[np.int64]
    window: NDArray[np.int64]
    mean: NDArray[np.float64]
    """[rows, 2]: cores and GiB."""

    def blocks(self) -> Iterator[Block]:
        """Lay out all pods, so many at once: a table of all of them would be as large as windows times pods ever."""
        if not self.names:
            yield Block(np.empty(0, np.int64), 0, np.empty((0, 0, len(RESOURCES))))
            return
        begins = np.searchsorted(self.pod, np.arange(len(self.names)))
        ends = np.append(begins[1:], self.pod.size)
        came = np.argsort(self.window[begins], kind="stable")
        for chosen in np.split(came, range(MOST_AT_ONCE, came.size, MOST_AT_ONCE)):
            rows = np.concatenate([np.arange(begins[pod], ends[pod]) for pod in chosen])
            column = np.repeat(np.arange(chosen.size), ends[chosen] - begins[chosen])
            first, last = int(self.window[rows].min()), int(self.window[rows].max())
            mean = np.full((last - first + 1, chosen.size, len(RESOURCES)), np.nan)
            mean[self.window[rows] - first, column] = self.mean[rows]
            yield Block(chosen, first, mean)

    def at(self, pod: NDArray[np.int64], window: NDArray[np.int64]) -> Floats:
        """Return [asked, 2] of rows that there are."""
        count = int(self.window.max(initial=0)) + 1
        return self.mean[np.searchsorted(self.pod * count + self.window, pod * count + window)]

    def followed(self, first: int) -> int:
        """Count the rows from a window on whose pod is there in the next one too."""
        on = (np.diff(self.pod) == 0) & (np.diff(self.window) == 1)
        return int((on & (self.window[:-1] >= first)).sum())


def of_windows(pods: pd.DataFrame) -> NDArray[np.float64]:
    """Return [rows, 2]: windows tell the mean while the pod was there; the node had it for that part of the window."""
    return np.stack([(pods[name] * pods["present_ratio"]).fillna(0.0).to_numpy(np.float64) for name in USED], axis=1)


def measured(folder: Path, start: datetime, end: datetime, *, several: bool) -> Use:
    """Read what pods used in a span; their names are spelled with their clusters where there are ``several``."""
    pods = windows.frame_of(folder, "pods", start, end, ["pod", "present_ratio", *USED])
    pod, names = pd.factorize(windows.spelled(pods, "pod", several), sort=True)
    elapsed = (pods["window_start"] - pd.Timestamp(start)).dt.total_seconds()
    window = np.array(elapsed // WINDOW_SECONDS, np.int64)
    order = np.lexsort((window, pod))
    return Use(list(names), pod[order].astype(np.int64), window[order], of_windows(pods)[order])


def expected(use: Use, model: models.GraphModel, pod: NDArray[np.int64], window: NDArray[np.int64]) -> Floats:
    """Ask a forecast of pods at windows: [asked, 8], as ``foresight.AHEAD``."""
    said, order = np.empty((pod.size, len(AHEAD))), np.argsort(pod, kind="stable")
    begins, ends = (np.searchsorted(pod[order], np.arange(len(use.names)), side) for side in ("left", "right"))
    for block in use.blocks():
        rows = np.concatenate([order[begins[one] : ends[one]] for one in block.pods])
        column = np.repeat(np.arange(block.pods.size), ends[block.pods] - begins[block.pods])
        said[rows] = forecast.expected(model, forecast.rows_of(block.mean, window[rows] - block.first, column))
    return said


def opened(folder: Path) -> models.GraphModel | None:
    """Open the forecast that a stage before has left in a folder, as the service would; None: it shipped none."""
    return model_folder.opened(folder, NAME, SPEC)
