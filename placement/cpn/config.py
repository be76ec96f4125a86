"""The controller's settings file (``LOADMASTER_CPN_FILE``).

.. code-block:: yaml

    topology: topology.yaml            # or http://scheduler/clusters
    store: sqlite:///var/cpn/jobs.db   # or postgresql+psycopg://user@host/db
    strategy: min_completion_time_reserve
    profiles: colocation_profiles.csv
    models: {resnet50: {gpu_memory_mb: 3000}}
    quotas: {default: {active: 1000}, team-a: {active: 100, running: 8}}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import yaml

from placement.kube.config import ClusterSettings
from sched_env.jobs.heuristics import NAMES
from sched_env.jobs.scenario import Cap
from wire.errors import ConfigError, legal

STRATEGIES = (*NAMES, "policy")
"""Ways to choose: every heuristic of ``jobs`` (``kube_default`` leaves the node to the cluster's own scheduler), and
the live ``jobs`` policy with a heuristic as fallback."""

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Model(_Part, frozen=True, kw_only=True):
    """What is known of a model that jobs name."""

    gpu_memory_mb: Seconds


class Quota(_Part, frozen=True, kw_only=True):
    """What a tenant may have at once."""

    active: Count | None = None
    """Jobs that have not ended; more are refused."""
    running: Count | None = None
    """Jobs on cards; more wait."""


class Lease(_Part, frozen=True, kw_only=True):
    """Where replicas agree who leads; needed with PostgreSQL."""

    cluster: ClusterSettings = ClusterSettings()
    namespace: str = "default"
    name: str = "loadmaster-cpn"


class CpnSettings(_Part, frozen=True, kw_only=True):
    """The whole file; the string under each field says why its default is what it is."""

    topology: str
    """A file, or an address that answers with one (docs/cpn.md)."""
    topology_reload_s: Seconds = 10.0
    """How often it is looked at again."""
    store: str = "sqlite:///var/cpn/jobs.db"
    """SQLite for one replica; PostgreSQL for several."""
    lease: Lease | None = None
    name: str = "cpn"
    """Label of our Jobs: two controllers may share a cluster."""
    strategy: str = "min_completion_time_reserve"
    """The upstream's rule, corrected; zero out-of-memory and bounded waits for big jobs."""
    profiles: Path | None = None
    """Measured co-location profiles, used until a ``jobs`` bundle with a ``runtime`` model is live."""
    fingerprints: dict[str, dict[str, Seconds]] = {}
    """Type of card -> benchmark (resnet50, yolov8m, llama3) -> seconds a step alone: what the bundle's model predicts
    a card by that it has never seen; a benchmark that does not fit the card is left out."""
    caution: Annotated[float, msgspec.Meta(ge=1)] = 1.1
    """Upper end of run times from profiles over the prediction; a bundle's model brings its own."""
    models: dict[str, Model] = {}
    """GPU memory of models; a job may say its own."""
    quotas: dict[str, Quota] = {}
    """Tenant -> limits; ``default`` for those without a line of their own."""
    cpu_threshold: Share = 0.7
    """A node busier than this takes no job; upstream's value."""
    gpu_mem_margin_gib: Amount = 1.0
    mem_margin_gib: Amount = 10.0 / 1024.0
    big_job_gib: Seconds = 10.0
    """GPU memory from which a job may reserve; upstream's 10,240 MB."""
    max_jobs_per_card: Cap = 3
    patience_s: Seconds = 6 * 3600.0
    """A job that has waited longer reserves a card, whatever the strategy: nobody waits for ever."""
    priority_ageing_s: Seconds = 3600.0
    """Waiting so long is worth one step of priority: a flood of urgent jobs cannot keep others out for ever."""
    load_balance: Amount = 0.0
    """Weight of upstream's second generation: predicted time x (1 + this x max(node load / mean load - 1, 0)); its
    value is 0.8. 0 leaves the choice to the strategy alone."""
    max_attempts: Count = 3
    """Where the Job says no backoffLimit."""
    retry_backoff_s: Amount = 10.0
    """Before the second attempt; doubles, up to ten minutes."""
    cluster_silent_s: Seconds = 30.0
    """A cluster not heard of for so long gets no job."""
    node_lost_s: Seconds = 120.0
    """A node not ready for so long has lost its jobs: they are removed and tried elsewhere. Longer than a kubelet's
    restart."""
    collect_s: Seconds = 15.0
    """How often Prometheus is asked."""
    stale_s: Seconds = 120.0
    """Metrics older than this do not count; upstream's Prometheus scraped once a minute."""
    settle_s: Seconds = 300.0
    """A job placed, or gone, for less than this may not be in the metrics yet: the books say what it takes. Also what
    rates are taken over: five scrapes of upstream's Prometheus."""
    prefetch_image: str | None = None
    """Image of the pre-fetch Job that brings data to the node; without one transfers are reckoned, not made."""
    history_dir: Path | None = None
    """Where finished jobs, nodes and cards go as raw tables for the nightly run; none: they stay in the store."""
    time_scale: Seconds = 1.0
    """Seconds of the controller's clock in a second; other than 1 for rehearsals with played clusters only."""


def load(path: Path) -> CpnSettings:
    """Read the file; the error names the field and what is legal."""
    try:
        found = msgspec.convert(yaml.safe_load(path.read_text()) or {}, CpnSettings, dec_hook=_to_path)
    except (OSError, yaml.YAMLError, msgspec.ValidationError, ValueError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"{path}: {said}", "a controller's file as docs/cpn.md shows it") from error
    if found.strategy not in STRATEGIES:
        raise ConfigError(f"{path}: strategy is {found.strategy!r}", legal(STRATEGIES))
    return found


def _to_path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str) and value:
        return Path(value)
    raise ValueError(f"expected a {kind.__name__}, found {value!r}")
