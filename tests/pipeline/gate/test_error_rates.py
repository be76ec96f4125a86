"""The gate's error rates, simulated through the whole gate with fixed seeds: the promise behind every verdict."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pipeline.gate import error_rates
from pipeline.gate.config import Config, Margin
from pipeline.gate.error_rates import Rates, nights, truths

TRUTHS = {truth.name: truth for truth in truths(Config())}
GUARDRAILS = [name for name in TRUTHS if "two margins worse" in name]
QUICK = Config(bootstrap_samples=500)


def held(name: str, count: int, config: Config) -> Rates:
    """Judge nights of a truth and hold the result against what was promised."""
    truth = TRUTHS[name]
    found = nights(truth, count, config)
    assert truth.least_passed <= found.passed <= truth.most_passed, f"{name}: {truth.promise}: {found.verdicts}"
    return found


def test_every_guardrail_of_the_default_rules_is_tried():
    assert len(GUARDRAILS) == len(Config().guardrails)
    assert {metric: round(harm, 6) for name in GUARDRAILS for metric, harm in TRUTHS[name].worse.items()} == {
        "sla_violation_rate": 0.10,
        "cost_usd": 0.02,
        "p99_wait_s": 0.04,
        "migrations": 0.10,
    }


def test_rules_without_a_guardrail_are_not_tried_on_it():
    why = "not measured on this cluster"
    off = dict.fromkeys(("sla_violation_rate", "p99_wait_s", "migrations"), why)
    fewer = Config(guardrails={"cost_usd": Margin(relative=0.05)}, switched_off=off)
    assert [truth.worse for truth in truths(fewer) if truth.worse] == [{"cost_usd": pytest.approx(0.1)}]


def test_equal_policies_pass_as_better_in_at_most_five_per_cent():
    held("equal to the champion", 300, QUICK)


def test_a_real_improvement_of_two_per_cent_is_found_with_eighty_per_cent_power():
    held("better by 2 %", 200, QUICK)


@pytest.mark.parametrize("name", GUARDRAILS)
def test_a_guardrail_two_margins_worse_is_caught_in_at_least_95_per_cent(name):
    rules = held(name, 60, QUICK).rules
    (metric,) = TRUTHS[name].worse
    assert rules[metric, "pass"] / 60 <= 0.05
    # Caught as harm, not merely left open.
    assert rules[metric, "fail"] / 60 >= 0.90


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval", ["percentile", "bca"])
@pytest.mark.parametrize("name", TRUTHS)
def test_error_rates_hold_in_many_more_nights(name, interval):
    truth = TRUTHS[name]
    found = held(name, round(2000 * truth.weight), Config(bootstrap_samples=1000, interval=interval))
    lower, upper = found.interval()
    assert truth.least_passed < lower or truth.least_passed == 0.0, "beyond the noise of the simulation"
    assert upper < truth.most_passed or truth.most_passed == 1.0, "beyond the noise of the simulation"


def test_the_published_rates_are_of_these_truths_and_kept():
    published = json.loads((Path(__file__).parents[3] / "docs" / "results" / "error_rates.json").read_text())
    assert {(row["truth"], row["interval"]) for row in published["rows"]} == {
        (name, interval) for name in TRUTHS for interval in ("percentile", "bca")
    }
    assert all(row["kept"] for row in published["rows"])


def test_the_interval_of_a_share_is_the_published_one():
    # Clopper and Pearson (1934) and every table since: 3 of 20, and the rule of three for none.
    assert Rates(20, {"pass": 3}, {}).interval() == pytest.approx((0.0321, 0.3789), abs=1e-4)
    assert Rates(100, {"pass": 0}, {}).interval() == pytest.approx((0.0, 0.0362), abs=1e-4)
    assert Rates(100, {"pass": 100}, {}).interval() == pytest.approx((0.9638, 1.0), abs=1e-4)


def test_the_command_judges_every_truth_with_both_intervals_and_says_what_was_broken(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("gate: {}\n")
    monkeypatch.setattr(sys, "argv", ["error_rates", "--nights", "4", "--samples", "200", "--out", "rates"])
    code = error_rates.main()
    document = json.loads((tmp_path / "rates.json").read_text())
    assert len(document["rows"]) == 2 * len(TRUTHS)
    broken = [row["truth"] for row in document["rows"] if not row["kept"]]
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["broken"] == broken
    assert code == (1 if broken else 0)
    assert (tmp_path / "rates.md").read_text().count("\n| ") == 2 + 2 * len(TRUTHS)
