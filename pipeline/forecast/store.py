"""The folder of a forecast: graph, golden vectors, spec and what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipeline import model_folder
from pipeline.errors import DataError
from pipeline.forecast.graph import to_onnx
from pipeline.forecast.methods import Asked, Fitted, predicted
from pipeline.onnx_writer import golden
from sched_env.pods.forecast import EXPECTED, NAME, ROWS, SPEC
from wire import graph
from wire.contracts.bundle import model_file

MOST_APART = 1e-5
"""Difference allowed between the graph and what it was made of, in parts of the largest answer: float32."""


def write(out: Path, fitted: Fitted, some: Asked, measured: Mapping[str, object]) -> None:
    """Write the folder, after holding the graph to the weights it was made of and to the service's own checks."""
    data = to_onnx(fitted)
    session = graph.open_session(data, model_file(NAME))
    known = some.known.reshape(len(some.known), -1).astype(np.float32)
    found = session.run([EXPECTED], {ROWS: known})[0].astype(np.float64)
    wanted = predicted(fitted, some.known)
    apart = float(np.abs(found - wanted).max() / max(float(wanted.max()), 1.0))
    if apart > MOST_APART:
        raise DataError(f"the exported graph differs from its weights by {apart:.2e}", f"at most {MOST_APART:g}")
    model_folder.write(out, NAME, SPEC, data, golden(session, known, ROWS, EXPECTED), measured)
