"""Fit a problem's simulator to the train windows and write ``data/calibration/<problem>/calibration.json``.

Fitted on the train windows alone; how well it does on the test windows is what ``evaluate`` reports (``as_recorded``).
A problem without a fit of its own keeps its scenario, and the file says that nothing was calibrated.
"""

from __future__ import annotations

import argparse
import json
import sys

import msgspec

from pipeline import paths, windows
from pipeline.contracts.calibration import CALIBRATION_FILE, Calibration
from pipeline.datasets import WorkloadConfig, get
from pipeline.files import write_atomic
from pipeline.settings import load
from sched_env import problems
from wire.command import Verb, problem_option
from wire.contracts.feature_spec import ProblemName


def calibrate(problem: ProblemName) -> Calibration:
    """Fit one problem on its train windows."""
    there = windows.covered(paths.WINDOWS)
    span = windows.splits(there.start, there.end, load("splits", windows.SplitConfig)).train
    fit = get(problem).fit
    if fit is None:
        return Calibration(problem, span.start.isoformat(), span.end.isoformat(), {}, [], {})
    return fit(paths.WINDOWS, span, load(f"workload.{problem}", WorkloadConfig).load)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    problem_option(parser, problems.names())


def run(options: argparse.Namespace) -> int:
    """Calibrate one problem."""
    found = calibrate(options.problem)
    out = paths.CALIBRATION / options.problem / CALIBRATION_FILE
    write_atomic(out, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    flat = {value.name: value.value for value in found.values}
    write_atomic(paths.metrics_of("calibrate", options.problem), json.dumps(flat, indent=1).encode() + b"\n")
    for value in found.values:
        between = "" if value.low is None or value.high is None else f" [{value.low:.3g}, {value.high:.3g}]"
        sys.stdout.write(
            f"{value.name} {value.value:.4g}{between} {value.unit}: {value.origin}, {value.samples} samples\n"
        )
    sys.stdout.write(f"{options.problem}: {len(found.functions)} functions, overrides {found.overrides}\n")
    return 0


main = Verb("python -m pipeline.calibrate", __doc__, arguments, run)
