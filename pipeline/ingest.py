"""Bring raw samples, requests and events in: from a live Prometheus, files, public traces, or the embedded sample.

``python -m pipeline.ingest`` reads ``ingest`` (and the range in ``data``) of ``params.yaml`` and lands ``data/raw``:
Parquet partitioned by day and cluster, ``manifest.json``, and ``prices.csv`` where prices are known. What has been read
is kept under ``var/cache/ingest`` and linked: a night of many days reads the new one, a killed run goes on where it
stopped, and the same settings give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Literal

import msgspec

from pipeline import kept, storage
from pipeline.errors import DataError
from pipeline.prices import read_prices
from pipeline.progress import Progress
from pipeline.settings import PARAMS_FILE, VAR_ENV, load, var
from pipeline.sources import Chunk, Source
from pipeline.sources.decisions import DecisionsConfig, DecisionsSource
from pipeline.sources.landing import Landing, Manifest
from pipeline.sources.openmetrics import OpenMetricsConfig, OpenMetricsSource
from pipeline.sources.parquet import ParquetConfig, ParquetSource
from pipeline.sources.prometheus import PrometheusConfig, PrometheusSource
from pipeline.sources.request_log import RequestLogConfig, RequestLogSource
from pipeline.sources.sample import SampleConfig, SampleSource
from pipeline.sources.traces import TracesConfig, TracesSource
from wire import closure
from wire.errors import ConfigError, run_cli

OUT = Path("data/raw")
STAGE = "ingest"

log = logging.getLogger(__name__)


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}):
    """Days asked for, both ends included; null for both: what the source has."""

    first: date | None = None
    last: date | None = None

    def days(self) -> list[date]:
        """List the days; empty when none are asked for."""
        if self.first is None and self.last is None:
            return []
        if self.first is None or self.last is None:
            raise ConfigError(f"data.from is {self.first} and data.to is {self.last}", "two days, or null for both")
        if self.last < self.first:
            raise ConfigError(f"data.from {self.first} is after data.to {self.last}", "from on or before to")
        return [self.first + timedelta(days=n) for n in range((self.last - self.first).days + 1)]


SourceName = Literal["sample", "prometheus", "requests", "openmetrics", "parquet", "traces", "decisions"]


class IngestConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``ingest`` section: which source or sources, and the settings of each."""

    source: SourceName | list[SourceName] = "sample"
    """Several are landed together, e.g. prometheus and requests; only the named ones' settings are used."""
    prices: str | None = None
    """CSV of the user's with ``instance_type`` and ``usd_per_hour``; null: what the source itself knows."""
    sample: SampleConfig = msgspec.field(default_factory=SampleConfig)
    prometheus: PrometheusConfig | None = None
    requests: RequestLogConfig | None = None
    openmetrics: OpenMetricsConfig | None = None
    parquet: ParquetConfig | None = None
    traces: TracesConfig | None = None
    decisions: DecisionsConfig | None = None

    def names(self) -> list[SourceName]:
        """List the sources."""
        names = self.source if isinstance(self.source, list) else [self.source]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"ingest.source is {names}", "one or more sources, each once")
        return names


_BUILDERS: dict[SourceName, Callable[..., Source]] = {
    "sample": SampleSource,
    "prometheus": PrometheusSource,
    "requests": RequestLogSource,
    "openmetrics": OpenMetricsSource,
    "parquet": ParquetSource,
    "traces": TracesSource,
    "decisions": DecisionsSource,
}


def ingest(config: IngestConfig, days: Range, out: Path = OUT, *, again: bool = False) -> Manifest:
    """Land everything the settings ask for in ``out``; returns the manifest.

    What an earlier run has landed, with the same settings and code of the source, is not read anew unless ``again``.
    """
    sources = open_sources(config, days)
    known = [prices for source in sources.values() if (prices := source.prices()) is not None]
    prices = read_prices(Path(config.prices)) if config.prices else (known[0] if known else None)
    for source in sources.values():
        source.check()
    chunks = {name: _named(name, source, again) for name, source in sources.items()}
    settings: dict[str, object] = {name: source.settings() for name, source in sources.items()}
    everything = [chunk for listed in chunks.values() for chunk in listed]
    cache = var() / "cache" / STAGE
    landing = Landing(cache)
    try:
        for name, source in sources.items():
            _land(landing, source, chunks[name], name)
        manifest = landing.publish(out, "+".join(sources), settings, everything, days.days(), prices)
        kept.forget(STAGE)
    except OSError as error:
        # Sources name the files they cannot read; what is left is a disk that is full or not ours.
        raise DataError(
            f"{cache} or {out} cannot be written: {error}",
            "room, and the right to write",
            f"make room, or set {VAR_ENV}; what has been landed is kept: run ingest again",
        ) from error
    return manifest


