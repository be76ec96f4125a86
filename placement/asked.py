"""What a call of ``/v1/place`` asks, from the bytes of its body; everything that bounds the work is checked before it.

Small bodies are read on the event loop, large ones in a process of their own (``placement/lane.py``): decoding holds
the interpreter, wherever it runs, so that a thread would make everybody wait as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec.structs import astuple

from placement.errors import PlaceRefusedError
from placement.settings import MIB, Settings
from placement.state import State, from_candidates, from_rows
from sched_env import problems
from wire.contracts.feature_spec import ProblemName
from wire.contracts.place import MOST_CANDIDATES, Name, PlaceRequest

ENTRY_BYTES, PLACEMENT_BYTES = 48, 1024
"""JSON around a ranked name (the score has up to 20 digits), and around a placement (id, reason)."""
LONGEST_NODE_NAME = 253
"""Of a watched node, as Kubernetes allows it."""
MOST_EXPLAINED = 20_000
"""Requests x candidates that are explained in one call: each is scored some two hundred times."""
ESCAPED = 6
"""Bytes that one character of a name can become in JSON."""

NOT_READ = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What hostile bytes make the decoder raise."""

_name, _state = attrgetter("name"), attrgetter("state")
_decoder = msgspec.json.Decoder(PlaceRequest)
_latest: ProblemName = "functions"
"""Of the call before: most callers ask about one problem, and its own decoder reads candidates in half the time."""


@dataclass(frozen=True)
class Asked:
    """A call that may be answered."""

    call: PlaceRequest
    state: State | None
    """Of the candidates in the body; None when it names a cluster."""


def read(body: bytes, settings: Settings) -> Asked:
    """Decode a body and turn its candidates into columns; raises :class:`PlaceRefusedError`."""
    global _latest  # noqa: PLW0603  (a guess: whatever it is, the answer is the same)
    try:
        if _latest in problems.names():
            return _read_whole(_whole(_latest).decode(body), settings)
    except NOT_READ:  # another problem, a field that it does not have, or no JSON: the other way says what
        pass
    call = decode(body)
    _latest = call.problem if call.problem in problems.names() else _latest
    if call.candidates is None:
        return Asked(call, None)
    check_work(call, len(call.candidates), settings)
    functions = {entry.function for entry in call.requests if entry.function is not None}
    state = from_candidates(call.problem, call.candidates, functions)
    # Thousands of candidates need not travel back from the process that read them.
    return Asked(msgspec.structs.replace(call, candidates=None), state)


@cache
def _whole(problem: ProblemName) -> msgspec.json.Decoder[Any]:
    """Return the decoder of calls whose candidates say nothing but the fields of one problem, each at a fixed place."""
    fields = [(name, float, math.nan) for name in problems.get(problem).state_fields]
    closed: dict[str, Any] = {"frozen": True, "forbid_unknown_fields": True, "gc": False}
    state = msgspec.defstruct("State", fields, **closed)
    candidate = msgspec.defstruct("Candidate", [("name", Name), ("state", state)], **closed)
    candidates = Annotated[list[candidate], msgspec.Meta(min_length=1, max_length=MOST_CANDIDATES)] | None  # type: ignore[valid-type]
    own: list[Any] = [("problem", Literal[problem]), ("candidates", candidates, None)]
    call = msgspec.defstruct("Call", own, bases=(PlaceRequest,), frozen=True, forbid_unknown_fields=True, kw_only=True)
    return msgspec.json.Decoder(call)


def _read_whole(call: PlaceRequest, settings: Settings) -> Asked:
    _check_either(call)
    plain = PlaceRequest(call.problem, call.requests, None, call.cluster, call.top_k, call.explain)
    if call.candidates is None:
        return Asked(plain, None)
    check_work(call, len(call.candidates), settings)
    names, states = list(map(_name, call.candidates)), list(map(_state, call.candidates))
    width = len(problems.get(call.problem).state_fields)
    values = np.fromiter(chain.from_iterable(map(astuple, states)), np.float64, count=len(states) * width)
    return Asked(plain, from_rows(call.problem, names, values.reshape(len(states), width)))


def decode(body: bytes) -> PlaceRequest:
    """Decode a body; 400 when it is not JSON, 422 when it is not a placement request."""
    try:
        call = _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise PlaceRefusedError(422, f"body: {error}", "a PlaceRequest (see /docs)") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlaceRefusedError(400, f"body: {error}", "JSON in UTF-8") from error
    _check_either(call)
    return call


def _check_either(call: PlaceRequest) -> None:
    if (call.candidates is None) == (call.cluster is None):
        found = "neither candidates nor cluster" if call.candidates is None else "both candidates and cluster"
        raise PlaceRefusedError(422, f"body has {found}", "exactly one of both")


def check_work(call: PlaceRequest, candidates: int, settings: Settings) -> None:
    """Refuse a call whose work or answer would be too large, by its numbers alone."""
    requests = len(call.requests)
    if call.explain and requests * candidates > MOST_EXPLAINED:
        found = f"{requests} requests x {candidates} candidates to explain"
        raise PlaceRefusedError(413, found, f"at most {MOST_EXPLAINED} pairs", "ask for fewer at a time")
    if candidates * requests > settings.max_pairs:
        found = f"{requests} requests x {candidates} candidates"
        raise PlaceRefusedError(413, found, f"at most {settings.max_pairs} pairs", "split the call")
    size = _answer_bytes(call, candidates, LONGEST_NODE_NAME)
    if size > settings.max_answer_mib * MIB:  # only then are the names looked at, which takes longer than the rest
        longest = max((len(candidate.name) for candidate in call.candidates or ()), default=LONGEST_NODE_NAME)
        size = _answer_bytes(call, candidates, longest)
    if size > settings.max_answer_mib * MIB:
        raise PlaceRefusedError(
            413,
            f"{requests} requests with the best {call.top_k} of {candidates} can be {size} bytes of answer",
            f"at most {settings.max_answer_mib} MiB",
            "lower top_k, or split the call",
        )


def _answer_bytes(call: PlaceRequest, candidates: int, longest: int) -> int:
    ranked = min(call.top_k, candidates) * (ESCAPED * longest + ENTRY_BYTES)
    return len(call.requests) * (ranked + PLACEMENT_BYTES)
