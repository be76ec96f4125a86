"""``python -m pipeline.gate explain``: why, rule by rule, on a terminal."""

from __future__ import annotations

from pipeline.contracts.gate import GateReport
from pipeline.gate.sections import OUTCOMES, RESULTS, headline


def explain(report: GateReport) -> str:
    """Plain text: verdict, what was compared, every rule with what was found and required, in the order applied."""
    lines = [f"{OUTCOMES[report.outcome]}: {report.reason}", "", headline(report)]
    stage = None
    for rule in report.rules:
        if rule.stage != stage:
            stage = rule.stage
            lines += ["", stage]
        lines.append(f"  [{RESULTS[rule.outcome]:>12}] {rule.name}")
        lines += [f"{'':17}found     {rule.found}", f"{'':17}required  {rule.required}"]
        if rule.traces_needed is not None:
            lines.append(f"{'':17}about {rule.traces_needed:,} paired traces would decide ({report.traces:,} now)")
    if report.warnings:
        lines += ["", "warnings", *(f"  {text}" for text in report.warnings)]
    # Names come from data; a terminal must not obey what they may carry.
    return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in lines) + "\n"
