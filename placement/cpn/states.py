"""The states of a job and which may follow which; everything else is refused by the store."""

from __future__ import annotations

from typing import Literal, get_args

State = Literal[
    "waiting", "reserved", "scheduled", "transferring", "submitted", "running", "finished", "failed", "cancelled"
]
STATES: tuple[State, ...] = get_args(State)

LEGAL: dict[State, tuple[State, ...]] = {
    "waiting": ("reserved", "scheduled", "failed", "cancelled"),
    "reserved": ("waiting", "scheduled", "failed", "cancelled"),
    "scheduled": ("transferring", "submitted", "waiting", "failed", "cancelled"),
    "transferring": ("submitted", "waiting", "failed", "cancelled"),
    "submitted": ("running", "finished", "waiting", "failed", "cancelled"),
    "running": ("finished", "waiting", "failed", "cancelled"),
    "finished": (),
    "failed": (),
    "cancelled": (),
}
"""State -> those that may come next. Back to ``waiting`` is a retry, or a reservation that ended. A pod may have
finished before anybody saw it run."""

ENDED: tuple[State, ...] = ("finished", "failed", "cancelled")
IN_LINE: tuple[State, ...] = ("waiting", "reserved")
ON_A_CARD: tuple[State, ...] = ("scheduled", "transferring", "submitted", "running")

UPSTREAM: dict[str, tuple[State, ...]] = {
    "Origin": ("waiting",),
    "Reserved": ("reserved",),
    "Scheduled": ("scheduled", "transferring"),
    "Assigned": ("submitted", "running"),
    "Finished": ("finished",),
}
"""The lists of the controller that people know, as views."""

Outcome = Literal["finished", "oom", "image", "node_lost", "user_error", "vanished", "not_submitted", "cancelled"]
"""How an attempt ended. ``vanished``: somebody deleted it; ``not_submitted``: it never reached its cluster."""
RETRIED: tuple[Outcome, ...] = ("oom", "image", "node_lost", "user_error", "vanished")
"""Ends after which another attempt is made, elsewhere where possible, while there are attempts left."""
