"""VM traces by name: a table, a file of a known format, or ``synthetic``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from sched_env.scenarios import SYNTHETIC
from sched_env.traces.reader import header, pieces, read_text
from sched_env.vm import azure as azure_vm
from sched_env.vm import huawei
from sched_env.vm import synthetic as synthetic_vm
from sched_env.vm.tables import VmTrace
from wire.errors import TraceError

if TYPE_CHECKING:
    from sched_env.vm.scenario import VmScenario

PIECE_ROWS = 50_000
"""Rows read at a time where a whole trace need not be in memory: some 20 MB."""
_READERS = {"type": huawei.read_events, "lifetime": huawei.read_vms, "arrival_bin_s": azure_vm.read_arrivals}
"""Column that tells a format from the others -> its reader."""


def read(path: Path | str, *, skip_bad: bool = False) -> tuple[VmTrace, int]:
    """Read a VM trace of any known format; returns it and the number of bad rows skipped."""
    path = Path(path)
    return _read_piece(path, read_text(path), None, skip_bad)


def read_pieces(path: Path, *, skip_bad: bool = False) -> Iterator[tuple[VmTrace, int]]:
    """Read a trace of any length in little memory; only within a piece are events in order of time."""
    rows = bad = 0
    for text, before in pieces(path, PIECE_ROWS):
        trace, skipped = _read_piece(path, text, before, skip_bad)
        rows, bad = rows + len(trace), bad + skipped
        yield trace, skipped
    if not rows:
        raise TraceError(f"{path} has no usable rows ({bad} bad)")


def _read_piece(path: Path, text: str, before: int | None, skip_bad: bool) -> tuple[VmTrace, int]:
    names = header(text)
    for column, reader in _READERS.items():
        if column in names:
            return reader(path, text, skip_bad=skip_bad, before=before)
    raise TraceError(
        f"{path}, line 1: columns {', '.join(names[:8])}",
        "Huawei events (vmid,cpu,memory,time,type), Huawei VMs (vmid,cpu,memory,arrival,lifetime) or Azure arrivals "
        "(arrival_bin_s,batch_id,vcpu,memory_gb,…)",
    )


def load(trace: VmTrace | str | Path | None, scenario: VmScenario) -> VmTrace:
    """Return the trace asked for, or the scenario's own; what was read before is not read again."""
    if isinstance(trace, VmTrace):
        return trace
    source = str(trace if trace is not None else scenario.trace)
    if source == SYNTHETIC:
        return _generated(scenario.synthetic_vms, scenario.trace_seed)
    path = Path(source)
    return _read_once(path, path.stat().st_mtime_ns if path.exists() else 0, scenario.skip_bad_rows)


@lru_cache(maxsize=4)
def _read_once(path: Path, _modified_ns: int, skip_bad: bool) -> VmTrace:
    table, skipped = read(path, skip_bad=skip_bad)
    if skipped:
        warnings.warn(f"{path}: {skipped} bad rows skipped", stacklevel=4)
    return table


@lru_cache(maxsize=4)
def _generated(vms: int, seed: int) -> VmTrace:
    return synthetic_vm.generate(vms, seed)
