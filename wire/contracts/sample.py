"""One line of the sample of decisions: all that was known when it was made, so that another policy can be asked too.

The decision log names what was seen by its hash; once in a while (``LOADMASTER_SAMPLED_EVERY_S``) a decision is kept
whole. ``pipeline.shadow`` asks a candidate what it would have done, before a person is asked about the candidate.
"""

from __future__ import annotations

import msgspec

from wire.contracts.feature_spec import ProblemName
from wire.contracts.place import PlacementRequest

FILE_NAME = "sampled.jsonl"
"""Beside the decision log; older ones are ``sampled.jsonl.1`` and so on."""


class SampledLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A decision with the raw state that it was made from."""

    at: str
    """RFC 3339 UTC, milliseconds."""
    problem: ProblemName
    digest: str | None
    """The policy that was live; null when there was none."""
    request: PlacementRequest
    names: list[str]
    columns: dict[str, list[float | None]]
    """State field -> its value for each candidate, as this request sees it; null: nobody said it."""
    chosen: str
    fallback: str | None
    """Why the heuristic answered; null when the policy did."""
