"""Raw rows as flat numpy columns, and their way into Arrow: strings are codes into a list of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.contracts.raw import METRICS, SAMPLES, TIMESTAMP

METRIC_NAMES = tuple(METRICS)
METRIC_CODE = {name: code for code, name in enumerate(METRIC_NAMES)}
LAST_US = 7_258_118_400_000_000
"""Year 2200: times later than this, or before 1970, are a wrong unit or a broken clock."""
NONE = -1
"""Code of a missing string."""


@dataclass
class SampleColumns:
    """Columns of ``samples`` for one cluster; string columns are int32 codes, ``NONE`` is null."""

    time_us: NDArray[np.int64]
    metric: NDArray[np.int32]
    node: NDArray[np.int32]
    pod: NDArray[np.int32]
    function: NDArray[np.int32]
    card: NDArray[np.int32]
    detail: NDArray[np.int32]
    le: NDArray[np.float64]
    value: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        metric: str,
        time_us: NDArray[np.int64],
        value: NDArray[np.float64] | float,
        *,
        node: NDArray[np.int64] | int = NONE,
        pod: NDArray[np.int64] | int = NONE,
        function: NDArray[np.int64] | int = NONE,
        card: NDArray[np.int64] | int = NONE,
        detail: NDArray[np.int64] | int = NONE,
        le: float = np.nan,
    ) -> SampleColumns:
        """Fill the columns of one metric; scalars are repeated."""
        rows = len(time_us)

        def codes(code: NDArray[np.int64] | int) -> NDArray[np.int32]:
            return np.full(rows, code, np.int32) if isinstance(code, int) else code.astype(np.int32)

        return cls(
            time_us=time_us,
            metric=codes(METRIC_CODE[metric]),
            node=codes(node),
            pod=codes(pod),
            function=codes(function),
            card=codes(card),
            detail=codes(detail),
            le=np.full(rows, le),
            value=np.full(rows, value) if isinstance(value, float) else value,
        )

    @classmethod
    def join(cls, parts: Sequence[SampleColumns]) -> SampleColumns:
        """Put rows after one another."""
        return cls(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(cls)))

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> SampleColumns:
        """Pick rows, by position or by mask; always a copy."""
        return SampleColumns(*(getattr(self, column.name)[rows] for column in fields(self)))

    def table(self, cluster: str, names: dict[str, Sequence[str]]) -> pa.Table:
        """Turn the columns into Arrow; ``names`` lists the strings of node, pod, function, card and detail."""
        columns = [times(self.time_us), coded(np.zeros(len(self.time_us), np.int32), [cluster])]
        columns.append(coded(self.metric, METRIC_NAMES))
        columns += [coded(getattr(self, key), names[key]) for key in ("node", "pod", "function", "card", "detail")]
        columns.append(pa.array(self.le, mask=np.isnan(self.le)))
        columns.append(pa.array(self.value))  # NaN stays NaN: a source really said it
        return pa.table(columns, names=SAMPLES.names)


def raw_table(schema: pa.Schema, columns: Mapping[str, pa.Array]) -> pa.Table:
    """Put columns in the order of a raw table; those that are not given are null."""
    rows = len(columns["time"])
    filled = [columns[field.name] if field.name in columns else pa.nulls(rows, field.type) for field in schema]
    return pa.table(filled, names=schema.names)


def coded(codes: NDArray[np.int32], names: Sequence[str]) -> pa.DictionaryArray:
    """Make a string column from codes."""
    indices = pa.array(codes, mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(names), pa.string()))


def plausible_us(time_us: float) -> int:
    """Round a time; a ValueError when it cannot be one."""
    if not 0.0 <= time_us < LAST_US:
        raise ValueError("not a time from 1970 to 2200: is the unit right?")
    return round(time_us)


def times(time_us: NDArray[np.int64]) -> pa.Array:
    """Make a time column from microseconds since 1970, UTC."""
    return pa.array(time_us, pa.int64()).cast(TIMESTAMP)
