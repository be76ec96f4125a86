"""``/v1/clusters``: what is watched, and a cluster as a file."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from placement import service
from placement.api import bodies
from placement.api.routes import Group
from placement.errors import PlaceRefusedError
from placement.kube import snapshot
from wire.contracts.snapshot import Snapshot
from wire.errors import legal

group = Group("clusters")


class Clusters(msgspec.Struct, frozen=True):
    """Answer of ``GET /v1/clusters``."""

    clusters: list[str]


@group.route("GET", "/v1/clusters", summary="The watched clusters", gives=Clusters)
async def clusters(request: Request) -> Response:
    """Return the names of the clusters that are watched."""
    return bodies.answer(Clusters(service.of(request).clusters.names()))


@group.route(
    "GET",
    "/v1/clusters/{name}/snapshot",
    summary="A watched cluster as a file that loadmaster rollout replays",
    gives=Snapshot,
    refuses=(404, 503),
)
async def take(request: Request) -> Response:
    """Return nodes, pods and their use in the last window; ``loadmaster rollout --trace FILE`` starts from it."""
    running, name = service.of(request), request.path_params["name"]
    if name not in running.clusters.names():
        raise PlaceRefusedError(404, f"cluster {name!r} is not watched", legal(running.clusters.names()) or "none is")
    cluster, usage = running.clusters.get(name), running.clusters.usage(name)
    asked = running.clusters_file.migrator
    settings = asked if asked is not None and asked.cluster == name else None
    # Tens of thousands of pods take a moment: beside the event loop.
    taken = await asyncio.to_thread(lambda: msgspec.json.encode(snapshot.take(cluster, usage, settings)))
    return Response(taken, media_type=bodies.JSON)
