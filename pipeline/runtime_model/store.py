"""The folder of a runtime model: graph, golden vectors, spec and what was measured, ready to go into a bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline import model_folder
from pipeline.errors import DataError
from pipeline.onnx_writer import golden
from pipeline.runtime_model import unseen
from pipeline.runtime_model.graph import to_onnx
from pipeline.runtime_model.model import Fitted, Floats, figures, fit, held_out
from pipeline.runtime_model.profiles import Profiles
from sched_env.jobs.predictor import ROWS, SECONDS, SPEC, RuntimePredictor, rows
from wire import graph
from wire.contracts.bundle import ModelName, model_file

NAME: ModelName = "runtime"
ERROR_SHARES = np.linspace(0.01, 0.99, 99)
MOST_APART = 1e-4
"""Relative difference allowed between the graph and what it was made of: float32 sums in another order."""


def made(profiles: Profiles, *, seed: int = 0) -> tuple[Fitted, dict[str, float], Floats]:
    """Fit, and measure on sets held out; also returns quantiles of the log errors there."""
    raw, is_long = held_out(profiles, seed=seed)
    fitted = fit(profiles, seed=seed, held=(raw, is_long))
    measured = figures(raw, profiles)
    # The margins were chosen on these very sets, so their coverage here is 90 % by construction and says nothing.
    measured = {name: value for name, value in measured.items() if "cover" not in name and "width" not in name}
    measured |= unseen.margins(profiles, seed=seed)
    measured |= {"sets": float(len(profiles)), "fitted_until_s": float(np.nanmax(profiles.time_s))}
    return fitted, measured, np.quantile(raw[:, 0] - profiles.logs(), ERROR_SHARES)


def write(out: Path, profiles: Profiles, fitted: Fitted, measured: dict[str, float], errors: Floats) -> None:
    """Write the folder, after holding the graph to the forest it was made of and to the service's own checks."""
    data = to_onnx(fitted, measured)
    session = graph.open_session(data, model_file(NAME))
    asked = rows(fitted.catalogue, profiles.asked())
    found = session.run(None, {ROWS: asked})[0].astype(np.float64)
    apart = float(np.abs(found / np.exp(fitted.predict(asked)) - 1.0).max())
    if apart > MOST_APART:
        raise DataError(f"the exported graph differs from the forest by {apart:.2e}", f"at most {MOST_APART:g}")
    shown = {**measured, "graph_difference": apart, "bytes": len(data), "log_error_quantiles": errors.tolist()}
    model_folder.write(out, NAME, SPEC, data, golden(session, asked, ROWS, SECONDS), shown)


def load(folder: Path) -> RuntimePredictor:
    """Open a folder as the service would open the model in a bundle."""
    model = model_folder.opened(folder, NAME, SPEC)
    if model is None:
        raise DataError(f"{folder} has no {model_file(NAME)}", "a folder that `runtime_model fit` wrote")
    return RuntimePredictor.of(model)
