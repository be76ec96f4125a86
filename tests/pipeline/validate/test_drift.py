"""Drift of the request mix, against the day before and the last accepted one."""

from __future__ import annotations

import pytest

from pipeline.validate import drift
from pipeline.validate.config import ValidateConfig


def test_distance_is_the_share_that_changed() -> None:
    assert drift.distance({"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5}) == 0
    assert drift.distance({"a": 0.5, "b": 0.5}, {"a": 1.0}) == 0.5
    assert drift.distance({"a": 1.0}, {"b": 1.0}) == 1


@pytest.mark.parametrize(
    ("mix", "severity"), [({"a": 0.6, "b": 0.4}, None), ({"a": 0.9, "b": 0.1}, "warning"), ({"z": 1.0}, "error")]
)
def test_against_the_last_accepted_day(mix: drift.Mix, severity: str | None) -> None:
    accepted = drift.Accepted("2026-03-01", {"a": 0.5, "b": 0.5})
    found = list(drift.check_drift({"2026-03-02": mix}, accepted, ValidateConfig()))
    assert [finding.severity for finding in found] == ([severity] if severity else [])


def test_a_day_is_not_compared_with_a_later_one() -> None:
    accepted = drift.Accepted("2026-03-05", {"z": 1.0})
    assert list(drift.check_drift({"2026-03-02": {"a": 1.0}}, accepted, ValidateConfig())) == []


def test_days_of_a_range_are_compared_with_the_one_before() -> None:
    mixes: dict[str, drift.Mix] = {"2026-03-02": {"a": 1.0}, "2026-03-03": {}, "2026-03-04": {"b": 1.0}}
    found = list(drift.check_drift(mixes, drift.NOTHING, ValidateConfig()))
    assert [(finding.day, finding.severity) for finding in found] == [
        ("2026-03-03", "warning"),
        ("2026-03-04", "error"),
    ]
    assert "no requests at all; 2026-03-02 had some of 1 functions" in found[0].message
