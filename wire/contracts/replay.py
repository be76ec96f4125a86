"""Replay files: every decision of a rollout as one Parquet row; never pickle."""

from __future__ import annotations

SCHEMA_VERSION = 2
"""Version 1 has no ``departed`` columns; it can still be read."""
TOP_SCORES = 16

COLUMNS: dict[str, str] = {
    "episode": "int32",
    "step": "int32",
    "time_s": "float64",
    "request": "list<float32>",  # the request vector of the FeatureSpec
    "action": "int32",
    "feasible": "int32",
    "reward": "float32",
    "touched": "list<int32>",  # candidates whose state changed since the row before (placement and departures)
    "touched_features": "list<float32>",  # their new feature rows, flattened: len(touched) x F
    "top_candidates": "list<int32>",  # up to TOP_SCORES feasible candidates, best first
    "top_scores": "list<float32>",
    "departed": "list<int64>",  # who left after the placement and before the next decision (vm: VM ids), in order
    "departed_from": "list<int32>",  # the candidate that each was on
    "departed_s": "list<float64>",  # and when
}
"""Column -> Arrow type. File metadata: ``loadmaster.replay`` (version), ``scenario``, ``policy``, ``seed``,
``feature_spec`` (JSON) and ``initial`` (the first episode's candidates as base64 float32, with its shape)."""
