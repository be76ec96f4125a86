"""The price table: instance type → USD/hour, from a CSV of the user's.

``ingest`` puts it beside the raw tables as ``prices.csv``; ``clean`` joins it to nodes by instance type. Where there is
none, a node hour costs :data:`DEFAULT_USD_PER_HOUR` and reports say so.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import DataError

FILE = "prices.csv"
COLUMNS = ("instance_type", "usd_per_hour")
DEFAULT_USD_PER_HOUR = 1.0
_BEYOND = "cells beyond the header"


def read_prices(path: Path) -> dict[str, float]:
    """Read a price table; columns beside the two that count are ignored."""
    prices: dict[str, float] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restkey=_BEYOND, skipinitialspace=True)
            present = list(reader.fieldnames or ())
            missing = set(COLUMNS) - set(present)
            if missing:
                raise DataError(
                    f"{path}: no column {', '.join(sorted(missing))}, only {', '.join(present)}",
                    f"a CSV with the columns {', '.join(COLUMNS)}",
                )
            if twice := [name for name in COLUMNS if present.count(name) > 1]:
                raise DataError(f"{path}: the column {twice[0]} is there twice", "each column once")
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                if _BEYOND in row:
                    raise DataError(f"{where}: more cells than the header has", "a point, not a comma, in a price")
                kind, price = (row["instance_type"] or "").strip(), _price(row["usd_per_hour"], where)
                if not kind:
                    raise DataError(f"{where}: empty instance_type", "a name")
                if prices.setdefault(kind, price) != price:
                    raise DataError(f"{where}: {kind!r} has the prices {prices[kind]} and {price}", "one price a type")
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}", "a readable price table", "set ingest.prices in params.yaml"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV in UTF-8: {error}") from error
    if not prices:
        raise DataError(f"{path} holds no price", "at least one instance type")
    return prices


def format_prices(prices: Mapping[str, float]) -> bytes:
    """Write a price table as CSV, sorted, as :func:`read_prices` reads it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *sorted(prices.items())])
    return text.getvalue().encode()


def _price(text: str | None, where: str) -> float:
    try:
        price = float(text or "")
    except ValueError:
        price = math.nan
    if not math.isfinite(price) or price < 0 or "_" in str(text):  # Python reads 1_000 as a number, nobody else does
        raise DataError(f"{where}: usd_per_hour is {text!r}", "a finite number of at least 0")
    return price
