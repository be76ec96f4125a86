"""The kube-scheduler extender: ``filter`` and ``prioritize`` over the watched state of one cluster.

The scheduler sends the pod and the names of the nodes that passed its own filters (``nodeCacheCapable: true``); older
and other clients send whole nodes, or keys in lower case. It sends no credentials: bind to loopback, or let mTLS decide
who may ask (docs/kubernetes.md).
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from placement import lane, service
from placement.api import bodies
from placement.api.routes import Group
from placement.errors import PlaceRefusedError
from placement.kube.cluster import Cluster
from placement.kube.objects import Pod, Read
from placement.kube.request import request_of
from placement.settings import MIB
from placement.state import State
from wire.contracts.place import PlacementRequest

group = Group("kube-scheduler extender")

BEST = 10
"""``MaxExtenderPriority``: whole numbers up to this are what the scheduler takes."""
SECOND = 8
"""Of what comes next; the gap is wider than all that the scheduler's own plugins add."""
MOST_NODES = 20_000

_Names = Annotated[list[str], msgspec.Meta(max_length=MOST_NODES)]


class _Named(Read, frozen=True):
    metadata: dict[str, Any]


class _Nodes(Read, frozen=True):
    items: Annotated[list[_Named], msgspec.Meta(max_length=MOST_NODES)] = msgspec.field(default_factory=list)


class Asked(msgspec.Struct, frozen=True):
    """``ExtenderArgs``."""

    Pod: Pod
    NodeNames: _Names | None = None
    Nodes: _Nodes | None = None


class _AskedInLowerCase(msgspec.Struct, frozen=True):
    pod: Pod
    nodenames: _Names | None = None
    nodeNames: _Names | None = None  # noqa: N815  (a key of theirs)
    nodes: _Nodes | None = None


class Filtered(msgspec.Struct, frozen=True):
    """``ExtenderFilterResult``."""

    NodeNames: list[str]
    FailedNodes: dict[str, str]
    Error: str = ""


class HostPriority(msgspec.Struct, frozen=True):
    """One node's score."""

    Host: str
    Score: int


_asked, _lower = msgspec.json.Decoder(Asked), msgspec.json.Decoder(_AskedInLowerCase)


@group.route(
    "POST",
    "/extender/filter",
    summary="Which of these nodes can take the pod",
    takes=Asked,
    gives=Filtered,
    refuses=(400, 408, 413, 422, 503),
    quick=True,
)
async def filter_nodes(request: Request) -> Response:
    """Answer with the nodes that have the room by the service's own books, answers of the last moments included.

    Which is best is asked next, by ``prioritize``; not where one node is left, or none: then this is the decision.
    """
    call = await _read(request)
    running, state, asked = _state(request, call)
    names, fits = state.names, running.decider.feasible(state, asked)
    held = call.cluster.reserved(call.pod)
    if held in names:
        fits[names.index(held)] = True  # its room is the pod's own: a placeholder has it, or had it a moment ago
    left = list(names) if fits.all() else [name for name, ok in zip(names, fits.tolist(), strict=True) if ok]
    if len(left) <= 1:
        await running.decider.decide_beside(state, [asked], 1)
        if left:
            call.cluster.assume(call.pod, left[0])
    failed: dict[str, str] = {}
    if len(left) < len(call.names):
        failed = dict.fromkeys(call.names, "not seen yet by the placement service")
        failed |= dict.fromkeys(names, "too little cpu or memory, by the placement service's books")
        for name in left:
            del failed[name]
    return _timed(call, Filtered(left, failed))


@group.route(
    "POST",
    "/extender/prioritize",
    summary="How good each of these nodes is",
    takes=Asked,
    gives=list[HostPriority],
    refuses=(400, 408, 413, 422, 503),
    quick=True,
)
async def prioritize(request: Request) -> Response:
    """Answer with 10 for the best node, less for the next ones; it counts as taken until the watch says otherwise.

    Nodes that are not named get nothing added, as Kubernetes has it: for the hundreds behind the best nine scores a
    line each would be most of the work on both sides.
    """
    call = await _read(request)
    running, state, asked = _state(request, call)
    decision, names = await running.decider.decide_beside(state, [asked], 1), state.names
    found, held = levels(decision.scores), call.cluster.reserved(call.pod)
    chosen = decision.placements[0].ranked[0].name if decision.placements[0].ranked else None
    if held in names:  # the migrator evicted the pod to have it there
        found = np.minimum(found, SECOND)
        found[names.index(held)] = BEST
        chosen = held
    if chosen is not None:
        call.cluster.assume(call.pod, chosen)
    shown = np.flatnonzero(found)
    return _timed(call, [HostPriority(names[row], int(found[row])) for row in shown.tolist()])


def levels(scores: NDArray[np.floating]) -> NDArray[np.int64]:
    """Turn scores into the scheduler's levels, of which there are eleven.

    The best, and what equals it to the last bit, has 10; the next seven different scores have 8 to 2, each its own;
    what comes behind, and what is not feasible, has 0. The gap below the best is wider than the sum of all that
    kube-scheduler's own plugins can add (1,200 by their default weights, of 2,000 at ``weight: 100``): the policy
    decides, and only exact ties are left to the scheduler.
    """
    found = np.zeros(len(scores), np.int64)
    left = np.where(np.isfinite(scores), scores, -np.inf)
    for level in (BEST, *range(SECOND, 1, -1)):
        best = left.max(initial=-np.inf)
        if best == -np.inf:
            break
        same = left == best
        found[same] = level
        left[same] = -np.inf
    return found


class _Call(msgspec.Struct, frozen=True):
    pod: Pod
    names: list[str]
    cluster: Cluster
    began: float


def _timed(call: _Call, answer: object) -> Response:
    """Answer, and say how long it took from the last byte of the question on."""
    response = bodies.answer(answer)
    response.headers["Server-Timing"] = f"extender;dur={(time.perf_counter() - call.began) * 1e3:.3f}"
    return response


async def _read(request: Request) -> _Call:
    running = service.of(request)
    settings = running.clusters_file.extender
    if settings is None:
        raise PlaceRefusedError(422, "no extender is set up", "extender in the clusters file", "see docs/kubernetes.md")
    with running.lane.call() as call:
        body = await bodies.read(request, running.settings.max_body_mib * MIB, lane.SMALL_BYTES, call.enlarge)
    began = time.perf_counter()
    try:
        asked = _read_args(body)
    except msgspec.ValidationError as error:
        raise PlaceRefusedError(422, f"body: {error}", "ExtenderArgs") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlaceRefusedError(400, f"body: {error}", "JSON in UTF-8") from error
    names = asked.NodeNames
    if names is None:
        names = [str(node.metadata.get("name", "")) for node in asked.Nodes.items] if asked.Nodes else []
    if not names or len(set(names)) != len(names):
        raise PlaceRefusedError(422, f"{len(names)} node names, {len(set(names))} of them different", "one or more")
    return _Call(asked.Pod, names, running.clusters.get(settings.cluster), began)


def _read_args(body: bytes) -> Asked:
    try:
        return _asked.decode(body)
    except msgspec.ValidationError:
        if b'"pod"' not in body:
            raise
        said = _lower.decode(body)
        return Asked(said.pod, said.nodenames or said.nodeNames, said.nodes)


def _state(request: Request, call: _Call) -> tuple[service.Service, State, PlacementRequest]:
    running = service.of(request)
    settings = running.clusters_file.extender
    assert settings is not None  # noqa: S101  (looked at when the body was read)
    state = call.cluster.state(settings.problem, call.names, offered=True)
    return running, state, request_of(call.pod, settings.problem)
