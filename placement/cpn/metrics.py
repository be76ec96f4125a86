"""What Prometheus sees of the controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from placement.cpn.records import Attempt, Job
from placement.cpn.states import STATES

if TYPE_CHECKING:
    from placement.cpn.controller import Controller

SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
ERRORS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class CpnMetrics:
    """The controller's instruments."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._jobs = Gauge("loadmaster_cpn_jobs", "Jobs that have not ended.", ("state",), registry=registry)
        self._ended = Counter("loadmaster_cpn_attempts", "Attempts that ended.", ("outcome",), registry=registry)
        self._wait = Histogram(
            "loadmaster_cpn_wait_seconds", "From submission to the decision.", buckets=SECONDS, registry=registry
        )
        self._run = Histogram(
            "loadmaster_cpn_run_seconds", "Of attempts that finished.", buckets=SECONDS, registry=registry
        )
        self._error = Histogram(
            "loadmaster_cpn_prediction_error",
            "Relative error of the end that was predicted with the decision, of attempts that finished.",
            buckets=ERRORS,
            registry=registry,
        )
        self._round = Gauge("loadmaster_cpn_round_seconds", "Time the last round of decisions took.", registry=registry)
        self._ready = Gauge(
            "loadmaster_cpn_ready", "Whether the controller has compiled its kernels and taken over.", registry=registry
        )
        self._drift = Gauge(
            "loadmaster_cpn_runtime_drift",
            "Median error of the runtime model on the last runs alone, over the one it was shipped with; NaN: too few.",
            registry=registry,
        )
        self._fallbacks = Gauge(
            "loadmaster_cpn_runtime_fallbacks", "Sets of jobs without a usable prediction.", registry=registry
        )
        self._clusters = Gauge(
            "loadmaster_cpn_cluster_silent_seconds",
            "Time since a cluster was heard of.",
            ("cluster",),
            registry=registry,
        )

    def show(self, controller: Controller) -> None:
        """Publish a controller; asked at each scrape."""
        for state in STATES[:6]:
            self._jobs.labels(state).set_function(partial(_count, controller, state))
        self._ready.set_function(lambda: float(controller.ready))
        self._round.set_function(lambda: controller.round_s)
        self._fallbacks.set_function(lambda: float(controller.tables.fallbacks))
        for name in controller.network.clusters:
            self._clusters.labels(name).set_function(partial(_silent, controller, name))

    def show_errors(self, errors: Callable[[], Mapping[str, float]]) -> None:
        """Publish how far run times are off."""
        self._drift.set_function(lambda: errors()["drift"])

    def ended(self, attempt: Attempt, job: Job) -> None:
        """Count an attempt."""
        self._ended.labels(attempt.outcome or "").inc()
        if attempt.number == 1:
            self._wait.observe(attempt.decided_at - job.submitted_at)
        if attempt.outcome == "finished" and attempt.ended_at is not None and attempt.started_at is not None:
            self._run.observe(attempt.ended_at - attempt.started_at)
            if attempt.predicted_end is not None and attempt.ended_at > attempt.decided_at:
                took = attempt.ended_at - attempt.decided_at
                self._error.observe(abs(attempt.predicted_end - attempt.ended_at) / took)


def _count(controller: Controller, state: str) -> float:
    return float(sum(job.state == state for job in list(controller.books.jobs.values())))


def _silent(controller: Controller, name: str) -> float:
    link = controller.links.get(name)
    return float("inf") if link is None else link.silent_s
