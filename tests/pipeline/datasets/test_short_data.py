"""Few windows make shorter episodes and fewer of them, and say so; none at all is an error that says what to do."""

from types import SimpleNamespace

import numpy as np
import pytest

from pipeline import datasets
from sched_env import scenarios
from wire.errors import ConfigError


@pytest.fixture
def rows_left(monkeypatch):
    """A trace is its rows; a start needs a whole episode after it."""
    starts = SimpleNamespace(starts=lambda rows, scenario: np.arange(max(len(rows) - scenario.horizon, 0)))
    monkeypatch.setattr(datasets, "get", lambda _: starts)


@pytest.mark.parametrize(
    ("splits", "horizon"),
    [
        ((9000, 5000, 7000), 384),
        ((900, 500, 700), 384),
        ((900, 120, 700), 96),
        ((900, 400, 60), 24),
        ((900, 20, 700), 384),
    ],
)
def test_the_horizon_is_halved_until_every_split_has_some_starts(rows_left, splits, horizon, caplog):
    asked = scenarios.load("functions/serverless", {"horizon": 384})
    assert datasets._short_enough("functions", asked, list(map(range, splits))).horizon == horizon
    assert ("short episodes" in caplog.text) == (horizon != 384)


def of(rows):
    scenario = scenarios.load("functions/serverless", {"horizon": 10})
    return datasets.Workload("functions", scenario, range(rows), "2026-01-05T00:00:00", "2026-01-06T00:00:00")


def test_where_fewer_starts_are_than_wanted_all_are_taken(rows_left, caplog):
    assert of(40).starts(8).tolist() == [0, 4, 8, 12, 16, 20, 24, 29]
    assert not caplog.text
    assert of(15).starts(8).tolist() == [0, 1, 2, 3, 4]
    assert "5 start points" in caplog.text


def test_no_start_at_all_says_what_to_do(rows_left):
    with pytest.raises(ConfigError, match="more days of data"):
        of(10).starts(8)
