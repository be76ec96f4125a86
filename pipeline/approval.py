"""Reads what a person answered in Airflow; anything but a named person's Approve is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pipeline.errors import RegistryError

APPROVE = "Approve"


class Answer(NamedTuple):
    """Who decided, and in which words; ``person`` is None after a time-out."""

    approved: bool
    person: str | None
    comment: str


def read(response: Mapping[str, Any] | None) -> Answer:
    """Read the XCom of Airflow's ApprovalOperator (``chosen_options``, ``params_input``, ``responded_by_user``)."""
    if response is None:
        return Answer(approved=False, person=None, comment="no approval was asked for")
    user = response.get("responded_by_user") or {}
    person = str(user.get("name") or user.get("id") or "").strip() or None
    comment = (response.get("params_input") or {}).get("comment") or ""
    approved = list(response.get("chosen_options") or []) == [APPROVE]
    if person is None and not comment:
        comment = "nobody answered in time"
    return Answer(approved=approved, person=person, comment=str(comment))


def require_approved(response: Mapping[str, Any] | None) -> Answer:
    """Return the answer if a named person approved; raise otherwise. A time-out never promotes."""
    answer = read(response)
    if not answer.approved or answer.person is None:
        chosen = (response or {}).get("chosen_options")
        raise RegistryError(
            f"promotion refused: the answer was {chosen!r} by {answer.person or 'nobody'}",
            f"{[APPROVE]!r} by a named person",
            "answer the approve task in Airflow (Browse > Required Actions) and clear promote",
        )
    return answer
