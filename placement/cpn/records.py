"""What the store holds of a job and of an attempt, as the controller works with it."""

from __future__ import annotations

from dataclasses import dataclass

from placement.cpn.states import Outcome, State

KUBE_DEFAULT = "kube_default"
"""The strategy with which the cluster's own scheduler chooses the node."""


@dataclass(slots=True)
class Job:
    """A job; its manifest stays in the store until it is sent."""

    id: str
    seq: int
    """Order of submission; also the tie-break of everything."""
    tenant: str
    key: str
    """Names the submission: the same one again is the same job."""
    name: str
    digest: str
    """Of the submission's content."""
    model: str
    data_gb: float
    epochs: float
    gpu_mem_gib: float
    mem_gib: float
    cpu_cores: float
    priority: int
    deadline_s: float | None
    """From submission."""
    origin: str
    """Data centre of its data."""
    max_attempts: int
    submitted_at: float
    state: State
    attempt: int
    """Number of the last attempt; 0: none yet."""
    failures: int
    card: str | None
    """Where it is, or where its reservation is."""
    promised_at: float | None
    """When a reserved job was promised to start."""
    queued_at: float
    """Since when it waits, or waited."""
    not_before: float
    """Back-off after a failure."""
    cancel_at: float | None
    """When its user withdrew it; it is cancelled once nothing of it is left in a cluster."""
    ended_at: float | None
    reason: str
    touched: int = 0


@dataclass(slots=True)
class Attempt:
    """One try to run a job: facts only, what is predicted follows from them."""

    job: str
    number: int
    model: str
    cluster: str
    node: str
    card: str
    strategy: str
    decided_at: float
    arrives_at: float
    """When its data are there."""
    predicted_end: float | None
    waited_for: str
    """What kept it in line, mostly."""
    tried_at: float | None = None
    """When the Job was first sent; from then on only its cluster can say whether it is there."""
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    outcome: Outcome | None = None
    detail: str = ""
    log: str = ""
    exported: int = 0

    @property
    def pinned(self) -> bool:
        """Whether its node is ours to choose; otherwise it is sent at once, and its data go where it is put."""
        return self.strategy != KUBE_DEFAULT

    @property
    def due_at(self) -> float:
        """When its Job is sent."""
        return self.arrives_at if self.pinned else self.decided_at

    @property
    def kube_name(self) -> str:
        """The name of its Kubernetes Job: the same whenever it is sent."""
        return kube_name(self.job, self.number)


def kube_name(job: str, number: int) -> str:
    """Name the Kubernetes Job of an attempt."""
    return f"lm-{job}-{number}"


def fetch_name(job: str, number: int) -> str:
    """Name the Kubernetes Job that brings an attempt's data."""
    return f"{kube_name(job, number)}-prefetch"
