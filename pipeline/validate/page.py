"""The one page that says what was tried and found: plain HTML, no script, nothing from the network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape

from pipeline.validate.rules import Rule
from pipeline.validate.verdict import Finding, Verdict

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1c2430 }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; vertical-align: top; padding: .3rem .6rem }
tr { border-top: 1px solid #d7dde5 } th { color: #566375; font-weight: 600 } .error { color: #b3261e }
.ok { color: #2e6b3a }
.warning { color: #8a5a00 } code { background: #f2f4f7; padding: 0 .2rem } summary { cursor: pointer }
"""
_WORST = {"error": 0, "warning": 1, "ok": 2}


def render(verdict: Verdict, rules: Sequence[Rule]) -> str:
    """Write the page: the verdict, then every rule with what came of it, the worst first."""
    found: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for finding in verdict.findings:
        found[finding.table, finding.rule, finding.about].append(finding)
    rows = []
    for rule in rules:
        # Rules of one table are told apart by what they are about; there may be several of one name.
        mine = found.get((rule.table, rule.name, rule.about), []) or found.get((rule.table, rule.name, ""), [])
        state = min((finding.severity for finding in mine), key=lambda one: _WORST[one], default="ok")
        rows.append((_WORST[state], rule.table, rule.name, _row(rule, state, mine)))
    rows.sort(key=lambda row: row[:3])
    word = '<span class="ok">passed</span>' if verdict.passed else '<span class="error">stopped</span>'
    counts = ", ".join(f"{count:,} {table}" for table, count in verdict.rows.items() if count)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Validation</title>'
        f"<style>{_STYLE}</style></head><body>"
        f"<h1>{escape(verdict.first)} to {escape(verdict.last)}: {word}</h1>"
        f"<p>{len(verdict.errors)} errors, {len(verdict.warnings)} warnings in {verdict.checks:,} checks of {counts}. "
        'An error stops the night; a warning is shown in the gate\'s report. <a href="docs/index.html">Data Docs</a>, '
        '<a href="verdict.json">verdict.json</a>.</p>'
        "<table><tr><th>result</th><th>table</th><th>rule</th><th>stops the night</th><th>warns</th></tr>"
        + "".join(text for *_, text in rows)
        + "</table></body></html>\n"
    )


def docs_index(days: Sequence[str]) -> str:
    """Write the way to the Data Docs of each day."""
    links = "".join(f'<li><a href="{escape(day)}/index.html">{escape(day)}</a></li>' for day in days)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Data Docs</title>'
        f"<style>{_STYLE}</style></head><body><h1>Data Docs, day by day</h1><ul>{links}</ul></body></html>\n"
    )


def _row(rule: Rule, state: str, findings: Sequence[Finding]) -> str:
    shown = "".join(
        f"<li>{escape(finding.day or 'all days')}: {escape(finding.message)} ({finding.count:,})"
        + "".join(f"<br><code>{escape(_example(example))}</code>" for example in finding.examples)
        + "</li>"
        for finding in findings
    )
    about = escape(rule.about)
    if shown:
        about = f"<details open><summary>{about}</summary><ul>{shown}</ul></details>"
    return (
        f'<tr><td class="{state}">{state}</td><td>{escape(rule.table)}</td>'
        f"<td><code>{escape(rule.name)}</code> {about}</td><td>{escape(rule.stops) or '–'}</td>"
        f"<td>{escape(rule.warns) or '–'}</td></tr>"
    )


def _example(example: dict[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in example.items())
