"""What a report says, section by section, as plain text; Markdown and HTML only escape it and draw it."""

from __future__ import annotations

from typing import NamedTuple

from pipeline.contracts.gate import Comparison, GateReport, Rule
from pipeline.gate import wording
from pipeline.gate.episodes import CHAMPION

OUTCOMES = {"pass": "PASS", "fail": "FAIL", "inconclusive": "INCONCLUSIVE", "unchanged": "UNCHANGED"}
RESULTS = {"pass": "holds", "fail": "FAILS", "inconclusive": "OPEN", "skipped": "not measured", "off": "OFF"}
_URGENCY = {"fail": 0, "inconclusive": 1, "off": 2, "skipped": 3, "pass": 4}


class Cell(NamedTuple):
    """A table cell; ``strong`` is what the eye should find first."""

    strong: str
    plain: str = ""


class Section(NamedTuple):
    """A titled part of the report: a table, or lines, and a note below."""

    title: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[Cell | str, ...], ...] = ()
    lines: tuple[str, ...] = ()
    note: str = ""


def headline(report: GateReport) -> str:
    """Who was compared with whom, on how much."""
    live, best = report.reference, report.best_heuristic
    if live == CHAMPION:
        against = f"the champion {wording.short(report.champion_digest)} and with the best heuristic, {best}"
    else:
        also = ", which is the best heuristic too" if best == live else f", and with the best heuristic, {best}"
        against = f"the heuristic now live, {live} (there is no champion){also}"
    return (
        f"Problem {report.problem}, challenger {wording.short(report.digest)}, compared with {against}, on "
        f"{report.traces:,} paired held-out traces ({report.scenarios} scenarios, "
        f"{report.blocks} independent time blocks)."
    )


def sections(report: GateReport) -> list[Section]:
    """Everything below the headline, the most decisive first."""
    return [
        _summary(report),
        _guardrails(report),
        _slices(report),
        *_shown_slices(report),
        _checks(report),
        *_fidelity(report),
        *_origins(report),
        Section("Warnings", lines=tuple(report.warnings) or ("None.",)),
        Section("If it goes wrong", note=wording.way_back(report.problem, report.champion_digest)),
    ]


def footer(report: GateReport) -> str:
    """What is needed to get the same report again."""
    settings = report.settings
    return (
        f"Rules as in params.yaml (gate), mode {report.mode}, seed {settings['seed']}, "
        f"{settings['bootstrap_samples']} resamples of time blocks. "
        f"Why, rule by rule: python -m pipeline.gate explain --problem {report.problem}"
    )


def _level(report: GateReport, *, one_sided: bool = False) -> str:
    confidence = float(str(report.settings["confidence"]))
    return f"{100.0 * ((1.0 + confidence) / 2.0 if one_sided else confidence):g} %"


def _better(row: Comparison) -> Cell:
    shown = wording.interval(row.better_by, metric=None if row.unit == "relative" else row.metric)
    estimate, _, rest = shown.partition(" [")
    return Cell(estimate, "[" + rest)


def _result(rule: Rule) -> Cell | str:
    if rule.outcome in {"pass", "skipped"}:
        return RESULTS[rule.outcome]
    more = "" if rule.traces_needed is None else f"({rule.traces_needed:,} traces would decide)"
    return Cell(RESULTS[rule.outcome], more)


def _summary(report: GateReport) -> Section:
    rivals = {report.reference: "champion" if report.reference == CHAMPION else f"{report.reference} (live)"}
    rivals.setdefault(report.best_heuristic, f"{report.best_heuristic} (best heuristic)")
    found = {(row.metric, row.reference): row for row in report.comparisons}
    header, rows, chances = ["metric", "challenger"], [], []
    for label in rivals.values():
        header += [label, f"better by [{_level(report)}]"]
    for metric in dict.fromkeys(row.metric for row in report.comparisons):
        higher = metric == report.primary_metric and report.higher_is_better
        cells: list[Cell | str] = [f"{metric} ({'higher' if higher else 'lower'} is better)"]
        cells.append(wording.value(metric, found[metric, report.reference].challenger_mean))
        for rival in rivals:
            row = found[metric, rival]
            cells += [wording.value(metric, row.reference_mean), _better(row)]
        rows.append(tuple(cells))
    for rival, label in rivals.items():
        chance = found[report.primary_metric, rival].probability_of_improvement
        if chance is not None:
            chances.append(f"better than {label} on {100 * chance.estimate:.0f} % of the traces")
    gap = "" if report.gap_closed is None else f"; {100 * report.gap_closed:.0f} % of the gap to the bound closed"
    note = f"Positive is good for the challenger in every row. {'; '.join(chances).capitalize()}{gap}."
    return Section("", tuple(header), tuple(rows), note=note)


