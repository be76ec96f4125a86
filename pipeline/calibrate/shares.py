"""How much is used of what was given out, from windows, with its error."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.contracts.calibration import Value
from pipeline.datasets.responses import NORMAL_95
from pipeline.statistics.estimators import Floats


def share_used(name: str, unit: str, given: Floats, used: Floats, times: pd.Series[pd.Timestamp], needs: str) -> Value:
    """Return what is used over what was given, all windows together; all of it is assumed to be where nobody tells.

    A line with a part that is always used would be drawn by the few windows that are nearly empty; the error is that
    of hours, since windows of one hour are alike.
    """
    if given.sum() <= 0.0:
        return Value(name, unit, 1.0, None, None, 0, "assumed", needs)
    share = float(used.sum() / given.sum())
    _, hour = np.unique(times.dt.floor("h").to_numpy(), return_inverse=True)
    rest = np.bincount(hour, used - share * given)
    width = NORMAL_95 * float(np.sqrt((rest**2).sum()) / given.sum())
    return Value(name, unit, share, max(share - width, 0.0), share + width, int(given.size), "estimated")
