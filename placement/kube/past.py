"""What each pod used in the windows of the last day, and what the bundle's forecast says of those to come.

The service is asked once a cycle for all pods. Windows are kept as cycles go by; what was before the first of them
Prometheus is asked, once, and only where there is a forecast: a migrator that starts anew knows as much as one that ran
all day, and has no file of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray
from urllib3.exceptions import HTTPError

from placement.kube.objects import Pod
from placement.kube.plan import Measured, Series
from sched_env.pods.forecast import LOOKED_BACK, rows
from wire.contracts.window import WINDOW_SECONDS

log = logging.getLogger(__name__)

QUERIES = ("pod_cpu", "pod_mem")

Foresee = Callable[[NDArray[np.float32]], Series | None]
"""Rows of pods to [pods, 8], as ``foresight.AHEAD``; None when the service has no forecast, or no answer."""


class Remembered(Measured, Protocol):
    """What is asked of :class:`placement.kube.usage.Usage`."""

    def day(self, name: str, windows: int) -> dict[str, Series]:
        """Return the means of the windows before the present one, the latest last; NaN where nothing is known."""


class Past:
    """Remembers a day, and asks what follows.

    Args:
        foresee: Asks the model.
        wall: Seconds since 1970.
    """

    def __init__(self, foresee: Foresee, wall: Callable[[], float] = time.time) -> None:
        self._foresee, self._wall = foresee, wall
        self._column: dict[str, int] = {}
        self._workload: dict[str, str] = {}
        self._use = np.empty((LOOKED_BACK, 0, 2))
        self._window = 0
        self._told = False

    def expected(self, pods: Sequence[Pod], usage: Remembered) -> dict[str, Series]:
        """Return what is expected of each pod, as ``foresight.AHEAD``; nothing where nobody foresees."""
        now: dict[str, tuple[float, float]] = {}
        for pod in pods:
            cpu, mem = usage.get("pod_cpu", pod.key), usage.get("pod_mem", pod.key)
            if cpu is not None and mem is not None:
                now[pod.key] = float(cpu.mean()), float(mem.mean())
        self._take({pod.key: pod.workload for pod in pods}, now)
        known = [self._column[key] for key in now]
        said = self._ask(known)
        if said is not None and not self._told:
            self._told = self._recall(usage)
            said = self._ask(known)
        return {} if said is None else dict(zip(now, said, strict=True))

    def _ask(self, known: list[int]) -> Series | None:
        return self._foresee(rows(self._use[:, known], LOOKED_BACK - 1)[0]) if known else None

    def _take(self, workload: Mapping[str, str], now: Mapping[str, tuple[float, float]]) -> None:
        """Move on to the present window, with the pods that are there, and whose they are."""
        window = round(self._wall() / WINDOW_SECONDS)
        passed, self._window = window - self._window, window
        column = {key: number for number, key in enumerate(workload)}
        use = np.full((LOOKED_BACK, len(column), 2), np.nan)
        if not 0 <= passed <= 1:  # just started, led by another for a while, or a clock that jumped
            self._told = False
        if 0 <= passed < LOOKED_BACK:
            goes_on = {key: self._column[key] for key in column if key in self._column}
            goes_on |= self._heirs(workload)
            after, before = [column[key] for key in goes_on], [*goes_on.values()]
            use[: LOOKED_BACK - passed, after] = self._use[passed:, before]
        for key, amounts in now.items():
            use[-1, column[key]] = amounts
        self._column, self._workload, self._use = column, dict(workload), use

    def _heirs(self, workload: Mapping[str, str]) -> dict[str, int]:
        """Pair pods that came with such of their workload that went: one that was moved has another name."""
        gone: dict[str, list[int]] = {}
        for key, number in self._column.items():
            if key not in workload:
                gone.setdefault(self._workload[key], []).append(number)
        came = [key for key in workload if key not in self._column]
        return {key: gone[workload[key]].pop(0) for key in came if gone.get(workload[key])}

    def _recall(self, usage: Remembered) -> bool:
        """Take from Prometheus what is not known of the windows before."""
        try:
            told = [usage.day(name, LOOKED_BACK - 1) for name in QUERIES]
        except (HTTPError, msgspec.MsgspecError, OSError, ValueError) as error:
            log.warning("the day before is not known: %s", str(error).split("\n")[0][:200])
            return False
        for key in told[0].keys() & told[1].keys() & self._column.keys():
            then, column = np.stack([each[key] for each in told], axis=1), self._use[:-1, self._column[key]]
            # Half of a window says nothing: a pod was there with both, or it was not.
            then[np.isnan(then).any(axis=1)] = np.nan
            column[:] = np.where(np.isnan(column), then, column)
        return True
