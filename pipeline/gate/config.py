"""The pre-registered rules: section ``gate`` of params.yaml, copied into every report and promotion record.

Margins are set before the data are seen; the defaults are those the design names, with the reason under each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from pipeline.statistics.bootstrap import Method


class Margin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much worse a guardrail metric may be, larger being worse: the smaller of both limits, never below floor."""

    absolute: float | None = None
    """In the metric's unit (a rate: 0.005 is half a point)."""
    relative: float | None = None
    """Share of the reference's mean."""
    floor: float | None = None
    """In the metric's unit; null: none. Against a reference near 0 a relative margin asks for differences nobody could
    measure and every night would end inconclusive; below this the difference does not matter."""

    def __post_init__(self) -> None:
        if self.absolute is None and self.relative is None:
            raise ValueError("a margin needs absolute, relative, or both")
        if min(self.absolute or 0.0, self.relative or 0.0, self.floor or 0.0) < 0.0:
            raise ValueError("a margin cannot be negative")

    def of(self, reference_mean: float) -> float:
        """The margin in the metric's unit against this reference."""
        limits = [] if self.absolute is None else [self.absolute]
        limits += [] if self.relative is None else [self.relative * abs(reference_mean)]
        return max(min(limits), self.floor or 0.0)

    def over(self, default: Margin) -> Margin:
        """This margin, with what it leaves out taken from another one."""
        given = {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not None}
        return msgspec.structs.replace(default, **given)


DEFAULT_GUARDRAILS = {
    "sla_violation_rate": Margin(absolute=0.005, relative=0.05, floor=0.0001),
    "cost_usd": Margin(relative=0.01),
    "p99_wait_s": Margin(relative=0.02, floor=0.1),
    "migrations": Margin(relative=0.05, floor=0.1),
}
DEFAULT_ZERO = ("oom", "infeasible")
SHORTEST_REASON = 10
"""Characters: enough that somebody had to think of one."""


class IntegrityLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stage 0: the file that ships does what was trained. No statistics."""

    parity_max_error: float = 1e-5
    """torch against onnxruntime; measured 1.9e-6 on float32, so 1e-5 is rounding and more is another graph."""
    golden_max_error: float = 1e-5
    """The bundle's own golden vectors through the shipped file."""
    decision_p99_us: float = 10_000.0
    """The extender's target is 10 ms for 500 names; a single scoring must stay inside it."""
    sizes: tuple[int, ...] = (1, 2, 3, 5, 20, 100, 1000)
    """Candidate counts at which parity must have been tried; exporters specialise small sizes."""


class Promotion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What earns a promotion."""

    mode: Literal["superior", "refresh"] = "superior"
    """``superior``: better than the champion. ``refresh``: better, or non-inferior everywhere while the champion is
    old or the request mix has drifted (a nightly policy is rarely superior to yesterday's)."""
    refresh_after_days: float = 14.0
    """Age of the champion's data, against the challenger's, from which a refresh is due: two weekly cycles."""
    margin: float = 0.01
    """Relative non-inferiority margin on the primary metric in a refresh; half the effect, so that two refreshes in
    a row cannot lose what one superior promotion won."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``gate``."""

    seed: int = 20_260_716
    """Of the bootstrap draws: the same evaluation gives the same report, byte for byte."""
    bootstrap_samples: int = 10_000
    """Resamples; the 2.5 % quantile then has an error of about 1 % of the standard error."""
    interval: Method = "percentile"
    """``percentile`` or ``bca``. The IQM is nearly symmetric, where both agree and percentile is steadier."""
    confidence: float = 0.95
    """Two-sided; each bound is a one-sided 97.5 % bound."""
    power: float = 0.8
    """Below this for the stated effect the verdict is inconclusive instead of pass or fail."""
    min_traces_per_scenario: int = 200
    """Held-out pairs a scenario; fewer cannot speak for slices and tails."""
    min_blocks: int = 10
    """Independent time blocks; below ten a block bootstrap has no tails to speak of."""
    effect: float = 0.02
    """Relative improvement of the primary metric that must not be missed: the power rule is about it. Below 2 % a
    promotion is not worth a person's night. Which metric that is, the problem says (``Problem.primary``)."""
    guardrails: dict[str, Margin] = msgspec.field(default_factory=lambda: dict(DEFAULT_GUARDRAILS))
    """Column of the episodes -> margin. What is not named here keeps its default, limit by limit; naming one takes no
    other away. A metric the problem does not have is skipped and said so."""
    own_guardrail: Margin = Margin(relative=0.02, floor=1e-4)
    """Of the guardrails that a problem adds (``Problem.guardrails``), where no margin is named above."""
    zero: tuple[str, ...] = DEFAULT_ZERO
    """Counts that must be 0 on every trace, beside the default ones; one is enough to fail."""
    switched_off: dict[str, str] = {}
    """Guardrails and counts that are switched off: name -> why. The only way to lose one; the headline says so, and the
    promotion record keeps the reason."""
    slice_margin: float = 0.01
    """A scenario fails only if the upper bound of its improvement lies below minus this."""
    cvar_share: float = 0.1
    """The worst tenth of the traces."""
    cvar_margin: float = 0.02
    """How far that tail may lie below the reference's, in units of the reference's mean."""
    backtest_tolerance: float = 0.10
    """Relative error of the simulator on yesterday's SLA or cost above which its verdicts are not believed."""
    assumed_tolerance: float = 0.5
    """Share of a feature's numbers that may be assumed where the feature decides a metric; with more, the metric is
    that of an invented cluster."""
    backtest_rate_floor: float = 0.005
    """Rates that differ by less (half a point, as the SLA margin) agree whatever their ratio: 0.1 % for 0.2 % is
    twice as much and still the same."""
    integrity: IntegrityLimits = IntegrityLimits()
    promotion: Promotion = Promotion()

    def margins(self, own: Iterable[str], primary: str) -> dict[str, Margin]:
        """Return metric -> margin of every guardrail: those of all problems and a problem's own (``own``).

        What must get better is not also asked not to get worse. Those that are switched off are among them.
        """
        found = {**dict.fromkeys(own, self.own_guardrail), **self.guardrails}
        found.pop(primary, None)
        return found

    def __post_init__(self) -> None:
        merged = DEFAULT_GUARDRAILS | {
            name: margin.over(DEFAULT_GUARDRAILS[name]) if name in DEFAULT_GUARDRAILS else margin
            for name, margin in self.guardrails.items()
        }
        msgspec.structs.force_setattr(self, "guardrails", merged)
        msgspec.structs.force_setattr(self, "zero", tuple(dict.fromkeys((*DEFAULT_ZERO, *self.zero))))
        for name, reason in self.switched_off.items():
            if len(reason.strip()) < SHORTEST_REASON or not reason.isprintable():
                wanted = f"at least {SHORTEST_REASON} printable characters"
                raise ValueError(f"switched_off: {name} needs a reason: {wanted}, not {reason!r}")
        if not 0.5 < self.confidence < 1.0 or not 0.0 < self.power < 1.0:
            raise ValueError(f"confidence {self.confidence} and power {self.power} must be shares below 1")
        if self.bootstrap_samples < 100:
            raise ValueError(f"bootstrap_samples is {self.bootstrap_samples}, a 95 % interval needs at least 100")
        if not 0.0 < self.cvar_share < 1.0:
            raise ValueError(f"cvar_share is {self.cvar_share}, must be between 0 and 1")
        if not self.effect > 0.0:
            raise ValueError(f"effect is {self.effect}, must be above 0")
