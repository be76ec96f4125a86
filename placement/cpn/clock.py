"""The controller's clock: the wall's, or in rehearsals with played clusters a faster one."""

from __future__ import annotations

import time

EPOCH_S = 1_600_000_000.0
"""From here on a fast clock runs ahead; fixed, so that it goes on where it was after a restart."""


class Clock:
    """Tells the time in seconds since 1970.

    Args:
        scale: Seconds that pass in a second of the wall's clock.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def __call__(self) -> float:
        """Return the time."""
        return self.at(time.time())

    def at(self, wall_s: float) -> float:
        """Return the time at a time of the wall's clock."""
        return wall_s if self.scale == 1.0 else EPOCH_S + (wall_s - EPOCH_S) * self.scale

    def wall_s(self, seconds: float) -> float:
        """Return how long the wall's clock takes for so many seconds of ours."""
        return seconds / self.scale
