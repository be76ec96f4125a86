"""What each pod will use soon and in an hour, and how sure that is: fit, evaluate, or do what the night asks.

    python -m pipeline.forecast fit --windows data/windows --out DIR
    python -m pipeline.forecast evaluate --model DIR --windows data/windows --json
    python -m pipeline.forecast night

``fit`` measures every way to foresee a window on the validation part and writes a model of those that beat the last
window; where none does, the model still says how far off the last window will be.
``evaluate`` asks a model, as the service would, for the test part. ``night`` fits on the run's windows, if it is about
``pods``.
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import model_folder, paths
from pipeline.settings import load
from wire.command import Verb
from wire.contracts.window import WINDOW_SECONDS

if TYPE_CHECKING:
    from pipeline.forecast.methods import Asked
    from pipeline.windows import Span, Splits

PROBLEM = "pods"
OUT = paths.MODELS / PROBLEM / "forecast"
LOOKED_BACK = timedelta(days=1)
LEAST_ROWS = 100
"""Pods times windows in each part, below which nothing is measured."""


def parts(folder: Path, params: Path = paths.PARAMS) -> Splits:
    """Divide the windows as training and evaluation do."""
    from pipeline import windows

    there = windows.covered(folder)
    return windows.splits(there.start, there.end, load("splits", windows.SplitConfig, params))


def seen(folder: Path, span: Span) -> Asked:
    """Take what can be asked of a span, with the day before it to look back at; nothing after it is read."""
    from pipeline import windows
    from pipeline.datasets import pod_use
    from pipeline.forecast.methods import asked, thinned, together

    start = max(span.start - LOOKED_BACK, windows.span(folder).start)
    use = pod_use.measured(folder, start, span.end, several=True)
    first = (span.start - start) // timedelta(seconds=WINDOW_SECONDS)
    every = thinned(use.followed(first))
    return together([asked(block.mean, first, begin=block.first, every=every) for block in use.blocks()])


def fit(folder: Path, out: Path, params: Path = paths.PARAMS) -> dict[str, object]:
    """Measure, choose, judge, and write a model, or that there is too little; returns what was measured."""
    import numpy as np

    from pipeline.forecast import gate, methods, store

    split = parts(folder, params)
    train, held = seen(folder, split.train), seen(folder, split.validation)
    rows = min(len(train.truth), len(held.truth))
    if rows < LEAST_ROWS:
        shown: dict[str, object] = {
            "shipped": 0.0,
            "why": f"the last window is the forecast: {rows} rows of pods are too few to measure",
        }
        model_folder.write_none(out, shown)
        return shown
    ways = methods.weights(train)
    verdicts, errors = gate.judge(ways, held)
    shown = {"rows": float(len(held.truth)), "confidence": gate.CONFIDENCE}
    fitted = gate.chosen(ways, verdicts, train)
    inside = methods.covered(fitted, held).ravel()
    for k, (name, verdict) in enumerate(verdicts.items()):
        shown |= {f"{name}_{way}": float(error[k]) for way, error in errors.items()}
        shown |= {f"{name}_chosen": float(errors[verdict.method][k]), f"{name}_method": verdict.method}
        bounds = {f"{name}_gain_lower": verdict.lower, f"{name}_gain_upper": verdict.upper}
        # Of too few blocks there are no bounds, and JSON has no word for infinite ones.
        shown |= {f"{name}_gain": verdict.gain} | {bound: x for bound, x in bounds.items() if np.isfinite(x)}
        shown[f"{name}_within_80"] = float(inside[k])
    shown |= {"shipped": 1.0, "why": "; ".join(verdict.why for verdict in verdicts.values())}
    store.write(out, fitted, held, shown)
    return shown


def evaluate(model: Path, folder: Path, params: Path = paths.PARAMS) -> dict[str, float]:
    """Ask a model's graph for the test part and compare it with the last window."""
    import numpy as np

    from pipeline.datasets import pod_use
    from pipeline.errors import DataError
    from pipeline.forecast.methods import COVERED, LAST
    from sched_env.pods.forecast import HORIZONS, KNOWN, RESOURCES, expected

    graph = pod_use.opened(model)
    if graph is None:
        raise DataError(f"{model} has no model", "a folder in which `forecast fit` has shipped one")
    some = seen(folder, parts(folder, params).test)
    answers = expected(graph, some.known.reshape(len(some.known), -1).astype(np.float32))
    answers = answers.reshape(len(answers), len(RESOURCES), 2, len(HORIZONS))
    found = {"rows": float(len(some.truth))}
    for k, h in np.ndindex(len(RESOURCES), len(HORIZONS)):
        name, came = f"{RESOURCES[k][0]}_{HORIZONS[h]}", ~np.isnan(some.truth[:, k, h])
        truth, said, spread = some.truth[came, k, h], answers[came, k, 0, h], answers[came, k, 1, h]
        for way, foreseen in (("forecast", said), (LAST, some.known[came, k, KNOWN.index(LAST)])):
            found[f"{name}_{way}"] = float(np.abs(foreseen - truth).sum() / truth.sum())
        found[f"{name}_within_80"] = float((np.abs(said - truth) <= COVERED * np.sqrt(spread)).mean())
    return found


def night() -> dict[str, object]:
    """Fit on the run's windows and write ``data/models/pods/forecast``; at once where the night is not about pods."""
    if PROBLEM in load("problems", list[str]):
        return fit(paths.WINDOWS, OUT)
    shown: dict[str, object] = {"shipped": 0.0, "why": "this night is not about pods"}
    model_folder.write_none(OUT, shown)
    return shown


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="fit|evaluate|night")
    fitting = verbs.add_parser("fit", help="measure on windows and write a model")
    fitting.add_argument("--windows", type=Path, default=paths.WINDOWS, help="folder of window tables")
    fitting.add_argument("--out", type=Path, required=True, help="folder to write")
    testing = verbs.add_parser("evaluate", help="compare a model with the test part of windows")
    testing.add_argument("--model", type=Path, required=True, help="folder that fit wrote")
    testing.add_argument("--windows", type=Path, default=paths.WINDOWS, help="folder of window tables")
    testing.add_argument("--json", action="store_true", help="print the figures as one line of JSON")
    verbs.add_parser("night", help="what the nightly run does")


def run(options: argparse.Namespace) -> int:
    """Do what is asked."""
    if options.verb == "night":
        return model_folder.tell_night("forecast", night())
    if options.verb == "evaluate":
        return model_folder.tell(evaluate(options.model, options.windows), lines=not options.json)
    return model_folder.tell(fit(options.windows, options.out))


main = Verb("python -m pipeline.forecast", __doc__, arguments, run)
