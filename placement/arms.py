"""Who answers a call: the live policy, or the canary, which takes a share of the calls by the hash of their request.

The same request always meets the same arm: a pod that is filtered and then prioritised is not judged by two policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol
from zlib import crc32

if TYPE_CHECKING:
    from placement.policy import Policy
    from placement.state import State
    from wire.contracts.feature_spec import ProblemName
    from wire.contracts.place import Placement, PlacementRequest

ArmName = Literal["live", "canary"]


@dataclass(frozen=True)
class Arm:
    """What answers one call."""

    name: ArmName
    policy: Policy | None
    counter: int | None
    shadow: Policy | None = None
    """Scores the same beside it, later, and decides nothing."""

    @property
    def digest(self) -> str | None:
        """Of the policy that answers."""
        return self.policy.digest if self.policy else None

    @property
    def watched(self) -> bool:
        """Whether anybody wants to know how it does: a heuristic has nothing to go back to."""
        return self.policy is not None


class Beside(Protocol):
    """What goes on beside decisions, off their path: neither method may take longer than an append."""

    def decided(self, problem: ProblemName, arm: Arm, placements: Sequence[Placement], seconds: float) -> None:
        """A call was answered."""

    def score_later(self, policy: Policy, state: State, request: PlacementRequest, chosen: str) -> None:
        """A request was decided."""


def takes(request: str, share: float) -> bool:
    """Say whether a request is one of the canary's share."""
    return crc32(request.encode()) < share * 2.0**32
