"""The gate's report: ``data/gate/<problem>/report.json``; Airflow, the registry and the approval body read it.

Numbers that could not be bounded (too few time blocks) are null. ``better_by`` is always signed so that a positive
number is good for the challenger, whatever the metric; ``worse_by`` of a guardrail is the other way round, because a
margin limits harm.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from pipeline.contracts.evaluation import Backtest, Origin
from wire.contracts.feature_spec import ProblemName

Outcome = Literal["pass", "fail", "inconclusive", "unchanged"]
RuleOutcome = Literal["pass", "fail", "inconclusive", "skipped", "off"]
Stage = Literal["integrity", "back-test", "fidelity", "origin", "superiority", "guardrail", "slice", "tail", "power"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""In the order they are read."""


class Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An estimate with the two-sided interval of the report's confidence; null is unbounded."""

    estimate: float
    lower: float | None
    upper: float | None


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Challenger against one reference on one metric over the same traces."""

    metric: str
    reference: str
    """Name of the policy compared with, as in the episodes."""
    scenario: str | None
    """Null: all scenarios."""
    unit: Literal["relative", "absolute"]
    """``relative``: share of the reference's mean. ``absolute``: the metric's own unit."""
    challenger_mean: float
    reference_mean: float
    better_by: Bounds
    traces: int
    p: float | None = None
    """Two-sided p-value against no difference."""
    p_holm: float | None = None
    """Adjusted for the number of heuristics."""
    probability_of_improvement: Bounds | None = None


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One pre-registered rule and what became of it."""

    stage: Stage
    name: str
    outcome: RuleOutcome
    found: str
    """What was measured, with its numbers."""
    required: str
    """What would have passed, with the threshold."""
    traces_needed: int | None = None
    """For ``inconclusive``: how many paired traces would decide, if that is what is missing."""


class Guardrail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A non-inferiority test in the metric's own unit, larger being worse."""

    metric: str
    challenger_mean: float
    reference_mean: float
    worse_by: Bounds
    margin: float


class ShownSlice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The primary metric on some of the traces, or on others: shown, and warned of, but not judged."""

    by: Literal["hour", "size of request", "size of cluster"]
    name: str
    blocks: int
    """Independent time blocks: with few of them the interval says little."""
    against: list[Comparison]
    """The reference, and the best heuristic."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Performance profile: share of traces with a score above each threshold, the reference's mean size being 1."""

    thresholds: list[float]
    share_above: dict[str, list[float]]


class GateReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything the verdict rests on, thresholds and seed included."""

    problem: ProblemName
    outcome: Outcome
    reason: str
    """One line for a person."""
    digest: str
    champion_digest: str | None
    reference: str
    """What the challenger must not be worse than: ``champion``, or the heuristic that is live."""
    best_heuristic: str
    mode: Literal["superior", "refresh"]
    primary_metric: str
    higher_is_better: bool
    rules: list[Rule]
    comparisons: list[Comparison]
    """Primary metric, SLA violation rate and cost against the reference and the best heuristic; the primary metric
    against every other heuristic."""
    guardrails: list[Guardrail]
    slices: list[Comparison]
    """The primary metric against the reference, a scenario each."""
    shown_slices: list[ShownSlice]
    """By hour, by size of request and on clusters of other sizes: for a person, not for the verdict."""
    traces: int
    scenarios: int
    blocks: int
    """Independent time blocks behind the traces."""
    bound: float | None
    """Mean of what no policy could beat on these traces; null: not known."""
    bound_metric: str | None
    """The metric that the bound is stated in."""
    gap_closed: float | None
    """(challenger - best heuristic) / (bound - best heuristic) on the primary metric; null: no bound on that metric,
    or no gap."""
    profile: Profile
    warnings: list[str]
    """From the validation of the data, and from the gate itself."""
    settings: dict[str, object]
    """The gate's section of params.yaml as it was used: rules, margins, seed, number of resamples."""
    rules_off: dict[str, str] = {}
    """Rules that were switched off by name -> the reason given."""
    origins: list[Origin] = msgspec.field(default_factory=list)
    """Where the numbers behind all this come from, feature by feature; empty: the problem does not count them."""
    fidelity: Backtest | None = None
    """The simulator's word on what the cluster's own scheduler did, beside what was measured."""
    density: float = 1.0
    """How many times as dense as recorded arrivals were."""
    schema: Literal[1] = 1
