"""What a problem needs to be trained from windows; one such value in each ``pipeline/datasets/<problem>.py``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.calibration import Calibration
from pipeline.contracts.evaluation import Backtest, Origin
from pipeline.windows import Span
from sched_env.scenarios import Scenario

Rows = NDArray[np.int64]


class Dataset(NamedTuple):
    """How windows become a problem's trace, and what can be done with it."""

    load: Callable[[Path, datetime, datetime], Any]
    """Windows folder and span -> what ``make_vec`` takes as ``trace``; nothing from after the span is seen."""
    starts: Callable[[Any, Scenario], Rows]
    """Rows of a trace at which an episode of a scenario can begin and have its full length, in order of time."""
    times_s: Callable[[Any, Rows], NDArray[np.float64]]
    """Recorded time of such rows, in seconds from the start of the span: what time blocks are cut by."""
    scaled: Callable[[Any, float], Any]
    """The same trace with arrivals so many times as dense."""
    measured: Callable[[Path, datetime, datetime, Scenario], Mapping[str, float]] | None = None
    """What the cluster itself did in a span, on the metric sheet; None: windows do not say."""
    origins: Callable[[Path, datetime, datetime], list[Origin]] | None = None
    """Where the numbers of a span come from, feature by feature; None: nobody counts them yet."""
    calibrated: Callable[[Any, Calibration], Any] | None = None
    """The same trace with what calibration found of its rows; None: nothing of a row is calibrated."""
    fit: Callable[[Path, Span, Callable[[Mapping[str, Any] | None], Scenario]], Calibration] | None = None
    """Windows folder, train span and how to make the scenario with some keys -> its calibration; None: it has none."""
    check: Callable[[Any, Path, Any, str], tuple[Backtest, Any]] | None = None
    """Workload, windows folder, policy and its name -> what the simulator says beside what was measured, and both
    window by window; None: windows do not tell."""
    brings: Callable[[Any], Mapping[str, Any]] | None = None
    """Keys of the scenario that a trace brings: the machines it was recorded on; None: they are in the trace."""
    decisive: Mapping[str, str] = MappingProxyType({})
    """Number of the simulator (``Calibration.values``) -> the metric that it decides: where it is assumed, nothing is
    concluded."""
    believed: Callable[[Any, Path, Path, Span], Any] | None = None
    """The same trace as schedulers believe it, by the further models in a folder; with the windows and the span that it
    was made of. None: they know the truth."""
    longest_s: Callable[[Any, Scenario], float] | None = None
    """Recorded time of the longest episode of a trace; None: whoever evaluates says how long time blocks are."""
    resized: Callable[[Any, Scenario, float], tuple[Any, Scenario]] | None = None
    """The same trace on a cluster so many times as large, under as many times the load (``pipeline.datasets.copies``),
    and its scenario; None: it is not asked."""
    asked: Callable[[Any, Scenario, Rows], NDArray[np.float64]] | None = None
    """Mean size of what the episodes ask for that begin at some rows; None: requests have no size."""
    asked_in: str = ""
    """What that size is in, e.g. ``cores``."""


def later(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a module that stands on the dataset itself, and is imported when it is called."""

    def call(*given: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*given)

    return call
