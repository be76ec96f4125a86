"""What Prometheus sees of the service; one registry an application, so that tests can run many."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from placement.errors import FallbackReason, RefusalCode
from placement.live import Live
from wire.contracts.feature_spec import ProblemName

if TYPE_CHECKING:
    from placement.kube.clusters import Watched

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.010, 0.025, 0.050, 0.100, 0.250, 1.0)
"""Buckets around the promises: 10 ms at 500 candidates, 25 ms at 5,000."""

MOST_NOTED = 10_000
"""Calls that may wait to be counted; the decision log's thread counts them twenty times a second."""


disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, which Prometheus does not need


class OfProblem(NamedTuple):
    """Instruments of one problem, looked up once: a decision touches most of them."""

    decisions: Counter
    vetoes: Counter
    nowhere: Counter
    defaulted: Counter
    shortlisted: Counter
    seconds: Histogram
    calls: deque[tuple[int, int, float]]
    """Requests, defaulted features and seconds of each call since they were last counted."""


class Metrics:
    """The service's instruments."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"loadmaster_{name}", text, labels, registry=self.registry)

        self.decisions = counter("decisions", "Placement decisions made.", "problem")
        self.fallbacks = counter("fallback_decisions", "Decisions the heuristic made.", "problem", "reason")
        self.vetoes = counter("vetoes", "Choices of the policy that the mask overruled.", "problem")
        self.nowhere = counter("infeasible_requests", "Requests that fitted no candidate.", "problem")
        self.defaulted = counter("defaulted_features", "Missing state values that took their default.", "problem")
        self.shortlisted = counter("shortlisted_decisions", "Decisions among a shortlist of the candidates.", "problem")
        self.refused = counter("refused_pushes", "Pushes and rollbacks refused, by step.", "reason")
        self.flips = counter("flips", "Times the live policy changed.", "problem", "kind")
        self.log_lost = counter("decision_log_lost", "Decision-log lines that could not be written.")
        self.shadow = counter("shadow_decisions", "Decisions scored by a shadow too.", "problem", "outcome")
        self.shadow_seconds = Histogram(
            "loadmaster_shadow_seconds",
            "Time a shadow took for its scores.",
            ("problem",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.arms = Gauge(
            "loadmaster_tried_policy",
            "Share of the calls that a canary answers; 0 for a shadow.",
            ("problem", "as", "digest"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "loadmaster_decision_seconds",
            "Time from decoded request to ranked answer.",
            ("problem",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.policy = Gauge(
            "loadmaster_policy_counter",
            "Promotion counter of the policy that answers.",
            ("problem", "digest"),
            registry=self.registry,
        )
        self.degraded = Gauge(
            "loadmaster_policy_degraded",
            "1 when what answers is not what the store says is live.",
            ("problem",),
            registry=self.registry,
        )

        self.cluster_objects = Gauge(
            "loadmaster_cluster_objects",
            "Nodes, pods and assumed placements of a watched cluster.",
            ("cluster", "kind"),
            registry=self.registry,
        )
        self.cluster_silent = Gauge(
            "loadmaster_cluster_silent_seconds",
            "Time since a watched cluster last said that its state is up to date.",
            ("cluster",),
            registry=self.registry,
        )

        def cluster(name: str, text: str) -> Gauge:
            return Gauge(f"loadmaster_cluster_{name}", text, ("cluster",), registry=self.registry)

        self.cluster_unreadable = cluster("unreadable_objects", "Objects of a watched cluster that could not be read.")
        self.usage_silent = cluster("usage_silent_seconds", "Time since Prometheus last told all of a cluster's use.")
        self.usage_rejected = cluster("usage_rejected_samples", "Samples of use that could not be true.")
        self.usage_unknown = cluster("usage_unknown_nodes", "Nodes whose use is not known.")

        self._of: dict[ProblemName, OfProblem] = {}

    def of(self, problem: ProblemName) -> OfProblem:
        """Return the instruments of a problem."""
        found = self._of.get(problem)
        if found is None:
            made = OfProblem(
                self.decisions.labels(problem),
                self.vetoes.labels(problem),
                self.nowhere.labels(problem),
                self.defaulted.labels(problem),
                self.shortlisted.labels(problem),
                self.seconds.labels(problem),
                deque(),
            )
            found = self._of.setdefault(problem, made)
        return found

    def note(self, problem: ProblemName, requests: int, defaulted: int, seconds: float) -> None:
        """Note a call; it is counted when somebody looks, or when many wait."""
        calls = self.of(problem).calls
        calls.append((requests, defaulted, seconds))
        if len(calls) >= MOST_NOTED:
            self.settle()

    def settle(self) -> None:
        """Count the calls that were noted: an instrument in the middle of a decision costs more than an append."""
        for of in list(self._of.values()):
            for _ in range(len(of.calls)):
                try:
                    requests, defaulted, seconds = of.calls.popleft()
                except IndexError:  # another thread settles too
                    break
                of.decisions.inc(requests)
                of.seconds.observe(seconds)
                if defaulted:
                    of.defaulted.inc(defaulted)

    def show_cluster(self, name: str, watched: Watched) -> None:
        """Publish a watched cluster; asked at each scrape."""
        for place, kind in enumerate(("nodes", "pods", "assumed")):
            self.cluster_objects.labels(name, kind).set_function(partial(_nth, watched.cluster.size, place))
        self.cluster_silent.labels(name).set_function(watched.silent_s)
        self.cluster_unreadable.labels(name).set_function(watched.unreadable)
        if watched.usage is not None:
            self.usage_silent.labels(name).set_function(watched.usage_silent_s)
            self.usage_rejected.labels(name).set_function(watched.usage_rejected)
            self.usage_unknown.labels(name).set_function(watched.usage_unknown)

    def show_live(self, problem: ProblemName, live: Live) -> None:
        """Publish what answers for a problem."""
        self.policy.remove_by_labels({"problem": problem})
        if live.pointer is not None:
            self.policy.labels(problem, live.digest or "none").set(live.pointer.counter)
        self.degraded.labels(problem).set(live.degraded is not None)
        self.arms.remove_by_labels({"problem": problem})
        if live.canary is not None and live.pointer is not None and live.pointer.canary is not None:
            self.arms.labels(problem, "canary", live.canary.digest).set(live.pointer.canary.share)
        if live.shadow is not None:
            self.arms.labels(problem, "shadow", live.shadow.digest).set(0.0)

    def fallback(self, problem: ProblemName, reason: FallbackReason) -> None:
        """Count a decision of the heuristic."""
        self.fallbacks.labels(problem, reason).inc()

    def refuse(self, code: RefusalCode) -> None:
        """Count a refused push."""
        self.refused.labels(code).inc()

    def since_start(self) -> dict[str, dict[str, int]]:
        """Return decisions, and those of the heuristic, by problem."""
        self.settle()
        return {"totals": _by_problem(self.decisions), "fallbacks": _by_problem(self.fallbacks)}

    def render(self) -> bytes:
        """Write the exposition text."""
        self.settle()
        return generate_latest(self.registry)


def _nth(sizes: Callable[[], tuple[int, ...]], place: int) -> float:
    return sizes()[place]


def _by_problem(counter: Counter) -> dict[str, int]:
    counts: dict[str, int] = {}
    for sample in chain.from_iterable(metric.samples for metric in counter.collect()):
        problem = sample.labels["problem"]
        counts[problem] = counts.get(problem, 0) + int(sample.value)
    return counts
