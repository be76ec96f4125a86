"""The rules of each stage; every one answers with what was found and what was required, in numbers.

A rule that is not met is ``fail`` when the data show it or had the power to show the contrary, ``inconclusive`` when
there were too few traces to tell; then it says how many would decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.contracts.evaluation import Backtest, Integrity, Origin
from pipeline.contracts.gate import Guardrail, Rule, RuleOutcome
from pipeline.errors import GateError
from pipeline.gate.comparisons import Comparer
from pipeline.gate.config import Config, IntegrityLimits
from pipeline.gate.episodes import CHALLENGER
from pipeline.gate.wording import RATE, bounds, difference, interval, number, percent, value
from pipeline.statistics import power as power_of
from pipeline.statistics.bootstrap import Estimate
from pipeline.statistics.inference import deteriorated, non_inferiority, superiority
from wire.errors import legal


def integrity(found: Integrity, limits: IntegrityLimits) -> list[Rule]:
    """Stage 0: the shipped file is what was trained, is fast enough, and respects the mask."""
    untried = sorted(set(limits.sizes) - set(found.sizes))
    checks: list[tuple[str, bool, str, str]] = [
        (
            "parity of scores",
            found.parity_max_error <= limits.parity_max_error,
            f"torch and ONNX differ by at most {found.parity_max_error:.2g}",
            f"at most {limits.parity_max_error:.2g}",
        ),
        (
            "parity of choices",
            found.parity_argmax_equal and not untried,
            ("equal choices" if found.parity_argmax_equal else "torch and ONNX choose differently")
            + (f", not tried with {', '.join(map(str, untried))} candidates" if untried else ""),
            f"equal choices with {', '.join(map(str, limits.sizes))} candidates",
        ),
        (
            "order of candidates",
            found.permutation_invariant,
            "shuffled candidates give " + ("the same choice" if found.permutation_invariant else "another choice"),
            "the same choice in any order",
        ),
        ("mask", found.mask_violations == 0, f"{found.mask_violations} masked candidates chosen", "0"),
        (
            "golden vectors",
            found.golden_max_error is not None and found.golden_max_error <= limits.golden_max_error,
            "could not be replayed"
            if found.golden_max_error is None
            else f"off by at most {found.golden_max_error:.2g}",
            f"at most {limits.golden_max_error:.2g}",
        ),
        (
            "decision time",
            found.decision_p99_us <= limits.decision_p99_us,
            f"p99 {number(found.decision_p99_us)} us",
            f"at most {number(limits.decision_p99_us)} us",
        ),
        ("bundle", not found.bundle_errors, "; ".join(found.bundle_errors) or "no complaint", "no complaint"),
    ]
    return [Rule("integrity", name, "pass" if good else "fail", seen, asked) for name, good, seen, asked in checks]


def zeros(comparer: Comparer) -> list[Rule]:
    """Hard rule: what must never happen did not happen on any trace."""
    rules = []
    for metric in comparer.config.zero:
        if metric in comparer.config.switched_off:
            rules.append(Rule("guardrail", metric, "off", f"switched off: {comparer.config.switched_off[metric]}", "0"))
            continue
        total = int(comparer.episodes.metric(CHALLENGER, metric).sum())
        rules.append(Rule("guardrail", metric, "fail" if total else "pass", f"{total} on all traces", "0"))
    return rules


def origins(found: Sequence[Origin], config: Config) -> list[Rule]:
    """Whether what decides the metrics was measured or estimated; a metric of assumptions is of no cluster."""
    rules = []
    for origin in found:
        if not origin.decides:
            continue
        share = origin.assumed_share
        off = share > config.assumed_tolerance
        seen = f"{100 * share:.0f} % assumed; {origin.decides} rests on it" + (f"; add {origin.needs}" if off else "")
        limit = f"at most {100 * config.assumed_tolerance:.0f} % assumed"
        rules.append(Rule("origin", origin.feature, "inconclusive" if off else "pass", seen, limit))
    return rules


def as_recorded(found: Backtest | None, config: Config) -> Rule:
    """Whether the simulator, given the placements of the cluster's own scheduler, gives what was measured."""
    rule = back_test(found, config)
    seen = rule.found if rule.outcome != "skipped" or found else "windows do not tell where requests were placed"
    return Rule("fidelity", "as recorded", rule.outcome, seen, rule.required)


