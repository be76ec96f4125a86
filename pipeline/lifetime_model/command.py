"""How much longer VMs live: fit, evaluate, or do what the night asks.

    python -m pipeline.lifetime_model fit --lives CSV --out DIR
    python -m pipeline.lifetime_model evaluate --model DIR --lives CSV --json
    python -m pipeline.lifetime_model night

``fit`` learns from lives that were seen and writes graph, golden vectors and spec. ``evaluate`` asks the graph, as the
service would, for the lives of a file and says how far off it was. ``night`` fits on the train windows, measures on
the validation windows, and ships the model only where it knows more than one distribution of lives for all.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline import model_folder, paths, windows
from pipeline.datasets.lifetimes import NAME, opened
from pipeline.errors import DataError
from pipeline.lifetime_model import gate, model, seen, store
from pipeline.lifetime_model.figures import figures, pinball, rows
from pipeline.settings import load
from sched_env.vm.lives import ROWS
from wire.command import Verb

PROBLEM = "vm"


def evaluate(folder: Path, lives: seen.Lives) -> dict[str, float]:
    """Ask a model's graph for lives and compare."""
    found = opened(folder)
    if found is None:
        raise DataError(f"{folder} has no model", "a folder that `lifetime_model fit` wrote")
    return figures(lives, found({ROWS: rows(lives)}))


def night() -> dict[str, object]:
    """Fit and judge on the windows of this run, and write ``data/models/vm/lifetime``."""
    out = paths.MODELS / PROBLEM / NAME
    why, train, validation = _looked()
    if train is None or validation is None:
        model_folder.write_none(out, {"why": why})
        return {"shipped": "none", "why": why}
    fitted, one = model.fit(train), model.plain(train)
    answers = {"model": fitted.predict(rows(validation)), "plain": one.predict(rows(validation))}
    verdict = gate.judge(validation, *(pinball(validation, answer) for answer in answers.values()))
    measured = {
        **verdict.measured,
        **figures(validation, answers["model"]),
        **{f"plain_{name}": value for name, value in figures(validation, answers["plain"]).items()},
        "fitted_on": float(len(train.life_s)),
        "flavours": float(len(fitted.flavours)),
    }
    if verdict.ships:
        store.write(out, train, fitted, {"why": verdict.why, **measured})
    else:
        model_folder.write_none(out, {"why": verdict.why, **measured})
    return {"shipped": "challenger" if verdict.ships else "none", "why": verdict.why, **measured}


def _looked() -> tuple[str, seen.Lives | None, seen.Lives | None]:
    """Return the lives of the train and of the validation windows, or why there is nothing to fit."""
    if PROBLEM not in load("problems", list[str]):
        return f"this run is not about {PROBLEM}", None, None
    there = windows.covered(paths.WINDOWS)
    parts = windows.splits(there.start, there.end, load("splits", windows.SplitConfig, paths.PARAMS))
    train, validation = (seen.of_span(paths.WINDOWS, span) for span in (parts.train, parts.validation))
    if len(train.life_s) < model.LEAST or not len(validation.life_s):
        said = f"{len(train.life_s)} lives in the train windows, {len(validation.life_s)} in those of validation"
        return f"{said}; at least {model.LEAST} and {gate.FEWEST_LIVES} are needed", None, None
    return "", train, validation


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="fit|evaluate|night")
    fitting = verbs.add_parser("fit", help="learn from lives that were seen")
    fitting.add_argument("--lives", type=Path, required=True, help=f"CSV of {', '.join(seen.COLUMNS)}")
    fitting.add_argument("--out", type=Path, required=True, help="folder to write")
    testing = verbs.add_parser("evaluate", help="compare a model with lives")
    testing.add_argument("--model", type=Path, required=True, help="folder that fit wrote")
    testing.add_argument("--lives", type=Path, required=True, help=f"CSV of {', '.join(seen.COLUMNS)}")
    testing.add_argument("--json", action="store_true", help="print the figures as one line of JSON")
    verbs.add_parser("night", help="what the nightly run does")


def run(options: argparse.Namespace) -> int:
    """Do what is asked."""
    if options.verb == "night":
        return model_folder.tell_night("lifetime_model", night())
    lives = seen.read(options.lives)
    if options.verb == "evaluate":
        return model_folder.tell(evaluate(options.model, lives), lines=not options.json)
    fitted = model.fit(lives)
    shown = {"fitted_on": float(len(lives.life_s)), "flavours": float(len(fitted.flavours)), "days": seen.days(lives)}
    store.write(options.out, lives, fitted, shown)
    return model_folder.tell(shown)


main = Verb("python -m pipeline.lifetime_model", __doc__, arguments, run)
