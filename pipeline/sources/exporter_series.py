"""Series as exporters name them, and the canonical series that are made of them by the metric map."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.contracts.raw import METRICS, SAMPLES
from pipeline.errors import SourceError
from pipeline.sources.columns import coded, times
from pipeline.sources.kube_names import Names
from pipeline.sources.metric_map import LABELS, Entry

SPOOL_LINES = 500_000
_DAY_US = 86_400_000_000
_NAME = re.compile(r"[a-zA-Z_:][\w:]*", re.ASCII)
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")


_PHASE = "kube_pod_status_phase"
_TELLING = frozenset(
    {"kube_node_info", "kube_node_status_addresses", "node_uname_info", "kube_replicaset_owner", "kube_job_owner"}
    | {"kube_pod_labels", _PHASE}
)
"""What is read for who is who, and for who has ended; no canonical series is made of it."""


class _Target(NamedTuple):
    """What an exporter's series adds to."""

    row: int
    """Index of the canonical series."""
    sign: float
    part: int
    """Which part of its sum it is: of several series of one part the largest counts."""


class Catalogue:
    """The series of a file, and what becomes of each; that is settled when all of them are known."""

    def __init__(self, entries: Sequence[tuple[str, Entry]], cluster: str) -> None:
        self._cluster = cluster
        self._entries = [entry for _, entry in entries if not entry.rate]
        self._heads: dict[str, int] = {}
        self._series: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}
        self._found: list[tuple[str, dict[str, str]]] = []
        self._targets: list[list[_Target]] = []
        self._unknown: dict[int, str] = {}
        self._rows: dict[tuple[str | float | None, ...], int] = {}
        self._entry_of: list[Entry | None] = []
        self._parts: dict[tuple[object, ...], int] = {}

    def find(self, head: str, path: Path, line: int) -> int:
        """Return the number of an exporter's series; file and line are named where it is none."""
        number = self._heads.get(head)
        if number is None:
            name, _, text = head.partition("{")
            where = f"{path}, line {line}"
            name, labels = name.strip(), read_labels(text.strip()[:-1], where)
            if not _NAME.fullmatch(name):
                raise SourceError(f"{where}: {head!r} is no name of a metric", 'name{label="value"} value time')
            try:
                float(labels.get("le", "0"))
            except ValueError as error:
                raise SourceError(f"{where}: {head}: {error}", "a number as le") from error
            # The order of labels says nothing: two spellings of a series must not count twice in a sum.
            series = (name, frozenset(labels.items()))
            number = self._heads[head] = self._series.setdefault(series, len(self._found))
            if number == len(self._found):
                self._found.append((name, labels))
        return number

    def settle(self) -> None:
        """Say what becomes of each series, now that the file has told who is who."""
        names = Names()
        for name, labels in self._found:
            if name in _TELLING:
                names.learn(name, labels)
        names.settled()
        by_name: dict[str, list[tuple[Entry, float]]] = defaultdict(list)
        for entry in self._entries:
            for sign, sources in ((1.0, entry.sources), (-1.0, entry.minus)):
                for name in sources:
                    by_name[name].append((entry, sign))
        self._targets = [[] for _ in self._found]
        for fallback in (False, True):
            known: set[tuple[object, ...]] = {(key[0], key[1], _entity(key)) for key in self._rows}
            for number, (name, labels) in enumerate(self._found):
                targets = [found for found in by_name.get(name, ()) if (found[0].fallback is not None) == fallback]
                self._resolve(number, name, labels, targets, names, known)
        for number, (name, _) in enumerate(self._found):
            if not self._targets[number] and name not in _TELLING:
                self._unknown[number] = name

    def _resolve(
        self,
        number: int,
        name: str,
        labels: dict[str, str],
        entries: list[tuple[Entry, float]],
        names: Names,
        known: set[tuple[object, ...]],
    ) -> None:
        cluster = labels.get("cluster") or self._cluster
        bound = float(labels["le"]) if "le" in labels else None
        if name in METRICS:
            key = (cluster, name, *(labels.get(label) for label in LABELS), bound)
            if not self._targets[number]:
                self._targets[number].append(_Target(self._row(key, None), 1.0, number))
            return
        for entry, sign in entries:
            filled = entry.canonical(labels, names) if entry.accepts(labels) else None
            if filled is None or (cluster, entry.fallback, filled[METRICS[entry.metric].entity]) in known:
                continue
            le = None if bound is None else bound * entry.le_scale
            row = self._row((cluster, entry.metric, *(filled.get(label) for label in LABELS), le), entry)
            each = tuple(name if label == "__name__" else labels.get(label) for label in entry.each)
            part = self._parts.setdefault((row, sign, *(each or (number,))), len(self._parts))
            self._targets[number].append(_Target(row, sign, part))

    def _row(self, key: tuple[str | float | None, ...], entry: Entry | None) -> int:
        if key not in self._rows:
            self._rows[key] = len(self._rows)
            self._entry_of.append(entry)
        return self._rows[key]

    def unknown_lines(self, counts: dict[int, int]) -> dict[str, int]:
        """Count the lines that nothing is made of, by metric."""
        found: dict[str, int] = defaultdict(int)
        for number, name in self._unknown.items():
            found[f"lines of {name} that no entry of the map takes"] += counts.get(number, 0)
        return dict(found)

    def tables(
        self, series: NDArray[np.int32], time_us: NDArray[np.int64], value: NDArray[np.float64]
    ) -> Iterator[pa.Table]:
        """Make the canonical rows of one day, one metric after another: memory holds the day and one metric of it."""
        kept = self._alive(series, time_us, value)
        series, time_us, value = series[kept], time_us[kept], value[kept]
        by_metric: dict[object, list[list[_Target]]] = {
            key[1]: [[] for _ in self._targets] for key in sorted(self._rows, key=str)
        }
        metric_of = [key[1] for key in self._rows]
        for number, targets in enumerate(self._targets):
            for target in targets:
                by_metric[metric_of[target.row]][number].append(target)
        for targets_of in by_metric.values():
            concerned = np.array([bool(targets) for targets in targets_of])[series]
            if concerned.any():
                yield self._table(targets_of, series[concerned], time_us[concerned], value[concerned])

    def _alive(
        self, series: NDArray[np.int32], time_us: NDArray[np.int64], value: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Find the samples that are not of pods which have completed or failed by then."""
        pods: dict[tuple[str, str, str], int] = {}
        pod_of = np.full(len(self._found), -1, np.int64)
        ended = np.zeros(len(self._found), np.bool_)
        for number, (name, labels) in enumerate(self._found):
            ended[number] = name == _PHASE and labels.get("phase") in ("Succeeded", "Failed")
            entry_of = [self._entry_of[target.row] for target in self._targets[number]]
            if ended[number] or any(entry is not None and entry.alive for entry in entry_of):
                key = (labels.get("cluster", ""), labels.get("namespace", ""), labels.get("pod", ""))
                pod_of[number] = pods.setdefault(key, len(pods))
        moments, moment = np.unique(time_us, return_inverse=True)
        code = pod_of[series] * max(len(moments), 1) + moment
        over = ended[series] & (value == 1)
        return ~(np.isin(code, code[over]) & (pod_of[series] >= 0) & ~ended[series])

    def _table(
        self,
        targets_of: list[list[_Target]],
        series: NDArray[np.int32],
        time_us: NDArray[np.int64],
        value: NDArray[np.float64],
    ) -> pa.Table:
        row, sign, part, scraped = _spread(targets_of, series)
        time_us, value = time_us[scraped], value[scraped]
        mapped = np.array([entry is not None for entry in self._entry_of])[row]
        parts = [(row[~mapped], time_us[~mapped], value[~mapped])]
        pick = np.flatnonzero(mapped)
        which = series[scraped][pick]
        parts.append(self._combined(row[pick], sign[pick], part[pick], which, time_us[pick], value[pick]))
        row, time_us, value = (np.concatenate(found) for found in zip(*parts, strict=True))
        keys = list(zip(*self._rows, strict=True))
        columns = [times(time_us)]
        for texts in keys[:-1]:
            names = sorted({text for text in texts if text is not None})
            code = {text: number for number, text in enumerate(names)}
            codes = np.array([-1 if text is None else code[text] for text in texts], dtype=np.int32)
            columns.append(coded(codes[row], names))
        le = np.array([np.nan if bound is None else bound for bound in keys[-1]], dtype=np.float64)[row]
        columns += [pa.array(le, mask=np.isnan(le)), pa.array(value)]
        return pa.table(columns, names=SAMPLES.names)

    def _combined(
        self,
        row: NDArray[np.int64],
        sign: NDArray[np.float64],
        part: NDArray[np.int64],
        series: NDArray[np.int32],
        time_us: NDArray[np.int64],
        value: NDArray[np.float64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Add up, count, or take the largest of, the series that share canonical labels, at each time."""
        above = np.array([-np.inf if entry is None or entry.above is None else entry.above for entry in self._entry_of])
        known = ~(value <= above[row])
        row, sign, part = row[known], sign[known], part[known]
        series, time_us, value = series[known], time_us[known], value[known]
        if not len(row):
            return row, time_us, value
        order = np.lexsort((series, part, time_us, row))
        row, sign, part, series = row[order], sign[order], part[order], series[order]
        time_us, value = time_us[order], value[order]
        # A sample written twice must not count twice in a sum: the last one stands.
        last = np.append(_differ(series, part, time_us, row), True)
        row, sign, part, time_us, value = row[last], sign[last], part[last], time_us[last], value[last]
        begins = np.flatnonzero(np.append(True, _differ(part, time_us, row)))
        row, sign, time_us, value = row[begins], sign[begins], time_us[begins], np.maximum.reduceat(value, begins)
        begins = np.flatnonzero(np.append(True, _differ(time_us, row)))
        which = row[begins]
        combine = np.array([entry.combine if entry is not None else "sum" for entry in self._entry_of])[which]
        scale = np.array([entry.scale if entry is not None else 1.0 for entry in self._entry_of])[which]
        # A difference needs both sides, and is one of sums or of largest values.
        differs = np.array([entry is not None and bool(entry.minus) for entry in self._entry_of])[which]
        totals = {
            "sum": np.add.reduceat(value * sign, begins),
            "count": np.diff(np.append(begins, len(value))).astype(np.float64),
            "max": np.maximum.reduceat(np.where(sign > 0, value, -np.inf), begins),
        }
        taken = np.maximum.reduceat(np.where(sign < 0, value, -np.inf), begins)
        totals["max"] = totals["max"] - np.where(differs, taken, 0.0)
        result = np.select([combine == name for name in totals], list(totals.values())) * scale
        whole = ~differs | (np.minimum.reduceat(sign, begins) < np.maximum.reduceat(sign, begins))
        return which[whole], time_us[begins][whole], result[whole]


def _differ(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell where a row differs from the one before it."""
    return np.asarray(np.logical_or.reduce([np.diff(column) != 0 for column in columns]))


def _entity(key: tuple[str | float | None, ...]) -> object:
    """Pick what a canonical series is about from its key: cluster, metric, labels, bound."""
    return key[2 + LABELS.index(METRICS[str(key[1])].entity)]


def _spread(
    targets_of: list[list[_Target]], series: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Repeat every sample for each canonical series it adds to: (row, sign, part, which sample)."""
    width = np.array([len(targets) for targets in targets_of])
    start = np.cumsum(width) - width
    flat = [target for targets in targets_of for target in targets]
    scraped = np.repeat(np.arange(len(series)), width[series])
    nth = np.arange(len(scraped)) - np.repeat(np.cumsum(width[series]) - width[series], width[series])
    at = start[series[scraped]] + nth
    row = np.array([target.row for target in flat], dtype=np.int64)
    sign = np.array([target.sign for target in flat], dtype=np.float64)
    part = np.array([target.part for target in flat], dtype=np.int64)
    return row[at], sign[at], part[at], scraped


class Spool:
    """Samples of a file, put aside by day."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._batch = folder, 0
        self._series: list[int] = []
        self._time_us: list[int] = []
        self._value: list[float] = []
        self.counts: dict[int, int] = {}

    def add(self, series: int, time_us: int, value: float) -> None:
        """Keep one sample."""
        self._series.append(series)
        self._time_us.append(time_us)
        self._value.append(value)
        if len(self._series) >= SPOOL_LINES:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory, a file a day."""
        series, time_us = np.array(self._series, np.int32), np.array(self._time_us, np.int64)
        value = np.array(self._value, np.float64)
        for number, count in zip(*np.unique(series, return_counts=True), strict=True):
            self.counts[int(number)] = self.counts.get(int(number), 0) + int(count)
        day = time_us // _DAY_US
        for number in np.unique(day):
            mine = day == number
            name = f"{number + 2**40:016d}-{self._batch:06d}.npz"
            np.savez(self._folder / name, series=series[mine], time_us=time_us[mine], value=value[mine])
        self._batch += 1
        self._series, self._time_us, self._value = [], [], []

    def days(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]]]:
        """Yield (series, time, value) of each day, in the file's order."""
        files: dict[str, list[Path]] = defaultdict(list)
        for path in sorted(self._folder.iterdir()):
            files[path.name.partition("-")[0]].append(path)
        for paths in files.values():
            parts = [np.load(path) for path in paths]
            series, time_us, value = (
                np.concatenate([part[key] for part in parts]) for key in ("series", "time_us", "value")
            )
            yield series, time_us, value


def read_labels(text: str, where: str) -> dict[str, str]:
    """Read what is between the braces."""
    labels, position = {}, 0
    while position < len(text):
        found = _LABEL.match(text, position)
        if found is None:
            raise SourceError(f"{where}: labels {{{text}}} cannot be read", 'name="value", …')
        if found[1] in labels:
            raise SourceError(f"{where}: labels {{{text}}} have {found[1]!r} twice", "each label once")
        labels[found[1]] = (
            _ESCAPE.sub(lambda one: {"n": "\n"}.get(one[1], one[1]), found[2]) if "\\" in found[2] else found[2]
        )
        position = found.end()
    return labels
