"""The lifetime model that a night has shipped, asked for the VMs of a trace as who calls the service asks it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline import model_folder
from sched_env.vm.lives import ROWS, SPEC, Floats, asked, expected
from wire.contracts.bundle import ModelName
from wire.models import GraphModel

NAME: ModelName = "lifetime"
MOST_ROWS = 10_000
"""Asked at a time."""


def opened(folder: Path) -> GraphModel | None:
    """Open the model of a folder; None: none was shipped."""
    return model_folder.opened(folder, NAME, SPEC)


def expectations(model: GraphModel, cpu: Floats, mem: Floats, created_s: Floats) -> NDArray[np.float64]:
    """Return what is expected of the lives of VMs, as of their creation (seconds from a midnight, UTC)."""
    rows = asked(cpu, mem, created_s)
    parts = (rows[first : first + MOST_ROWS] for first in range(0, len(rows), MOST_ROWS))
    return np.concatenate([expected(model({ROWS: part})) for part in parts])
