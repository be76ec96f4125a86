"""Where rows went: the account that proves that none was lost or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from pipeline.errors import DataError


class Account(msgspec.Struct):
    """Where the rows of one raw table went; ``rows_in`` is read from the files, the rest is counted on the way."""

    rows_in: int = 0
    rows_out: int = 0
    """Rows that a window table was made from."""
    merged: int = 0
    """Copies of a row that is counted in ``rows_out`` or ``quarantined``."""
    alike: int = 0
    """Rows of ``rows_out`` that are like another one in every column and yet may be another request: kept."""
    repaired: dict[str, int] = msgspec.field(default_factory=dict)
    """Rows of ``rows_out`` whose unit, name or excess was put right, by repair."""
    quarantined: dict[str, int] = msgspec.field(default_factory=dict)
    """By rule."""

    def put_aside(self, rules: Mapping[str, int]) -> None:
        """Count quarantined rows by their rules."""
        self.quarantined = _plus(self.quarantined, rules)

    def put_right(self, repairs: Mapping[str, int]) -> None:
        """Count repaired rows by their repairs."""
        self.repaired = _plus(self.repaired, repairs)

    def add(self, other: Account) -> None:
        """Add another day's account."""
        self.rows_in += other.rows_in
        self.rows_out += other.rows_out
        self.merged += other.merged
        self.alike += other.alike
        self.put_right(other.repaired)
        self.quarantined = _plus(self.quarantined, other.quarantined)

    def check(self, where: str) -> None:
        """Raise when a row was lost or doubled."""
        aside = sum(self.quarantined.values())
        total = self.rows_out + self.merged + aside
        if total != self.rows_in:
            raise DataError(
                f"{where}: {self.rows_in} rows in, but {self.rows_out} out + {self.merged} merged + {aside} "
                f"quarantined = {total}",
                "every row accounted for",
                "this is a fault of clean: report it with the day's raw files",
            )

    def __str__(self) -> str:
        """Write the equation out."""
        return (
            f"{self.rows_in:,} in = {self.rows_out:,} out + {self.merged:,} merged + "
            f"{sum(self.quarantined.values()):,} quarantined; {sum(self.repaired.values()):,} repaired"
            + (f"; {self.alike:,} alike but not provably copies: kept" if self.alike else "")
        )


def _plus(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted((Counter(one) + Counter(other)).items()))


class DayAccount(msgspec.Struct):
    """The account of one day: raw rows by raw table, rows written by window table."""

    rows: dict[str, Account]
    windows: dict[str, int]


class CleanMetrics(msgspec.Struct):
    """``data/metrics/clean.json``: the account of the whole run, and of each day."""

    first: str
    last: str
    rows: dict[str, Account]
    windows: dict[str, int]
    days: dict[str, DayAccount]


def total(days: dict[str, DayAccount]) -> CleanMetrics:
    """Add days up; ``days`` is by date and not empty."""
    rows: dict[str, Account] = {}
    windows: Counter[str] = Counter()
    for day in days.values():
        for table, account in day.rows.items():
            rows.setdefault(table, Account()).add(account)
        windows.update(day.windows)
    return CleanMetrics(min(days), max(days), rows, dict(windows), days)
