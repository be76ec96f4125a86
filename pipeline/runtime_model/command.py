"""Run times of GPU jobs that share a card: fit, evaluate, or do what the night asks.

    python -m pipeline.runtime_model fit --profiles CSV --out DIR
    python -m pipeline.runtime_model evaluate --model DIR --profiles CSV --json
    python -m pipeline.runtime_model night

``fit`` learns from measured sets and writes graph, golden vectors, spec and held-out errors. ``evaluate`` asks the
graph, as the service would, for the sets of a file and says how far off it was, and how many of them it had seen.
``night`` fits on ``profiles/*.csv`` and keeps the model that is live if the new one is worse.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from pipeline import model_folder, paths
from pipeline.files import replaced_folder
from pipeline.runtime_model import gate, profiles, store
from pipeline.runtime_model.model import figures
from wire.command import Verb


def evaluate(model: Path, measured: profiles.Profiles) -> dict[str, float]:
    """Ask a model's graph for sets and compare; sets with a model that it does not know are counted apart."""
    predictor = store.load(model)
    known = np.array([not any(map(predictor.must_run_alone, models)) for _, models in measured.sets])
    some = measured.only(known)
    began = time.process_time()
    answers = predictor.predict(some.asked())
    spent = time.process_time() - began
    lines = [np.stack([one.seconds, one.lower_s, one.upper_s], axis=1) for one in answers]
    found = figures(np.log(np.concatenate(lines)), some) if lines else {}
    return found | {"unknown_sets": float((~known).sum()), "ms_a_job": 1e3 * spent / max(found.get("jobs", 1.0), 1.0)}


def night() -> dict[str, object]:
    """Fit on the profiles of the workspace, hold the model to the live one, and write ``data/models/jobs/runtime``."""
    out = paths.MODELS / "jobs" / store.NAME
    files = sorted(paths.PROFILES.glob("*.csv"))
    if not files:
        model_folder.write_none(out, {"why": f"no CSV in {paths.PROFILES}/"})
        return {"shipped": "none"}
    measured_sets = profiles.read(files)
    fitted, measured, errors = store.made(measured_sets)
    verdict = gate.judge(measured_sets, measured, paths.CHAMPIONS / "jobs")
    if verdict.keep is not None:
        with replaced_folder(out) as folder:
            for name, data in verdict.keep.items():
                (folder / name).write_bytes(data)
    else:
        store.write(out, measured_sets, fitted, measured, errors)
    return {"shipped": "champion" if verdict.keep else "challenger", "why": verdict.why, **measured}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="fit|evaluate|night")
    fitting = verbs.add_parser("fit", help="learn from measured sets")
    fitting.add_argument("--profiles", type=Path, nargs="+", required=True, help="CSV of measured sets")
    fitting.add_argument("--out", type=Path, required=True, help="folder to write")
    fitting.add_argument("--seed", type=int, default=0)
    testing = verbs.add_parser("evaluate", help="compare a model with measured sets")
    testing.add_argument("--model", type=Path, required=True, help="folder that fit wrote")
    testing.add_argument("--profiles", type=Path, nargs="+", required=True, help="CSV of measured sets")
    testing.add_argument("--json", action="store_true", help="print the figures as one line of JSON")
    verbs.add_parser("night", help="what the nightly run does")


def run(options: argparse.Namespace) -> int:
    """Do what is asked."""
    if options.verb == "night":
        return model_folder.tell_night("runtime_model", night())
    measured_sets = profiles.read(options.profiles)
    if options.verb == "evaluate":
        return model_folder.tell(evaluate(options.model, measured_sets), lines=not options.json)
    fitted, measured, errors = store.made(measured_sets, seed=options.seed)
    store.write(options.out, measured_sets, fitted, measured, errors)
    return model_folder.tell(measured)


main = Verb("python -m pipeline.runtime_model", __doc__, arguments, run)
