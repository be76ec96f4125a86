"""The drawings of the HTML report, as inline SVG.

Distributions, SLA against cost, slices, learning curves, the gap to the bound; and the worst episodes, with links to
their replays.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.contracts.gate import GateReport
from pipeline.gate import wording
from pipeline.gate.episodes import CHALLENGER, CHAMPION, Episodes

WIDTH, ROW, LABELS = 720, 22, 190
SHOWN = 10
"""Policies in the distributions: challenger, champion, and the best of the others."""
WORST = 3
"""Episodes in which the challenger did worst, beside the policy that it is compared with."""
OURS, THEIRS = "#1f6feb", "#8a94a3"


class Worst(NamedTuple):
    """An episode in which the challenger lost most."""

    scenario: str
    trace: str
    challenger: float
    reference: float


def worst(episodes: Episodes, report: GateReport, count: int = WORST) -> list[Worst]:
    """Find the traces on which the challenger was furthest behind the reference."""
    return furthest_behind(episodes, report.primary_metric, report.higher_is_better, report.reference, count)


def furthest_behind(episodes: Episodes, metric: str, higher: bool, rival: str, count: int = WORST) -> list[Worst]:
    """Find the traces on which the challenger was furthest behind a rival; those on which it lost only."""
    ours, theirs = episodes.metric(CHALLENGER, metric), episodes.metric(rival, metric)
    behind = (theirs - ours) if higher else (ours - theirs)
    order = [at for at in np.argsort(-behind, kind="stable")[:count] if behind[at] > 0]
    return [
        Worst(episodes.scenarios[episodes.scenario[at]], episodes.traces[at], float(ours[at]), float(theirs[at]))
        for at in order
    ]


def sections(report: GateReport, episodes: Episodes, curves: Path, replays: dict[tuple[str, str], str]) -> list[str]:
    """Everything drawn, in the order that it is read.

    Args:
        report: The verdict.
        episodes: What it rests on.
        curves: The folder of this problem's trainings; it may be absent.
        replays: (scenario, trace) -> file beside the report that shows it.
    """
    shown = [
        _part("How the traces are spread", _distributions(report, episodes), _spread_note(report)),
        _part(
            "SLA against cost", _pareto(episodes), "Down and to the left is better; the line joins what no other beats."
        ),
        _part(
            "Slice by slice",
            _slices(report),
            f"{report.primary_metric} against {report.reference}; right of 0 is better. By hour, size of "
            "request and size of cluster it is shown, not judged.",
        ),
        _part("The gap to the bound", _gap(report, episodes), ""),
        _part(
            "Learning curves", _curves(curves, report.primary_metric), f"{report.primary_metric} on validation starts."
        ),
        _worst(report, worst(episodes, report), replays),
    ]
    return [part for part in shown if part]


def _part(title: str, drawing: str, note: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{drawing}\n<p>{escape(note)}</p>" if drawing else ""


def _svg(height: float, name: str, inside: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" role="img" font-size="12" '
        f'fill="currentColor" aria-label="{escape(name, quote=True)}">{"".join(inside)}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, more: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {more}/>'


def _scale(low: float, high: float, left: float, right: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: left + (value - low) / span * (right - left)


FAINT = 'stroke="currentColor" stroke-opacity=".18"'


def _distributions(report: GateReport, episodes: Episodes) -> str:
    """A row a policy: 5 to 95 % of its traces as a line, the middle half as a bar, the median as a mark."""
    metric, sign = report.primary_metric, 1.0 if report.higher_is_better else -1.0
    means = {name: float(episodes.metric(name, metric).mean()) for name in episodes.values}
    others = sorted(
        (name for name in means if name not in (CHALLENGER, CHAMPION)), key=lambda name: -sign * means[name]
    )
    names = [name for name in (CHALLENGER, CHAMPION) if name in means] + others
    names = names[:SHOWN]
    quantiles = {name: np.quantile(episodes.metric(name, metric), [0.05, 0.25, 0.5, 0.75, 0.95]) for name in names}
    low, high = min(q[0] for q in quantiles.values()), max(q[4] for q in quantiles.values())
    x = _scale(low, high, LABELS, WIDTH - 20)
    inside = []
    for row, name in enumerate(names):
        y, (q05, q25, q50, q75, q95) = row * ROW + 14, quantiles[name].tolist()
        colour = OURS if name == CHALLENGER else THEIRS
        figures = f"median {q50:.5g}, mean {means[name]:.5g}, 5 to 95 %: {q05:.5g} to {q95:.5g}"
        tip, wide = f"<title>{escape(name)}: {figures}</title>", max(1.0, x(q75) - x(q25))
        inside += [
            _text(0, y + 4, name[:28]),
            f"<g>{tip}",
            _line(x(q05), y, x(q95), y, f'stroke="{colour}" stroke-width="2"'),
            f'<rect x="{x(q25):.1f}" y="{y - 6}" width="{wide:.1f}" height="12" fill="{colour}" rx="2"/>',
            _line(x(q50), y - 8, x(q50), y + 8, 'stroke="currentColor" stroke-width="2"'),
            "</g>",
        ]
    bottom = len(names) * ROW + 22
    inside += [_text(x(low), bottom, f"{low:.4g}"), _text(x(high), bottom, f"{high:.4g}", "end")]
    return _svg(bottom + 6, f"distribution of {metric} by policy", inside)


def _spread_note(report: GateReport) -> str:
    side = "right" if report.higher_is_better else "left"
    return (
        f"{report.primary_metric} of each trace: bar, the middle half; line, 5 to 95 %; mark, the median. "
        f"Further to the {side} is better."
    )


def _pareto(episodes: Episodes) -> str:
    """Mean SLA violation rate over mean cost, a point a policy."""
    points = {
        name: (float(metrics["cost_usd"].mean()), float(metrics["sla_violation_rate"].mean()))
        for name, metrics in episodes.values.items()
        if "cost_usd" in metrics and "sla_violation_rate" in metrics
    }
    if len(points) < 2:
        return ""
    costs, rates = zip(*points.values(), strict=True)
    x = _scale(min(costs), max(costs), 60, WIDTH - 150)
    y = _scale(min(rates), max(rates), 250, 20)

    def beaten(point: tuple[float, float]) -> bool:
        return any(o != point and o[0] <= point[0] and o[1] <= point[1] for o in points.values())

    best = sorted(point for point in points.values() if not beaten(point))
    inside = [_line(60, 262, WIDTH - 20, 262, FAINT), _line(60, 10, 60, 262, FAINT)]
    path = " ".join(f"{x(cost):.1f},{y(rate):.1f}" for cost, rate in best)
    inside.append(f'<polyline points="{path}" fill="none" stroke="{OURS}" stroke-opacity=".5" stroke-dasharray="5 4"/>')
    used: list[float] = []
    for name, (cost, rate) in sorted(points.items(), key=lambda item: y(item[1][1])):
        ours = name == CHALLENGER
        label = y(rate) + 4
        while any(abs(label - other) < 12 for other in used):
            label += 12  # names of neighbours do not lie on each other
        used.append(label)
        inside += [
            f'<circle cx="{x(cost):.1f}" cy="{y(rate):.1f}" r="{6 if ours else 4}" fill="{OURS if ours else THEIRS}">'
            f"<title>{escape(name)}: {cost:.4g} USD, {100 * rate:.3f} % late</title></circle>",
            _text(x(cost) + 9, label, name[:26], more='font-weight="700"' if ours else 'fill-opacity=".75"'),
        ]
    inside += [
        _text(60, 280, f"{min(costs):.4g} USD"),
        _text(x(max(costs)), 280, f"{max(costs):.4g} USD", "end"),
        _text(56, y(min(rates)) + 4, f"{100 * min(rates):.2f} %", "end"),
        _text(56, y(max(rates)) + 4, f"{100 * max(rates):.2f} %", "end"),
    ]
    return _svg(288, "mean SLA violation rate over mean cost", inside)


def _slices(report: GateReport) -> str:
    """An interval a scenario, and for each slice that is only shown, around no difference."""
    named = [(row.scenario or "all", row) for row in report.slices]
    named += [(each.name, row) for each in report.shown_slices for row in each.against[:1]]
    known = [(name, row) for name, row in named if row.better_by.lower is not None and row.better_by.upper is not None]
    if not known:
        return ""
    rows = [row for _, row in known]
    ends = [end for row in rows for end in (row.better_by.lower or 0.0, row.better_by.upper or 0.0)] + [0.0]
    x = _scale(min(ends), max(ends), LABELS, WIDTH - 70)
    inside = [_line(x(0.0), 4, x(0.0), len(rows) * ROW + 6, 'stroke="currentColor" stroke-opacity=".5"')]
    for number, (name, row) in enumerate(known):
        y, by = number * ROW + 16, row.better_by
        inside += [
            f"<g><title>{escape(name)}</title>{_text(0, y + 4, name[:28])}</g>",
            _line(x(by.lower or 0.0), y, x(by.upper or 0.0), y, f'stroke="{OURS}" stroke-width="3"'),
            f'<circle cx="{x(by.estimate):.1f}" cy="{y}" r="5" fill="{OURS}"/>',
            _text(
                WIDTH, y + 4, f"{100 * by.estimate:+.1f} %" if row.unit == "relative" else f"{by.estimate:+.4g}", "end"
            ),
        ]
    return _svg(len(rows) * ROW + 14, "difference by scenario with intervals", inside)


def _gap(report: GateReport, episodes: Episodes) -> str:
    """Best heuristic, challenger and bound on one line, where the bound is stated in the metric that decides."""
    if report.bound is None or report.bound_metric != report.primary_metric:
        return ""
    values = {
        report.best_heuristic: float(episodes.metric(report.best_heuristic, report.primary_metric).mean()),
        CHALLENGER: float(episodes.metric(CHALLENGER, report.primary_metric).mean()),
        "bound": report.bound,
    }
    x = _scale(min(values.values()), max(values.values()), 130, WIDTH - 110)
    inside = [_line(130, 40, WIDTH - 110, 40, FAINT)]
    for number, (name, value) in enumerate(values.items()):
        colour = OURS if name == CHALLENGER else THEIRS
        inside.append(f'<circle cx="{x(value):.1f}" cy="40" r="6" fill="{colour}"/>')
        inside.append(_text(x(value), 24 if number != 1 else 64, f"{name} {value:.5g}", "middle"))
    closed = "" if report.gap_closed is None else f"{100 * report.gap_closed:.0f} % of the gap is closed"
    return _svg(74, "best heuristic, challenger and bound", [*inside, _text(WIDTH, 72, closed, "end")])


def _curves(folder: Path, metric: str) -> str:
    """Every training of the problem: the metric over steps."""
    found = {}
    for path in sorted(folder.glob("*/curve.csv")) if folder.is_dir() else []:
        with path.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("steps") and row.get(metric)]
        if rows:
            found[path.parent.name] = [(float(row["steps"]), float(row[metric])) for row in rows]
    points = [point for curve in found.values() for point in curve]
    if not points:
        return ""
    x = _scale(min(p[0] for p in points), max(p[0] for p in points), 70, WIDTH - 150)
    low, high = min(p[1] for p in points), max(p[1] for p in points)
    y = _scale(low, high, 190, 14)
    inside = [
        _line(70, 196, WIDTH - 150, 196, FAINT),
        _text(64, 194, f"{low:.4g}", "end"),
        _text(64, 18, f"{high:.4g}", "end"),
    ]
    for number, (name, curve) in enumerate(found.items()):
        colour = f"hsl({(212 + 67 * number) % 360} 60% 50%)"
        path_points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in sorted(curve))
        inside.append(f'<polyline points="{path_points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        inside.append(_text(WIDTH - 142, 20 + 16 * number, name[:22], more=f'fill="{colour}"'))
    inside.append(_text(WIDTH - 150, 212, f"{max(p[0] for p in points):,.0f} steps", "end"))
    return _svg(216, "learning curves", inside)


def _worst(report: GateReport, found: Sequence[Worst], replays: dict[tuple[str, str], str]) -> str:
    if not found:
        return "<h2>Worst episodes</h2><p>The challenger was behind on no trace.</p>"
    rows = []
    for each in found:
        file = replays.get((each.scenario, each.trace))
        link = f'<a href="{escape(file, quote=True)}">replay of both</a>' if file else "not recorded"
        cells = (each.scenario, each.trace, *(wording.value(report.primary_metric, value) for value in each[2:]))
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + f"<td>{link}</td></tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in ("scenario", "trace", CHALLENGER, report.reference, ""))
    return (
        f"<h2>Worst episodes</h2><p>Where the challenger was furthest behind {escape(report.reference)} in "
        f"{escape(report.primary_metric)}.</p><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
