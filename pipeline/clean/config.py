"""Settings of ``clean``."""

from __future__ import annotations

from typing import Literal

import msgspec

from wire.contracts.window import WINDOW_SECONDS
from wire.errors import ConfigError


class CleanConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``clean`` of ``params.yaml``."""

    engine: Literal["duckdb", "spark"] = "duckdb"
    """DuckDB holds a day of a few thousand pods on one machine; Spark is for days that do not fit one."""
    spark_master: str = "local[2]"
    """Where Spark runs; on a cluster ``var`` and the data must be on storage that all its workers see."""
    spark_options: dict[str, str] = {}
    """More of Spark's own settings, e.g. ``spark.executor.memory``."""
    memory_mb: int = 900
    """What the engine may hold before it spills to disk; Python and Arrow take some 300 MB beside it."""
    threads: int = 2
    """More than there are cores only costs memory."""
    fill_windows: int = 2
    """Gaps of up to this many windows are filled from the window before and flagged; longer ones stay missing."""
    missing_windows: int = 12
    """Gaps of up to this many windows (an hour) get rows with completeness 0; after longer ones a thing was gone."""
    over_capacity_ratio: float = 1.25
    """Use up to this multiple of capacity is jitter or a burst and is clamped; above, it is quarantined."""
    scrape_seconds: float | None = None
    """Expected scrape interval; null: the median number of samples a window, by metric."""
    estimated_demands_per_pod: int = 200
    """Requests spread evenly over a pod and window where only counts are known; more would add rows, not facts."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        for name, low in {"memory_mb": 100, "threads": 1, "fill_windows": 0, "estimated_demands_per_pod": 0}.items():
            if getattr(self, name) < low:
                raise ConfigError(f"clean.{name} is {getattr(self, name)}", f"at least {low}")
        if self.missing_windows < self.fill_windows:
            raise ConfigError(f"clean.missing_windows is {self.missing_windows}", "at least clean.fill_windows")
        if self.over_capacity_ratio < 1:
            raise ConfigError(f"clean.over_capacity_ratio is {self.over_capacity_ratio}", "at least 1")
        if self.scrape_seconds is not None and self.scrape_seconds <= 0:
            raise ConfigError(f"clean.scrape_seconds is {self.scrape_seconds}", "a positive number, or null")

    def decisive(self) -> dict[str, object]:
        """Return the settings that decide what comes out; the others say where and how fast."""
        where = ("spark_master", "spark_options", "memory_mb", "threads")
        return {name: getattr(self, name) for name in self.__struct_fields__ if name not in where}

    @property
    def margin_seconds(self) -> int:
        """How far a day looks into its neighbours: a rate needs the sample before it, a gap may span midnight."""
        return (self.fill_windows + 1) * WINDOW_SECONDS
