"""Settings of ``validate``."""

from __future__ import annotations

import msgspec

from wire.errors import ConfigError


class ValidateConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``validate`` of ``params.yaml``: where a warning begins, and where the run stops."""

    completeness_warn: float = 0.9
    """Mean completeness of a table and day below this is a warning: scrapes are being lost."""
    completeness_fail: float = 0.5
    """Below this half of the day is guessed; nothing should be learned from it."""
    missing_windows_fail: float = 0.05
    """Share of a cluster's windows without any node; any is a warning, more than this stops the run."""
    broken_links_fail: float = 0.02
    """Share of rows that point to nothing (a pod's node) or exceed capacity; any is a warning."""
    quarantine_warn: float = 0.01
    """Share of raw rows put aside above which somebody should look at the source."""
    quarantine_fail: float = 0.2
    """A fifth of the rows cannot be wrong by accident."""
    drift_warn: float = 0.3
    """Total variation (0..1) between the request mix of a day and of the last accepted day; weekends reach 0.2."""
    drift_fail: float = 0.9
    """Above this hardly a request is of the same kind: another cluster's data, or renamed functions."""
    functions_warn: int = 2_000
    """Functions of a cluster and day above which a label probably holds what has no end: paths, users, ids."""
    functions_fail: int = 20_000
    """More than anybody has written; what is learned of each would be nothing."""
    stale_minutes: float = 30.0
    """How long before the end of the asked range (``data.to``) the last window may end."""
    max_age_hours: float | None = None
    """How old the last window may be now; null where data are old by nature (the sample, traces)."""
    examples: int = 3
    """Rows shown with each finding."""

    def __post_init__(self) -> None:
        """Refuse thresholds in the wrong order."""
        for low, high in (
            ("completeness_fail", "completeness_warn"),
            ("quarantine_warn", "quarantine_fail"),
            ("drift_warn", "drift_fail"),
        ):
            if not 0 <= getattr(self, low) <= getattr(self, high) <= 1:
                raise ConfigError(
                    f"validate.{low} is {getattr(self, low)} and validate.{high} {getattr(self, high)}",
                    "both in 0..1, the first not above the second",
                )
        for name in ("missing_windows_fail", "broken_links_fail"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"validate.{name} is {getattr(self, name)}", "a share, 0..1")
        if not 0 <= self.functions_warn <= self.functions_fail:
            raise ConfigError(
                f"validate.functions_warn is {self.functions_warn} and validate.functions_fail {self.functions_fail}",
                "the first not above the second",
            )
        for name in ("stale_minutes", "max_age_hours", "examples"):
            if not (getattr(self, name) or 0) >= 0:
                raise ConfigError(f"validate.{name} is {getattr(self, name)}", "at least 0")
