"""Bring raw samples, requests and events in: from a live Prometheus, files, public traces, or the embedded sample.

``python -m pipeline.ingest`` reads ``ingest`` (and the range in ``data``) of ``params.yaml`` and lands ``data/raw``:
Parquet partitioned by day and cluster, ``manifest.json``, and ``prices.csv`` where prices are known. It goes on where
a killed run stopped, and writes the same bytes for the same settings.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import date, timedelta
from pathlib import Path
from typing import Literal

import msgspec
from tqdm import tqdm

from pipeline.prices import FILE as PRICES_FILE
from pipeline.prices import format_prices, read_prices
from pipeline.settings import PARAMS_FILE, load, var
from pipeline.sources import Chunk, Source
from pipeline.sources.landing import Landing, Manifest, write_atomic
from pipeline.sources.prometheus import PrometheusConfig, PrometheusSource
from pipeline.sources.sample import SampleConfig, SampleSource
from sched_env.errors import ConfigError, run_cli

OUT = Path("data/raw")

log = logging.getLogger(__name__)


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}):
    """Days asked for, both included; null leaves that end to the source."""

    first: date | None = None
    last: date | None = None

    def days(self) -> list[date]:
        """List the days; empty when an end is open."""
        if self.first is None or self.last is None:
            return []
        if self.last < self.first:
            raise ConfigError(f"data.from {self.first} is after data.to {self.last}", "from on or before to")
        return [self.first + timedelta(days=n) for n in range((self.last - self.first).days + 1)]


class IngestConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``ingest`` section: which source, and the settings of each."""

    source: Literal["sample", "prometheus"] = "sample"
    """Only the named source's own settings are used."""
    prices: str | None = None
    """CSV of the user's with ``instance_type`` and ``usd_per_hour``; null: what the source itself knows."""
    sample: SampleConfig = msgspec.field(default_factory=SampleConfig)
    prometheus: PrometheusConfig | None = None


def ingest(config: IngestConfig, days: Range, out: Path = OUT) -> Manifest:
    """Land everything the settings ask for in ``out``; returns the manifest."""
    source = open_source(config, days)
    prices = read_prices(Path(config.prices)) if config.prices else source.prices()
    source.check()
    chunks = source.chunks()
    identity = [config.source, source.settings(), [chunk.key for chunk in chunks]]
    digest = hashlib.sha256(msgspec.json.encode(identity, order="sorted")).hexdigest()[:16]
    with Landing(var() / "scratch" / "ingest" / digest) as landing:
        _land(landing, chunks, source.workers)
        if prices is not None:
            write_atomic(landing.folder / PRICES_FILE, format_prices(prices))
        return landing.publish(out, config.source, source.settings(), chunks)


def open_source(config: IngestConfig, days: Range) -> Source:
    """Build the source that the settings name."""
    own = getattr(config, config.source)
    if own is None:
        raise ConfigError(f"ingest.source is {config.source!r} but ingest.{config.source} is missing")
    build: dict[str, Callable[..., Source]] = {"sample": SampleSource, "prometheus": PrometheusSource}
    return build[config.source](own, days.days())


def _land(landing: Landing, chunks: Sequence[Chunk], workers: int) -> None:
    """Land the chunks that are not there yet, some at a time; the first error stops the rest."""
    todo = [chunk for chunk in chunks if not landing.done(chunk)]
    if len(todo) < len(chunks):
        log.info("going on: %d of %d chunks are already there", len(chunks) - len(todo), len(chunks))
    bar = tqdm(total=len(chunks), initial=len(chunks) - len(todo), unit="chunk", desc="ingest", disable=None)
    rows = 0
    with bar, ThreadPoolExecutor(workers) as pool:
        queue = iter(todo)
        running: set[Future[int]] = {
            pool.submit(landing.land, chunk) for _, chunk in zip(range(workers), queue, strict=False)
        }
        try:
            while running:
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    rows += future.result()
                    bar.update()
                    bar.set_postfix(rows=f"{rows:,}", refresh=False)
                running |= {pool.submit(landing.land, chunk) for _, chunk in zip(finished, queue, strict=False)}
        finally:
            for future in running:
                future.cancel()


def main(argv: list[str] | None = None) -> int:
    """Run the stage."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.ingest", description=__doc__)
    parser.add_argument("--params", type=Path, default=PARAMS_FILE, help="parameter file (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help="raw folder to write (default: %(default)s)")
    parser.add_argument("--from", dest="first", type=date.fromisoformat, help="first day, in place of data.from")
    parser.add_argument("--to", dest="last", type=date.fromisoformat, help="last day, included, in place of data.to")
    parser.add_argument("--truth", type=Path, help="also write the sample's ground truth to this folder")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    config = load("ingest", IngestConfig, options.params)
    days = load("data", Range, options.params)
    days = Range(options.first or days.first, options.last or days.last)
    manifest = ingest(config, days, options.out)
    if options.truth is not None:
        source = open_source(config, days)
        if not isinstance(source, SampleSource):
            raise ConfigError(
                f"--truth with the source {config.source}", "the source sample, the only one that knows it"
            )
        source.write_truth(options.truth)
    counts = ", ".join(f"{rows:,} {table}" for table, rows in manifest.rows.items())
    log.info("%s: %s, %s to %s", options.out, counts, manifest.first, manifest.last)
    return 0


if __name__ == "__main__":
    run_cli(main)
