"""Large calls go one after another in a lane of their own, so that small ones never wait behind them.

A small call is read and decided at once. A large one (by its bytes, its values or its requests x candidates) needs a
place among the few that may be under way; its body is read in a process of its own, and only one at a time is decided.
Nobody needs to prove who they are for either, so neither may cost others more than some milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractAsyncContextManager
from multiprocessing import get_context
from typing import Self

from placement import asked
from placement.asked import Asked
from placement.errors import PlaceRefusedError
from placement.settings import MIB, Settings

SMALL_BYTES, SMALL_VALUES = 2 * MIB, 120_000
"""Of a body that is decoded on the event loop: 5,000 candidates with every field. The worst such takes 25 ms."""
SMALL_PAIRS = 50_000
"""Requests x candidates that are decided at once."""

READER_MEMORY = 2048 * MIB
"""Address space of the reading process; the largest legal body needs a fifth of it."""
READER_TIMEOUT_S = 30.0
"""For the largest legal body, which takes a second, on a machine with more to do than cores."""

AT_ONCE: AbstractAsyncContextManager[None] = contextlib.nullcontext()


class Call:
    """One call on its way; it becomes large when somebody finds that it is."""

    def __init__(self, lane: Lane) -> None:
        self._lane, self.large = lane, False

    def __enter__(self) -> Self:
        """Accompany it from its first byte to its answer."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give its place back."""
        if self.large:
            self._lane.leave()

    def enlarge(self) -> None:
        """Take one of the places for large calls; 503 when there is none."""
        if not self.large:
            self._lane.enter()
            self.large = True


class Lane:
    """The places for large calls, their turn, and the process that reads their bodies."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._under_way = 0
        self._turn = asyncio.Lock()
        self._reader: ProcessPoolExecutor | None = None

    def enter(self) -> None:
        """Count a large call in, or refuse it."""
        if self._under_way >= self._settings.large_calls:
            found = f"{self._under_way} large calls are under way"
            raise PlaceRefusedError(503, found, f"at most {self._settings.large_calls}", "try again in a second")
        self._under_way += 1

    def leave(self) -> None:
        """Count a large call out."""
        self._under_way -= 1

    def call(self) -> Call:
        """Return a call, to be accompanied."""
        return Call(self)

    async def read(self, body: bytes, call: Call) -> Asked:
        """Read a body, on the event loop or beside it."""
        # No more values than bytes: counting them takes a third of the time of reading a small body.
        values = body.count(b":") if len(body) > SMALL_VALUES else 0
        if values > self._settings.max_values:
            raise PlaceRefusedError(
                413, f"the body has {values} values or more", f"at most {self._settings.max_values}"
            )
        if len(body) <= SMALL_BYTES and values <= SMALL_VALUES:
            return asked.read(body, self._settings)
        call.enlarge()
        try:
            if self._reader is None:
                self._reader = ProcessPoolExecutor(1, get_context("spawn"), initializer=_limit_memory)
            reading = asyncio.get_running_loop().run_in_executor(self._reader, asked.read, body, self._settings)
            return await asyncio.wait_for(reading, READER_TIMEOUT_S)
        except (BrokenProcessPool, TimeoutError, MemoryError, OSError) as error:
            self._stop_reader()
            found = f"the body could not be read beside the others ({type(error).__name__})"
            raise PlaceRefusedError(503, found, "a smaller call", "split it, or try again") from error

    def turn(self, call: Call, pairs: int) -> AbstractAsyncContextManager[None]:
        """Let a small call decide at once, and a large one when it is its turn."""
        if pairs > SMALL_PAIRS:
            call.enlarge()
        return self._turn if call.large else AT_ONCE

    def _stop_reader(self) -> None:
        if self._reader is not None:
            for process in list((self._reader._processes or {}).values()):  # 3.14 has kill_workers()
                process.kill()
            self._reader.shutdown(wait=False, cancel_futures=True)
            self._reader = None

    def close(self) -> None:
        """End the reading process."""
        self._stop_reader()


def _limit_memory() -> None:
    with contextlib.suppress(ValueError, OSError):  # macOS knows no limit on address space
        resource.setrlimit(resource.RLIMIT_AS, (READER_MEMORY, READER_MEMORY))
