"""One line of the decision log: the way back from a live decision to policy, run, commit and data starts here.

The service appends lines as JSON, which a killed process cannot spoil, and turns each file that is full into Parquet
with the columns of :func:`arrow_schema`; ``ingest`` reads those back (source ``decisions``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from wire.contracts.feature_spec import ProblemName

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET_VERSION = b"1"
VERSION_KEY = b"loadmaster.decisions"
"""In the metadata of a Parquet file: which version of the columns it has."""


class DecisionLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What was decided, by which policy, and why."""

    at: str
    """RFC 3339 UTC, milliseconds."""
    problem: ProblemName
    digest: str | None
    """The policy that was live; null when there was none."""
    counter: int | None
    request: str
    features: str
    """Hash of the observation, so that the line can be matched with a rebuilt one."""
    candidates: int
    feasible: int
    chosen: str | None
    runner_up: str | None
    top: list[tuple[str, float]]
    """The best candidates and their scores."""
    propensity: float | None
    """Probability with which the choice was made; off-policy estimates need it. Null when nothing was feasible."""
    fallback: str | None
    """Why the heuristic answered; null when the policy did."""
    reason: str
    arm: str = "live"
    """``canary`` when the canary answered."""
    latency_us: float | None = None
    """From the decoded request to this decision; null in lines of before it was noted."""


def arrow_schema() -> pa.Schema:
    """Return the columns of the log's Parquet files: a line's, its time as a time, its scores as two lists."""
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    return pa.schema(
        [
            pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("problem", text, nullable=False),
            pa.field("digest", text),
            pa.field("counter", pa.int64()),
            pa.field("arm", text, nullable=False),
            pa.field("request", text, nullable=False),
            pa.field("features", text, nullable=False),
            pa.field("candidates", pa.int64(), nullable=False),
            pa.field("feasible", pa.int64(), nullable=False),
            pa.field("chosen", text),
            pa.field("runner_up", text),
            pa.field("top", pa.list_(text)),
            pa.field("scores", pa.list_(number)),
            pa.field("propensity", number),
            pa.field("fallback", text),
            pa.field("latency_us", number),
        ],
        metadata={VERSION_KEY: PARQUET_VERSION},
    )
