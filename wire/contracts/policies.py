"""``/v1/policies``: what is live, and what a push, a rollback or a refusal answers.

Unlike requests, answers may carry fields that their reader does not know: a service of the next release can be asked
by a pipeline of this one.
"""

from __future__ import annotations

import msgspec

from wire.contracts.feature_spec import ProblemName

COUNTER_HEADER = "X-Loadmaster-Counter"
"""Header of a rollback: the counter that the flip shall have. A push has no such header: the signed record says it."""

SHARE_HEADER = "X-Loadmaster-Share"
"""Header of a canary: the share of the calls that it answers, above 0 and up to 0.5."""

RECORD_FILE, RECORD_SIGNATURE_FILE = "record.json", "record.sig"
"""In the archive of a push, beside the bundle's own files: the promotion record and its signature, as the registry has
them. They are the proof that this bundle passed the gate and that a person approved it, as this flip."""


class Tried(msgspec.Struct, frozen=True):
    """A canary."""

    digest: str
    share: float
    since: str


class Left(msgspec.Struct, frozen=True):
    """The last time that the service went back by itself."""

    digest: str
    at: str
    until: str
    """Until then no canary is taken."""
    reason: str


class LivePolicy(msgspec.Struct, frozen=True):
    """What answers for one problem."""

    digest: str | None
    """Of the policy that answers; null when the heuristic does although the store names a policy."""
    counter: int
    """Of the last flip; 0 when the store cannot say."""
    previous_digest: str | None
    loaded_at: str | None
    fallback: str
    """Heuristic that answers when the policy cannot."""
    degraded: str | None = None
    """Why what answers is not what the store says is live."""
    shadow_digest: str | None = None
    canary: Tried | None = None
    returned: Left | None = None


class Policies(msgspec.Struct, frozen=True):
    """Answer of ``GET /v1/policies``; null where nothing was ever pushed."""

    policies: dict[ProblemName, LivePolicy | None]


class Flipped(msgspec.Struct, frozen=True):
    """Answer of a push, a rollback, or switching off."""

    problem: ProblemName
    digest: str | None
    """What answers now; null for the heuristic."""
    counter: int
    loaded_at: str
    shadow_digest: str | None = None
    canary_digest: str | None = None
    """What is tried beside it now."""


class Refusal(msgspec.Struct, frozen=True):
    """Body of every refusal, of pushes and of placements."""

    error: str
    """What was found, what was expected, what to do."""
    live_digest: str | None = None
    """On 412: what is live."""
    live_counter: int | None = None
