"""What is watched, and when it is an alarm: ``watch.yaml`` beside ``params.yaml``, or ``LOADMASTER_WATCH_FILE``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import yaml

from wire import environment
from wire.errors import ConfigError

FILE_ENV = environment.variable("watch_file")
URL_ENV = environment.variable("prometheus_url")
DEFAULT = Path("watch.yaml")
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class ProblemWatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to ask Prometheus about one problem; a query that is left out is not watched."""

    sla: str | None = None
    """PromQL: share of requests (0 to 1) that violate the service level, now."""
    cost: str | None = None
    """PromQL: USD an hour, now."""
    features: dict[str, str] = {}
    """Name -> PromQL whose series are held against the reference days."""
    load: str | None = None
    """The feature that tells how dense arrivals are. When its load has changed, training starts early and for that
    load: the recorded windows, so many times as dense."""

    def __post_init__(self) -> None:
        """Refuse a load that is no feature."""
        if self.load is not None and self.load not in self.features:
            raise ValueError(f"load is {self.load!r}, expected one of the features: {', '.join(self.features)}")


class WatchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of ``watch.yaml``."""

    prometheus: str = "http://127.0.0.1:9090"
    reference_days: Annotated[int, msgspec.Meta(ge=3, le=60)] = 14
    """Days before a policy went live that are usual for it; Prometheus must still have them."""
    step_seconds: Annotated[int, msgspec.Meta(ge=15)] = 300
    """Distance of samples: a window."""
    every_seconds: Annotated[int, msgspec.Meta(ge=1)] = 900
    """How often is looked, by the schedule of ``watch_live``: two looks less than half of it apart count as one."""
    sla_margin: Share = 0.005
    """Points above the promise that are no alarm: the gate's own margin."""
    cost_margin: Share = 0.10
    """Share above the promise that is no alarm: prices and sizes of clusters move by a few per cent."""
    fallback_limit: Share = 0.05
    """Share of decisions that the heuristic may take over before that is an alarm."""
    problems: dict[str, ProblemWatch] = {}


def load() -> WatchConfig:
    """Read the file; an unknown key is an error that names it. ``LOADMASTER_PROMETHEUS_URL`` goes before the file."""
    path = Path(os.environ.get(FILE_ENV) or DEFAULT)
    try:
        document = yaml.safe_load(path.read_text()) if path.exists() else {}
        config = msgspec.convert(document or {}, WatchConfig)
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}", "what docs/nights.md says of watch.yaml") from error
    return msgspec.structs.replace(config, prometheus=os.environ.get(URL_ENV) or config.prometheus)
