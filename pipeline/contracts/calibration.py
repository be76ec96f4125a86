"""What ``calibrate`` hands to ``train``, ``evaluate`` and the bundle: the simulator's numbers and their origin."""

from __future__ import annotations

from typing import Literal

import msgspec

from wire.contracts.feature_spec import ProblemName

CALIBRATION_FILE = "calibration.json"
HowKnown = Literal["measured", "estimated", "assumed"]


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One number of the simulator."""

    name: str
    unit: str
    value: float
    low: float | None
    """95 % interval; null: an assumption has none."""
    high: float | None
    samples: int
    """Windows, pods or calls it rests on."""
    origin: HowKnown
    needs: str = ""
    """What to add so that it is no assumption."""


class FunctionValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What calibration knows of one function."""

    standard_s: float
    """Mean response of a call that shares its node with nobody."""
    spread: float
    """Standard deviation of the logarithm of calls alike."""
    calls: int
    origin: HowKnown
    tail: list[float] = []
    """Share of calls that take longer than so many times their mean (``TAIL_AT`` of the problem); empty: log-normal."""


class UseValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the pods of a workload were measured to use."""

    idle_cores: float
    """Of a pod that answers nothing."""
    work_s: float
    """Core-seconds of a call; 0: it has none."""
    mem_gib: float
    windows: int


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``data/calibration/<problem>/calibration.json``."""

    problem: ProblemName
    fitted_start: str
    """The train windows, and nothing after them."""
    fitted_end: str
    overrides: dict[str, int | float | str | list[float]]
    """Keys of the scenario that take these values."""
    values: list[Value]
    functions: dict[str, FunctionValue]
    uses: dict[str, UseValue] = {}
    """Empty: nobody measures what pods use."""
    schema: Literal[1] = 1
