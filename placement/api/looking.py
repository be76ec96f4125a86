"""What the page shows beside what is live: the last hour, flips there were, nodes, jobs by card. Nothing changes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from placement import over_time, service
from placement.api import bodies
from placement.api.jobs import AttemptShown, cpn_of
from placement.api.routes import Group
from placement.errors import PlaceRefusedError
from placement.settings import freezes
from wire.errors import legal

group = Group("looking")

FLIPS, POINTERS, JOBS = 20, 60, 300
"""Flips of a problem, pointers that are looked at for them, and jobs of the network that are shown."""


class Flip(msgspec.Struct, frozen=True):
    """One change of what is live."""

    digest: str | None
    """Null: left to the heuristic."""
    counter: int
    loaded_at: str


class Flips(msgspec.Struct, frozen=True):
    """Answer of ``GET /v1/policies/{problem}/flips``: what was live when, newest first."""

    flips: list[Flip]


class Overview(msgspec.Struct, frozen=True):
    """Answer of ``GET /v1/overview``."""

    every_s: float
    timeline: dict[str, list[over_time.Moment]]
    """Problem -> the last hour."""
    clusters: list[str]
    """That are watched."""
    jobs: bool
    """Whether this service runs a job controller."""
    frozen_until: str | None
    """End of a freeze in which nothing is pushed."""


class NodesShown(msgspec.Struct, frozen=True):
    """Load of a watched cluster, one entry a node in every list; what is deployed are the requests of its pods."""

    names: list[str]
    cpu_capacity: list[float]
    cpu_deployed: list[float]
    mem_capacity: list[float]
    mem_deployed: list[float]
    pods: list[float]
    open: list[bool]
    silent_s: float | None
    """Since when the cluster has not been heard of; null: never."""


class AttemptOfJob(msgspec.Struct, frozen=True):
    """An attempt with the job it is of."""

    job: str
    name: str
    model: str
    tenant: str
    attempt: AttemptShown


class Gantt(msgspec.Struct, frozen=True):
    """Answer of ``GET /v1/network/attempts``."""

    now: float
    """The controller's clock, seconds since 1970."""
    cards: list[str]
    attempts: list[AttemptOfJob]
    """Of the newest jobs, oldest first."""


@group.route(
    "GET",
    "/v1/policies/{problem}/flips",
    summary="What was live before",
    gives=Flips,
    refuses=(404, 500),
)
async def flips(request: Request) -> Response:
    """Return the last flips of a problem: which policy, with which counter, since when."""
    problem = bodies.known_problem(request)
    found = await asyncio.to_thread(service.of(request).store.history, problem, POINTERS)
    # A canary or a shadow that comes or goes writes a pointer too, with the same counter: no flip.
    flipped = {one.counter: Flip(one.digest, one.counter, one.loaded_at) for one in found}
    return bodies.answer(Flips(list(flipped.values())[:FLIPS]))


@group.route("GET", "/v1/overview", summary="The last hour, and what there is to look at", gives=Overview)
async def overview(request: Request) -> Response:
    """Return decisions, fallbacks and latency of the last hour by problem, as far as this process has seen it."""
    seen: over_time.OverTime = request.app.state.over_time
    running = service.of(request)
    now = datetime.now(UTC)
    frozen = [end for start, end in freezes(running.settings.freeze) if start <= now < end]
    return bodies.answer(
        Overview(
            every_s=over_time.EVERY_S,
            timeline=seen.moments(),
            clusters=running.clusters.names(),
            jobs=request.app.state.cpn is not None,
            frozen_until=max(frozen).isoformat() if frozen else None,
        )
    )


@group.route("GET", "/v1/clusters/{name}/nodes", summary="Load by node", gives=NodesShown, refuses=(404, 503))
async def nodes(request: Request) -> Response:
    """Return what the pods of each node asked for, and what the node has, as decisions see it now."""
    running, name = service.of(request), request.path_params["name"]
    if name not in running.clusters.names():
        raise PlaceRefusedError(404, f"cluster {name!r} is not watched", legal(running.clusters.names()) or "none is")
    names, columns = running.clusters.get(name).load()
    silent = running.clusters.silent_s(name)
    lists = {column: values.tolist() for column, values in columns.items()}
    return bodies.answer(NodesShown(names, **lists, silent_s=None if silent == float("inf") else round(silent, 1)))


@group.route("GET", "/v1/network/attempts", summary="Jobs by card, over time", gives=Gantt, refuses=(404,))
async def attempts(request: Request) -> Response:
    """Return the attempts of the newest jobs: on which card, from when to when, and when they were predicted to end."""
    cpn = cpn_of(request)

    def read() -> Gantt:
        jobs = {job.id: job for job in cpn.store.jobs(most=JOBS)}
        shown = [
            AttemptOfJob(
                job=one.job,
                name=jobs[one.job].name,
                model=one.model,
                tenant=jobs[one.job].tenant,
                attempt=AttemptShown(**{name: getattr(one, name) for name in AttemptShown.__struct_fields__}),
            )
            for one in cpn.store.attempts(jobs)
        ]
        return Gantt(cpn.clock(), sorted(cpn.controller.network.cards), shown)

    return bodies.answer(await asyncio.to_thread(read))
