"""The workloads of each problem, cut from the cleaned windows by time: train | validation | test.

One module a problem, named here by a literal string and imported when first asked for, as in ``sched_env.problems``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pipeline import paths, windows
from pipeline.contracts.calibration import CALIBRATION_FILE, Calibration
from pipeline.datasets.dataset import Dataset, Rows
from pipeline.settings import load
from sched_env import problems, scenarios
from wire.contracts import decode
from wire.contracts.feature_spec import ProblemName
from wire.errors import ConfigError, legal

log = logging.getLogger(__name__)

Split = Literal["train", "validation", "test"]
FEWEST_STARTS, SHORTEST_HORIZON = 16, 16
"""Start points that each split should have, and the decisions below which an episode says nothing."""
BLOCK_STEP_S = 1000.0
"""Time blocks that fit the episodes are a multiple of this: a night with one pod more keeps its blocks."""
SECONDS_A_DAY = 86_400.0
PLENTY = 8
"""Episodes that a split must hold, one after another, for nobody to doubt that it has starts."""

MODULES: dict[str, str] = {
    "vm": "pipeline.datasets.vm",
    "pods": "pipeline.datasets.pods",
    "functions": "pipeline.datasets.functions",
    "workflow": "pipeline.datasets.workflow",
    "jobs": "pipeline.datasets.jobs",
}
"""Problem -> module that holds its :class:`Dataset` as ``DATASET``."""


FITTED: dict[str, tuple[str, ...]] = {
    "functions": ("pipeline.calibrate.functions", "pipeline.fidelity"),
    "vm": ("pipeline.calibrate.vm",),
    "pods": ("pipeline.calibrate.pods",),
    "jobs": ("pipeline.calibrate.jobs",),
    "workflow": ("pipeline.calibrate.workflow",),
}
"""Problem -> modules that fit and check its simulator; they stand on its dataset, which imports them by name."""


def register(problem: str, module: str) -> None:
    """Add the dataset of somebody else's problem."""
    if MODULES.get(problem, module) != module:
        raise ConfigError(f"the dataset of {problem!r} is {MODULES[problem]} already", "a problem of its own")
    MODULES[problem] = module


def get(problem: str) -> Dataset:
    """Return how windows become a problem's trace."""
    if problem not in MODULES:
        raise ConfigError(f"windows hold no workload for {problem!r}", legal(MODULES))
    value: Dataset = importlib.import_module(MODULES[problem]).DATASET
    return value


def code_of(problem: str) -> tuple[str, ...]:
    """Return the modules that hold everything of a problem: its value and its dataset."""
    return problems.MODULES[problems.check(problem)], MODULES[problem], *FITTED.get(problem, ())


class WorkloadConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section ``workload.<problem>``: what an episode is, the same in training and evaluation."""

    scenario: str
    horizon: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Decisions in an episode; 0: as long as the scenario says."""
    overrides: dict[str, Any] = msgspec.field(default_factory=dict)
    """More keys of the scenario."""
    density: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Arrivals so many times as dense as recorded, in training and judging alike: what ``watch_live`` has measured when
    the load has changed since, and these windows are from before."""

    def load(self, calibrated: Mapping[str, Any] | None = None) -> scenarios.Scenario:
        """Return the scenario with everything that replaces its keys; what is set by hand wins over calibration."""
        horizon = {"horizon": self.horizon} if self.horizon else {}
        return scenarios.load(self.scenario, {**(calibrated or {}), **horizon, **self.overrides})


class Workload(NamedTuple):
    """One split of a problem's workload, ready for ``make_vec`` and ``run_episodes``."""

    problem: ProblemName
    scenario: scenarios.Scenario
    trace: Any
    start: str
    """First window, RFC 3339."""
    end: str
    """End, exclusive."""
    wanted_horizon: int = 0
    """What was asked for, where the windows may have been too short for it; 0: the scenario's own."""
    density: float = 1.0
    """What was asked for of how dense arrivals are; the trace is as recorded."""

    def at_present_load(self) -> Workload:
        """Return what policies are trained and judged on: the recorded windows, as dense as arrivals are by now."""
        return self.scaled(self.density)

    def scaled(self, load: float) -> Workload:
        """Return the same workload with arrivals ``load`` times as dense."""
        return self if load == 1.0 else self._replace(trace=get(self.problem).scaled(self.trace, load))

    def resized(self, factor: float) -> Workload | None:
        """Return it on a cluster ``factor`` times as large under as many times the load; None: nobody says how."""
        change = get(self.problem).resized
        if change is None:
            return None
        trace, scenario = change(self.trace, self.scenario, factor)
        return self._replace(trace=trace, scenario=scenario)

    def starts(self, count: int) -> Rows:
        """Spread start rows evenly over the split, so that every episode has its full length; all, where few are."""
        rows = get(self.problem).starts(self.trace, self.scenario)
        if not rows.size:
            raise ConfigError(
                f"the {self.problem} windows from {self.start} to {self.end} give no start point"
                + (f" at {self.density:g} times their load" if self.density != 1.0 else ""),
                "at least one",
                "take more days of data or shorter episodes",
            )
        if rows.size <= count:  # the gate says of too few that they prove nothing
            log.warning("%s: %d start points from %s to %s, %d wanted", self.problem, rows.size, *self[3:5], count)
            return rows
        return rows[np.linspace(0, rows.size - 1, count).astype(np.int64)]

    def blocks(self, starts: Rows, block_seconds: float | None) -> NDArray[np.int64]:
        """Number the stretches of recorded time that start rows fall into; None: as long as the longest episode."""
        if block_seconds is None:
            longest_s = get(self.problem).longest_s
            if longest_s is None:
                raise ConfigError(
                    f"evaluate.{self.problem}.block_seconds is missing",
                    "seconds of recorded time, more than an episode takes",
                )
            block_seconds = max(np.ceil(longest_s(self.trace, self.scenario) / BLOCK_STEP_S), 1.0) * BLOCK_STEP_S
        return (get(self.problem).times_s(self.trace, starts) // block_seconds).astype(np.int64)

    def hours(self, starts: Rows) -> NDArray[np.float64]:
        """Return the hour of the day (UTC) at which episodes begin, as recorded."""
        began = datetime.fromisoformat(self.start).astimezone(UTC)
        midnight = began.replace(hour=0, minute=0, second=0, microsecond=0)
        seconds = (began - midnight).total_seconds() + get(self.problem).times_s(self.trace, starts)
        return np.asarray(seconds % SECONDS_A_DAY / 3600.0)

    def fingerprint(self) -> str:
        """Name everything an episode depends on but the policy: scenario, span and every number of the trace."""
        digest = hashlib.sha256(repr((self.scenario, self.start, self.end)).encode())
        _update(digest, self.trace)
        return digest.hexdigest()


def _update(digest: hashlib._Hash, value: Any) -> None:
    """Hash a trace: tables of arrays, in tuples or tables of their own."""
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            digest.update(field.name.encode())
            _update(digest, getattr(value, field.name))
    elif isinstance(value, tuple | list):
        digest.update(f"{len(value)}".encode())
        for part in value:
            _update(digest, part)
    else:
        digest.update(repr(value).encode())


def calibration(problem: str) -> Calibration | None:
    """Read what ``calibrate`` found; None before it ran."""
    path = paths.CALIBRATION / problem / CALIBRATION_FILE
    return decode(path.read_bytes(), Calibration, source=str(path)) if path.exists() else None


def apply(trace: Any, problem: str, found: Calibration | None) -> Any:
    """Give the rows of a trace what calibration found of them."""
    change = get(problem).calibrated
    return trace if found is None or change is None else change(trace, found)


def brought(trace: Any, problem: str) -> Mapping[str, Any]:
    """Return the keys of the scenario that a trace brings."""
    brings = get(problem).brings
    return brings(trace) if brings else {}


def workload(
    problem: ProblemName, split: Split, *, params: Path = paths.PARAMS, folder: Path = paths.WINDOWS
) -> Workload:
    """Load one split of a problem's workload, calibrated where stage ``calibrate`` has been."""
    config = load(f"workload.{problem}", WorkloadConfig, params)
    there = windows.covered(folder)
    parts = windows.splits(there.start, there.end, load("splits", windows.SplitConfig, params))
    chosen: windows.Span = getattr(parts, split)
    found = calibration(problem)
    trace = get(problem).load(folder, chosen.start, chosen.end)
    believe = get(problem).believed
    final = apply(trace, problem, found)
    scenario = config.load({**(found.overrides if found else {}), **brought(trace, problem)})
    if config.horizon:
        spans = [getattr(parts, name) for name in ("train", "validation", "test")]
        scenario = _short_enough(problem, scenario, [get(problem).load(folder, one.start, one.end) for one in spans])
    return Workload(
        problem=problem,
        scenario=scenario,
        trace=believe(final, paths.MODELS / problem, folder, chosen) if believe else final,
        start=chosen.start.isoformat(),
        end=chosen.end.isoformat(),
        wanted_horizon=config.horizon,
        density=config.density,
    )


def _short_enough(problem: str, scenario: scenarios.Scenario, splits: list[Any]) -> scenarios.Scenario:
    """Halve the horizon until every split has some starts: a first look at three quiet days must not end in an error.

    The same in all splits, whichever is asked for. The gate leaves the verdict open then.
    """
    asked = scenario
    if all(len(trace[0] if isinstance(trace, tuple) else trace) > PLENTY * asked.horizon for trace in splits):
        return asked  # to count the starts of so many costs more than to load them
    while min(get(problem).starts(trace, scenario).size for trace in splits) < FEWEST_STARTS:
        if scenario.horizon // 2 < SHORTEST_HORIZON:
            return asked  # too little of anything: whoever asks for starts is told
        scenario = scenarios.load(scenario, {"horizon": scenario.horizon // 2})
    if scenario is not asked:
        log.warning(
            "%s: episodes of %d decisions instead of %d, because a split of the windows is short: the best rule of "
            "short episodes may not be that of long ones (docs/results/horizon.md)",
            problem, scenario.horizon, asked.horizon,
        )  # fmt: skip
    return scenario
