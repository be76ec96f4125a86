"""Decisions kept whole, a few an hour: what live traffic asks, for policies that are not trusted with an answer yet.

A candidate is shadowed in the pipeline, on these lines, before a person is asked about it: the service loads nothing
that nobody has approved (docs/decisions/0055). Taking one is a comparison of two numbers for nearly every decision.
"""

from __future__ import annotations

import logging
from collections import deque
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from placement.appending import AppendedFile
from placement.errors import FallbackReason
from placement.settings import Settings
from placement.state import State
from wire.contracts.place import PlacementRequest
from wire.contracts.sample import FILE_NAME, SampledLine

log = logging.getLogger(__name__)

FILE_MIB, FILES = 16, 8
"""Size of a file and how many older ones are kept: 144 MiB at most, a day of 100 candidates in the usual case."""
MOST_CANDIDATES = 5_000
"""Larger calls are not kept: one would be a megabyte."""
WAITING = 64


class _Taken(NamedTuple):
    at_s: float
    state: State
    columns: dict[str, NDArray[np.float64]]
    digest: str | None
    request: PlacementRequest
    chosen: str
    fallback: FallbackReason | None

    def line(self) -> SampledLine:
        return SampledLine(
            at=datetime.fromtimestamp(self.at_s, UTC).isoformat(timespec="milliseconds"),
            problem=self.state.problem,
            digest=self.digest,
            request=self.request,
            names=list(self.state.names),
            columns={name: column.tolist() for name, column in self.columns.items()},
            chosen=self.chosen,
            fallback=self.fallback,
        )


class Sampled:
    """Takes the first decision of each problem after every so many seconds."""

    def __init__(self, settings: Settings) -> None:
        self._every_s = settings.sampled_every_s if settings.decision_log else 0.0
        self._file = AppendedFile(settings.log_dir / FILE_NAME, FILE_MIB, FILES)
        self._next: dict[str, float] = {}
        self._waiting: deque[_Taken] = deque(maxlen=WAITING)
        self._encoder = msgspec.json.Encoder()  # NaN becomes null

    def offer(
        self,
        at_s: float,
        state: State,
        request: PlacementRequest,
        digest: str | None,
        chosen: str,
        fallback: FallbackReason | None,
    ) -> None:
        """Take a decision if it is time; its state is copied, for a watched cluster goes on changing."""
        if not self._every_s or at_s < self._next.get(state.problem, 0.0) or len(state.names) > MOST_CANDIDATES:
            return
        self._next[state.problem] = at_s + self._every_s
        columns = {name: column.copy() for name, column in state.columns_for(request).items()}
        self._waiting.append(_Taken(at_s, state, columns, digest, request, chosen, fallback))

    def write(self) -> None:
        """Write what waits; called by the thread of the decision log. What a disk does not take is gone, and said."""
        while self._waiting:
            one = self._waiting.popleft()
            try:
                self._file.append(self._encoder.encode(one.line()) + b"\n")
            except OSError as error:
                log.warning("a sampled decision of %s is not kept: %s", one.state.problem, error)

    def close(self) -> None:
        """Let the file go."""
        self._file.close()
