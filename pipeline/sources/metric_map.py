"""The map from exporters' metric names and labels to canonical ones (``pipeline/metrics.yaml``), read and checked."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Literal

import msgspec
import yaml

from pipeline.contracts.raw import METRICS
from pipeline.sources.kube_names import DERIVED, Names, host_of
from wire.errors import ConfigError, legal

DEFAULT_MAP = Path(__file__).parent.parent / "metrics.yaml"
LABELS = ("node", "pod", "function", "card", "detail")
BUCKET = "function_response_seconds_bucket"
REQUESTS = "function_requests"

NO_NAMES = Names()

log = logging.getLogger(__name__)

_MATCHER = re.compile(r'\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*"([^"\\]*)"\s*')
_FIELD = re.compile(r"\{(\w+)(?::(\w+))?\}")
_ENDED = 'phase=~"Succeeded|Failed"'
RATE_STEPS = 4
"""Steps that a rate is taken over: enough for two scrapes even where one is lost."""

_FILTERS: dict[str, Callable[[str], str]] = {
    "": lambda text: text,
    "host": host_of,
    "base": lambda text: text.partition(".")[0],
    "openfaas": lambda text: "/".join([text.partition(".")[2] or "openfaas-fn", text.partition(".")[0]]),
}


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"sources": "from"}):
    """How one canonical metric is made."""

    metric: str
    labels: dict[str, list[str]]
    sources: list[str]
    minus: list[str] = []
    where: str = ""
    combine: Literal["sum", "max", "count"] = "sum"
    each: list[str] = []
    above: float | None = None
    alive: bool = False
    rate: bool = False
    fallback: str | None = None
    scale: float = 1.0
    le_scale: float = 1.0
    query: str | None = None

    def used_labels(self) -> list[str]:
        """Exporter labels that the templates read, and ``le`` of a histogram."""
        names = {name for texts in self.labels.values() for text in texts for name, _ in _FIELD.findall(text)}
        names = {label for name in names for label in DERIVED.get(name, (name,))}
        return sorted(names | ({"le"} if self.metric == BUCKET else set()))

    def promql(self, window: str, matchers: str) -> str:
        """Write the query: the last sample of each step, never one older, so gaps stay gaps."""
        if self.query:
            return Template(self.query).substitute(window=window, matchers=matchers)
        text = self._aggregated(self.sources, window, matchers)
        if self.minus:
            text = f"{text} - {self._aggregated(self.minus, window, matchers)}"
        if self.alive:
            inside = ",".join(part for part in (_ENDED, matchers) if part)
            ended = f"max by (namespace, pod) (last_over_time(kube_pod_status_phase{{{inside}}}[{window}])) == 1"
            text = f"{text} unless on (namespace, pod) ({ended})"
        return text

    def time_promql(self, matchers: str) -> str:
        """Write the query for when each entity was really scraped, which a step's end does not tell."""
        by = ", ".join(name for name in self.used_labels() if name != "le")
        return f"max by ({by}) (timestamp({self.selector(self.sources, matchers)}))"

    def _aggregated(self, names: list[str], window: str, matchers: str) -> str:
        by = ", ".join(self.used_labels())
        over = "rate" if self.rate else "last_over_time"
        text = f"{over}({self.selector(names, matchers)}[{window}])"
        if self.above is not None:
            text = f"{text} > {self.above:g}"
        if self.each:
            # One thing under two label sets (its exporter was started anew, a second Prometheus) counts once.
            text = f"max by ({', '.join(sorted({*self.used_labels(), *self.each}))}) ({text})"
        return f"{self.combine} by ({by}) ({text})"

    def selector(self, names: list[str], matchers: str) -> str:
        """Write what picks the series of some metrics."""
        name = f'__name__="{names[0]}"' if len(names) == 1 else f'__name__=~"{"|".join(names)}"'
        return f"{{{','.join(part for part in (name, self.where, matchers) if part)}}}"

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Apply ``where`` to a series' labels, as Prometheus would."""
        for name, operator, wanted in parse_matchers(self.where):
            value = labels.get(name, "")
            equal = re.fullmatch(wanted, value) is not None if "~" in operator else value == wanted
            if equal == operator.startswith("!"):
                return False
        return True

    def canonical(self, labels: Mapping[str, str], names: Names = NO_NAMES, at_s: float = 0.0) -> dict[str, str] | None:
        """Fill the canonical labels; None when the one that names the entity stays empty."""
        filled: dict[str, str] = {}
        labels = names.enriched(labels, at_s)
        for label, templates in self.labels.items():
            for template in templates:
                parts = [(name, kind) for name, kind in _FIELD.findall(template)]
                if all(labels.get(name) for name, _ in parts):
                    filled[label] = _FIELD.sub(lambda found: _FILTERS[found[2] or ""](labels[found[1]]), template)
                    break
        return filled if METRICS[self.metric].entity in filled else None


class MetricMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All groups; a group is an exporter."""

    groups: dict[str, list[Entry]]

    def entries(self, groups: Sequence[str]) -> list[tuple[str, Entry]]:
        """List the entries of the named groups, with their group; those that fill in for others come last."""
        for group in groups:
            if group not in self.groups:
                raise ConfigError(f"metric group {group!r} is not in the map", legal(self.groups))
        if len(set(groups)) < len(groups):
            raise ConfigError(f"metric groups {', '.join(groups)}", "each group once")
        counting = [group for group in groups if group in self.counting()]
        if len(counting) > 1:
            log.warning("the groups %s all count requests: what passes through two is counted twice", counting)
        found = [(group, entry) for group in groups for entry in self.groups[group]]
        return sorted(found, key=lambda one: one[1].fallback is not None)

    def counting(self) -> list[str]:
        """Groups that count requests; a cluster should be asked for one of them."""
        return [name for name, entries in self.groups.items() if any(entry.metric == REQUESTS for entry in entries)]


def load_map(path: Path | None = None) -> MetricMap:
    """Read a metric map and check every entry."""
    path = path or DEFAULT_MAP
    try:
        document = msgspec.convert(yaml.safe_load(path.read_text()), MetricMap)
    except OSError as error:
        raise ConfigError(f"metric map {path}: {error.strerror}", "a readable YAML file") from error
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ConfigError(f"metric map {path}: {error}", f"entries as in {DEFAULT_MAP.name}") from error
    for group, entries in document.groups.items():
        for entry in entries:
            _check(entry, f"{path}: {group}.{entry.metric}")
    return document


def parse_matchers(text: str) -> list[tuple[str, str, str]]:
    """Split ``a="x",b!~"y"`` into (label, operator, value)."""
    found, position = [], 0
    while position < len(text):
        match = _MATCHER.match(text, position)
        if match is None or (match.end() < len(text) and text[match.end()] != ","):
            raise ConfigError(f"matchers {text!r} cannot be read at {text[position:]!r}", 'label="value", label!~"a|b"')
        try:
            re.compile(match[3] if "~" in match[2] else "")
        except re.error as error:
            raise ConfigError(f"matchers {text!r}: {match[3]!r} is no regular expression: {error}") from error
        found.append((match[1], match[2], match[3]))
        position = match.end() + 1
    return found


def _check(entry: Entry, where: str) -> None:
    if entry.metric not in METRICS:
        raise ConfigError(f"{where} is not a canonical metric", legal(METRICS))
    if unknown := set(entry.labels) - set(LABELS):
        raise ConfigError(f"{where}: unknown label {', '.join(sorted(unknown))}", legal(LABELS))
    entity = METRICS[entry.metric].entity
    if entity not in entry.labels:
        raise ConfigError(f"{where} has no label {entity!r}", f"a template for the {entity} it measures")
    if entry.fallback is not None and entry.fallback not in METRICS:
        raise ConfigError(f"{where}: fallback {entry.fallback!r} is not a canonical metric", legal(METRICS))
    if not entry.sources:
        raise ConfigError(f"{where}: from is empty", "at least one exporter metric")
    for text in (text for texts in entry.labels.values() for text in texts):
        for _, kind in _FIELD.findall(text):
            if kind not in _FILTERS:
                raise ConfigError(f"{where}: filter {kind!r} in {text!r}", legal(name for name in _FILTERS if name))
        if not _FIELD.search(text):
            raise ConfigError(f"{where}: template {text!r} names no label", 'such as "{node}"')
    parse_matchers(entry.where)
    try:
        entry.promql("1s", "")
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"{where}: query has the placeholder {error}", "$window and $matchers; $$ for a dollar"
        ) from error
