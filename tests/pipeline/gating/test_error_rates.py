"""The gate's error rates, simulated through the whole gate with fixed seeds: the promise behind every verdict.

One scenario of 200 traces in 20 time blocks (the least the rules accept), paired deviation 5 % with heavy tails and a
tenth of the variance shared within a block: dissimilar policies, the hard end of what was measured. More data, or
more similar policies, only make the rates better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

from pipeline.gating.config import Config
from pipeline.gating.verdict import judge

MARGINS = {"sla_violation_rate": 0.05, "cost_usd": 0.01, "p99_wait_s": 0.02, "migrations": 0.05}
"""Relative; the level of the SLA rate is 4 %, where its relative limit is the smaller one."""
LIKE_THE_CHAMPION = {"challenger": 0.0, "champion": 0.0, "least_allocated": -0.1, "first_fit": -0.2}
BETTER = LIKE_THE_CHAMPION | {"challenger": 0.02}


@pytest.fixture
def nights(simulate, healthy):
    """Judge many simulated nights; answers verdicts, and how often each rule was not met."""

    def run(policies: Mapping[str, float], count: int, *, samples: int = 500, interval: str = "percentile", **truth):
        config = Config(bootstrap_samples=samples, interval=interval)
        verdicts: Counter[str] = Counter()
        broken: Counter[tuple[str, str]] = Counter()
        for night in range(count):
            data = simulate(policies, seed=[7, night], scenarios=("load-1.0",), deviation=0.05 / np.sqrt(2.0), **truth)
            report = judge("functions", data, healthy, config)
            verdicts[report.outcome] += 1
            broken.update((rule.name, rule.outcome) for rule in report.rules)
        return verdicts, broken

    return run


def test_equal_policies_pass_as_better_in_at_most_five_per_cent(nights):
    verdicts, _ = nights(LIKE_THE_CHAMPION, 300)
    assert verdicts["pass"] / 300 <= 0.05


def test_a_real_improvement_of_two_per_cent_is_found_with_eighty_per_cent_power(nights):
    verdicts, _ = nights(BETTER, 200)
    assert verdicts["pass"] / 200 >= 0.80


@pytest.mark.parametrize("metric", MARGINS)
def test_a_guardrail_two_margins_worse_is_caught_in_at_least_95_per_cent(nights, metric):
    verdicts, rules = nights(BETTER, 60, worse={metric: 2 * MARGINS[metric]})
    assert verdicts["pass"] / 60 <= 0.05
    assert rules[metric, "pass"] / 60 <= 0.05
    # Caught as harm, not merely left open.
    assert rules[metric, "fail"] / 60 >= 0.90


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interval", ["percentile", "bca"])
def test_error_rates_hold_in_many_more_nights(nights, interval):
    many = 2000
    verdicts, _ = nights(LIKE_THE_CHAMPION, many, samples=1000, interval=interval)
    assert verdicts["pass"] / many <= 0.035
    verdicts, _ = nights(LIKE_THE_CHAMPION | {"least_allocated": 0.0, "first_fit": 0.0}, many, interval=interval)
    assert verdicts["pass"] / many <= 0.025
    verdicts, _ = nights(BETTER, many, samples=1000, interval=interval)
    assert verdicts["pass"] / many >= 0.85
    for metric, margin in MARGINS.items():
        verdicts, rules = nights(BETTER, many // 8, worse={metric: 2 * margin}, interval=interval)
        assert verdicts["pass"] / (many // 8) <= 0.02
        assert rules[metric, "pass"] / (many // 8) <= 0.02


@pytest.mark.soak
def test_ten_blocks_are_enough_for_honest_error_rates(nights):
    verdicts, _ = nights(LIKE_THE_CHAMPION, 2000, blocks=10, traces_per_block=20, shared=0.3)
    assert verdicts["pass"] / 2000 <= 0.04
