"""What finished jobs teach: the drift of the error, and rows for the next fit."""

from __future__ import annotations

import math

import pytest

from sched_env.jobs.finished import Ended, ErrorTrack, write_profiles
from sched_env.jobs.predictor import Prediction
from wire.errors import TraceError

SAID = Prediction((10.0,), (9.0,), (12.0,), "model")


def test_drift_is_the_median_error_over_the_promised_one() -> None:
    track = ErrorTrack({"median_ape": 2.0})
    assert math.isnan(track.figures()["drift"])
    for _ in range(30):
        track.observe(SAID, 0, 10.0 / 1.04)
    found = track.figures()
    assert found["drift"] == pytest.approx(2.0)
    assert found["median_ape"] == pytest.approx(4.0)
    assert found["coverage90"] == 100.0
    assert found["jobs"] == 30.0


def test_only_the_last_jobs_count_and_nothing_is_held_against_what_was_unknown() -> None:
    track = ErrorTrack({"median_ape": 2.0}, last=25)
    for seconds in [100.0] * 25 + [10.0] * 25:
        track.observe(SAID, 0, seconds)
    track.observe(Prediction((1.0,), (0.0,), (math.inf,), "unknown"), 0, 50.0)
    assert track.figures()["mape"] == 0.0


def test_what_cannot_be_a_measurement_is_refused() -> None:
    with pytest.raises(TraceError, match="a positive time"):
        write_profiles([Ended(0.0, "A100", ("a", "b"), (1.0,))])
    with pytest.raises(TraceError, match="a positive time"):
        write_profiles([Ended(0.0, "A100", ("a",), (0.0,))])
