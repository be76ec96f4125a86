"""The table of ``vm``: creations and deletions of VMs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sched_env.tables import Floats, Ints, column, demand, finite_at_least


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

    def __post_init__(self) -> None:
        """Coerce the columns and refuse sizes that are not positive and kinds that are neither 0 nor 1."""
        rows = int(np.size(self.vmid))
        for name, dtype in {"vmid": np.int64, "cpu": np.float64, "mem": np.float64, "time": np.float64}.items():
            object.__setattr__(self, name, column("VmTrace", name, getattr(self, name), dtype, rows))
        object.__setattr__(self, "kind", column("VmTrace", "kind", self.kind, np.int8, rows))
        demand("VmTrace", "kind", self.kind, lambda v: (v == 0) | (v == 1), "0 (create) or 1 (delete)")
        for name in ("cpu", "mem"):
            demand("VmTrace", name, getattr(self, name), finite_at_least(0, strictly=True), "a positive number")

    def __len__(self) -> int:
        return int(self.vmid.size)
