"""What the DAGs hand to each other, by name; every event carries the lineage of what was made."""

from __future__ import annotations

from airflow.sdk import Asset

STATE_WINDOWS = Asset("state_windows")
"""Windows that were cleaned and held to their expectations."""
POLICY_CANDIDATE = Asset("policy_candidate")
"""A policy that the gate has judged; the event says which problem, and the verdict."""
POLICY_LIVE = Asset("policy_live")
"""A policy that the service says it answers with."""
