"""What a problem is: a value that says everything the rest of the system asks of it.

``sched_env/<problem>/problem.py`` holds one as ``PROBLEM``. Features, heuristics and scenarios need numpy alone and are
there at once; environments, batch heuristics and bounds are compiled or large and are imported when first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sched_env.observation import Columns, Fields, Mask, Observation, Row, Scores
from sched_env.scenarios import Scenario
from wire.contracts.feature_spec import FeatureSpec
from wire.errors import ConfigError, legal

if TYPE_CHECKING:
    from sched_env.vector import PlacementVectorEnv

HIGHER, LOWER = 1, -1
"""Which way a metric is better."""

SHEET_METRICS: Mapping[str, int] = {
    "return": HIGHER,
    "placed": HIGHER,
    "sla_violation_rate": LOWER,
    "cost_usd": LOWER,
    "wait_s": LOWER,
}
"""Metrics of every problem that have a better side."""

Score = Callable[[str, Columns, Row, Mask], Scores]
Build = Callable[[Columns, Row], Observation]


class Prepared(Protocol):
    """What of an observation is the candidates' alone, a row a candidate."""

    def take(self, rows: NDArray[np.intp] | None = None) -> Any:
        """Return a copy, of these rows alone when they are given."""

    def put(self, rows: NDArray[np.intp], changed: Any) -> None:
        """Replace rows by others that were prepared."""


class Steps(NamedTuple):
    """``build`` in two steps, to the bit: who watches a cluster prepares anew only the rows that changed."""

    prepare: Callable[[Columns], Any]
    finish: Callable[[Any, Row], Observation]


class Earlier(NamedTuple):
    """The version of a feature spec before the present one, which the service still speaks."""

    spec: FeatureSpec
    build: Build
    scenario: Callable[[Scenario], Scenario] | None = None
    """The scenario in which its policies are played, where environments can still show what they see."""


def by_name(build: Build, now: FeatureSpec, before: FeatureSpec) -> Build:
    """Return how an earlier spec is built, if the present one has all its features: as the columns of those names."""
    places = [
        [[feature.name for feature in getattr(now, side)].index(feature.name) for feature in getattr(before, side)]
        for side in ("candidate", "request")
    ]

    def earlier(candidates: Columns, request: Row) -> Observation:
        seen = build(candidates, request)
        return Observation(seen.candidates[:, places[0]], seen.request[places[1]], seen.mask)

    return earlier


class BatchRule(Protocol):
    """A heuristic bound to a vector environment."""

    def __call__(self, scores: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
        """Choose an action for each environment's present request; fill ``scores`` [B, C] too when it is given."""


class Simulation(NamedTuple):
    """The parts of a problem that are compiled or large."""

    make: Callable[..., PlacementVectorEnv]
    """``make(scenario, num_envs, *, seed, trace, copy)``: many environments at once."""
    batch: Callable[[str, Any, int], BatchRule]
    """A rule bound to a vector environment, compiled."""
    bounds: Callable[[PlacementVectorEnv, Sequence[int]], list[float | None]]
    """What no policy can beat, in an episode from each start; None: none is known."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A placement problem."""

    name: str
    spec: FeatureSpec
    """What each number of an observation means."""
    state_fields: Fields
    request_fields: Fields
    """Raw live fields of a candidate and of a request."""
    signed: frozenset[str] = frozenset()
    """Raw fields of a request that may be below 0."""
    build: Build
    """From raw fields to the observation."""
    ruled_out: Callable[[Columns, Row], Mapping[str, int]]
    """Why candidates are infeasible, in words -> how many: how a refusal is explained."""
    gauges: Callable[[Columns], Mapping[str, NDArray[np.float64]]]
    """Resource -> share of it in use, candidate by candidate: how a state is drawn."""
    heuristics: tuple[str, ...]
    """Names of the rules; ``random_feasible`` is every problem's and comes first."""
    score: Score
    """A rule's scores of one decision, from raw fields; numpy alone, because the live service falls back on it."""
    fallback: str
    """The best rule on validation windows that a stateless call can compute (docs/results/fallbacks.md)."""
    replayed: str | None = None
    """The rule that decides where recorded placements are replayed and nothing was recorded; None: the fallback."""
    scenario: type[Scenario]
    """The settings of its environments; the files are in ``scenarios/`` beside the value."""
    primary: Callable[[Scenario], str]
    """The metric it is judged by: the same for training, gate and bound."""
    metrics: Mapping[str, int] = field(default_factory=dict)
    """Its own metrics that have a better side -> ``HIGHER`` or ``LOWER``; those of ``SHEET_METRICS`` are added."""
    guardrails: Callable[[Scenario], tuple[str, ...]] = lambda _: ()
    """Metrics that may not get worse, beside those of every problem (``pipeline.gate.config``)."""
    bound_metric: Callable[[Scenario], str | None]
    """The metric its bound is stated in, None where none is known; no gap is ever computed across metrics."""
    simulation: Callable[[], Simulation]
    """Imports the rest when it is needed, by an import statement: closures must see what belongs to a problem."""
    earlier: Earlier | None = None
    """The feature spec before this one, of which policies may be live until they are retrained (:func:`by_name`)."""
    steps: Steps | None = None
    """``build`` in two steps, where that is worth it."""
    quick: Callable[[Columns, Row], tuple[Mask, Sequence[Scores]]] | None = None
    """Which candidates are feasible, and scores that cost next to nothing: where a shortlist of very many begins. None:
    the fallback's score does it."""
    view: Callable[[Scenario], Problem | None] = lambda _: None
    """The problem as a scenario's settings let it be seen, where that is not as here: other features, other fields."""
    environments: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Gymnasium id -> (``module:class``, scenario)."""

    @property
    def spoken(self) -> tuple[FeatureSpec, ...]:
        """The feature specs that can be filled in, the present one first."""
        return (self.spec, self.earlier.spec) if self.earlier else (self.spec,)

    def builder(self, version: int) -> Build:
        """Return what builds the observations of a version that is spoken."""
        return self.earlier.build if self.earlier and version == self.earlier.spec.version else self.build

    def seen(self, scenario: Scenario) -> Problem:
        """Return the problem as it is seen in a scenario."""
        return self.view(scenario) or self

    def played(self, scenario: Scenario) -> dict[int, tuple[FeatureSpec, Scenario]]:
        """Return the versions of policies that can be played, with their specs and the scenarios that show them."""
        now, before = self.seen(scenario).spec, self.earlier
        found = {before.spec.version: (before.spec, before.scenario(scenario))} if before and before.scenario else {}
        return found | {now.version: (now, scenario)}

    def better(self, metric: str) -> int:
        """Say which way a metric is better."""
        known = {**SHEET_METRICS, **self.metrics}
        if metric not in known:
            raise ConfigError(f"{self.name} has no metric {metric!r} with a better side", legal(known))
        return known[metric]

    def rule(self, name: str) -> str:
        """Return the name if the problem has such a heuristic; otherwise raise an error that lists those it has."""
        if name not in self.heuristics:
            raise ConfigError(f"{self.name} has no heuristic {name!r}", legal(self.heuristics))
        return name
