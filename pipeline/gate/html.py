"""The report as one HTML file: no scripts, nothing loaded from elsewhere, every text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pipeline.contracts.gate import GateReport, Profile
from pipeline.gate.sections import OUTCOMES, Cell, Section, footer, headline, sections

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430; }
h1 { font-size: 1.3rem; padding: .6rem .9rem; border-radius: .4rem; background: #eef1f5; }
h1.pass { background: #d8f0dd; } h1.fail { background: #f8d9d6; } h1.inconclusive { background: #fbeecb; }
table { border-collapse: collapse; margin: .6rem 0; display: block; overflow-x: auto; }
a { color: #1f6feb; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #d5dae1; }
th { text-align: left; }
.small { color: #5a6676; font-size: .85rem; overflow-wrap: anywhere; } svg { max-width: 100%; height: auto; }
@media (prefers-color-scheme: dark) { body { background: #14181f; color: #dde3ec; } h1 { background: #2a313c; }
h1.pass { background: #1d4a2b; } h1.fail { background: #5b2522; } h1.inconclusive { background: #54431a; }
th, td { border-color: #39424f; } .small { color: #9aa6b6; } }
"""
_COLOURS = ("#1f6feb", "#d1730f", "#6f42c1")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 300, 50, 40


def render(report: GateReport, drawn: Sequence[str] = ()) -> str:
    """The whole report; what is drawn (``pipeline.gate.charts``) comes as markup, below the tables."""
    title = f"Gate: {report.problem}, {OUTCOMES[report.outcome].lower()}"
    digests = f"Challenger {report.digest}, champion {report.champion_digest or 'none'}. {footer(report)}"
    parts = [
        f'<h1 class="{report.outcome}">{OUTCOMES[report.outcome]}: {escape(report.reason)}</h1>',
        f"<p>{escape(headline(report))}</p>",
        *map(_section, sections(report)),
        "<h2>Performance profile</h2>",
        f"<p>Share of traces with {escape(report.primary_metric)} above a threshold, in units of the mean size of "
        f"{escape(report.reference)}. A curve that is higher everywhere is better everywhere.</p>",
        profile_svg(report.profile),
        *drawn,
        f'<p class="small">{escape(digests)}</p>',
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _section(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>"] if section.title else []
    if section.header:
        head = "".join(f"<th>{escape(title)}</th>" for title in section.header)
        body = "\n".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in section.rows)
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>")
    if section.lines:
        parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in section.lines) + "</ul>")
    if section.note:
        parts.append(f"<p>{escape(section.note)}</p>")
    return "\n".join(parts)


def _cell(cell: Cell | str) -> str:
    return escape(cell) if isinstance(cell, str) else f"<strong>{escape(cell.strong)}</strong> {escape(cell.plain)}"


def profile_svg(profile: Profile) -> str:
    """The performance profile as an inline drawing, with a legend."""
    low, high = profile.thresholds[0], profile.thresholds[-1]
    span = (high - low) or 1.0
    right, top = _WIDTH - 25, 10

    def place(threshold: float, share: float) -> str:
        x = _LEFT + (threshold - low) / span * (right - _LEFT)
        return f"{x:.1f},{top + (1.0 - share) * (_HEIGHT - _BOTTOM - top):.1f}"

    marks = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = place(low, share).split(",")
        marks.append(f'<line x1="{x}" x2="{right}" y1="{y}" y2="{y}" stroke="currentColor" stroke-opacity=".15"/>')
        marks.append(f'<text x="{_LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>')
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = place(low + part * span, 0.0).split(",")[0]
        marks.append(f'<text x="{x}" y="{_HEIGHT - 22}" text-anchor="middle">{low + part * span:.2f}</text>')
    curves = []
    for index, (name, shares) in enumerate(profile.share_above.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        points = " ".join(map(place, profile.thresholds, shares))
        curves.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        curves.append(f'<text x="{_LEFT + index * 190}" y="{_HEIGHT - 4}" fill="{colour}">{escape(name[:28])}</text>')
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" font-size="11" '
        f'fill="currentColor" aria-label="performance profile">{"".join(marks + curves)}</svg>'
    )
