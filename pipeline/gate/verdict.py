"""The verdict: rules in their order, and which of them has the last word.

Same digest: ``unchanged``. Then what needs no simulator (integrity, never-events) fails; then a simulator that was
wrong about yesterday makes everything it says ``inconclusive``; then any failed rule fails, any open rule leaves the
verdict open, and only a challenger with nothing against it passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from pipeline.contracts.evaluation import Backtest, Integrity, Origin, Terms
from pipeline.contracts.gate import STAGES, Comparison, GateReport, Outcome, Rule
from pipeline.errors import GateError
from pipeline.gate import rules, slices
from pipeline.gate.comparisons import Comparer
from pipeline.gate.config import Config
from pipeline.gate.episodes import CHAMPION, Episodes
from pipeline.gate.wording import interval, short

UNBELIEVED = {
    "back-test": "the simulator was off on the back-test",
    "fidelity": "the simulator does not give what was measured",
    "origin": "too much is assumed",
}
"""Stages that say whether the simulator can be believed, and what it means when one is open."""
SUMMARY_METRICS = ("sla_violation_rate", "cost_usd")
"""Shown beside the primary metric in every report."""


class Circumstances(NamedTuple):
    """What the verdict depends on besides the episodes."""

    backtest: Backtest | None = None
    champion_age_days: float | None = None
    """How much older the champion's data are than the challenger's; None: not known."""
    champion_density: float = 1.0
    """How many times as dense as recorded arrivals were when the champion was judged."""
    drifted: bool = False
    """Whether validation saw the request mix drift."""
    warnings: Sequence[str] = ()
    """From the validation of the data; shown to the person who approves."""
    fidelity: Backtest | None = None
    """The windows replayed as recorded."""
    origins: Sequence[Origin] = ()
    """Where the numbers come from."""
    sizes: Episodes | None = None
    """Episodes on clusters of other sizes."""


def judge(
    terms: Terms,
    episodes: Episodes,
    integrity: Integrity,
    config: Config,
    circumstances: Circumstances | None = None,
) -> GateReport:
    """Apply every rule and give the verdict; the same inputs give the same report."""
    around = circumstances or Circumstances()
    unchanged = integrity.digest == integrity.champion_digest
    if (integrity.champion_digest is not None) != episodes.champion and not unchanged:
        raise GateError(
            f"integrity.json names champion {short(integrity.champion_digest)}, "
            f"the episodes have {'one' if episodes.champion else 'none'}",
            "both or neither",
            "run evaluate again",
        )
    comparer = Comparer(terms, episodes, config)
    refresh, refresh_note = _refresh_due(config, around, champion=episodes.champion)
    guarded, guardrails = rules.guardrails(comparer)
    must_hold = [*rules.integrity(integrity, config.integrity), *rules.zeros(comparer)]
    simulator = [
        rules.back_test(around.backtest, config),
        rules.as_recorded(around.fidelity, config),
        *rules.origins(around.origins, config),
    ]
    statistical = [
        *rules.primary(comparer, refresh=refresh),
        *guarded,
        *rules.slices(comparer),
        rules.tail(comparer),
        *rules.enough_data(comparer),
    ]
    beside = slices.shown(comparer, around.sizes)
    outcome, reason = _verdict(must_hold, simulator, statistical)
    if outcome == "pass":
        reason = _why_passed(comparer, refresh=refresh, guardrails=len(guardrails))
    if unchanged:
        outcome, reason = "unchanged", f"the challenger is the champion ({short(integrity.digest)}): nothing to promote"
    if config.switched_off:
        reason += "; SWITCHED OFF: " + ", ".join(f"{name} ({why})" for name, why in sorted(config.switched_off.items()))
    return GateReport(
        problem=terms.problem,
        outcome=outcome,
        reason=reason,
        digest=integrity.digest,
        champion_digest=integrity.champion_digest,
        reference=comparer.reference,
        best_heuristic=comparer.best.name,
        mode=config.promotion.mode,
        primary_metric=comparer.primary,
        higher_is_better=comparer.higher,
        rules=sorted([*must_hold, *simulator, *statistical], key=lambda rule: STAGES.index(rule.stage)),
        comparisons=_comparisons(comparer),
        guardrails=guardrails,
        slices=[comparer.compare_primary(comparer.reference, index) for index in range(len(episodes.scenarios))],
        shown_slices=beside,
        traces=len(episodes),
        scenarios=len(episodes.scenarios),
        blocks=comparer.resampler.blocks(),
        bound=comparer.bound(),
        bound_metric=terms.bound_metric,
        gap_closed=comparer.gap_closed(),
        profile=comparer.profile(),
        warnings=[
            *around.warnings,
            *_other_load(terms.density, around.champion_density if episodes.champion else terms.density),
            *comparer.dependence(),
            *refresh_note,
            *slices.warnings(beside, config, terms, around.sizes),
        ],
        settings=msgspec.json.decode(msgspec.json.encode(config)),
        rules_off=dict(config.switched_off),
        origins=list(around.origins),
        fidelity=around.fidelity,
        density=terms.density,
    )


def _other_load(density: float, champion: float) -> list[str]:
    """Say that what was judged is not the load as recorded, or not the one that the champion was approved for."""
    said = []
    if density != 1.0:
        said.append(f"trained and judged at {density:.3g} times the recorded load, the load of when this night began")
    if champion != density:
        said.append(
            f"what is live was approved for {champion:.3g} times the load of its days, this night is about "
            f"{density:.3g} times that of its own: which of them is the load of now?"
        )
    return said


def _refresh_due(config: Config, around: Circumstances, *, champion: bool) -> tuple[bool, list[str]]:
    """Whether non-inferiority is enough tonight, and a line on why or why not when the mode asks."""
    chosen = config.promotion
    if chosen.mode != "refresh":
        return False, []
    if not champion:
        return False, ["refresh mode without a champion: the first promotion must be superior"]
    age = around.champion_age_days
    old = age is not None and age >= chosen.refresh_after_days
    seen = f"the champion's data are {'of unknown age' if age is None else f'{age:.1f} days older'}"
    mix = "the request mix has drifted" if around.drifted else "no drift"
    if old or around.drifted:
        return True, [f"a refresh is due: {seen}, {mix}; non-inferior is enough"]
    return False, [f"no refresh is due ({seen}, limit {chosen.refresh_after_days:g}; {mix}): must be superior"]


def _verdict(must_hold: list[Rule], simulator: list[Rule], statistical: list[Rule]) -> tuple[Outcome, str]:
    failed = [rule for rule in must_hold if rule.outcome == "fail"]
    if failed:
        return "fail", _because(failed)
    for stage, why in UNBELIEVED.items():
        if off := [rule for rule in simulator if rule.outcome == "inconclusive" and rule.stage == stage]:
            return "inconclusive", f"{why}: {_because(off)}"
    if failed := [rule for rule in statistical if rule.outcome == "fail"]:
        return "fail", _because(failed)
    if unsure := [rule for rule in statistical if rule.outcome == "inconclusive"]:
        sizes = [rule.traces_needed for rule in unsure if rule.traces_needed is not None]
        decide = f"; about {max(sizes):,} paired traces would decide" if sizes else ""
        return "inconclusive", _because(unsure) + decide
    return "pass", ""


def _because(guilty: list[Rule]) -> str:
    first = guilty[0]
    others = f"; and {', '.join(rule.name for rule in guilty[1:])}" if len(guilty) > 1 else ""
    return f"{first.name}: {first.found} (required: {first.required}){others}"


def _why_passed(comparer: Comparer, *, refresh: bool, guardrails: int) -> str:
    how = "not worse" if refresh else "better"
    parts = []
    for rival in comparer.rivals:
        row = comparer.compare_primary(rival)
        name = rival if rival == CHAMPION else f"heuristic {rival}"
        parts.append(f"{how} than {name}: {interval(row.better_by)}")
    held = f"all {guardrails} guardrails, {len(comparer.episodes.scenarios)} slices and the tail hold"
    return f"{comparer.primary} " + "; ".join(parts) + "; " + held


def _comparisons(comparer: Comparer) -> list[Comparison]:
    rows = [comparer.compare_primary(rival) for rival in comparer.rivals]
    rows += [comparer.compare_mean(metric, rival) for metric in SUMMARY_METRICS for rival in comparer.rivals]
    others = [beaten.name for beaten in comparer.heuristics if beaten.name not in comparer.rivals]
    return rows + [comparer.compare_primary(name) for name in others]
