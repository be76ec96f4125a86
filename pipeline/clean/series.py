"""From samples to statistics of a window, series by series: duplicates, resets, clock jumps, rates.

A gauge counts in the window its sample lies in. A counter counts where its *interval* lies: the increase between two
samples is split over the windows it spans, in proportion to time, so scrapes need not divide 300 s and no increase is
lost at a border.

This is the one step that looks at every sample beside its neighbours. It is a function of arrays that every engine
runs as it is (``Engine.by_series``): a sort and a dozen passes of an engine are one loop here. Samples are taken in
order of time, so that a day comes out the same to the last bit however its rows came in.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pyarrow as pa

from pipeline.clean.expressions import SECOND_US, WINDOW_US
from pipeline.clean.kernels import Array, arrange, count_windows, following, intervals, merge, sum_counters, sum_gauges

STATISTICS = ("mean", "p95", "peak", "lowest", "increase")
COUNTS = ("samples", "rows", "rejected", "repaired")
LONG = pa.schema(
    [
        pa.field("sid", pa.int32()),
        pa.field("window", pa.int64()),
        *[pa.field(name, pa.float64()) for name in STATISTICS],
        *[pa.field(name, pa.int64()) for name in COUNTS],
        pa.field("following", pa.int64()),
    ]
)
"""One row a series and window; ``increase`` is of counters. ``samples`` are those used, ``rows`` those before copies
were merged, ``rejected`` and ``repaired`` parts of them. ``following``, in rows that have a mean, is the next window of
the series that has one too."""
STEPS = pa.schema(
    [
        pa.field("sid", pa.int32()),
        pa.field("t", pa.int64()),
        pa.field("value", pa.float64()),
        pa.field("rows", pa.int64()),
        pa.field("rejected", pa.bool_()),
        pa.field("repaired", pa.bool_()),
        pa.field("rate", pa.float64()),
        pa.field("start_t", pa.int64()),
    ]
)
"""One row a counter's sample, copies merged: its ``rate`` holds for the interval ``(start_t, t]``."""


Columns = dict[str, Array]

SPARSE = 16
"""With more windows of series to a row than this, sorting takes less than dealing rows out to them."""


def sample_windows(rows: Columns, first_counter: int, max_interval_us: int) -> pa.Table:
    """Statistics of gauges (ids below ``first_counter``) and counters; ``rows``: ``sid, t, value, renamed``.

    ``rows`` is emptied as soon as it is not needed any more: it may be the largest thing in memory.
    """
    if not rows["sid"].size:
        return LONG.empty_table()
    first, stop = int(rows["sid"].min()), int(rows["sid"].max()) + 1
    first_counter = min(max(first_counter, first), stop)
    with ThreadPoolExecutor(2) as threads:  # loops that are compiled do not hold Python's lock
        level, rising = threads.map(partial(_arranged, rows), (first, first_counter), (first_counter, stop))
        rows.clear()
        level |= {"repaired": level["renamed"], "rejected": np.zeros(level["t"].size, bool)}
        counters = threads.submit(lambda: _of_steps(_steps(rising, max_interval_us)))
        return pa.concat_tables([_of_gauges(level), counters.result()])


def gauge_windows(rows: Columns) -> pa.Table:
    """Statistics of gauges whose samples were judged: ``sid, t, value, rejected, repaired``."""
    return _of_gauges(_sorted(rows))


def counter_steps(rows: Columns, max_interval_us: int) -> pa.Table:
    """Intervals of counters, samples that jumped marked (:data:`STEPS`); ``rows``: ``sid, t, value, renamed``."""
    return _table(_steps(_sorted(rows), max_interval_us), STEPS)


def counter_windows(steps: Columns) -> pa.Table:
    """Statistics of counters from their intervals (:data:`STEPS`)."""
    return _of_steps(_sorted(steps))


def _sorted(columns: Columns) -> Columns:
    """Columns in order of series, then time."""
    places = np.lexsort((columns["t"], columns["sid"]))
    return {name: values[places] for name, values in columns.items()}


def _arranged(columns: Columns, first: int, stop: int) -> Columns:
    """Samples of a range of series in order of series, then time: as sorting, in a third of the time."""
    sid, t = columns["sid"], columns["t"]
    low_t = int(t.min()) // WINDOW_US * WINDOW_US
    windows = (int(t.max()) - low_t) // WINDOW_US + 1
    if (stop - first) * windows > SPARSE * sid.size:
        mine = (sid >= first) & (sid < stop)
        return _sorted({name: values[mine] for name, values in columns.items()})
    found = arrange(sid, t, columns["value"], columns["renamed"], first, stop - first, low_t, windows)
    return dict(zip(("sid", "t", "value", "renamed"), found, strict=True))


def _table(columns: Columns, schema: pa.Schema) -> pa.Table:
    """Make a table of arrays; a number that is none is null."""
    arrays = [pa.array(columns[field.name], from_pandas=True).cast(field.type) for field in schema]
    return pa.table(arrays, schema=schema)


def _of_gauges(ordered: Columns) -> pa.Table:
    sid, t = ordered["sid"], ordered["t"]
    columns = _empty_long(count_windows(sid, t, t))
    sum_gauges(sid, t, ordered["value"], ordered["rejected"], ordered["repaired"], *columns.values())
    return _long(columns)


def _steps(ordered: Columns, max_interval_us: int) -> Columns:
    """Turn samples, which are ours to change, into intervals."""
    samples = (ordered["sid"], ordered["t"], ordered["value"], ordered["renamed"])
    rows = merge(*samples)
    sid, t, value, repaired = (values[: rows.size] for values in samples)
    rejected, rate, start_t = intervals(sid, t, value, max_interval_us)
    return dict(zip(STEPS.names, (sid, t, value, rows, rejected, repaired, rate, start_t), strict=True))


def _of_steps(steps: Columns) -> pa.Table:
    sid, t, start_t = steps["sid"], steps["t"], steps["start_t"]
    columns = _empty_long(count_windows(sid, t, start_t))
    flags = (steps["rows"], steps["rejected"], steps["repaired"])
    found = sum_counters(sid, t, start_t, steps["rate"], *flags, *columns.values())
    return _long({name: values[..., :found] for name, values in columns.items()})


def _empty_long(size: int) -> Columns:
    return {
        "sid": np.empty(size, np.int32),
        "window": np.empty(size, np.int64),
        "statistics": np.full((len(STATISTICS), size), np.nan),
        "counts": np.zeros((len(COUNTS), size), np.int64),
    }


def _long(columns: Columns) -> pa.Table:
    named = {"sid": columns["sid"], "window": columns["window"] // SECOND_US}
    named |= dict(zip(STATISTICS, columns["statistics"], strict=True))
    named |= dict(zip(COUNTS, columns["counts"], strict=True))
    named["following"] = following(named["sid"], named["window"], named["mean"])
    return _table(named, LONG)
