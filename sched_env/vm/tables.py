"""The table of ``vm``: creations and deletions of VMs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sched_env.tables import Floats, Ints, column, demand, finite_at_least
from wire.errors import TraceError


def _none() -> Ints:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class VmTrace:
    """Creations and deletions of VMs, in log order; ``time`` is informative, row order is what counts."""

    vmid: Ints
    cpu: Floats
    """Cores; of a deletion, those of its VM."""
    mem: Floats
    """GiB."""
    time: Floats
    """Seconds."""
    kind: NDArray[np.int8]
    """0 = create, 1 = delete."""
    node: Ints = field(default_factory=_none)
    """Server of its cluster on which a creation was recorded; -1, or left out: nobody says."""
    stop: Ints = field(default_factory=_none)
    """[D]: row after the last of each cluster, whose rows lie together: an episode stays in one; left out: one."""
    servers: Ints = field(default_factory=_none)
    """[D]: servers that each cluster was recorded with."""
    up: NDArray[np.bool_] = field(default_factory=lambda: np.ones((1, 1, 0), np.bool_))
    """[D, windows, servers]: which of them were up."""
    up_s: float = 300.0
    """Seconds of such a window."""
    expected: Floats = field(default_factory=lambda: np.empty((0, 0)))
    """[R, Q]: of a creation, rising quantiles of its life from the median on, as they were expected then, in seconds;
    zeros: nothing is known of it. Left out: of none."""
    lived_s: Floats = field(default_factory=lambda: np.empty(0))
    """Of a creation, how long its VM had lived when the row comes: 0, or left out, but for those there before."""

    def __post_init__(self) -> None:
        """Coerce the columns and refuse sizes that are not positive and kinds that are neither 0 nor 1."""
        rows = int(np.size(self.vmid))
        for name, dtype in {"vmid": np.int64, "cpu": np.float64, "mem": np.float64, "time": np.float64}.items():
            object.__setattr__(self, name, column("VmTrace", name, getattr(self, name), dtype, rows))
        object.__setattr__(self, "kind", column("VmTrace", "kind", self.kind, np.int8, rows))
        if np.size(self.lived_s):
            object.__setattr__(self, "lived_s", column("VmTrace", "lived_s", self.lived_s, np.float64, rows))
        self._check_expected(rows)
        node = self.node if np.size(self.node) else np.full(rows, -1)
        object.__setattr__(self, "node", column("VmTrace", "node", node, np.int64, rows))
        for name, default in (("stop", rows), ("servers", 0)):
            given = np.atleast_1d(getattr(self, name)) if np.size(getattr(self, name)) else np.array([default])
            object.__setattr__(self, name, np.ascontiguousarray(given, np.int64))
        if self.stop.size != self.servers.size or self.stop[-1] != rows or (np.diff(self.stop) <= 0).any():
            raise TraceError(
                f"VmTrace.stop is {self.stop.tolist()} with servers {self.servers.tolist()}",
                f"rising rows that end with {rows}, and as many numbers of servers",
            )
        if (self.node >= self.servers.repeat(np.diff(self.stop, prepend=0))).any():
            raise TraceError("VmTrace.node has a server that its cluster has not", "numbers below VmTrace.servers")
        demand("VmTrace", "kind", self.kind, lambda v: (v == 0) | (v == 1), "0 (create) or 1 (delete)")
        for name in ("cpu", "mem"):
            demand("VmTrace", name, getattr(self, name), finite_at_least(0, strictly=True), "a positive number")
        demand("VmTrace", "lived_s", self.lived_s, finite_at_least(0), "a finite number, 0 or more")

    def _check_expected(self, rows: int) -> None:
        expected = np.ascontiguousarray(self.expected, np.float64)
        object.__setattr__(self, "expected", expected)
        if not expected.size:
            return
        if expected.ndim != 2 or len(expected) != rows:
            raise TraceError(f"VmTrace.expected has shape {expected.shape}", f"({rows}, quantiles)")
        wrong = ~np.isfinite(expected).all(axis=1) | (expected < 0).any(axis=1) | (np.diff(expected) < 0).any(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            raise TraceError(f"VmTrace.expected of row {row} is {expected[row].tolist()}", "rising seconds, 0 or more")

    def __len__(self) -> int:
        return int(self.vmid.size)

    @property
    def born_s(self) -> Floats:
        """When the VM of each creation came: before its row, if it was there before."""
        return self.time - self.lived_s if self.lived_s.size else self.time

    @property
    def there_before(self) -> NDArray[np.bool_]:
        """Which creations are no requests: their VMs were there when the record begins."""
        found: NDArray[np.bool_] = (self.kind == 0) & (self.node >= 0) & (self.time <= 0.0)
        return found
