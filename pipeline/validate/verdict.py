"""What validation found: findings, and the verdict they add up to."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["error", "warning"]


class Finding(msgspec.Struct, frozen=True):
    """One rule that did not hold for one table and day."""

    severity: Severity
    table: str
    rule: str
    day: str
    """YYYY-MM-DD; empty when it is about the whole range."""
    count: int
    """Rows, windows or days concerned."""
    message: str
    """What was found and what was expected, for people."""
    examples: list[dict[str, object]] = []
    """A few of the rows."""
    about: str = ""
    """What tells rules of one name apart: the arguments of an expectation."""

    def __str__(self) -> str:
        """Write it in one line."""
        shown = "; ".join(", ".join(f"{name}={value}" for name, value in example.items()) for example in self.examples)
        day = f" {self.day}" if self.day else ""
        return f"{self.table}{day}: {self.rule}: {self.message} ({self.count:,})" + (f", e.g. {shown}" if shown else "")


class Verdict(msgspec.Struct, frozen=True):
    """``verdict.json``: passed unless there is an error; warnings go into the gate's report."""

    passed: bool
    drifted: bool
    """Whether the request mix moved further than ``drift_warn``."""
    first: str
    last: str
    rows: dict[str, int]
    """Rows by window table."""
    checks: int
    """How many rules were tried."""
    errors: list[str]
    warnings: list[str]
    findings: list[Finding]
    request_mix: dict[str, dict[str, float]]
    """Share of requests by function, by day: what later days are compared with."""
    schema: Literal[1] = 1
