"""``/v1/jobs``: GPU jobs for the computing power network, as Kubernetes Jobs with annotations."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from placement.api import bodies
from placement.api.routes import Group
from placement.cpn.records import Attempt, Job
from placement.cpn.states import State
from placement.errors import PlaceRefusedError
from wire.errors import legal

if TYPE_CHECKING:
    from placement.cpn.service import Cpn

group = Group("jobs")

MANIFEST_BYTES = 256 * 1024
MOST_LISTED = 1000
TENANT, KEY = "X-Tenant", "Idempotency-Key"


class AttemptShown(msgspec.Struct, frozen=True, kw_only=True):
    """One try to run a job."""

    number: int
    cluster: str
    node: str
    card: str
    strategy: str
    decided_at: float
    submitted_at: float | None
    started_at: float | None
    ended_at: float | None
    predicted_end: float | None
    outcome: str | None
    detail: str
    waited_for: str


class JobShown(msgspec.Struct, frozen=True, kw_only=True):
    """A job; times are seconds since 1970."""

    id: str
    tenant: str
    name: str
    model: str
    state: State
    priority: int
    submitted_at: float
    ended_at: float | None
    deadline_at: float | None
    attempt: int
    failures: int
    max_attempts: int
    card: str | None
    promised_start: float | None
    """When a reserved job was promised to start."""
    predicted_end: float | None
    reason: str
    """What ended it, or its last attempt."""
    cancelling: bool
    seq: int
    """For ``before`` of the next page."""
    attempts: list[AttemptShown] = []


class Submitted(msgspec.Struct, frozen=True):
    """Answer to a submission."""

    job: JobShown
    new: bool
    """False: the same submission was there already, and this is its job."""


class JobsShown(msgspec.Struct, frozen=True):
    """A page of jobs, newest first, and how many there are in each state."""

    jobs: list[JobShown]
    counts: dict[str, int]


class NetworkShown(msgspec.Struct, frozen=True):
    """The network as the controller sees it."""

    digest: str
    clusters: dict[str, dict[str, Any]]
    cards: dict[str, list[str]]
    """Card -> jobs on it."""
    reservations: dict[str, str]
    """Job -> card."""
    topology_error: str
    strategy: str


def cpn_of(request: Request) -> Cpn:
    """Return the controller, or 404 where the service runs without one."""
    found: Cpn | None = getattr(request.app.state, "cpn", None)
    if found is None:
        raise PlaceRefusedError(
            404, "this service runs no job controller", "LOADMASTER_CPN_FILE to name its settings", "see docs/cpn.md"
        )
    return found


@group.route(
    "POST",
    "/v1/jobs",
    summary="Submit a job",
    takes="application/yaml",
    gives=Submitted,
    refuses=(400, 404, 409, 413, 422, 429),
    headers={
        TENANT: ("whose quota it counts against", False),
        KEY: ("names the submission instead of its name", False),
    },
)
async def submit(request: Request) -> Response:
    """Take a Kubernetes Job (YAML or JSON) with the annotations model_name, data_size and epoch into the queue.

    The same submission again returns the job that it made: a client may repeat a call that broke off.
    """
    cpn = cpn_of(request)
    body = await bodies.read(request, MANIFEST_BYTES, MANIFEST_BYTES, lambda: None)
    tenant, key = request.headers.get(TENANT), request.headers.get(KEY)
    job, new = await asyncio.to_thread(cpn.submit, body, tenant=tenant, key=key)
    return bodies.answer(Submitted(shown(cpn, job), new))


@group.route("GET", "/v1/jobs", summary="List jobs", gives=JobsShown, refuses=(404, 422))
async def listed(request: Request) -> Response:
    """List jobs, newest first; ``?tenant=``, ``?state=`` (several with commas), ``?before=SEQ``, ``?limit=``."""
    cpn = cpn_of(request)
    asked = request.query_params
    states = [one for one in asked.get("state", "").split(",") if one]
    unknown = [one for one in states if one not in get_args(State)]
    if unknown:
        raise PlaceRefusedError(422, f"state is {unknown[0][:40]!r}", legal(get_args(State)))
    numbers = {}
    for name, default in (("limit", 100), ("before", 0)):
        text = asked.get(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise PlaceRefusedError(422, f"{name} is {text[:40]!r}", "a whole number")
        numbers[name] = int(text)
    jobs = await asyncio.to_thread(
        lambda: cpn.store.jobs(
            tenant=asked.get("tenant"),
            states=states or None,  # type: ignore[arg-type]
            before=numbers["before"] or None,
            most=min(max(numbers["limit"], 1), MOST_LISTED),
        )
    )
    counts = await asyncio.to_thread(cpn.store.counts)
    return bodies.answer(JobsShown([shown(cpn, job) for job in jobs], counts))


@group.route("GET", "/v1/jobs/{job}", summary="One job with its attempts", gives=JobShown, refuses=(404,))
async def one(request: Request) -> Response:
    """Return a job, with every attempt to run it."""
    cpn = cpn_of(request)
    job = await asyncio.to_thread(_found, cpn, request.path_params["job"])
    attempts = await asyncio.to_thread(cpn.store.attempts, [job.id])
    return bodies.answer(shown(cpn, job, attempts))


@group.route("DELETE", "/v1/jobs/{job}", summary="Cancel a job", gives=JobShown, refuses=(404,))
async def cancel(request: Request) -> Response:
    """Withdraw a job, wherever it is; a job that has ended stays as it ended."""
    cpn = cpn_of(request)
    return bodies.answer(shown(cpn, await asyncio.to_thread(cpn.cancel, request.path_params["job"])))


@group.route("GET", "/v1/jobs/{job}/logs", summary="The end of a job's log", gives="text/plain", refuses=(404,))
async def logs(request: Request) -> Response:
    """Return the end of the log of each attempt that has ended."""
    cpn = cpn_of(request)
    job = await asyncio.to_thread(_found, cpn, request.path_params["job"])
    attempts = await asyncio.to_thread(cpn.store.attempts, [job.id])
    text = "".join(f"--- attempt {one.number} on {one.card}\n{one.log}\n" for one in attempts if one.log)
    return Response(text, media_type="text/plain; charset=utf-8")


@group.route("GET", "/v1/network", summary="Clusters, cards and reservations", gives=NetworkShown, refuses=(404,))
async def network(request: Request) -> Response:
    """Return the clusters with what their Prometheus and API said, which jobs are on which card, and reservations."""
    cpn = cpn_of(request)
    controller = cpn.controller
    cards: dict[str, list[str]] = {name: [] for name in controller.network.cards}
    for attempt in list(controller.books.attempts.values()):
        cards.setdefault(attempt.card, []).append(attempt.job)
    up, probes = controller.up(), cpn.collection.shown()
    clusters: dict[str, dict[str, Any]] = {}
    for name, spec in controller.network.clusters.items():
        link = controller.links.get(name)
        clusters[name] = {
            "nodes": {node.name: up[f"{name}/{node.name}"] for node in spec.nodes},
            "silent_s": None if link is None or link.silent_s == float("inf") else round(link.silent_s, 1),
            "failed_calls": 0 if link is None else link.failures,
            "refused": {} if link is None else link.wrong,
            "prometheus": probes.get(name),
        }
    held = {job.id: job.card or "" for job in list(controller.books.jobs.values()) if job.state == "reserved"}
    shown_network = NetworkShown(
        controller.network.digest, clusters, cards, held, controller.topology_error, cpn.settings.strategy
    )
    return bodies.answer(shown_network)


def _found(cpn: Cpn, job: str) -> Job:
    found = cpn.store.job(job)
    if found is None:
        raise PlaceRefusedError(404, f"there is no job {job[:40]!r}", "an id that POST /v1/jobs returned")
    return found


def shown(cpn: Cpn, job: Job, attempts: list[Attempt] | None = None) -> JobShown:
    """Turn a job into what users see."""
    return JobShown(
        id=job.id,
        tenant=job.tenant,
        name=job.name,
        model=job.model,
        state=job.state,
        priority=job.priority,
        submitted_at=job.submitted_at,
        ended_at=job.ended_at,
        deadline_at=None if job.deadline_s is None else job.submitted_at + job.deadline_s,
        attempt=job.attempt,
        failures=job.failures,
        max_attempts=job.max_attempts,
        card=job.card,
        promised_start=job.promised_at,
        predicted_end=cpn.controller.round.ends.get(job.id),
        reason=job.reason,
        cancelling=job.cancel_at is not None and job.ended_at is None,
        seq=job.seq,
        attempts=[
            AttemptShown(**{name: getattr(one, name) for name in AttemptShown.__struct_fields__})
            for one in attempts or []
        ],
    )
