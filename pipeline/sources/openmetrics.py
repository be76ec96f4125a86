"""OpenMetrics text as a source: what ``promtool tsdb dump-openmetrics`` or an exporter's saved pages hold.

Names are canonical (a key of ``METRICS``, with the labels node, pod, function, card, detail) and land as they are, or
an exporter's and go through the metric map, whose entries may add several series up. Lines are spooled by day first,
for the series of one sum lie far apart in the file; memory then holds one day.
"""

from __future__ import annotations

import gzip
import re
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from pipeline.errors import SourceError
from pipeline.sources import Rows, Tally
from pipeline.sources.columns import plausible_us
from pipeline.sources.exporter_series import Catalogue, Spool
from pipeline.sources.files import FileSource
from pipeline.sources.metric_map import load_map
from wire.errors import ConfigError

_LINE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?\s+(\S+)(?:\s+(\S+))?(?:\s+#.*)?\s*$')


class OpenMetricsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files, and how their names are to be understood."""

    paths: list[str]
    cluster: str = "default"
    """Cluster of series without a ``cluster`` label."""
    groups: tuple[str, ...] = ("node_exporter", "kube_state_metrics", "cadvisor", "dcgm", "openfaas")
    """Groups of the metric map; name only one that counts requests (knative, openfaas, istio, nginx)."""
    metrics: str | None = None
    """A metric map of the user's; null: ``pipeline/metrics.yaml``."""
    time_unit_s: float = 1.0
    """OpenMetrics writes seconds; the older Prometheus text format writes milliseconds: 0.001."""
    need_eof: bool = True
    """OpenMetrics ends with ``# EOF``; without it the file was cut off. The older format has none."""

    def __post_init__(self) -> None:
        """Refuse units of time that are neither."""
        if self.time_unit_s not in {1.0, 1e-3}:
            raise ConfigError(f"ingest.openmetrics.time_unit_s is {self.time_unit_s}", "1 or 0.001")


class OpenMetricsSource(FileSource):
    """One chunk a file."""

    def __init__(self, config: OpenMetricsConfig, days: Sequence[date]) -> None:
        super().__init__(config.paths, days, "ingest.openmetrics")
        self._config = config
        self._entries = load_map(Path(config.metrics) if config.metrics else None).entries(config.groups)

    def settings(self) -> dict[str, object]:
        """Name files, days and the map."""
        named = msgspec.to_builtins(self._config)
        del named["paths"], named["metrics"]
        return {**super().settings(), **named, "entries": msgspec.to_builtins(self._entries)}

    def read(self, path: Path, tally: Tally) -> Rows:
        """Read one file, a day at a time."""
        catalogue = Catalogue(self._entries, self._config.cluster)
        with tempfile.TemporaryDirectory(prefix="loadmaster-openmetrics-") as folder:
            spool = Spool(Path(folder))
            for number, (head, time_us, value) in self._lines(path):
                spool.add(catalogue.find(head, path, number), time_us, value)
            spool.flush()
            catalogue.settle()
            tally.skipped.update(catalogue.unknown_lines(spool.counts))
            for day in spool.days():
                for table in catalogue.tables(*day):
                    yield "samples", table

    def _lines(self, path: Path) -> Iterator[tuple[int, tuple[str, int, float]]]:
        """Yield the number and (name with labels, microseconds, value) of each line that is a sample."""
        unit, ended = self._config.time_unit_s * 1e6, False
        number = 0
        # Only a line feed ends a line: a carriage return may be part of a label.
        form: dict[str, Any] = {"mode": "rt", "encoding": "utf-8", "newline": "\n"}
        try:
            with gzip.open(path, **form) if path.suffix == ".gz" else path.open(**form) as file:
                for number, line in enumerate(file, start=1):
                    if ended and line.strip():
                        raise SourceError(f"{path}, line {number}: text after # EOF", "the end of the file")
                    if line.startswith("#") or not line.strip():
                        ended = line.strip() == "# EOF"
                        continue
                    try:
                        yield number, _sample(line, unit)
                    except ValueError as error:
                        raise SourceError(
                            f"{path}, line {number}: {line.strip()[:120]!r}: {error}",
                            'name{label="value"} value time',
                            "mend the line, or set ingest.openmetrics.time_unit_s (1: seconds, 0.001: milliseconds)",
                        ) from error
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise SourceError(f"{path}, after line {number}: {error}", "a whole text file in UTF-8") from error
        if self._config.need_eof and not ended:
            raise SourceError(
                f"{path} ends at line {number} without # EOF",
                "a whole OpenMetrics file",
                "write the file again, or set ingest.openmetrics.need_eof to false for the older text format",
            )


def _sample(line: str, unit: float) -> tuple[str, int, float]:
    """Read one line; a ValueError says what is wrong with it."""
    if "\0" in line:
        raise ValueError("a NUL byte: the file is damaged")
    head, value, time = cut(line)
    if "_" in value or "_" in time:  # Python reads 1_000 as a number, nobody else does
        raise ValueError("not a number")
    return head, plausible_us(float(time) * unit), float(value)


def cut(line: str) -> tuple[str, str, str]:
    """Split a line into name with labels, value and time; the quick way for plain lines, the careful one else."""
    if " # " not in line and "\\" not in line:
        parts = line.rsplit(None, 2)
        if len(parts) == 3 and (parts[0].endswith("}") or "{" not in line):
            return parts[0], parts[1], parts[2]
    found = _LINE.match(line)
    if found is None:
        raise ValueError("not a sample")
    if found[4] is None:
        raise ValueError("no time")
    return line[: found.end(1)] + (f"{{{found[2]}}}" if found[2] is not None else ""), found[3], found[4]
