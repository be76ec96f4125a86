"""Measured sets of jobs as arrays: what ran together on which type of card, and how long each iteration took.

Files have the columns of the public co-location profiles; the controller writes its finished jobs in the same form
(``sched_env.jobs.finished``). Sets, not rows, are what is held out: all rows of one set of models stay together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError
from sched_env.jobs.predictor import Asked
from sched_env.jobs.trace import CARD_NAMES
from sched_env.traces import cpn

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Profiles:
    """One entry a measured set."""

    sets: NDArray[np.object_]
    """(type of card, models), models sorted."""
    seconds: NDArray[np.object_]
    """Seconds an iteration of each, in that order."""
    time_s: Floats
    cpu: Floats
    """While they ran, the share of the node's cores; NaN: unknown. Told about *other* sets, it says what models take;
    about the set itself nobody knows it before the run."""
    gpu: Floats
    mem_gib: Floats
    flops: dict[str, float]

    def __len__(self) -> int:
        return len(self.sets)

    def only(self, chosen: NDArray[np.bool_]) -> Profiles:
        """Return some of the sets."""
        kept = {f.name: getattr(self, f.name) for f in fields(self)}
        return Profiles(**{name: value if name == "flops" else value[chosen] for name, value in kept.items()})

    def asked(self) -> list[Asked]:
        """Return the sets."""
        return list(self.sets)

    def logs(self) -> Floats:
        """Return log seconds, a value a job, set by set."""
        seconds: Floats = np.concatenate(list(self.seconds))
        return np.log(seconds)

    def of_set(self) -> NDArray[np.int64]:
        """Return for each job the number of its set."""
        return np.repeat(np.arange(len(self)), [len(models) for _, models in self.sets])

    def folds(self, count: int, seed: int) -> NDArray[np.int64]:
        """Deal sets to folds by the models in them, whatever the card."""
        groups = ["+".join(models) for _, models in self.sets]
        names = sorted(set(groups))
        order = np.random.default_rng(seed).permutation(len(names))
        dealt = {names[at]: number % count for number, at in enumerate(order)}
        return np.array([dealt[group] for group in groups])

    def models(self) -> list[str]:
        """Return the models there are."""
        return sorted({model for _, models in self.sets for model in models})

    def cards(self) -> list[str]:
        """Return the types of card there are."""
        return sorted({card for card, _ in self.sets})


def read(paths: Iterable[Path]) -> Profiles:
    """Read profiles; rows that say nothing are left out, a file without a usable row is an error."""
    sets: list[Asked] = []
    seconds: list[Floats] = []
    more: list[tuple[float, float, float, float]] = []
    flops: dict[str, float] = {}
    for path in paths:
        table = cpn.read_colocations(path, skip_bad=True)
        before = len(sets)
        for row, models in enumerate(table.model):
            there = sorted((slot for slot in range(models.size) if models[slot]), key=lambda slot: str(models[slot]))
            if not there:
                continue
            card = str(table.gpu[row])
            sets.append((CARD_NAMES.get(card, card), tuple(str(models[slot]) for slot in there)))
            seconds.append(table.seconds[row, there])
            more.append((table.time_s[row], table.cpu_used[row], table.gpu_used[row], table.gpu_mem_used[row]))
            known = zip(sets[-1][1], table.flops[row, there], strict=True)
            flops |= {model: float(value) for model, value in known if value > 0}
        if len(sets) == before:
            raise DataError(f"{path} has no measured set", "rows with gpu, model1 and averagetime1 at least")
    if not sets:
        raise DataError("there are no profiles", "at least one file of measured sets")
    time_s, cpu, gpu, memory = np.array(more).T
    return Profiles(_objects(sets), _objects(seconds), time_s, cpu, gpu, memory, flops)


def _objects(values: Iterable[object]) -> NDArray[np.object_]:
    listed = list(values)
    made = np.empty(len(listed), object)
    made[:] = listed
    return made
