"""What pods used, window by window, and what a forecast says of the next: the same file that goes into the bundle."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline import model_folder, windows
from sched_env.pods.forecast import NAME, RESOURCES, SPEC
from wire import models
from wire.contracts.window import WINDOW_SECONDS

USED = ("cpu_used_mean_cores", "mem_used_mean_gib")


class Use(NamedTuple):
    """What the pods of a span used."""

    names: Sequence[str]
    """Of the pods, in order."""
    mean: NDArray[np.float64]
    """[windows, pods, 2]: cores and GiB; NaN where a pod was not there."""


def of_windows(pods: pd.DataFrame) -> NDArray[np.float64]:
    """Return [rows, 2]: windows tell the mean while the pod was there; the node had it for that part of the window."""
    return np.stack([(pods[name] * pods["present_ratio"]).fillna(0.0).to_numpy(np.float64) for name in USED], axis=1)


def measured(folder: Path, start: datetime, end: datetime, *, several: bool) -> Use:
    """Lay out what pods used in a span; their names are spelled with their clusters where there are ``several``."""
    pods = windows.frame_of(folder, "pods", start, end, ["pod", "present_ratio", *USED])
    names, pod = np.unique(windows.spelled(pods, "pod", several).to_numpy(str), return_inverse=True)
    elapsed = (pods["window_start"] - pd.Timestamp(start)).dt.total_seconds()
    window = (elapsed // WINDOW_SECONDS).to_numpy(np.int64)
    count = int((end - start).total_seconds()) // WINDOW_SECONDS
    mean = np.full((count, len(names), len(RESOURCES)), np.nan)
    mean[window, pod] = of_windows(pods)
    return Use(names.tolist(), mean)


def opened(folder: Path) -> models.GraphModel | None:
    """Open the forecast that a stage before has left in a folder, as the service would; None: it shipped none."""
    return model_folder.opened(folder, NAME, SPEC)
