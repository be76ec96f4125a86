"""docs/windows.md lists every rule with its meaning, and every repair."""

from __future__ import annotations

from pathlib import Path

from pipeline.clean.rules import REPAIRS, RULES
from pipeline.contracts.windows import TABLES

PAGE = (Path(__file__).parents[3] / "docs" / "windows.md").read_text()


def test_every_rule_is_listed_with_its_meaning() -> None:
    for table, rules in RULES.items():
        for rule, meaning in rules.items():
            assert f"| {table} | `{rule}` | {meaning} |" in PAGE


def test_every_repair_and_table_is_named() -> None:
    for name in (*REPAIRS, *TABLES):
        assert f"`{name}`" in PAGE
