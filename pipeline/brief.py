"""What a person must know of a candidate in ten seconds: the top of the approval, before the whole report.

Service level and cost against what is live and against the best rule, what got worse, warnings, and the way back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pipeline import shadow
from pipeline.contracts.shadow import Shadowed
from pipeline.gate import wording
from pipeline.gate.markdown import prose
from pipeline.paths import SHADOW_JSON
from pipeline.registry.nights import COST, SLA, Figure, figures

CHAMPION = "champion"
NAMES = {SLA: "SLA violations", COST: "cost"}


def subject(problem: str, report: dict[str, Any]) -> str:
    """Ask, in one line, with what changes for the users and the bill."""
    reference = str(report.get("reference"))
    found = {figure.metric: figure for figure in figures(report) if figure.reference == reference}
    against = "the champion" if reference == CHAMPION else "the rule that is live"
    changes = [f"{NAMES[metric]} {_change(found[metric])}" for metric in NAMES if metric in found]
    told = f"{', '.join(changes)} against {against}" if changes else "read the report"
    return f"Promote {problem} {str(report.get('digest'))[:19]}? {told}"


def live_traffic(files: Mapping[str, bytes], folder: str) -> str:
    """Say what the candidate would have done with live traffic, of what a run's commit holds."""
    data = files.get(f"{folder}/{SHADOW_JSON}")
    if data is None:
        return "not shadowed: this run has no word on what it would have done with live traffic"
    try:
        return shadow.headline(msgspec.json.decode(data, type=Shadowed))
    except msgspec.DecodeError:
        return "not known: what the run says of its shadow cannot be read"


def body(problem: str, report: dict[str, Any], links: Iterable[str] = (), live: str = "") -> str:
    """Write the top of the page.

    Args:
        problem: Whose policy.
        report: The gate's.
        links: Where there is more to look at.
        live: What the candidate would have done with live traffic, in a line.
    """
    reference, best = str(report.get("reference")), str(report.get("best_heuristic"))
    table = figures(report)
    lines = [f"**{problem}: {prose(str(report.get('reason', '')))}**", ""]
    warnings = [str(text) for text in report.get("warnings") or ()]
    worse = [figure for figure in table if figure.worse]
    lines += [f"- ⚠ {prose(text)}" for text in warnings]
    lines += [f"- ▲ worse than {prose(figure.reference)}: {prose(_levels(figure))}" for figure in worse]
    if live:
        lines.append(f"- Live traffic: {prose(live)}")
    lines.append(f"- Way back: {prose(wording.way_back(problem, report.get('champion_digest')))}")
    lines += ["", "| | new | " + " | ".join(f"{prose(name)} | change" for name in _rivals(reference, best)) + " |"]
    lines.append("|---|---|" + "---|---|" * len(_rivals(reference, best)))
    for metric in dict.fromkeys(figure.metric for figure in _ordered(table)):
        cells = [NAMES.get(metric, metric)]
        for place, rival in enumerate(_rivals(reference, best)):
            found = next((one for one in table if (one.metric, one.reference) == (metric, rival)), None)
            if place == 0:
                cells.append(wording.value(metric, found.challenger) if found else "-")
            cells += [wording.value(metric, found.rival), _cell(found)] if found else ["-", "-"]
        lines.append("| " + " | ".join(cells) + " |")
    if (gap := report.get("gap_closed")) is not None:
        lines += ["", f"{100 * float(gap):.0f} % of the gap between the best rule and the bound is closed."]
    lines += ["", *(f"- {link}" for link in links)]
    return "\n".join(lines) + "\n"


def _ordered(table: list[Figure]) -> list[Figure]:
    return sorted(table, key=lambda figure: {SLA: 0, COST: 1}.get(figure.metric, 2))


def _rivals(reference: str, best: str) -> list[str]:
    return list(dict.fromkeys((reference, best)))


def _cell(figure: Figure) -> str:
    metric = None if figure.unit == "relative" else figure.metric
    middle, low, high = (
        wording.percent(value) if metric is None else wording.difference(metric, value)
        for value in (figure.better_by, figure.lower, figure.upper)
    )
    return f"{'▲ **worse**' if figure.worse else 'better'} by {middle} [{low}, {high}]"


def _levels(figure: Figure) -> str:
    levels = (wording.value(figure.metric, level) for level in (figure.challenger, figure.rival))
    return f"{NAMES.get(figure.metric, figure.metric)} {' against '.join(levels)}"


def _change(figure: Figure) -> str:
    """Say a change as people say it: violations and cost go up or down."""
    if figure.unit == "absolute":
        return wording.difference(figure.metric, -figure.better_by)
    return wording.percent(-figure.better_by)
