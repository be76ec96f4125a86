"""Every problem replayed as recorded, on the sample or on windows that are there; a part of ``fidelity.py``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml

from pipeline import datasets, paths, windows
from pipeline.calibrate.command import calibrate
from pipeline.clean.command import clean
from pipeline.clean.config import CleanConfig
from pipeline.contracts.calibration import CALIBRATION_FILE
from pipeline.evaluate import origins
from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.sources.sample import SampleConfig
from sched_env import problems
from sched_env.recorded import NAME, AsRecorded, told

ROOT = Path(__file__).resolve().parents[1]


@contextlib.contextmanager
def at(folder: Path) -> Iterator[None]:
    """Work in a folder with the shipped settings, as a stage does."""
    before = Path.cwd()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    (folder / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    try:
        yield
    finally:
        os.chdir(before)


def sample(folder: Path, days: int, scrape_s: float) -> None:
    """Make the windows of the embedded sample."""
    if not (folder / paths.WINDOWS).exists():
        ingest(IngestConfig(sample=SampleConfig(days=days, scrape_seconds=scrape_s)), Range(), folder / "raw")
        clean(folder / "raw", folder / paths.WINDOWS, CleanConfig())


def replayed(folder: Path, chosen: list[str]) -> dict[str, Any]:
    """Calibrate on the train windows, replay the test windows; for each problem figures and origins."""
    found: dict[str, Any] = {}
    with at(folder):
        settings = yaml.safe_load((folder / "params.yaml").read_text())
        span = windows.covered(paths.WINDOWS)
        for problem in chosen or list(problems.names()):
            fitted = calibrate(problem)
            out = paths.CALIBRATION / problem / CALIBRATION_FILE
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_bytes(msgspec.json.encode(fitted))
            data = datasets.workload(problem, "test")
            check = datasets.get(problem).check
            if check is None or not told(data.trace):
                raise SystemExit(f"{problem}: the windows do not tell where anything was placed")
            policy = AsRecorded()
            result, _ = check(data, paths.WINDOWS, policy, NAME)
            counted = [msgspec.to_builtins(one) for one in origins(problem, data)]
            hours = (datetime.fromisoformat(data.end) - datetime.fromisoformat(data.start)).total_seconds() / 3600
            found[problem] = {
                "scenario": settings["workload"][problem]["scenario"], "test_hours": hours, "skipped": result.skipped,
                "figures": [msgspec.to_builtins(one) for one in result.figures], "origins": counted,
                "days": (span.end - span.start).total_seconds() / 86_400,
            }  # fmt: skip
            print(problem, result.skipped, [(f.metric, f.predicted, f.measured) for f in result.figures], flush=True)
    return found
