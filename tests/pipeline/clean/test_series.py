"""The loops over samples against a slow definition of the same, and what must not matter to them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.clean.series import LONG, STEPS, counter_steps, counter_windows, gauge_windows, sample_windows

S = 1_000_000
WINDOW = 300 * S
MAX_INTERVAL = 900 * S
NONE = 2**31 - 1

Row = tuple[int, int, float, bool]

ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 240).map(lambda n: n * 15 * S + WINDOW * 7),
        st.sampled_from([0.0, 1.0, 2.0, 3.5, 10.0, 11.0, 12.0, 400.0, 1e6]),
        st.booleans(),
    ),
    max_size=120,
)


def columns(rows: list[Row]) -> dict[str, Any]:
    values = list(zip(*rows, strict=True)) or [(), (), (), ()]
    kinds = {"sid": np.int32, "t": np.int64, "value": np.float64, "renamed": np.bool_}
    return {name: np.array(column, kind) for (name, kind), column in zip(kinds.items(), values, strict=True)}


def by_key(found: pa.Table) -> dict[tuple[int, int], dict[str, Any]]:
    return {(row["sid"], row["window"]): row for row in found.to_pylist()}


def p95(values: list[float]) -> float:
    return float(np.quantile(values, 0.95))


def slow_gauges(rows: list[Row]) -> dict[tuple[int, int], dict[str, Any]]:
    groups: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[0], row[1] // WINDOW * 300].append(row)
    found = {}
    for key, members in groups.items():
        times = {row[1] for row in members}
        used = [max(row[2] for row in members if row[1] == t) for t in sorted(times)]
        found[key] = {
            "mean": statistics.fmean(used),
            "p95": p95(used),
            "peak": max(used),
            "lowest": min(used),
            "increase": None,
            "samples": len(used),
            "rows": len(members),
            "rejected": 0,
            "repaired": sum(any(row[3] for row in members if row[1] == t) for t in times),
        }
    return found


def slow_counters(rows: list[Row]) -> dict[tuple[int, int], dict[str, Any]]:
    """Second by second: what each second of an interval adds to its window."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    pieces: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for sid in {row[0] for row in rows}:
        times = sorted({row[1] for row in rows if row[0] == sid})
        value = [max(row[2] for row in rows if row[:2] == (sid, t)) for t in times]
        jumped = [_out_of_line(value, i) for i in range(len(value))]
        for i, t in enumerate(times):
            key = (sid, t // WINDOW * 300)
            own = found.setdefault(key, {"samples": 0, "rows": 0, "rejected": 0, "repaired": 0})
            copies = [row for row in rows if row[:2] == (sid, t)]
            own["rows"] += len(copies)
            own["samples"] += not jumped[i]
            own["rejected"] += jumped[i]
            own["repaired"] += any(row[3] for row in copies)
            back = i - 2 if i and jumped[i - 1] else i - 1
            if jumped[i] or back < 0 or t - times[back] > MAX_INTERVAL:
                continue
            rate = (value[i] - value[back] if value[i] >= value[back] else value[i]) / (t - times[back]) * S
            for window in range(times[back] // WINDOW, t // WINDOW + 1):
                inside = min(t, (window + 1) * WINDOW) - max(times[back], window * WINDOW)
                pieces[sid, window * 300].append((rate, inside / S))
    for key in pieces:
        found.setdefault(key, {"samples": 0, "rows": 0, "rejected": 0, "repaired": 0})
    for key, row in found.items():
        rates = [rate for rate, seconds in pieces[key] if seconds > 0]
        amount = sum(rate * seconds for rate, seconds in pieces[key]) if pieces[key] else None
        weight = sum(seconds for _, seconds in pieces[key])
        row.update({"increase": amount, "mean": amount / weight if weight else None})
        row.update({"p95": p95(rates), "peak": max(rates), "lowest": min(rates)} if rates else {})
    return found


def _out_of_line(value: list[float], i: int) -> bool:
    if i == 0 or i + 1 == len(value):
        return False
    before, own, after = value[i - 1 : i + 2]
    later = value[i + 2] if i + 2 < len(value) else 0.0
    dip = own < before <= after and after - own < own
    return dip or (own > after >= before and own - before < after and own > later)


def assert_same(found: pa.Table, expected: dict[tuple[int, int], dict[str, Any]]) -> None:
    rows = by_key(found)
    assert len(rows) == found.num_rows
    assert rows.keys() == expected.keys()
    for key, row in expected.items():
        for name in ("mean", "p95", "peak", "lowest", "increase", "samples", "rows", "rejected", "repaired"):
            wanted = row.get(name)
            close = wanted if wanted is None else pytest.approx(wanted, rel=1e-9, abs=1e-9)
            assert rows[key][name] == close, (key, name)


@settings(max_examples=300, deadline=None)
@given(ROWS)
def test_gauges_are_what_their_samples_say(rows: list[Row]) -> None:
    assert_same(sample_windows(columns(rows), first_counter=NONE, max_interval_us=MAX_INTERVAL), slow_gauges(rows))


@settings(max_examples=300, deadline=None)
@given(ROWS)
def test_counters_are_what_their_intervals_say(rows: list[Row]) -> None:
    assert_same(sample_windows(columns(rows), first_counter=0, max_interval_us=MAX_INTERVAL), slow_counters(rows))


@settings(max_examples=100, deadline=None)
@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter_to_the_last_bit(rows: list[Row], random: Any) -> None:
    shuffled = random.sample(rows, len(rows))
    once, again = (sample_windows(columns(order), 2, MAX_INTERVAL) for order in (rows, shuffled))
    assert once.equals(again)


@settings(max_examples=100, deadline=None)
@given(ROWS)
def test_summing_up_in_two_steps_is_summing_up_at_once(rows: list[Row]) -> None:
    # Doubtful series are taken apart, judged sample by sample, and summed up again.
    both = sample_windows(columns(rows), 2, MAX_INTERVAL)
    level = [row for row in rows if row[0] < 2]
    judged = columns(level)
    judged |= {"repaired": judged["renamed"], "rejected": np.zeros(len(level), bool)}
    steps = counter_steps(columns([row for row in rows if row[0] >= 2]), MAX_INTERVAL)
    assert steps.schema.equals(STEPS)
    again = counter_windows({name: steps[name].to_numpy() for name in STEPS.names})
    assert pa.concat_tables([gauge_windows(judged), again]).equals(both)


@settings(max_examples=100, deadline=None)
@given(ROWS)
def test_the_window_that_follows_is_the_next_one_with_a_mean(rows: list[Row]) -> None:
    found = sample_windows(columns(rows), 2, MAX_INTERVAL)
    assert found.schema.equals(LONG)
    known = {key for key, row in by_key(found).items() if row["mean"] is not None}
    for (sid, window), row in by_key(found).items():
        later = [other for thing, other in known if thing == sid and other > window]
        assert row["following"] == (min(later, default=None) if (sid, window) in known else None)


def test_a_window_may_hold_thousands_of_samples_in_any_order() -> None:
    times = np.random.default_rng(3).permutation(20_000)
    rows = [(0, int(t) * 10_000, float(t), False) for t in times]
    (row,) = sample_windows(columns(rows), NONE, MAX_INTERVAL).to_pylist()
    assert row["samples"] == 20_000
    assert row["p95"] == pytest.approx(p95([float(t) for t in times]))
    increase = [row["increase"] for row in sample_windows(columns(rows), 0, MAX_INTERVAL).to_pylist()]
    assert sum(increase) == pytest.approx(19_999)


def test_few_samples_of_many_series_are_sorted_instead() -> None:
    rows = [(sid, (7 - sid % 3) * WINDOW, float(sid), False) for sid in range(0, 4000, 97)]
    assert_same(sample_windows(columns(rows), NONE, MAX_INTERVAL), slow_gauges(rows))
    assert_same(sample_windows(columns(rows), 0, MAX_INTERVAL), slow_counters(rows))


def test_rejected_copies_do_not_count_but_are_counted() -> None:
    rows = columns([(0, 0, 9.0, False), (0, 0, 1.0, True), (0, 15 * S, 3.0, False)])
    rows |= {"repaired": rows["renamed"], "rejected": np.array([True, False, False])}
    (row,) = gauge_windows(rows).to_pylist()
    assert (row["mean"], row["peak"], row["samples"]) == (2.0, 3.0, 2)
    assert (row["rows"], row["rejected"], row["repaired"]) == (3, 1, 1)
