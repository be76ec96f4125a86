"""The workloads of each problem, cut from the cleaned windows by time: train | validation | test."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pipeline import windows
from pipeline.settings import PARAMS_FILE, load
from sched_env.functions.tables import FunctionTrace
from sched_env.tables import NodeTable
from wire.contracts.feature_spec import ProblemName
from wire.errors import ConfigError

Split = Literal["train", "validation", "test"]
WINDOWS = Path("data/windows")


class WorkloadConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section ``workload.<problem>``: what an episode is, the same in training and evaluation."""

    scenario: str
    horizon: int
    """Decisions in an episode."""
    overrides: dict[str, Any] = msgspec.field(default_factory=dict)
    """More keys of the scenario."""


class Workload(NamedTuple):
    """One split of a problem's workload, ready for ``make_vec`` and ``run_episodes``."""

    scenario: str
    overrides: dict[str, Any]
    trace: tuple[FunctionTrace, NodeTable]
    start: str
    """First window, RFC 3339."""
    end: str
    """End, exclusive."""

    def scaled(self, load: float) -> Workload:
        """Return the same workload with arrivals ``load`` times as dense."""
        requests, nodes = self.trace
        return self._replace(trace=(dataclasses.replace(requests, arrival_s=requests.arrival_s / load), nodes))

    def starts(self, count: int) -> NDArray[np.int64]:
        """Spread start rows evenly over the split, so that every episode has its full length."""
        last = len(self.trace[0]) - self.overrides["horizon"] - 1
        if last < count:
            raise ConfigError(
                f"{len(self.trace[0])} requests from {self.start} to {self.end} give {max(last, 0)} start points",
                f"{count}",
                "take more days of data, fewer traces or a shorter horizon",
            )
        return np.linspace(0, last, count).astype(np.int64)


def workload(problem: ProblemName, split: Split, *, params: Path = PARAMS_FILE, folder: Path = WINDOWS) -> Workload:
    """Load one split of a problem's workload."""
    config = load(f"workload.{problem}", WorkloadConfig, params)
    days = windows.span(folder)
    parts = windows.splits(days.start, days.end, load("splits", windows.SplitConfig, params))
    chosen: windows.Span = getattr(parts, split)
    if problem != "functions":
        raise ConfigError(f"the windows hold no workload for {problem!r} yet", "functions")
    return Workload(
        scenario=config.scenario,
        overrides={"horizon": config.horizon, **config.overrides},
        trace=windows.function_trace(folder, chosen.start, chosen.end),
        start=chosen.start.isoformat(),
        end=chosen.end.isoformat(),
    )
