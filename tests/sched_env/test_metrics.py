from __future__ import annotations

import pytest

from sched_env.metrics import gap_closed, summarise, trimmed_mean


def test_gap_closed_is_oriented_so_that_up_is_better():
    assert gap_closed(105.0, 100.0, 110.0) == 0.5
    assert gap_closed(80.0, 100.0, 60.0, sign=-1.0) == 0.5
    assert gap_closed(95.0, 100.0, 110.0) == -0.5


def test_a_gap_below_half_a_percent_is_no_gap():
    assert gap_closed(100.2, 100.0, 100.4) is None
    assert gap_closed(100.2, 100.0, 100.6) == pytest.approx(1 / 3)
    assert gap_closed(5.0, 0.0, 0.0, sign=-1.0) is None


def test_the_trimmed_mean_cuts_a_tenth_at_each_end():
    assert trimmed_mean([0, *range(1, 9), 1000]) == 4.5
    assert trimmed_mean([7.0]) == 7.0


def episode(**figures):
    return {"start": 1, "return": 1.0, "wait_s": 0.0, "ended": "full", "infeasible": 0, "bound": None, **figures}


def test_the_sheet_holds_means_spread_and_endings():
    sheet = summarise([episode(**{"return": 2.0}), episode(**{"return": 4.0, "ended": "horizon"})])
    assert (sheet["episodes"], sheet["return"], sheet["return_std"]) == (2, 3.0, 1.0)
    assert sheet["ended"] == {"full": 1, "horizon": 1}
    assert (sheet["bound"], sheet["gap_closed"]) == (None, None)
    assert "start" not in sheet


def test_bound_and_gap_come_from_the_means():
    episodes = [episode(placed=100, bound=120.0), episode(placed=110, bound=120.0)]
    sheet = summarise(episodes, primary=("placed", 1.0), bound_metric="placed", best_heuristic=100.0)
    assert (sheet["bound"], sheet["gap_closed"]) == (120.0, 0.25)


def test_no_gap_is_computed_across_metrics():
    episodes = [episode(placed=100, bound=120.0)]
    sheet = summarise(episodes, primary=("placed", 1.0), bound_metric="cost_usd", best_heuristic=100.0)
    assert (sheet["bound"], sheet["bound_metric"], sheet["gap_closed"]) == (120.0, "cost_usd", None)


def test_a_bound_that_is_known_of_some_episodes_only_says_nothing_about_their_mean():
    sheet = summarise([episode(bound=2.0), episode(bound=None)], best_heuristic=0.5)
    assert (sheet["bound"], sheet["gap_closed"]) == (None, None)
