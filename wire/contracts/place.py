"""``POST /v1/place``: raw state in, ranked candidates out."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from wire.contracts.feature_spec import ProblemName

MOST_CANDIDATES = 20_000

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A place the request may go, described by state fields (``sched_env.observation``), in the units of the spec."""

    # gc=False: it can be in no cycle, and thousands come with a call; the collector's looks took a quarter of its time.

    name: Name
    state: dict[str, float]


class PlacementRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing to place."""

    id: Name
    fields: dict[str, float]
    function: str | None = None
    """For ``functions``: looked up in each candidate's ``warm:<function>`` state."""


class PlaceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /v1/place``: candidates are carried, or a watched cluster is named; exactly one of both."""

    problem: ProblemName
    requests: Annotated[list[PlacementRequest], msgspec.Meta(min_length=1, max_length=1024)]
    candidates: Annotated[list[Candidate], msgspec.Meta(min_length=1, max_length=MOST_CANDIDATES)] | None = None
    cluster: Name | None = None
    top_k: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5
    explain: bool = False
    """Say of winner and runner-up what the policy saw, and what would have to change for the other to win."""


class Ranked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A feasible candidate and its score, best first."""

    name: str
    score: float


class Explained(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate as the policy saw it."""

    name: str
    score: float
    features: dict[str, float]
    """Name -> value, in the units of the feature spec."""


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One feature of the runner-up that, changed alone, would make it the best."""

    feature: str
    unit: str
    now: float
    instead: float
    """On the way to the winner's value, which it need not reach."""


class Explanation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why the winner, and not the next."""

    winner: Explained
    runner_up: Explained
    runner_up_wins_if: list[Change]
    """The smallest change first; empty when no single one is enough, or when the heuristic answered."""


class Placement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer for one request."""

    id: str
    ranked: list[Ranked]
    """Empty when no candidate is feasible; then ``reason`` says what ruled them out."""
    feasible: int
    reason: str
    fallback: bool
    """True when the fallback heuristic answered (deadline, NaN, no policy loaded)."""
    explanation: Explanation | None = None
    """When it was asked for, and two candidates or more were feasible."""


class PlaceResponse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answer of ``POST /v1/place``."""

    problem: ProblemName
    digest: str | None
    """The policy that answered; null when none is loaded."""
    placements: list[Placement]
    defaulted_features: int
    """How many feature values were missing in the state and took the spec's default."""
    decision_us: float
    schema: Literal[1] = 1