def open_sources(config: IngestConfig, days: Range) -> dict[str, Source]:
    """Build the sources that the settings name."""
    sources: dict[str, Source] = {}
    for name in config.names():
        own = getattr(config, name)
        if own is None:
            raise ConfigError(f"ingest.source names {name!r} but ingest.{name} is missing")
        sources[name] = _BUILDERS[name](own, days.days())
    return sources


def _named(name: str, source: Source, again: bool) -> list[Chunk]:
    """Give chunks the names they are kept under: of two sources, settings or versions of the code they cannot meet."""
    same = {key: value for key, value in source.settings().items() if key not in source.about_range}
    code = closure.fingerprint(type(source).__module__, Landing.__module__)
    made_by = hashlib.sha256(msgspec.json.encode([code, same], order="sorted")).hexdigest()[:16]
    return [
        replace(chunk, key=f"{name}-{chunk.key}", made_by=made_by, again=again or chunk.again)
        for chunk in source.chunks()
    ]


def _land(landing: Landing, source: Source, chunks: Sequence[Chunk], name: str) -> None:
    """Land the chunks that are not there yet, some at a time; the first error stops the rest."""
    todo = [chunk for chunk in chunks if chunk.again or not landing.done(chunk)]
    if len(todo) < len(chunks):
        log.info("%d of %d chunks are kept from before", len(chunks) - len(todo), len(chunks))
    workers = source.workers
    with (
        Progress(f"ingest {name}", len(chunks), "chunk", len(chunks) - len(todo)) as progress,
        ThreadPoolExecutor(workers) as pool,
    ):

        def start(chunk: Chunk) -> Future[None]:
            return pool.submit(landing.land, chunk, lambda rows: progress.add(rows=rows))

        queue = iter(todo)
        running = {start(chunk) for _, chunk in zip(range(workers), queue, strict=False)}
        try:
            while running:
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
                    progress.add(pieces=1)
                running |= {start(chunk) for _, chunk in zip(finished, queue, strict=False)}
        except BaseException:
            source.stop()
            raise


def main(argv: list[str] | None = None) -> int:
    """Run the stage."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.ingest", description=__doc__)
    parser.add_argument("--params", type=Path, default=PARAMS_FILE, help="parameter file (default: %(default)s)")
    parser.add_argument(
        "--out", type=storage.place, default=OUT, help="raw folder or s3:// prefix (default: %(default)s)"
    )
    parser.add_argument("--from", dest="first", type=date.fromisoformat, help="first day, in place of data.from")
    parser.add_argument("--to", dest="last", type=date.fromisoformat, help="last day, included, in place of data.to")
    parser.add_argument("--again", action="store_true", help="read everything anew, what is kept too: late data")
    parser.add_argument("--truth", type=Path, help="also write the sample's ground truth to this folder")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    config = load("ingest", IngestConfig, options.params)
    days = load("data", Range, options.params)
    days = Range(options.first or days.first, options.last or days.last)
    manifest = ingest(config, days, options.out, again=options.again)
    if options.truth is not None:
        source = open_sources(config, days).get("sample")
        if not isinstance(source, SampleSource):
            raise ConfigError(
                f"--truth with the source {config.source}", "the source sample, the only one that knows it"
            )
        source.write_truth(options.truth)
    for reason, count in manifest.skipped.items():
        log.info("left out: %s: %s", reason, f"{count:,}")
    counts = ", ".join(f"{rows:,} {table}" for table, rows in manifest.rows.items())
    log.info("%s: %s, %s to %s", options.out, counts, manifest.first, manifest.last)
    return 0


if __name__ == "__main__":
    run_cli(main)
