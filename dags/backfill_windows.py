"""backfill_windows: clean and validate a range of days again, without training.

workspace → ingest → clean → validate → record. Days that were cleaned before with the same code and data come from
the cache; running it twice gives the same windows.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, dag

from dags.stages import MACROS, record, stage, workspace

DAY = {"type": "string", "format": "date"}


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=30)},
    params={
        "from": Param(description="First day, UTC", **DAY),
        "to": Param(description="Last day, included", **DAY),
    },
    user_defined_macros=MACROS,
    tags=["loadmaster"],
    doc_md=__doc__,
)
def backfill_windows() -> None:
    """Wire the backfill."""
    workspace() >> stage("ingest") >> stage("clean") >> stage("validate") >> record()


backfill_windows()
