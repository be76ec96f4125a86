"""Fingerprints of cards, measured: the Job that measures one, and what its log says.

The template is ``deploy/benchmark-job.yaml``, the program ``docker/workload.py``; both sides of the log are here and
there alone. A fingerprint can be configured instead (``Catalogue.with_card``).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import msgspec

from sched_env.jobs.catalogue import BENCHMARKS
from wire.errors import ConfigError, TraceError, legal

BENCHMARK_SECONDS = 600
"""A model, as upstream's: clocks and temperatures have settled long before."""
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Fingerprint(NamedTuple):
    """What a benchmark found."""

    card: str
    """As the driver names it; ``cpu`` without a GPU."""
    seconds: dict[str, float]
    """Benchmark -> seconds a step; one that does not fit the card is left out."""


class _Line(msgspec.Struct):
    benchmark: str
    device: str
    card: str
    size: str
    fits: bool
    seconds: float = 0.0
    steps: int = 0


def benchmark_job(
    template: str, *, name: str, node: str, card: int, image: str, seconds: int = BENCHMARK_SECONDS
) -> dict[str, Any]:
    """Fill in the template; returns the Job as the Kubernetes API takes it."""
    import yaml

    if not NAME.fullmatch(name):
        raise ConfigError(f"the benchmark Job is called {name!r}", "lower-case letters, digits and dashes, up to 63")
    if card < 0 or seconds < 1:
        raise ConfigError(f"card {card} for {seconds} s", "an index from 0 on and at least a second")
    values = {"NAME": name, "NODE": node, "CARD": str(card), "IMAGE": image, "SECONDS": str(seconds)}
    bad = [key for key, value in values.items() if re.search(r"[\"'\\\n{}#]|: ", value) or not value]
    if bad:
        raise ConfigError(f"{bad[0]} is {values[bad[0]]!r}", "a plain word: it is written into YAML")
    try:
        filled = Template(template).substitute(values)
    except (KeyError, ValueError) as error:
        raise ConfigError(f"the template of benchmark Jobs: {error}", legal(f"${{{key}}}" for key in values)) from error
    job: dict[str, Any] = yaml.safe_load(filled)
    return job


def template(path: Path) -> str:
    """Read a template."""
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(f"the template of benchmark Jobs {path}: {error}", "deploy/benchmark-job.yaml") from error


def parse(log: str) -> Fingerprint:
    """Read a benchmark's log; lines that are not its own (warnings of a driver) are passed over."""
    found: dict[str, _Line] = {}
    for text in log.splitlines():
        if not text.startswith("{"):
            continue
        try:
            line = msgspec.convert(json.loads(text), _Line)
        except (ValueError, msgspec.ValidationError):
            continue
        found[line.benchmark] = line
    missing = [name for name in BENCHMARKS if name not in found]
    if missing:
        raise TraceError(f"the benchmark's log has no line of {missing[0]}", f"a line of JSON for {legal(BENCHMARKS)}")
    lines = [found[name] for name in BENCHMARKS]
    cards = {line.card for line in lines}
    if len(cards) > 1:
        raise TraceError(f"the benchmark ran on {sorted(cards)}", "one card")
    if any(line.size != "full" for line in lines):
        raise TraceError("the benchmark ran small networks", "--size full: their times are no fingerprint")
    wrong = [line.benchmark for line in lines if line.fits and not line.seconds > 0]
    if wrong:
        raise TraceError(f"{wrong[0]} took {found[wrong[0]].seconds} s a step", "a number above 0")
    seconds = {line.benchmark: line.seconds for line in lines if line.fits}
    if not seconds:
        raise TraceError(f"no benchmark fits {lines[0].card}", "one at least")
    return Fingerprint(lines[0].card, seconds)
