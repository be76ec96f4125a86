"""The controller with all its parts, as the service runs it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placement.cpn import config, submission
from placement.cpn.allocation import Allocator
from placement.cpn.bundled import Bundled
from placement.cpn.clock import Clock
from placement.cpn.collection import Collection
from placement.cpn.config import CpnSettings
from placement.cpn.controller import Controller
from placement.cpn.events import Event
from placement.cpn.history import History, Row, samples
from placement.cpn.link import KubeLink, Link
from placement.cpn.metrics import CpnMetrics
from placement.cpn.records import Job
from placement.cpn.runtimes import FromTable, Nobody, Profiles, RunTimes, Tables
from placement.cpn.store import JobStore
from placement.cpn.topology import Cluster, Source
from placement.cpn.warming import warm_up
from placement.errors import PlaceRefusedError
from placement.kube.clusters import connect
from placement.kube.config import ClusterSettings
from placement.state import State
from sched_env.jobs import pairs, synthetic
from sched_env.jobs.live import LiveEnv
from sched_env.jobs.raw_state import raw_fields
from wire.contracts.place import PlacementRequest
from wire.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from placement.decide import Decider
    from placement.kube.lease import Lease
    from placement.live import LivePolicies
    from placement.policy import Policy

log = logging.getLogger(__name__)


@dataclass
class Cpn:
    """What the routes of ``/v1/jobs`` work with."""

    settings: CpnSettings
    store: JobStore
    controller: Controller
    collection: Collection
    metrics: CpnMetrics
    clock: Clock
    gpu_memory_mb: dict[str, float]
    history: History | None
    lease: Lease | None = None
    bundled_memory_mb: Callable[[], dict[str, float]] = dict
    """GPU memory of the models that the live bundle knows."""

    def known(self) -> submission.Known:
        """Return what a submission is checked against now."""
        table = self.controller.network.table
        return submission.Known(
            {**self.bundled_memory_mb(), **self.gpu_memory_mb},
            table.datacenters,
            float(table.card_mem.max()) - self.settings.gpu_mem_margin_gib,
            float(table.node_mem.max()) - self.settings.mem_margin_gib,
            self.settings.max_attempts,
        )

    def submit(self, body: bytes, *, tenant: str | None, key: str | None) -> tuple[Job, bool]:
        """Take a job in.

        Raises:
            PlaceRefusedError: With the field, and what is legal there; 429 over the quota; 409 for another job of the
                same name.
        """
        read = submission.read(submission.parse(body), self.known(), now=self.clock(), tenant=tenant, key=key)
        job, manifest = read
        quota = self.settings.quotas.get(job.tenant) or self.settings.quotas.get("default")
        accepted = self.store.accept(job, manifest, quota.active if quota else None)
        if accepted is None:
            raise PlaceRefusedError(
                429,
                f"tenant {job.tenant!r} has {quota.active if quota else 0} jobs that have not ended",
                "fewer than its quota",
                "wait, cancel some, or ask for a larger quota",
            )
        kept, new = accepted
        if not new and kept.digest != job.digest:
            raise PlaceRefusedError(
                409,
                f"metadata.name {job.name!r} is another job of tenant {job.tenant!r} ({kept.id})",
                "the same manifest again, or another name",
                "an Idempotency-Key header makes a name free again",
            )
        self.controller.nudge()
        return kept, new

    def cancel(self, job: str) -> Job:
        """Withdraw a job."""
        found = self.store.ask_to_cancel(job, self.clock())
        if found is None:
            raise PlaceRefusedError(404, f"there is no job {job!r}", "an id that POST /v1/jobs returned")
        self.controller.nudge()
        return found

    def start(self) -> None:
        """Begin."""
        if self.lease is not None:
            self.lease.start()
        self.collection.start()
        if self.history is not None:
            self.history.start()
        self.controller.start()

    def close(self) -> None:
        """Stop; everything goes on from the store."""
        self.controller.stop()
        self.collection.stop()
        if self.history is not None:
            self.history.stop()
        if self.lease is not None:
            self.lease.stop()
        self.store.close()


def start(
    path: Path, registry: CollectorRegistry, decider: Decider | None = None, live: LivePolicies | None = None
) -> Cpn:
    """Read the file, open the store and put everything together."""
    settings = config.load(path)
    source = Source(_beside(settings.topology, path))
    store = JobStore(settings.store)
    try:
        lease = _lease(settings, store)
        clock = Clock(settings.time_scale)
        gpu_memory = {name: model.gpu_memory_mb for name, model in settings.models.items()}
        metrics = CpnMetrics(registry)
        described = Source(source.where).changed()
        card_types = described.table.card_types if described is not None else ()
        run_times, known_memory = _run_times(settings, path, live, card_types)
        gpu_memory = {**known_memory, **gpu_memory}
        tables = Tables(run_times)
        collection = Collection(settings, clock)
        controller = Controller(
            settings,
            store,
            tables,
            source,
            _linker(settings),
            allocator=Allocator(
                settings,
                tables,
                _by_policy(decider) if decider is not None else None,
                (lambda: pairs_of(live.get("jobs").policy)) if live is not None else lambda: None,
            ),
            clock=clock,
            others=collection.others,
            leading=(lambda: lease.leading) if lease is not None else (lambda: True),
            heard=metrics.ended,
            prepare=lambda: log.info("compiled in %.1f s", warm_up(settings)),
        )
        collection.follow(lambda: controller.network)
        metrics.show(controller)
        metrics.show_errors(run_times.errors)
        history = _history(settings, store, controller, collection) if settings.history_dir is not None else None
    except BaseException:
        store.close()
        raise
    return Cpn(
        settings, store, controller, collection, metrics, clock, gpu_memory, history, lease, run_times.gpu_memory_mb
    )


def _history(settings: CpnSettings, store: JobStore, controller: Controller, collection: Collection) -> History:
    def seen() -> list[Row]:
        if not controller.ready:
            return []
        network, books, now = controller.network, controller.books, controller.clock()
        return samples(network, books, collection.found(now), now, controller.up())

    return History(store, settings.history_dir or Path(), seen)


def _beside(where: str, path: Path) -> str:
    """Take a relative path from the settings file's folder."""
    if where.startswith(("http://", "https://")):
        return where
    return str(path.parent / Path(where).expanduser())


