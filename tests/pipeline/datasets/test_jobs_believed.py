"""Schedulers of `jobs` believe run times with the measured error of the runtime model; the truth stays as it is."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from pipeline.datasets import jobs
from pipeline.windows import Span
from sched_env.jobs.tables import RuntimeTable
from sched_env.jobs.workload import Workload

SPAN = Span(datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 3, tzinfo=UTC))


def workload() -> Workload:
    seconds = np.full((2, 1, 3, 3), 4.0)
    seconds[:, :, 2, 2] = np.inf
    return Workload(None, None, RuntimeTable(("A100",), ("a", "b"), seconds))  # type: ignore[arg-type]


def test_without_a_model_schedulers_know_the_truth(tmp_path: Path) -> None:
    assert jobs.believed(workload(), tmp_path, tmp_path, SPAN).predicted is None


def test_errors_are_those_measured_one_for_each_set_and_the_same_every_time(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    errors = [-0.1, 0.0, 0.1, 0.2]
    (tmp_path / "runtime" / "measured.json").write_text(json.dumps({"mape": 1.0, "log_error_quantiles": errors}))
    found = jobs.believed(workload(), tmp_path, tmp_path, SPAN)
    assert isinstance(found.predicted, RuntimeTable)
    assert isinstance(found.runtime, RuntimeTable)
    believed, true = found.predicted.seconds, found.runtime.seconds
    assert (np.isfinite(believed) == np.isfinite(true)).all()
    finite = np.isfinite(true)
    log_errors = np.log(believed[finite] / true[finite])
    assert np.isclose(log_errors[:, None], errors).any(axis=1).all()
    assert len(np.unique(np.round(log_errors, 6))) > 1
    assert (believed == believed.swapaxes(-1, -2)).all()
    again = jobs.believed(workload(), tmp_path, tmp_path, SPAN).predicted
    assert isinstance(again, RuntimeTable)
    assert (again.seconds[finite] == believed[finite]).all()
