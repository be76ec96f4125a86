"""The parts of a running service, put together in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from starlette.requests import Request

from placement.decide import Decider
from placement.decision_log import DecisionLog
from placement.lane import Lane
from placement.live import LivePolicies
from placement.metrics import Metrics
from placement.settings import Settings
from placement.store import FolderStore, PolicyStore
from sched_env import problems
from wire import secret_files

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Service:
    """What the routes work with; adapters (extender, migrator, dispatcher) take ``decider`` from here."""

    settings: Settings
    store: PolicyStore
    live: LivePolicies
    metrics: Metrics
    log: DecisionLog
    decider: Decider
    lane: Lane
    flips: ThreadPoolExecutor
    """One thread: pushes and rollbacks happen one after another, so each sees what the one before left."""

    async def flip(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run a push or a rollback in the one thread that may change what is live."""
        return await asyncio.get_running_loop().run_in_executor(self.flips, lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Stop in the order that loses nothing: flips, decisions, log, store."""
        self.flips.shutdown()
        self.decider.close()
        self.lane.close()
        self.log.close()
        self.store.close()


def start(settings: Settings) -> Service:
    """Take the store, load and re-verify what is live in it, and be ready to answer."""
    check_fallbacks(settings)
    secret_files.make_push_token(settings.push_token_file)
    store = FolderStore(settings.store_dir, settings.keep_bundles)
    metrics = Metrics()
    live = LivePolicies(store, settings)
    for problem in problems.names():
        metrics.show_live(problem, live.get(problem))
    log = DecisionLog(settings, metrics)
    decider = Decider(live, settings, metrics, log)
    flips = ThreadPoolExecutor(1, thread_name_prefix="flip")
    return Service(settings, store, live, metrics, log, decider, Lane(settings), flips)


def check_fallbacks(settings: Settings) -> None:
    """Refuse to start with a fallback that does not exist: it would be missed when it is needed."""
    for name in problems.names():
        problems.get(name).rule(settings.fallback(name))


def of(request: Request) -> Service:
    """Return the service a request belongs to."""
    service: Service = request.app.state.service
    return service
