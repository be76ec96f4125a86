"""Say on the error stream that a kernel is being compiled: that happens once on a machine, and may take a minute."""

from __future__ import annotations

import sys
import time
from typing import Any

from sched_env.jit import COMPILED


def announce_compilation() -> None:
    """Listen to numba from now on; what it finds in its cache it does not compile, and nothing is said."""
    if not COMPILED:
        return
    from numba.core import event

    class Announcer(event.Listener):
        def on_start(self, event: Any) -> None:
            if _is_kernel(event):
                self.began = time.perf_counter()
                name = event.data["dispatcher"].py_func.__qualname__
                sys.stderr.write(f"sched_env: compiling {name}, once on this machine ... ")
                sys.stderr.flush()

        def on_end(self, event: Any) -> None:
            if _is_kernel(event):
                sys.stderr.write(f"{time.perf_counter() - self.began:.0f} s\n")

    event.register("numba:compile", Announcer())  # type: ignore[no-untyped-call]


def _is_kernel(event: Any) -> bool:
    """Say whether it is one of ours that Python calls; the functions that those call are part of them."""
    dispatcher = event.data["dispatcher"]
    return hasattr(dispatcher._cache, "_cache_file") and dispatcher.py_func.__module__.startswith("sched_env")
