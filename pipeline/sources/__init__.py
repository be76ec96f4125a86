"""Where raw data comes from: each source lists its chunks, and a chunk reads the rows of one or more raw tables.

A chunk is the unit of work: it is read, landed atomically and kept, so a killed ingest goes on where it stopped, and a
later night does not read it again. A source holds at most a few chunks in memory; what it may not do is repair (that
is ``clean``'s work).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa


@dataclass
class Tally:
    """What a source saw but could not land, by reason; goes into the manifest."""

    skipped: Counter[str] = field(default_factory=Counter)


Rows = Iterator[tuple[str, pa.Table]]
"""(table name, rows in that table's schema) pairs; string columns may be dictionary-encoded."""


@dataclass(frozen=True)
class Chunk:
    """One unit of work: a name that is unique and stable between runs, and how to read it."""

    key: str
    read: Callable[[Tally], Rows]
    margin: bool = False
    """Whether it is of no day asked for: its samples next to midnight are all that is wanted of it."""
    again: bool = False
    """Whether it is read though it is kept: late data may have come."""
    made_by: str = ""
    """Digest of all that decides its rows beside its key: the source's code and settings."""


class Source(ABC):
    """What ``ingest`` needs of a source."""

    workers: int = 1
    """How many chunks may be read at once; more than one only where waiting dominates (the network)."""

    about_range: tuple[str, ...] = ()
    """Settings that say which chunks there are, but not what is in one; a chunk is kept whatever they are."""

    @abstractmethod
    def settings(self) -> dict[str, object]:
        """Everything that decides what the source yields: named in the manifest."""

    @abstractmethod
    def chunks(self) -> list[Chunk]:
        """List the chunks, in time order, without reading them."""

    def prices(self) -> dict[str, float] | None:
        """Instance type → USD/hour where the source itself knows prices."""
        return None

    def check(self) -> None:  # noqa: B027  most sources have nothing to ask beforehand
        """Fail before the work starts where it can be known that it would fail later."""

    def stop(self) -> None:  # noqa: B027  most sources read files, which takes no waiting
        """Give up soon what other threads are reading; nothing is read after it."""