def _run_times(
    settings: CpnSettings, path: Path, live: LivePolicies | None, card_types: Sequence[str]
) -> tuple[Bundled, dict[str, float]]:
    """Choose who predicts: the live bundle's model; until there is one measured profiles, or generated run times."""
    policy = (lambda: live.get("jobs").policy) if live is not None else (lambda: None)
    otherwise, memory = _without_bundle(settings, path, card_types)
    found = Bundled(policy, otherwise, settings.fingerprints)
    if found.version == "" and isinstance(otherwise, Nobody):
        log.warning("nobody knows run times: until a bundle with a runtime model is live every job has a card alone")
    return found, memory


def _without_bundle(settings: CpnSettings, path: Path, card_types: Sequence[str]) -> tuple[RunTimes, dict[str, float]]:
    if settings.profiles is not None:
        found = Profiles(Path(_beside(str(settings.profiles), path)), card_types, settings.caution)
        return found, {name: gib * 1024.0 for name, gib in found.gpu_mem_gib.items()}
    if not {*card_types} <= {card.name for card in synthetic.CARDS}:
        return Nobody(), {}
    table = synthetic.runtime(tuple(card_types))
    return FromTable(table, settings.caution), {model.name: model.gpu_mem * 1024.0 for model in synthetic.MODELS}


def _linker(settings: CpnSettings) -> Callable[[Cluster, Callable[[Event], None]], Link]:
    def make(cluster: Cluster, tell: Callable[[Event], None]) -> Link:
        client = connect(cluster.name, ClusterSettings(cluster.kubeconfig, cluster.context))
        return KubeLink(cluster, client, settings.name, tell)

    return make


def _lease(settings: CpnSettings, store: JobStore) -> Lease | None:
    if settings.lease is None:
        if store.shared:
            raise ConfigError(
                "store is PostgreSQL and there is no lease", "lease: {cluster: …}", "or use SQLite with one replica"
            )
        return None
    from placement.kube.lease import Lease as KubeLease

    client = connect("lease", settings.lease.cluster)
    identity = f"{socket.gethostname()}-{os.getpid()}"
    return KubeLease(client, settings.lease.namespace, settings.lease.name, identity)


PAIR_KEYS = ("queue_order", "reservation", "shown_jobs")
"""Of a scenario: whom a policy of pairs is shown."""


def pairs_of(policy: Policy | None) -> dict[str, Any] | None:
    """Return the keys of the scenario under which a policy was trained to choose pairs; None: it chooses cards."""
    if policy is None or policy.manifest.feature_spec.version != pairs.SPEC.version:
        return None
    trained = policy.manifest.params.get("workload")
    keys = trained.get("overrides", {}) if isinstance(trained, dict) else {}
    return {"choice": "pair", **{name: keys[name] for name in PAIR_KEYS if name in keys}}


def _by_policy(decider: Decider) -> Callable[[LiveEnv, Job, Sequence[str]], int]:
    """Let the live ``jobs`` policy choose among cards or pairs; its fallback heuristic answers where it cannot."""

    def choose(env: LiveEnv, job: Job, names: Sequence[str]) -> int:
        candidates, request = raw_fields(env, 0)
        columns = {**candidates, "allowed": env.buffers.mask[0].astype(float)}
        columns.setdefault("share", columns["allowed"] * float("nan"))
        state = State("jobs", names, columns, {}, 0)
        fields = {name: float(value) for name, value in request.items()}
        decision = decider.decide(state, [PlacementRequest(id=job.id, fields=fields)], 1)
        if not decision.placements[0].ranked:
            return int(env.buffers.mask[0].argmax())
        return int(decision.scores.argmax())  # the first of equal ones, as they are ranked

    return choose
