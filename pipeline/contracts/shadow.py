"""What the candidate would have done with the calls that live traffic made: ``data/shadow/<problem>/shadow.json``."""

from __future__ import annotations

import msgspec

from wire.contracts.feature_spec import ProblemName


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field of the raw state, mean over the calls in which the candidate chose otherwise."""

    name: str
    live: float
    """Of what was chosen."""
    candidate: float
    """Of what the candidate would have chosen."""


class Differs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call in which it would have chosen otherwise."""

    at: str
    request: str
    live: str
    candidate: str
    rank: int
    """Of what was chosen, in the candidate's order; 1 is its best."""
    score_live: float
    """The candidate's score of what was chosen."""
    score: float
    """And of its own choice."""


class Shadowed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All calls of the last windows that were kept, as the candidate would have answered them."""

    problem: ProblemName
    digest: str
    """Of the candidate."""
    windows: int
    calls: int
    """Compared; 0: there was no live traffic, or none that was kept where the pipeline can read it."""
    recorded: int
    """Calls of these windows that were kept; of very many some are compared, spread evenly."""
    skipped: int
    """Calls that could not be compared: nothing feasible, or state of another release."""
    first: str | None
    last: str | None
    agreed: int
    close: int
    """What was chosen is among the candidate's three best."""
    ahead: float | None
    """Where it chose otherwise: by how many standard deviations of its scores in that call its own choice is ahead of
    what was chosen, the median; null where it always agreed."""
    answered_by: dict[str, int]
    """Digest, or ``heuristic`` -> calls."""
    fields: list[Field]
    examples: list[Differs]
