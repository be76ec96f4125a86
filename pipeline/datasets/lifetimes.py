"""The lifetime model that a night has shipped, asked for the VMs of a trace as who calls the service asks it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sched_env.vm.lives import ROWS, SPEC, Floats, asked, expected
from wire import graph, models
from wire.contracts.bundle import ModelName, model_file, model_golden_file
from wire.models import GraphModel

NAME: ModelName = "lifetime"
SPEC_FILE = "spec.json"
MOST_ROWS = 10_000
"""Asked at a time."""


def opened(folder: Path) -> GraphModel | None:
    """Open the model of a folder as the service would open it in a bundle; None: none was shipped."""
    if not (folder / SPEC_FILE).exists():
        return None
    files = {name: (folder / name).read_bytes() for name in (model_file(NAME), model_golden_file(NAME))}
    return models.open_all([models.check(NAME, SPEC, files, graph.OPSET)])[NAME]


def expectations(model: GraphModel, cpu: Floats, mem: Floats, created_s: Floats) -> NDArray[np.float64]:
    """Return what is expected of the lives of VMs, as of their creation (seconds from a midnight, UTC)."""
    rows = asked(cpu, mem, created_s)
    parts = (rows[first : first + MOST_ROWS] for first in range(0, len(rows), MOST_ROWS))
    return np.concatenate([expected(model({ROWS: part})) for part in parts])
