"""The report as Markdown: the body of the approval task, read by a tired person at two in the morning.

Names of policies, scenarios and warnings come from data and are shown to somebody about to approve. So every text goes
through :func:`prose`: it can neither break a table nor become a link, an image or markup.
"""

from __future__ import annotations

import re

from pipeline.contracts.gate import GateReport
from pipeline.gate.sections import OUTCOMES, Cell, Section, footer, headline, sections

_ZERO_WIDTH = "\u200b"
_LINKS = re.compile(r"(?i)(?:https?|ftp|xmpp|mailto|javascript|data):|www(?=\.)|@|\{(?=[{%#])")
_PUNCTUATION = re.compile(r"[\\`*\[\]<>|~#&!]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_LONGEST = 500


def prose(text: str) -> str:
    """Untrusted text as plain words on one line: no markup, no end of a table cell, no links, no templates."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    plain = plain if len(plain) <= _LONGEST else plain[:_LONGEST] + "…"
    # GFM renderers look for bare addresses after escapes are resolved: only a character in between stops them.
    plain = _LINKS.sub(lambda match: match.group() + _ZERO_WIDTH, plain)
    return _PUNCTUATION.sub(lambda match: "\\" + match.group(), plain)


def render(report: GateReport) -> str:
    """The whole report; the first line is the verdict and its reason."""
    first = f"**{OUTCOMES[report.outcome]}**: {prose(report.reason)}"
    digests = f"Challenger `{_digest(report.digest)}`, champion `{_digest(report.champion_digest)}`."
    parts = [first, prose(headline(report)), *map(_section, sections(report)), f"{digests} {prose(footer(report))}"]
    return "\n\n".join(parts) + "\n"


def _digest(digest: str | None) -> str:
    """A digest whole, because people copy it; inside a code span nothing but a backtick is special."""
    return "none" if digest is None else re.sub(r"[^A-Za-z0-9:._-]", "?", digest)


def _section(section: Section) -> str:
    parts = [f"### {prose(section.title)}"] if section.title else []
    if section.header:
        lines = [_row(section.header), "|" + "---|" * len(section.header)]
        parts.append("\n".join([*lines, *map(_row, section.rows)]))
    if section.lines:
        parts.append("\n".join(f"- {prose(line)}" for line in section.lines))
    if section.note:
        parts.append(prose(section.note))
    return "\n\n".join(parts)


def _row(cells: tuple[Cell | str, ...]) -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return prose(cell)
    return f"**{prose(cell.strong)}** {prose(cell.plain)}".rstrip()
