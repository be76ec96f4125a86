"""What a cluster tells the controller, and how the end of a pod is read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from placement.cpn.manifests import ATTEMPT, FETCH, JOB, OWNER
from placement.cpn.states import Outcome
from placement.kube.objects import Pod, PodStatus, Read

OOM_EXIT = 137
IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
CONTAINER_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
NODE_REASONS = frozenset(
    {
        "NodeLost",
        "NodeShutdown",
        "Shutdown",
        "Terminated",
        "Evicted",
        "NodeAffinity",
        "UnexpectedAdmissionError",
        "Preempting",
    }
)
OUT_OF_MEMORY = ("out of memory", "outofmemory", "cuda_error_out_of_memory")
MESSAGE = 500


class Terminated(Read, frozen=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class Pausing(Read, frozen=True):
    """Why a container has not started."""

    reason: str = ""
    message: str = ""


class Started(Read, frozen=True):
    """Since when a container runs."""

    started_at: str | None = None


class ContainerState(Read, frozen=True):
    """One of the three."""

    terminated: Terminated | None = None
    waiting: Pausing | None = None
    running: Started | None = None


class ContainerStatus(Read, frozen=True):
    """What became of a container."""

    state: ContainerState = ContainerState()


class JobPodStatus(PodStatus, frozen=True):
    """What became of a pod, in detail."""

    reason: str = ""
    message: str = ""
    start_time: str | None = None
    container_statuses: list[ContainerStatus] | None = None


class JobPod(Pod, frozen=True):
    """A pod of one of our Jobs."""

    status: JobPodStatus = JobPodStatus()

    def attempt_of(self, owner: str, label: str = JOB) -> tuple[str, int] | None:
        """Return the job and the attempt it belongs to; None: it is not ours, or not of this kind."""
        labels = self.metadata.labels or {}
        number = labels.get(ATTEMPT, "")
        if labels.get(OWNER) != owner or label not in labels or not number.isdigit():
            return None
        return labels[label], int(number)


@dataclass(frozen=True)
class PodSeen:
    """A pod runs, has ended, or cannot start."""

    cluster: str
    job: str
    attempt: int
    node: str
    running: bool
    outcome: Outcome | None
    detail: str
    started_at: float | None
    """Wall clock, as the cluster says it; whole seconds."""
    ended_at: float | None


@dataclass(frozen=True)
class Sent:
    """A Job is in its cluster."""

    job: str
    attempt: int


@dataclass(frozen=True)
class Refused:
    """A cluster will not have a Job."""

    job: str
    attempt: int
    detail: str


@dataclass(frozen=True)
class Gone:
    """A Job is no longer in its cluster, or never was."""

    job: str
    attempt: int


@dataclass(frozen=True)
class Cleaned:
    """A Job that had ended was removed; the end of its log."""

    job: str
    attempt: int
    log: str


@dataclass(frozen=True)
class Fetched:
    """The data of an attempt are on its node, or cannot be brought there."""

    job: str
    attempt: int
    ok: bool
    detail: str = ""


@dataclass(frozen=True)
class Listed:
    """All pods of ours that a cluster has."""

    cluster: str
    attempts: frozenset[tuple[str, int]]


Event = PodSeen | Sent | Refused | Gone | Cleaned | Fetched | Listed


def read_pod(pod: JobPod, owner: str, cluster: str) -> PodSeen | None:
    """Read what matters of a pod; None: it is not ours, or nothing has happened yet."""
    whose = pod.attempt_of(owner)
    if whose is None:
        return None
    outcome, detail = ended_as(pod)
    running = pod.status.phase == "Running"
    if outcome is None and not running:
        return None
    states = [one.state for one in pod.status.container_statuses or ()]
    ended = [state.terminated for state in states if state.terminated]
    began = [state.running.started_at for state in states if state.running] + [one.started_at for one in ended]
    return PodSeen(
        cluster,
        *whose,
        pod.spec.node_name,
        running,
        outcome,
        detail,
        _earliest([*began, pod.status.start_time]),
        _latest([one.finished_at for one in ended]),
    )


def read_fetch(pod: JobPod, owner: str) -> Fetched | None:
    """Read the end of a pod that brings data; None: it is none of ours, or at it."""
    whose = pod.attempt_of(owner, FETCH)
    outcome, detail = ended_as(pod)
    if whose is None or outcome is None:
        return None
    return Fetched(*whose, ok=outcome == "finished", detail=detail)


def ended_as(pod: JobPod) -> tuple[Outcome | None, str]:
    """Say how a pod ended, and why; None: it has not."""
    status = pod.status
    if status.phase == "Succeeded":
        return "finished", ""
    states = [one.state for one in status.container_statuses or ()]
    if status.phase == "Failed":
        ends = [state.terminated for state in states if state.terminated and state.terminated.exit_code != 0]
        for end in ends:
            said = f"{end.reason} {end.message}".lower()
            if end.reason == "OOMKilled" or end.exit_code == OOM_EXIT or any(word in said for word in OUT_OF_MEMORY):
                return "oom", f"exit code {end.exit_code}, {end.reason or 'killed'} {end.message}".strip()[:MESSAGE]
        if status.reason in NODE_REASONS:
            return "node_lost", f"{status.reason} {status.message}".strip()[:MESSAGE]
        if ends:
            return "user_error", f"exit code {ends[0].exit_code} {ends[0].reason} {ends[0].message}".strip()[:MESSAGE]
        return "user_error", f"the pod failed: {status.reason} {status.message}".strip()[:MESSAGE]
    for state in states:
        if state.waiting and state.waiting.reason in IMAGE_REASONS:
            return "image", f"{state.waiting.reason} {state.waiting.message}".strip()[:MESSAGE]
        if state.waiting and state.waiting.reason in CONTAINER_REASONS:
            return "user_error", f"{state.waiting.reason} {state.waiting.message}".strip()[:MESSAGE]
    return None, ""


def _seconds(text: str | None) -> float | None:
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _earliest(texts: list[str | None]) -> float | None:
    return min((time for time in map(_seconds, texts) if time is not None), default=None)


def _latest(texts: list[str | None]) -> float | None:
    return max((time for time in map(_seconds, texts) if time is not None), default=None)
