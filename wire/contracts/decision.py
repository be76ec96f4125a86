"""One line of the decision log: the way back from a live decision to policy, run, commit and data starts here."""

from __future__ import annotations

import msgspec

from wire.contracts.feature_spec import ProblemName


class DecisionLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What was decided, by which policy, and why."""

    at: str
    """RFC 3339 UTC, milliseconds."""
    problem: ProblemName
    digest: str | None
    """The policy that was live; null when there was none."""
    counter: int | None
    request: str
    features: str
    """Hash of the observation, so that the line can be matched with a rebuilt one."""
    candidates: int
    feasible: int
    chosen: str | None
    runner_up: str | None
    top: list[tuple[str, float]]
    """The best candidates and their scores."""
    propensity: float | None
    """Probability with which the choice was made; off-policy estimates need it. Null when nothing was feasible."""
    fallback: str | None
    """Why the heuristic answered; null when the policy did."""
    reason: str
    arm: str = "live"
    """``canary`` when the canary answered."""
    latency_us: float | None = None
    """From the decoded request to this decision; null in lines of before it was noted."""
