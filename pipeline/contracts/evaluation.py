"""What ``evaluate`` hands to ``gate``: one row for each (policy, held-out trace), and the integrity checks."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import pyarrow as pa

from pipeline.errors import DataError
from wire.contracts.feature_spec import ProblemName

EPISODES = pa.schema(
    [
        pa.field("policy", pa.string(), nullable=False),  # challenger, champion, or a heuristic's name
        pa.field("kind", pa.string(), nullable=False),  # challenger, champion or heuristic
        pa.field("scenario", pa.string(), nullable=False),  # the stratum and slice, e.g. load-1.0
        pa.field("trace", pa.string(), nullable=False),  # the start point; the same for every policy: rows pair on it
        pa.field("block", pa.int32(), nullable=False),  # time block of the start point, for the block bootstrap
        pa.field("return", pa.float64(), nullable=False),
        pa.field("sla_violation_rate", pa.float64(), nullable=False),
        pa.field("cost_usd", pa.float64(), nullable=False),
        pa.field("p99_wait_s", pa.float64()),
        pa.field("migrations", pa.float64()),
        pa.field("infeasible", pa.int64(), nullable=False),
        pa.field("oom", pa.int64(), nullable=False),
        pa.field("placed", pa.int64(), nullable=False),
        pa.field("bound", pa.float64()),  # what no policy can beat on this trace, in ``Terms.bound_metric``, if known
        pa.field("response_ratio", pa.float64()),  # functions: mean actual / uncontended response time
        pa.field("wait_s", pa.float64()),  # vm with the ending `wait`: total waiting seconds of the queue
        pa.field("makespan_s", pa.float64()),  # jobs: from the first arrival to the last end
    ]
)
"""``episodes.parquet`` of ``evaluate@<problem>``. More metric columns may follow; these keep their meaning.

A nullable metric is null (or its column absent) when the problem does not have it, for every row alike; a metric that
is there for some rows only, or NaN, is refused by the gate with the row's name.
"""

HOUR, ASKED = "hour", "asked"
"""Columns of ``EPISODES_FILE`` that say what an episode is: the hour of the day (UTC) at which it begins, and the mean
size of what it asks for, in ``Terms.asked_in``."""

EPISODES_FILE, TERMS_FILE, INTEGRITY_FILE = "episodes.parquet", "terms.json", "integrity.json"
BACKTEST_FILE, FIDELITY_FILE, ORIGINS_FILE = "backtest.json", "fidelity.json", "origins.json"
FIDELITY_WINDOWS_FILE, SIZES_FILE = "fidelity.parquet", "sizes.parquet"
"""Files of ``data/evaluation/<problem>``; the back-test exists only where something was live, fidelity only where
windows tell where requests were placed. ``SIZES_FILE`` has rows like those of ``EPISODES_FILE`` on clusters of other
sizes, a scenario each."""


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``terms.json``: what the episodes are judged by, as the problem says of its scenario."""

    problem: ProblemName
    scenario: str
    primary_metric: str
    """The column that decides: the same one that training maximised."""
    higher_is_better: bool
    bound_metric: str | None
    """What ``bound`` is stated in; null: none is known. The gap closed is computed on the primary metric only."""
    fallback: str
    """The heuristic that places while nothing is live: the first promotion must beat it."""
    guardrails: list[str]
    """Metrics of the problem's own that may not get worse."""
    horizon: int = 0
    """Decisions of an episode."""
    wanted_horizon: int = 0
    """What ``params.yaml`` asks for; more than ``horizon`` where the windows were too short. 0: the scenario's own."""
    density: float = 1.0
    """How many times as dense as recorded arrivals were."""
    asked_in: str = ""
    """What the size of requests is in; empty: they have none."""
    sizes: dict[str, float] = {}
    """Scenario of ``SIZES_FILE`` -> how many times as large its cluster is."""
    schema: Literal[1] = 1


class Integrity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``integrity.json``: stage 0 of the gate, no statistics."""

    parity_max_error: float
    """Largest |torch - onnxruntime| over sizes, in units of 1 + the decision's largest score."""
    parity_argmax_equal: bool
    permutation_invariant: bool
    mask_violations: int
    golden_max_error: float | None
    """Null: the golden vectors could not be replayed at all; ``bundle_errors`` says why."""
    decision_p99_us: float
    bundle_errors: list[str]
    sizes: list[int]
    digest: str
    champion_digest: str | None


class Promise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One figure of the back-test: what the simulator says of yesterday beside what was measured."""

    metric: str
    predicted: float
    measured: float
    relative_error: float | None
    """``|predicted - measured| / |measured|``; null when nothing was measured to divide by and something predicted."""

    @classmethod
    def of(cls, metric: str, predicted: float, measured: float) -> Promise:
        """Set a prediction beside a measurement."""
        if not (math.isfinite(predicted) and math.isfinite(measured)):
            raise DataError(f"{metric} is {predicted} predicted, {measured} measured", "finite numbers")
        error = abs(predicted - measured) / abs(measured) if measured != 0.0 else 0.0 if predicted == 0.0 else None
        return cls(metric, predicted, measured, error)


class Backtest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``backtest.json``: yesterday's windows replayed under the policy that was live."""

    live: str
    """Digest of the bundle, or name of the heuristic, that was live."""
    windows_start: str
    windows_end: str
    figures: list[Promise]
    skipped: str = ""
    """Why there are no figures, if there are none."""
    schema: Literal[1] = 1


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many of a feature's numbers came from where."""

    feature: str
    measured: int
    estimated: int
    """From other windows or figures; a calibration says with what error."""
    assumed: int
    """Defaults: nothing in the windows speaks for them."""
    decides: str = ""
    """Metrics that rest on this feature: too much of it assumed, and they say nothing of this cluster."""
    needs: str = ""
    """What to add so that it is measured."""

    @property
    def assumed_share(self) -> float:
        """Share of its numbers that nothing speaks for."""
        return self.assumed / max(self.measured + self.estimated + self.assumed, 1)


class Origins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``origins.json``."""

    origins: list[Origin]
    """Empty: the problem does not count them yet."""
    schema: Literal[1] = 1
