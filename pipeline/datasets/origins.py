"""Where the numbers of a workload come from: measured, estimated from the windows, or assumed; feature by feature."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.evaluation import Origin


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
