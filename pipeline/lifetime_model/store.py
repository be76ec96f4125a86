"""The folder of a lifetime model: graph, golden vectors, spec and what was measured, ready to go into a bundle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipeline import model_folder
from pipeline.datasets.lifetimes import NAME
from pipeline.errors import DataError
from pipeline.lifetime_model.figures import rows
from pipeline.lifetime_model.graph import to_onnx
from pipeline.lifetime_model.model import AGES_S, Fitted
from pipeline.lifetime_model.seen import Lives
from pipeline.onnx_writer import golden
from sched_env.vm.lives import ROWS, SECONDS, SPEC
from wire import graph
from wire.contracts.bundle import model_file


def write(out: Path, lives: Lives, fitted: Fitted, measured: Mapping[str, object]) -> None:
    """Write the folder, after holding the graph to the tables it was made of and to the service's own checks."""
    data = to_onnx(fitted, {"measured": json.dumps(measured, sort_keys=True)})
    session = graph.open_session(data, model_file(NAME))
    asked = rows(lives)
    asked[:, 3] = np.resize(AGES_S * 1.5, len(asked))  # golden vectors of all ages
    if not np.array_equal(session.run(None, {ROWS: asked})[0], fitted.predict(asked)):
        raise DataError("the exported graph differs from the tables it was made of", "the same bits", "report a bug")
    model_folder.write(out, NAME, SPEC, data, golden(session, asked, ROWS, SECONDS), measured)
