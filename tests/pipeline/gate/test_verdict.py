"""Verdicts on evaluations whose truth is known: what passes, what fails, what stays open, and which rule says so."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from pipeline import settings
from pipeline.contracts.evaluation import Backtest, Origin, Promise
from pipeline.errors import GateError
from pipeline.gate import html, markdown
from pipeline.gate.config import Config, Margin, Promotion
from pipeline.gate.explain import explain
from pipeline.gate.simulated import TERMS
from pipeline.gate.verdict import Circumstances, judge
from wire.errors import ConfigError

BETTER = {"challenger": 0.05, "champion": 0.0, "least_allocated": -0.02, "first_fit": -0.1}
EQUAL = BETTER | {"challenger": 0.0}
QUICK = Config(bootstrap_samples=400)
REFRESH = msgspec.structs.replace(QUICK, promotion=Promotion(mode="refresh"))


def broken(report) -> dict[str, str]:
    """Rule -> outcome, for the rules that do not hold."""
    return {rule.name: rule.outcome for rule in report.rules if rule.outcome in {"fail", "inconclusive"}}


def test_a_better_policy_passes_with_the_reason(simulate, healthy):
    report = judge(TERMS, simulate(BETTER), healthy, QUICK)
    assert report.outcome == "pass"
    assert broken(report) == {}
    assert report.reason.startswith("return better than champion: +")
    assert (report.reference, report.best_heuristic) == ("champion", "least_allocated")
    assert (report.traces, report.scenarios, report.blocks) == (600, 3, 20)


def test_the_truth_lies_in_the_reported_intervals_about_95_times_in_a_hundred(simulate, healthy):
    covered = {"champion": 0, "least_allocated": 0}
    for seed in range(40):
        report = judge(TERMS, simulate(BETTER, seed=seed, scenarios=("load-1.0",)), healthy, QUICK)
        # Relative to the heuristic, which is 2 % below the base of -100: 7 % of 1.02.
        for name, truth in (("champion", 0.05), ("least_allocated", 0.07 / 1.02)):
            found = next(row.better_by for row in report.comparisons if row.reference == name)
            covered[name] += found.lower <= truth <= found.upper
    assert min(covered.values()) >= 35  # of 40; fewer has a probability of 1 %


def test_the_same_inputs_give_the_same_report_byte_for_byte(simulate, healthy):
    first, second = (msgspec.json.encode(judge(TERMS, simulate(BETTER), healthy, QUICK)) for _ in range(2))
    assert first == second


def test_an_equal_policy_fails_because_it_is_not_better(simulate, healthy):
    report = judge(TERMS, simulate(EQUAL), healthy, QUICK)
    assert report.outcome == "fail"
    assert broken(report)["return against champion"] == "fail"


def test_another_file_that_decides_the_same_is_not_better_but_may_refresh(simulate, healthy):
    episodes = simulate(EQUAL)
    episodes.values["challenger"] = episodes.values["champion"]
    report = judge(TERMS, episodes, healthy, QUICK)
    assert report.outcome == "fail"
    assert "+0.00 % [+0.00 %, +0.00 %]" in report.reason
    old = Circumstances(champion_age_days=20.0)
    assert judge(TERMS, episodes, healthy, REFRESH, old).outcome == "pass"


def test_beating_the_champion_is_not_enough_when_a_heuristic_is_better(simulate, healthy):
    report = judge(TERMS, simulate(BETTER | {"least_allocated": 0.08}), healthy, QUICK)
    assert report.outcome == "fail"
    assert broken(report) == {"return against heuristic least_allocated": "fail"}


def test_the_same_digest_is_unchanged_even_without_champion_episodes(simulate, healthy):
    same = msgspec.structs.replace(healthy, champion_digest=healthy.digest)
    alone = {name: gain for name, gain in BETTER.items() if name != "champion"}
    for policies in (BETTER, alone):
        report = judge(TERMS, simulate(policies), same, QUICK)
        assert report.outcome == "unchanged"
        assert "nothing to promote" in report.reason


def test_the_first_promotion_is_compared_with_the_live_and_the_best_heuristic(simulate, healthy):
    first = msgspec.structs.replace(healthy, champion_digest=None)
    policies = {"challenger": 0.05, "least_allocated": -0.05, "warm_first": 0.0}
    report = judge(TERMS, simulate(policies), first, QUICK)
    assert report.outcome == "pass"
    assert (report.reference, report.best_heuristic) == ("least_allocated", "warm_first")
    better_best = judge(TERMS, simulate(policies | {"warm_first": 0.06}), first, QUICK)
    assert broken(better_best) == {"return against heuristic warm_first": "fail"}


@pytest.mark.parametrize(
    ("density", "champion", "said"),
    [
        (1.0, 1.0, []),
        (0.25, 1.0, ["trained and judged at 0.25 times", "what is live was approved for 1 times"]),
        (0.25, 0.25, ["trained and judged at 0.25 times"]),
        (1.0, 0.25, ["what is live was approved for 0.25 times"]),
    ],
)
def test_a_person_is_told_for_which_load_this_is_and_what_is_live(simulate, healthy, density, champion, said):
    terms = msgspec.structs.replace(TERMS, density=density)
    report = judge(terms, simulate(BETTER), healthy, QUICK, Circumstances(champion_density=champion))
    found = [text for text in report.warnings if "times" in text]
    assert [text.startswith(begin) for text, begin in zip(found, said, strict=True)] == [True] * len(said)
    assert report.density == density
    first = msgspec.structs.replace(healthy, champion_digest=None)
    alone = judge(terms, simulate({"challenger": 0.05, "least_allocated": 0.0}), first, QUICK)
    assert not any("what is live was approved" in text for text in alone.warnings)


def test_a_live_heuristic_that_was_not_evaluated_is_an_error(simulate, healthy):
    first = msgspec.structs.replace(healthy, champion_digest=None)
    with pytest.raises(
        GateError, match="'least_allocated', which places without one, was not evaluated; expected one of warm_first"
    ):
        judge(TERMS, simulate({"challenger": 0.0, "warm_first": 0.0}), first, QUICK)


def test_a_champion_named_but_not_run_is_an_error(simulate, healthy):
    with pytest.raises(GateError, match="the episodes have none"):
        judge(TERMS, simulate({"challenger": 0.0, "least_allocated": 0.0}), healthy, QUICK)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"parity_max_error": 2e-5}, "parity of scores"),
        ({"parity_argmax_equal": False}, "parity of choices"),
        ({"sizes": [1, 2, 3]}, "parity of choices"),
        ({"permutation_invariant": False}, "order of candidates"),
        ({"mask_violations": 1}, "mask"),
        ({"golden_max_error": 1e-3}, "golden vectors"),
        ({"golden_max_error": None}, "golden vectors"),
        ({"decision_p99_us": 20_000.0}, "decision time"),
        ({"bundle_errors": ["opset 99"]}, "bundle"),
    ],
)
def test_a_broken_bundle_fails_however_good_it_is(simulate, healthy, change, rule):
    report = judge(TERMS, simulate(BETTER), msgspec.structs.replace(healthy, **change), QUICK)
    assert report.outcome == "fail"
    assert broken(report) == {rule: "fail"}
    assert report.reason.startswith(rule)


@pytest.mark.parametrize("never", ["oom", "infeasible"])
def test_one_event_that_must_never_happen_fails(simulate, healthy, never):
    episodes = simulate(BETTER)
    episodes.values["challenger"][never][17] = 1.0
    report = judge(TERMS, episodes, healthy, QUICK)
    assert report.outcome == "fail"
    assert broken(report) == {never: "fail"}


def test_a_guardrail_that_is_truly_worse_fails(simulate, healthy):
    report = judge(TERMS, simulate(BETTER, worse={"cost_usd": 0.03}), healthy, QUICK)
    assert report.outcome == "fail"
    assert broken(report) == {"cost_usd": "fail"}


def test_a_guardrail_that_is_a_little_worse_but_inside_its_margin_holds(simulate, healthy):
    report = judge(TERMS, simulate(BETTER, worse={"p99_wait_s": 0.01}), healthy, QUICK)
    guard = next(item for item in report.guardrails if item.metric == "p99_wait_s")
    assert guard.worse_by.lower > 0.0
    assert report.outcome == "pass"


def test_a_guardrail_too_noisy_to_tell_is_inconclusive_with_the_traces_that_would_decide(simulate, healthy):
    report = judge(TERMS, simulate(BETTER, guard_deviation=0.3), healthy, QUICK)
    assert report.outcome == "inconclusive"
    rule = next(rule for rule in report.rules if rule.name == "cost_usd")
    # Each policy has a deviation of 0.3, the pair sqrt(2) of that; blocks and four guardrails make it more.
    plain = (1.96 + 0.84) ** 2 * 2 * 0.3**2 / 0.01**2
    assert plain < rule.traces_needed < 6 * plain
    assert "paired traces would decide" in report.reason


@pytest.mark.parametrize(
    ("reference", "wanted"),
    # half a point is the smaller limit above a rate of 10 %, five per cent below it, the floor near 0.
    [(0.2, 0.005), (0.1, 0.005), (0.04, 0.002), (0.0, 0.0001)],
)
def test_the_sla_margin_is_the_smaller_of_both_limits(reference, wanted):
    assert Config().guardrails["sla_violation_rate"].of(reference) == pytest.approx(wanted)


def test_a_champion_without_violations_allows_none_but_the_floor(simulate, healthy):
    episodes = simulate(BETTER)
    for metrics in episodes.values.values():
        metrics["sla_violation_rate"][:] = 0.0
    assert judge(TERMS, episodes, healthy, QUICK).outcome == "pass"
    episodes.values["challenger"]["sla_violation_rate"][:] = 0.001
    report = judge(TERMS, episodes, healthy, QUICK)
    assert broken(report) == {"sla_violation_rate": "fail"}


def test_a_metric_without_values_is_skipped_and_said(simulate, healthy):
    episodes = simulate(BETTER)
    for metrics in episodes.values.values():
        del metrics["migrations"]
    report = judge(TERMS, episodes, healthy, QUICK)
    assert report.outcome == "pass"
    assert [rule.outcome for rule in report.rules if rule.name == "migrations"] == ["skipped"]


def test_one_bad_scenario_fails_though_the_whole_is_better(simulate, healthy):
    episodes = simulate(BETTER)
    busy = episodes.scenario == 2
    values = episodes.values["challenger"]["return"]
    values[busy] -= 0.10 * np.abs(values[busy]).mean()
    report = judge(TERMS, episodes, healthy, QUICK)
    assert report.outcome == "fail"
    assert broken(report)["load-1.3"] == "fail"
    assert "load-0.7" not in broken(report)


def test_a_bad_tail_does_not_pass_though_the_middle_is_better(simulate, healthy):
    episodes = simulate(BETTER, scenarios=("load-1.0",))
    values = episodes.values["challenger"]["return"]
    worst = np.argsort(values)[:12]
    values[worst] *= 2.0
    report = judge(TERMS, episodes, healthy, QUICK)
    assert report.outcome == "fail"
    assert broken(report) == {"worst 10 % of traces": "fail"}


def test_too_few_traces_are_inconclusive_not_a_verdict(simulate, healthy):
    report = judge(TERMS, simulate(BETTER, traces_per_block=5), healthy, QUICK)
    assert report.outcome == "inconclusive"
    assert broken(report) == {"paired traces": "inconclusive"}
    assert "about 600 paired traces would decide" in report.reason


def test_many_traces_of_few_blocks_are_inconclusive(simulate, healthy):
    report = judge(TERMS, simulate(BETTER, blocks=4, traces_per_block=50), healthy, QUICK)
    assert report.outcome == "inconclusive"
    assert broken(report)["time blocks"] == "inconclusive"


@pytest.mark.parametrize(("horizon", "outcome"), [(96, "inconclusive"), (384, "pass"), (500, "pass")])
def test_episodes_shorter_than_asked_for_prove_nothing(simulate, healthy, horizon, outcome):
    terms = msgspec.structs.replace(TERMS, horizon=horizon, wanted_horizon=384)
    report = judge(terms, simulate(BETTER), healthy, QUICK)
    assert report.outcome == outcome
    assert {rule.name: rule.outcome for rule in report.rules}["length of episodes"] == outcome


def test_one_block_says_nothing_and_does_not_crash(simulate, healthy):
    report = judge(TERMS, simulate(BETTER, blocks=1, traces_per_block=200), healthy, QUICK)
    assert report.outcome == "inconclusive"
    assert report.comparisons[0].better_by.lower is None


def test_blocks_shorter_than_an_episode_are_warned_about(simulate, healthy):
    episodes = simulate(BETTER, deviation=0.02)
    assert judge(TERMS, episodes, healthy, QUICK).warnings == []
    drift = np.repeat(np.convolve(np.random.default_rng(0).normal(size=23), np.ones(4), mode="valid"), 10)
    level = np.abs(episodes.values["champion"]["return"]).mean()
    episodes.values["challenger"]["return"] += 0.05 * level * np.tile(drift, 3)
    (warning,) = judge(TERMS, episodes, healthy, QUICK).warnings
    assert warning.startswith("neighbouring time blocks are correlated (0.")


def test_short_power_is_inconclusive_and_names_the_traces(simulate, healthy):
    report = judge(TERMS, simulate(EQUAL | {"challenger": 0.01}, deviation=0.25), healthy, QUICK)
    assert report.outcome == "inconclusive"
    assert broken(report)["power against champion"] == "inconclusive"
    rule = next(rule for rule in report.rules if rule.name == "return against champion")
    assert rule.traces_needed > report.traces


def test_an_improvement_far_beyond_the_effect_needs_no_power(simulate, healthy):
    report = judge(TERMS, simulate(BETTER | {"challenger": 0.5}, deviation=0.25), healthy, QUICK)
    assert report.outcome == "pass"
    rule = next(rule for rule in report.rules if rule.name == "power against champion")
    assert "settled anyway" in rule.found


def test_a_metric_where_less_is_better_turns_the_sign(simulate, healthy):
    episodes = simulate(BETTER)
    for metrics in episodes.values.values():
        metrics["makespan_s"] = -metrics["return"]
        metrics["bound"] = -metrics["bound"]
    makespan = msgspec.structs.replace(
        TERMS, problem="jobs", primary_metric="makespan_s", higher_is_better=False, bound_metric="makespan_s"
    )
    jobs, functions = judge(makespan, episodes, healthy, QUICK), judge(TERMS, simulate(BETTER), healthy, QUICK)
    assert jobs.outcome == "pass"
    assert jobs.comparisons[0].better_by == functions.comparisons[0].better_by
    assert jobs.gap_closed == pytest.approx(functions.gap_closed)


def test_a_refresh_passes_a_policy_that_is_only_not_worse(simulate, healthy):
    old = Circumstances(champion_age_days=20.0)
    report = judge(TERMS, simulate(EQUAL, deviation=0.02), healthy, REFRESH, old)
    assert report.outcome == "pass"
    assert "not worse than champion" in report.reason
    assert any("a refresh is due" in text for text in report.warnings)


def test_drift_makes_a_refresh_due(simulate, healthy):
    around = Circumstances(champion_age_days=1.0, drifted=True)
    assert judge(TERMS, simulate(EQUAL, deviation=0.02), healthy, REFRESH, around).outcome == "pass"


@pytest.mark.parametrize("age", [3.0, None])
def test_a_young_champion_must_be_beaten_even_in_refresh_mode(simulate, healthy, age):
    around = Circumstances(champion_age_days=age)
    assert judge(TERMS, simulate(EQUAL, deviation=0.02), healthy, REFRESH, around).outcome == "fail"
    assert judge(TERMS, simulate(BETTER), healthy, REFRESH, around).outcome == "pass"


def test_a_refresh_still_refuses_a_worse_policy_and_a_broken_guardrail(simulate, healthy):
    old = Circumstances(champion_age_days=20.0)
    worse = judge(TERMS, simulate(EQUAL | {"challenger": -0.03}, deviation=0.02), healthy, REFRESH, old)
    assert worse.outcome == "fail"
    costly = simulate(EQUAL, deviation=0.02, worse={"cost_usd": 0.03})
    assert broken(judge(TERMS, costly, healthy, REFRESH, old)) == {"cost_usd": "fail"}


def _backtest(*figures: Promise) -> Circumstances:
    return Circumstances(Backtest("sha256:a", "2026-11-14T00:00:00+00:00", "2026-11-15T00:00:00+00:00", list(figures)))


def test_a_simulator_that_was_right_about_yesterday_is_believed(simulate, healthy):
    around = _backtest(Promise("cost_usd", 104.0, 100.0, 0.04))
    report = judge(TERMS, simulate(BETTER), healthy, QUICK, around)
    assert report.outcome == "pass"
    assert [rule.outcome for rule in report.rules if rule.stage == "back-test"] == ["pass"]


@pytest.mark.parametrize("policies", [BETTER, EQUAL])
def test_a_simulator_that_was_wrong_about_yesterday_decides_nothing(simulate, healthy, policies):
    around = _backtest(Promise("cost_usd", 115.0, 100.0, 0.15))
    report = judge(TERMS, simulate(policies), healthy, QUICK, around)
    assert report.outcome == "inconclusive"
    assert "cost_usd predicted 115, measured 100" in report.reason


def test_rates_within_the_floor_agree_whatever_their_ratio(simulate, healthy):
    around = _backtest(Promise("sla_violation_rate", 0.002, 0.001, 1.0), Promise("cost_usd", 100.0, 100.0, 0.0))
    assert judge(TERMS, simulate(BETTER), healthy, QUICK, around).outcome == "pass"
    around = _backtest(Promise("sla_violation_rate", 0.03, 0.02, 0.5))
    assert judge(TERMS, simulate(BETTER), healthy, QUICK, around).outcome == "inconclusive"


def test_a_back_test_without_figures_decides_nothing_unless_it_says_why(simulate, healthy):
    assert judge(TERMS, simulate(BETTER), healthy, QUICK, _backtest()).outcome == "inconclusive"
    around = Circumstances(Backtest("sha256:a", "start", "end", [], skipped="switched off"))
    report = judge(TERMS, simulate(BETTER), healthy, QUICK, around)
    assert report.outcome == "pass"
    assert "no back-test: switched off" in [rule.found for rule in report.rules]


def test_a_broken_bundle_fails_even_when_the_simulator_is_off(simulate, healthy):
    around = _backtest(Promise("cost_usd", 115.0, 100.0, 0.15))
    bad = msgspec.structs.replace(healthy, mask_violations=3)
    assert judge(TERMS, simulate(BETTER), bad, QUICK, around).outcome == "fail"


def test_no_back_test_is_said(simulate, healthy):
    report = judge(TERMS, simulate(BETTER), healthy, QUICK)
    assert "no back-test: nothing was live" in [rule.found for rule in report.rules]


def test_bca_gives_the_same_verdict(simulate, healthy):
    config = msgspec.structs.replace(QUICK, interval="bca")
    assert judge(TERMS, simulate(BETTER), healthy, config).outcome == "pass"
    assert judge(TERMS, simulate(EQUAL), healthy, config).outcome == "fail"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Config(confidence=1.0), "confidence"),
        (lambda: Config(power=0.0), "power"),
        (lambda: Config(bootstrap_samples=10), "bootstrap_samples"),
        (lambda: Config(cvar_share=0.0), "cvar_share"),
        (Margin, "absolute, relative, or both"),
        (lambda: Margin(relative=-0.1), "negative"),
        (lambda: Config(effect=0.0), "effect"),
    ],
)
def test_rules_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def params(tmp_path, text):
    path = tmp_path / "params.yaml"
    path.write_text(f"gate: {text}\n")
    return settings.load("gate", Config, path)


def test_naming_one_guardrail_takes_no_other_away(tmp_path, simulate, healthy):
    config = params(tmp_path, "{bootstrap_samples: 2000, guardrails: {cost_usd: {relative: 0.10}}}")
    assert config.guardrails == Config().guardrails | {"cost_usd": Margin(relative=0.10)}
    report = judge(TERMS, simulate(BETTER, worse={"sla_violation_rate": 0.3}), healthy, config)
    assert report.outcome == "fail"
    assert broken(report) == {"sla_violation_rate": "fail"}


def test_naming_one_limit_of_a_guardrail_keeps_its_others(tmp_path):
    config = params(tmp_path, "{guardrails: {sla_violation_rate: {absolute: 0.01}}}")
    assert config.guardrails["sla_violation_rate"] == Margin(absolute=0.01, relative=0.05, floor=0.0001)
    again = params(tmp_path, "{guardrails: {sla_violation_rate: {absolute: 0.01, relative: null, floor: null}}}")
    assert again.guardrails == config.guardrails, "null is no number: it widens nothing"


@pytest.mark.parametrize("text", ["{zero: []}", "{zero: [oom]}", "{zero: [lost]}", "{guardrails: {}}"])
def test_no_list_however_short_loses_a_rule(tmp_path, text):
    config = params(tmp_path, text)
    assert {"oom", "infeasible"} <= set(config.zero)
    assert config.guardrails == Config().guardrails


def test_a_rule_is_switched_off_by_name_and_the_headline_says_so(tmp_path, simulate, healthy):
    why = "p99 is not measured there"
    config = params(tmp_path, f"{{bootstrap_samples: 2000, switched_off: {{sla_violation_rate: {why}, oom: {why}}}}}")
    episodes = simulate(BETTER, worse={"sla_violation_rate": 0.3})
    episodes.values["challenger"]["oom"][0] = 1.0
    report = judge(TERMS, episodes, healthy, config)
    assert report.outcome == "pass"
    assert f"SWITCHED OFF: oom ({why}), sla_violation_rate ({why})" in report.reason
    assert "all 3 guardrails" in report.reason
    assert report.rules_off == config.switched_off
    assert {rule.name for rule in report.rules if rule.outcome == "off"} == {"sla_violation_rate", "oom"}
    shown = markdown.render(report)
    assert f"SWITCHED OFF: oom ({why})" in shown.splitlines()[0]
    assert "**OFF**" in shown
    assert "OFF" in html.render(report)
    assert "OFF" in explain(report)


@pytest.mark.parametrize("reason", ["", " ", "because", "          ", "12345678\x1b[2K"])
def test_switching_a_rule_off_needs_a_reason(tmp_path, reason):
    text = json.dumps({"switched_off": {"cost_usd": reason}})
    with pytest.raises(ConfigError, match="needs a reason"):
        params(tmp_path, text)


@pytest.mark.parametrize("name", ["sla", "integrity", "SLA_violation_rate", "cost_usd "])
def test_switching_off_a_rule_that_there_is_not_is_an_error(simulate, healthy, name):
    config = msgspec.structs.replace(QUICK, switched_off={name: "it says nothing here"})
    with pytest.raises(GateError, match=r"gate.switched_off names .*sla_violation_rate"):
        judge(TERMS, simulate(BETTER), healthy, config)


def test_a_simulator_that_does_not_give_what_was_recorded_decides_nothing(simulate, healthy):
    off = Backtest("as_recorded", "start", "end", [Promise("response_ratio", 2.0, 1.5, 1 / 3)])
    report = judge(TERMS, simulate(BETTER), healthy, QUICK, Circumstances(fidelity=off))
    assert report.outcome == "inconclusive"
    assert "does not give what was measured" in report.reason
    assert "response_ratio" in report.reason
    good = msgspec.structs.replace(off, figures=[Promise("response_ratio", 1.55, 1.5, 0.03)])
    assert judge(TERMS, simulate(BETTER), healthy, QUICK, Circumstances(fidelity=good)).outcome == "pass"


def test_too_much_assumed_where_it_decides_leaves_the_verdict_open_and_names_what_to_add(simulate, healthy):
    guessed = Origin("calls", 10, 10, 80, "sla_violation_rate", "a request log")
    report = judge(TERMS, simulate(BETTER), healthy, QUICK, Circumstances(origins=[guessed]))
    assert report.outcome == "inconclusive"
    assert "too much is assumed: calls: 80 % assumed" in report.reason
    assert "add a request log" in report.reason
    harmless = msgspec.structs.replace(guessed, decides="")
    report = judge(TERMS, simulate(BETTER), healthy, QUICK, Circumstances(origins=[harmless]))
    assert report.outcome == "pass"
    assert "| calls | 10 % | 10 % | 80 % |" in markdown.render(report)