def back_test(found: Backtest | None, config: Config) -> Rule:
    """Whether the simulator said of yesterday what was measured; if not, its verdicts are not believed."""
    required = f"predicted within {100 * config.backtest_tolerance:.0f} % of measured"
    if found is None or found.skipped:
        reason = "no back-test: " + ("nothing was live" if found is None else found.skipped)
        return Rule("back-test", "simulator", "skipped", reason, required)
    seen, off = [], not found.figures
    for figure in found.figures:
        error = figure.relative_error
        shown = "nothing to divide by" if error is None else f"{100 * error:.1f} % off"
        seen.append(
            f"{figure.metric} predicted {value(figure.metric, figure.predicted)}, "
            f"measured {value(figure.metric, figure.measured)} ({shown})"
        )
        near = figure.metric.endswith(RATE) and abs(figure.predicted - figure.measured) <= config.backtest_rate_floor
        off |= not near and (error is None or error > config.backtest_tolerance)
    text = "; ".join(seen) or "no figure could be compared"
    return Rule("back-test", "simulator", "inconclusive" if off else "pass", text, required)


def enough_data(comparer: Comparer) -> list[Rule]:
    """Traces and independent time blocks behind every number, and episodes as long as was asked for."""
    config, episodes, terms = comparer.config, comparer.episodes, comparer.terms
    counts = {name: int((episodes.scenario == index).sum()) for index, name in enumerate(episodes.scenarios)}
    least = min(counts, key=lambda name: (counts[name], name))
    blocks = comparer.resampler.blocks()
    return [
        Rule(
            "power",
            "paired traces",
            "pass" if counts[least] >= config.min_traces_per_scenario else "inconclusive",
            f"{counts[least]} in scenario {least}, the one with fewest",
            f"at least {config.min_traces_per_scenario} in every scenario",
            None if counts[least] >= config.min_traces_per_scenario else config.min_traces_per_scenario * len(counts),
        ),
        Rule(
            "power",
            "time blocks",
            "pass" if blocks >= config.min_blocks else "inconclusive",
            f"{blocks} independent time blocks",
            f"at least {config.min_blocks}: traces of one block count as one piece of evidence",
        ),
        *(
            [
                Rule(
                    "power",
                    "length of episodes",
                    "pass" if terms.horizon >= terms.wanted_horizon else "inconclusive",
                    f"{terms.horizon} decisions",
                    f"{terms.wanted_horizon}: the best rule of short episodes may not be that of long ones",
                )
            ]
            if terms.wanted_horizon
            else []
        ),
    ]


def _size(found: Estimate, traces: int, effect: float, config: Config, power: float) -> int | None:
    """Traces that would find the effect; None when no number can be given."""
    if effect <= 0.0 or not math.isfinite(found.error):
        return None
    deviation = found.error * math.sqrt(traces)
    return power_of.sample_size(deviation, effect, confidence=config.confidence, power=power)


def primary(comparer: Comparer, *, refresh: bool) -> list[Rule]:
    """Superiority (or, in a refresh that is due, non-inferiority) on the primary metric, and its power."""
    config, metric, traces = comparer.config, comparer.primary, len(comparer.episodes)
    effect = config.promotion.margin if refresh else config.effect
    adjusted = {beaten.name: beaten.p_holm for beaten in comparer.heuristics}
    data_suffice = all(rule.outcome == "pass" for rule in enough_data(comparer))
    rules, powers = [], []
    for rival in comparer.rivals:
        found = comparer.primary_against(rival)
        label = rival if rival == "champion" else f"heuristic {rival}"
        reached = power_of.power(found.error, effect, confidence=config.confidence)
        needed = _size(found, traces, effect, config, config.power)
        powered = reached >= config.power
        seen = f"{interval(bounds(found))} on {metric} over {traces} paired traces, p {found.p:.2g}"
        if refresh:
            decision = non_inferiority(found._replace(lower=-found.upper, upper=-found.lower), effect)
            required = f"refresh: non-inferior, lower bound not below {percent(-effect)}"
        else:
            decision = superiority(found)
            required = "better: lower bound above 0"
            if rival == comparer.best.name:
                seen += f" (Holm over {len(adjusted)} heuristics: {adjusted[rival]:.2g})"
                required += f" and Holm's p at most {1.0 - config.confidence:.2g}"
                if decision == "yes" and adjusted[rival] > 1.0 - config.confidence:
                    decision = "open"
        outcome = _decide(decision, powered=powered and data_suffice)
        rules.append(
            Rule(
                "superiority",
                f"{metric} against {label}",
                outcome,
                seen,
                required,
                needed if outcome == "inconclusive" else None,
            )
        )
        # A whole interval beyond the effect has answered the question that the power is about.
        settled = found.lower >= (0.0 if refresh else effect)
        powers.append(
            Rule(
                "power",
                f"power against {label}",
                "pass" if powered or settled else "inconclusive",
                f"{100 * reached:.0f} % for a true {percent(effect)}"
                + ("" if powered or not settled else f", settled anyway: at least {percent(found.lower)}"),
                f"at least {100 * config.power:.0f} %",
                None if powered or settled else needed,
            )
        )
    return rules + powers


