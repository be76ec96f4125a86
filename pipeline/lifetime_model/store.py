"""The folder of a lifetime model: graph, golden vectors, spec and what was measured, ready to go into a bundle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from pipeline.datasets.lifetimes import NAME, SPEC_FILE
from pipeline.errors import DataError
from pipeline.files import replaced_folder
from pipeline.lifetime_model.figures import rows
from pipeline.lifetime_model.graph import to_onnx
from pipeline.lifetime_model.model import AGES_S, Fitted
from pipeline.lifetime_model.seen import Lives
from pipeline.onnx_writer import golden
from sched_env.vm.lives import ROWS, SECONDS, SPEC
from wire import graph, models
from wire.contracts.bundle import model_file, model_golden_file

MEASURED_FILE, NONE_FILE = "measured.json", "none.json"


def write(out: Path, lives: Lives, fitted: Fitted, measured: Mapping[str, object]) -> None:
    """Write the folder, after holding the graph to the tables it was made of and to the service's own checks."""
    data = to_onnx(fitted, {"measured": json.dumps(measured, sort_keys=True)})
    session = graph.open_session(data, model_file(NAME))
    asked = rows(lives)
    asked[:, 3] = np.resize(AGES_S * 1.5, len(asked))  # golden vectors of all ages
    if not np.array_equal(session.run(None, {ROWS: asked})[0], fitted.predict(asked)):
        raise DataError("the exported graph differs from the tables it was made of", "the same bits", "report a bug")
    files = {model_file(NAME): data, model_golden_file(NAME): golden(session, asked, ROWS, SECONDS)}
    models.open_all([models.check(NAME, SPEC, files, graph.OPSET)])
    with replaced_folder(out) as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        (folder / SPEC_FILE).write_bytes(msgspec.json.encode(SPEC, order="sorted"))
        (folder / MEASURED_FILE).write_text(json.dumps(measured, indent=1, sort_keys=True) + "\n")


def write_none(out: Path, why: str, measured: Mapping[str, object]) -> None:
    """Write a folder without a model, and why there is none."""
    with replaced_folder(out) as folder:
        (folder / NONE_FILE).write_text(json.dumps({"why": why, **measured}, indent=1, sort_keys=True) + "\n")
