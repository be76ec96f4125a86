"""The parts of a running service, put together in one place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from starlette.requests import Request

from placement.arms import Arm
from placement.audit import AuditLine, AuditLog
from placement.decide import Decider
from placement.decision_log import DecisionLog
from placement.guard import Guard
from placement.kube import config as kube_config
from placement.kube.clusters import Clusters
from placement.kube.config import ClustersFile
from placement.lane import Lane
from placement.live import LivePolicies
from placement.metrics import Metrics
from placement.policy import Policy
from placement.settings import Settings
from placement.shadow import Shadow
from placement.state import State
from placement.store import FolderStore, PolicyStore
from sched_env import problems
from wire import secret_files
from wire.contracts.feature_spec import ProblemName
from wire.contracts.place import Placement, PlacementRequest
from wire.errors import ConfigError

log = logging.getLogger(__name__)

LONGEST_RETRY_S = 600.0

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Watching:
    """What goes on beside decisions: a shadow that scores, a guard that goes back."""

    def __init__(
        self, settings: Settings, live: LivePolicies, metrics: Metrics, audit: AuditLog, flips: ThreadPoolExecutor
    ) -> None:
        def go_back(problem: ProblemName, digest: str, reason: str) -> None:
            after = flips.submit(live.go_back, problem, digest, reason).result()
            counter = after.pointer.counter if after.pointer else None
            audit.write(AuditLine("return", problem, "", "the service", "done", after.digest, counter, reason=reason))
            metrics.show_live(problem, after)
            metrics.flips.labels(problem, "return").inc()

        self._shadow, self._guard = Shadow(settings, metrics), Guard(settings, live.get, go_back)

    def decided(self, problem: ProblemName, arm: Arm, placements: Sequence[Placement], seconds: float) -> None:
        """A call was answered."""
        self._guard.decided(problem, arm, placements, seconds)

    def score_later(self, policy: Policy, state: State, request: PlacementRequest, chosen: str) -> None:
        """A request was decided."""
        self._shadow.score_later(policy, state, request, chosen)

    def close(self) -> None:
        """Watch no longer."""
        self._guard.close()
        self._shadow.close()


@dataclass(frozen=True)
class Service:
    """What the routes work with; adapters (extender, migrator, dispatcher) take ``decider`` from here."""

    settings: Settings
    store: PolicyStore
    live: LivePolicies
    metrics: Metrics
    log: DecisionLog
    audit: AuditLog
    decider: Decider
    lane: Lane
    clusters_file: ClustersFile
    clusters: Clusters
    watching: Watching
    flips: ThreadPoolExecutor
    """One thread: pushes and rollbacks happen one after another, so each sees what the one before left."""

    async def flip(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run a push or a rollback in the one thread that may change what is live."""
        return await asyncio.get_running_loop().run_in_executor(self.flips, lambda: function(*args, **kwargs))

    async def recover_for_ever(self) -> None:
        """Try again, without a restart, what is not as it should be; less and less often while it stays so."""
        pause = float(self.settings.retry_s)
        while True:
            await asyncio.sleep(pause)
            make_token(self.settings)
            for problem in problems.names():
                self.metrics.show_live(problem, await self.flip(self.live.recover, problem))
            damaged = any(self.live.get(problem).damaged for problem in problems.names())
            pause = min(2 * pause, LONGEST_RETRY_S) if damaged else float(self.settings.retry_s)

    async def follow_for_ever(self) -> None:
        """Take up what another replica of a shared store put live."""
        while self.store.shared:
            await asyncio.sleep(self.settings.follow_s)
            for problem in problems.names():
                self.metrics.show_live(problem, await self.flip(self.live.follow, problem))

    def close(self) -> None:
        """Stop in the order that loses nothing: flips, decisions, log, store."""
        self.clusters.close()
        self.watching.close()
        self.flips.shutdown()
        self.decider.close()
        self.lane.close()
        self.log.close()
        self.audit.close()
        self.store.close()


def start(settings: Settings) -> Service:
    """Take the store, load and re-verify what is live in it, and be ready to answer."""
    check_fallbacks(settings)
    clusters_file = kube_config.load(settings.clusters_file)
    make_token(settings)
    store = open_store(settings)
    metrics = Metrics()
    live = LivePolicies(store, settings)
    for problem in problems.names():
        metrics.show_live(problem, live.get(problem))
    decisions, audit = DecisionLog(settings, metrics), AuditLog(settings)
    flips = ThreadPoolExecutor(1, thread_name_prefix="flip")
    watching = Watching(settings, live, metrics, audit, flips)
    decider = Decider(live, settings, metrics, decisions, watching)
    return Service(
        settings,
        store,
        live,
        metrics,
        decisions,
        audit,
        decider,
        Lane(settings),
        clusters_file,
        Clusters(clusters_file, metrics, decider),
        watching,
        flips,
    )


def open_store(settings: Settings) -> PolicyStore:
    """Open the store of the settings."""
    if not settings.store_url:
        return FolderStore(settings.store_dir, settings.keep_bundles)
    from placement.s3_store import S3Store

    return S3Store(settings.store_url, settings.keep_bundles)


def make_token(settings: Settings) -> None:
    """Make the token where there is none; where it cannot be made, placements are answered and changes are off."""
    try:
        secret_files.make_push_token(settings.push_token_file)
    except ConfigError as error:
        log.warning("nobody can push: %s", error)


def check_fallbacks(settings: Settings) -> None:
    """Refuse to start with a fallback that does not exist: it would be missed when it is needed."""
    for name in problems.names():
        problems.get(name).rule(settings.fallback(name))


def of(request: Request) -> Service:
    """Return the service a request belongs to."""
    service: Service = request.app.state.service
    return service