def _decide(decision: str, *, powered: bool) -> RuleOutcome:
    if decision == "yes":
        return "pass"
    return "fail" if decision == "no" or powered else "inconclusive"


def guardrails(comparer: Comparer) -> tuple[list[Rule], list[Guardrail]]:
    """Non-inferiority of everything that must not get worse; one-sided 97.5 % bound inside the margin."""
    config, episodes, traces = comparer.config, comparer.episodes, len(comparer.episodes)
    margins = config.margins(comparer.terms.guardrails, comparer.primary)
    if strange := config.switched_off.keys() - margins.keys() - set(config.zero):
        raise GateError(
            f"gate.switched_off names {', '.join(sorted(strange))}",
            legal(sorted({*margins, *config.zero})),
            "name a rule there is",
        )
    present = [
        metric for metric in margins if metric in episodes.values[CHALLENGER] and metric not in config.switched_off
    ]
    # All must clear at once, so each needs more power than the whole (gates: correct beta, not alpha).
    power = power_of.shared_power(config.power, len(present))
    data_suffice = all(rule.outcome == "pass" for rule in enough_data(comparer))
    rules, table = [], []
    for metric, limit in margins.items():
        if metric in config.switched_off:
            rules.append(
                Rule("guardrail", metric, "off", f"switched off: {config.switched_off[metric]}", "non-inferior")
            )
            continue
        if metric not in present:
            rules.append(Rule("guardrail", metric, "skipped", "this problem does not measure it", "non-inferior"))
            continue
        base = comparer.mean(comparer.reference, metric)
        margin = limit.of(base)
        found = comparer.worse_by(metric, comparer.reference)
        needed = _size(found, traces, margin, config, power)
        powered = data_suffice and needed is not None and needed <= traces
        outcome = _decide(non_inferiority(found, margin), powered=powered)
        table.append(Guardrail(metric, comparer.mean(CHALLENGER, metric), base, bounds(found), margin))
        rules.append(
            Rule(
                "guardrail",
                metric,
                outcome,
                f"worse than {comparer.reference} by {interval(bounds(found), metric=metric, base=base)}",
                f"upper bound at most {difference(metric, margin, base)}",
                needed if outcome == "inconclusive" else None,
            )
        )
    return rules, table


def slices(comparer: Comparer) -> list[Rule]:
    """A scenario fails only when even the upper bound of its improvement is below minus the margin."""
    margin, rules = comparer.config.slice_margin, []
    for index, name in enumerate(comparer.episodes.scenarios):
        found = comparer.primary_against(comparer.reference, index)
        rules.append(
            Rule(
                "slice",
                name,
                "fail" if deteriorated(found, margin) else "pass",
                f"{interval(bounds(found))} on {comparer.primary}",
                f"upper bound not below {percent(-margin)}",
            )
        )
    return rules


def tail(comparer: Comparer) -> Rule:
    """The worst tenth of the traces is not below the reference's worst tenth by more than the margin."""
    found, margin = comparer.tail(), comparer.config.cvar_margin
    outcome: RuleOutcome = "pass" if found.value >= -margin else "fail" if found.upper < -margin else "inconclusive"
    return Rule(
        "tail",
        f"worst {100 * comparer.config.cvar_share:.0f} % of traces",
        outcome,
        f"CVaR {interval(bounds(found))} against {comparer.reference}, in units of its mean",
        f"not below {percent(-margin)}",
    )
