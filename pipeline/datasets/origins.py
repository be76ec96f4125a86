"""Where the numbers of a workload come from: measured, estimated from the windows, or assumed; feature by feature."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many of a feature's numbers came from where."""

    feature: str
    measured: int
    estimated: int
    """From other windows or figures; a calibration says with what error."""
    assumed: int
    """Defaults: nothing in the windows speaks for them."""
    decides: str = ""
    """Metrics that rest on this feature: too much of it assumed, and they say nothing of this cluster."""
    needs: str = ""
    """What to add so that it is measured."""

    @property
    def assumed_share(self) -> float:
        """Share of its numbers that nothing speaks for."""
        return self.assumed / max(self.measured + self.estimated + self.assumed, 1)


class Tally:
    """Collects origins while a workload is built; as arrays, so that they are kept beside it."""

    def __init__(self) -> None:
        self.counts: dict[str, tuple[int, int, int]] = {}

    def add(self, feature: str, measured: NDArray[np.bool_], estimated: NDArray[np.bool_] | None = None) -> None:
        """Count a feature's rows: measured; where not, estimated; the rest is assumed."""
        first = np.asarray(measured, bool)
        second = np.zeros_like(first) if estimated is None else np.asarray(estimated, bool) & ~first
        self.counts[feature] = (int(first.sum()), int(second.sum()), int((~first & ~second).sum()))

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return names and counts, in order."""
        return {
            "origin_features": np.array(list(self.counts), dtype=str),
            "origin_counts": np.array(list(self.counts.values()), dtype=np.int64).reshape(-1, 3),
        }


def read(features: NDArray[np.generic], counts: NDArray[np.generic], about: dict[str, tuple[str, str]]) -> list[Origin]:
    """Make a tally's arrays origins again; ``about`` says of a feature what it decides and what it needs."""
    rows = zip(features.tolist(), counts.tolist(), strict=True)
    return [Origin(name, found[0], found[1], found[2], *about.get(name, ("", ""))) for name, found in rows]
