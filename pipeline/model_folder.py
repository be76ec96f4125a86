"""The folder of a further model, as its stage leaves it for training and ``export``: or why there is none."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pipeline import paths
from pipeline.files import replaced_folder, write_atomic
from wire import graph, models
from wire.contracts.bundle import ModelName, ModelSpec, model_file, model_golden_file

SPEC_FILE, MEASURED_FILE, NONE_FILE = "spec.json", "measured.json", "none.json"


def write(
    out: Path, name: ModelName, spec: ModelSpec, data: bytes, golden: bytes, measured: Mapping[str, object]
) -> None:
    """Write graph, golden vectors, spec and what was measured, after the service's own checks."""
    files = {model_file(name): data, model_golden_file(name): golden}
    models.open_all([models.check(name, spec, files, graph.OPSET)])
    with replaced_folder(out) as folder:
        for file, content in files.items():
            (folder / file).write_bytes(content)
        (folder / SPEC_FILE).write_bytes(msgspec.json.encode(spec, order="sorted"))
        (folder / MEASURED_FILE).write_text(json.dumps(measured, indent=1, sort_keys=True) + "\n")


def write_none(out: Path, measured: Mapping[str, object]) -> None:
    """Say why there is no model, with all that was measured."""
    with replaced_folder(out) as folder:
        (folder / NONE_FILE).write_text(json.dumps(measured, indent=1, sort_keys=True) + "\n")


def opened(folder: Path, name: ModelName, spec: ModelSpec) -> models.GraphModel | None:
    """Open the model of a folder as the service would open it in a bundle; None: none was shipped."""
    names = (model_file(name), model_golden_file(name))
    if not (folder / names[0]).is_file():
        return None
    checked = models.check(name, spec, {file: (folder / file).read_bytes() for file in names}, graph.OPSET)
    return models.open_all([checked])[name]


def tell(found: Mapping[str, object], *, lines: bool = False) -> int:
    """Print what a command has found, as one line of JSON or figure by figure; returns its exit code."""
    text = "".join(f"{name} {value:.4g}\n" for name, value in found.items()) if lines else json.dumps(found) + "\n"
    sys.stdout.write(text)
    return 0


def tell_night(stage: str, found: Mapping[str, object]) -> int:
    """Keep the figures of a night as the stage's metrics, and print all it has found; returns the exit code."""
    figures = {name: value for name, value in found.items() if isinstance(value, float)}
    write_atomic(paths.metrics_of(stage), json.dumps(figures, indent=1).encode() + b"\n")
    return tell(found)
