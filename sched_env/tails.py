"""Where the tails of response times are told: the share of calls that take longer than so many times their mean."""

from __future__ import annotations

import numpy as np

TAIL_LOW, TAIL_HIGH, TAIL_POINTS = 0.02, 50.0, 96
TAIL_AT = np.exp(np.linspace(np.log(TAIL_LOW), np.log(TAIL_HIGH), TAIL_POINTS))
"""In multiples of the mean."""
