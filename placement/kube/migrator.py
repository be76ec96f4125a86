"""Every five minutes: plan a window of moves with the ``pods`` policy, and make them, if this replica leads.

Nothing is moved on stale eyes: a cycle whose watch or whose Prometheus is silent is passed over, and says so. Cycles
begin at whole multiples of their length, and a pod that was moved is new: whoever leads after a change of leaders
finds in the cluster itself what the one before did.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from placement.kube import plan as planning
from placement.kube.clusters import Watched
from placement.kube.config import MigratorSettings
from placement.kube.lease import Lease
from placement.kube.mover import Mover, Outcome
from placement.kube.objects import Pod
from placement.kube.past import Past
from placement.kube.plan import Ask, Move
from placement.kube.rest import Rest

log = logging.getLogger(__name__)

SILENT_WATCH_S = 120.0
"""A watch says something once a minute, if only a bookmark."""
LANDING_S = 10.0
"""How long a cycle waits to see where those that were evicted come back."""


class Moved(msgspec.Struct, frozen=True):
    """What became of one move."""

    pod: str
    workload: str
    source: str
    target: str
    outcome: Outcome | str
    landed: str | None = None
    """Where the pod that came in its place is; None when it was not seen in time."""
    digest: str | None = None
    fallback: bool = False
    reason: str = ""


class Report(msgspec.Struct, frozen=True):
    """One cycle."""

    at: str
    cluster: str
    applied: bool
    passed_over: str = ""
    """Why nothing was planned."""
    nodes: int = 0
    pods: int = 0
    stressed: list[str] = []
    offered: int = 0
    skipped: dict[str, int] = {}
    moves: list[Moved] = []
    swept: int = 0
    """Placeholders of a killed replica that were taken away."""
    seconds: float = 0.0


class Migrator:
    """Moves the pods of one cluster.

    Args:
        rest: Knows the server.
        watched: What is known of the cluster.
        lease: Says whether this replica may act.
        settings: How far it may go.
        ask: Asks the policy.
        told: Takes the report of every cycle.
        past: Says what pods are expected to use; None: nobody does.
    """

    def __init__(
        self,
        rest: Rest,
        watched: Watched,
        lease: Lease,
        settings: MigratorSettings,
        ask: Ask,
        told: Callable[[Report], None],
        past: Past | None = None,
    ) -> None:
        self._rest, self._watched, self._lease, self._settings = rest, watched, lease, settings
        self._ask, self._told, self._past = ask, told, past
        self._mover = Mover(rest, settings)
        self._refused: dict[str, float] = {}
        """Pod -> when it may be offered again, by our own clock."""
        self._stopped = threading.Event()
        self.outcomes: Counter[str] = Counter()

    def stop(self) -> None:
        """End after the move that is under way."""
        self._stopped.set()

    def run(self) -> None:
        """Begin a cycle at every multiple of its length, until stopped."""
        while not self._stopped.wait(_until_next(self._settings.every_s)):
            if self._lease.leading:
                self.cycle()

    def cycle(self) -> Report:
        """Plan and move once; what goes wrong ends the cycle, not the migrator."""
        began = time.monotonic()
        report = Report(datetime.now(UTC).isoformat(timespec="seconds"), self._settings.cluster, self._settings.apply)
        try:
            blind = self._blind()
            report = self._act(report) if not blind else msgspec.structs.replace(report, passed_over=blind)
        except (ApiException, HTTPError, OSError, ValueError) as error:
            said = str(error).split("\n")[0][:200]
            log.warning("cycle broken off: %s", said)
            report = msgspec.structs.replace(report, passed_over=f"broken off: {said}")
        report = msgspec.structs.replace(report, seconds=round(time.monotonic() - began, 3))
        for move in report.moves:
            self.outcomes[move.outcome] += 1
        self._told(report)
        return report

    def _blind(self) -> str:
        watched, settings = self._watched, self._settings
        if not watched.whole():
            return "the cluster has not been seen yet"
        if watched.silent_s() > SILENT_WATCH_S:
            return f"the cluster has been silent for {watched.silent_s():.0f} s"
        usage = watched.usage
        if usage is None or usage.silent_s > max(usage.step_s * usage.positions, 30.0):
            return f"Prometheus has been silent for {watched.usage_silent_s():.0f} s"
        return "" if self._lease.leading else f"{settings.namespace}: another replica leads"

    def _act(self, report: Report) -> Report:
        usage = self._watched.usage
        assert usage is not None  # noqa: S101  (the settings ask for it)
        nodes, pods = self._watched.cluster.contents()
        now = self._rest.server_time()
        swept = self._mover.sweep(pods, now) if self._settings.apply else 0
        self._refused = {uid: until for uid, until in self._refused.items() if until > time.monotonic()}

        def stays(pod: Pod) -> str | None:
            if pod.metadata.uid in self._refused:
                return "a move of it was refused a while ago"
            return "it is too young" if now - pod.created < self._settings.min_age_s else None

        foreseen = self._past.expected(pods, usage) if self._past else {}
        price = self._watched.cluster.price
        plan = planning.make(nodes, pods, usage, self._settings, self._ask, stays, price, foreseen)
        before = {pod.metadata.uid for pod in pods}
        moves = [self._one(move) for move in plan.moves if not self._stopped.is_set()]
        return msgspec.structs.replace(
            report,
            nodes=len(nodes),
            pods=len(pods),
            stressed=plan.stressed,
            offered=plan.offered,
            skipped=dict(plan.skipped),
            moves=self._landed(moves, before),
            swept=swept,
        )

    def _one(self, move: Move) -> Moved:
        try:
            outcome: str = self._mover.move(move, lambda: self._lease.leading)
        except (ApiException, HTTPError, OSError) as error:
            outcome = f"failed: {str(error).split(chr(10))[0][:120]}"
        if outcome not in ("moved", "would_move"):
            self._refused[move.pod.metadata.uid] = time.monotonic() + self._settings.retry_s
        log.info("%s: %s -> %s: %s", move.pod.key, move.source, move.target, outcome)
        answer = move.answer
        return Moved(
            move.pod.key, move.pod.workload, move.source, move.target, outcome, None,
            answer.digest, answer.fallback, answer.reason,
        )  # fmt: skip

    def _landed(self, moves: list[Moved], before: set[str]) -> list[Moved]:
        """Wait a moment for the pods that come back, and say where they are."""
        waiting = {index: move for index, move in enumerate(moves) if move.outcome == "moved"}
        until, taken, found = time.monotonic() + LANDING_S, set(before), list(moves)
        while waiting and time.monotonic() < until:
            _, pods = self._watched.cluster.contents()
            for index, move in list(waiting.items()):
                new = [pod for pod in pods if pod.workload == move.workload and pod.metadata.uid not in taken]
                new.sort(key=lambda pod: pod.spec.node_name != move.target)
                if new:
                    taken.add(new[0].metadata.uid)
                    found[index] = msgspec.structs.replace(move, landed=new[0].spec.node_name)
                    self.outcomes["landed" if new[0].spec.node_name == move.target else "elsewhere"] += 1
                    del waiting[index]
            time.sleep(0.05)
        return found


def _until_next(every_s: int) -> float:
    """Return the seconds to the next whole multiple; never 0, or a cycle would begin twice."""
    return every_s - time.time() % every_s