def _guardrails(report: GateReport) -> Section:
    measured = {item.metric: item for item in report.guardrails}
    rows: list[tuple[Cell | str, ...]] = []
    for rule in report.rules:
        if rule.stage != "guardrail":
            continue
        item = measured.get(rule.name)
        if item is None:
            rows.append((rule.name, rule.found, "", "", rule.required, _result(rule)))
            continue
        means = (wording.value(item.metric, mean) for mean in (item.challenger_mean, item.reference_mean))
        limits = (item.worse_by.upper, item.margin)
        shown = (wording.difference(item.metric, limit, item.reference_mean) for limit in limits)
        rows.append((rule.name, *means, *shown, _result(rule)))
    header = (
        "metric",
        "challenger",
        report.reference,
        f"worse by at most ({_level(report, one_sided=True)})",
        "margin",
        "",
    )
    return Section("Guardrails: may not be worse by more than the margin", header, tuple(rows))


def _slices(report: GateReport) -> Section:
    results = {rule.name: rule for rule in report.rules if rule.stage == "slice"}
    rows = tuple(
        (row.scenario or "", f"{row.traces:,}", _better(row), _result(results[row.scenario or ""]))
        for row in report.slices
    )
    title = f"Slices: {report.primary_metric} against {report.reference}, scenario by scenario"
    return Section(title, ("scenario", "traces", f"better by [{_level(report)}]", ""), rows)


def _shown_slices(report: GateReport) -> list[Section]:
    """By hour, by size of request and on clusters of other sizes."""
    if not report.shown_slices:
        return []
    rivals = list(dict.fromkeys(row.reference for each in report.shown_slices for row in each.against))
    rows = []
    for each in report.shown_slices:
        found = {row.reference: row for row in each.against}
        better = (_better(found[rival]) if rival in found else "" for rival in rivals)
        rows.append((each.by, each.name, f"{each.against[0].traces:,}", str(each.blocks), *better))
    header = ("by", "", "traces", "blocks", *(f"better than {rival} by [{_level(report)}]" for rival in rivals))
    note = f"{report.primary_metric}; shown, and warned of where it is worse, but not part of the verdict."
    return [Section("Where it is better, and where not", header, tuple(rows), note=note)]


def _fidelity(report: GateReport) -> list[Section]:
    """What the simulator says of the placements that the cluster's own scheduler made, beside what was measured."""
    if report.fidelity is None or not report.fidelity.figures:
        return []
    rows = tuple(
        (
            figure.metric,
            wording.value(figure.metric, figure.predicted),
            wording.value(figure.metric, figure.measured),
            "" if figure.relative_error is None else f"{100 * figure.relative_error:.1f} %",
        )
        for figure in report.fidelity.figures
    )
    note = f"{report.fidelity.windows_start} to {report.fidelity.windows_end}, the placements as recorded."
    return [Section("The simulator beside the cluster", ("metric", "simulated", "measured", "off by"), rows, note=note)]


def _origins(report: GateReport) -> list[Section]:
    """The share of every feature's numbers that was measured, estimated or assumed."""
    if not report.origins:
        return []
    rows = []
    for origin in sorted(report.origins, key=lambda item: -item.assumed_share):
        total = max(origin.measured + origin.estimated + origin.assumed, 1)
        shares = (f"{100 * part / total:.0f} %" for part in (origin.measured, origin.estimated, origin.assumed))
        rows.append((origin.feature, *shares, origin.decides, origin.needs if origin.assumed else ""))
    header = ("number", "measured", "estimated", "assumed", "decides", "to measure it, add")
    return [Section("Where the numbers come from", header, tuple(rows))]


def _checks(report: GateReport) -> Section:
    """Integrity, simulator, superiority, tail and power: a line each, those that do not hold first."""
    chosen = [rule for rule in report.rules if rule.stage not in {"guardrail", "slice"}]
    rows = tuple(
        (f"{rule.stage}: {rule.name}", rule.found, rule.required, _result(rule))
        for rule in sorted(chosen, key=lambda rule: _URGENCY[rule.outcome])
    )
    return Section("Every other rule", ("rule", "found", "required", ""), rows)
