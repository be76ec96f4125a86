import os

import pytest


@pytest.fixture(scope="module")
def dag(tmp_path_factory):
    os.environ.setdefault("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    from dags import backfill_windows

    return backfill_windows.backfill_windows()


def test_it_asks_for_both_days_and_runs_by_hand(dag):
    assert not dag.timetable.can_be_scheduled
    assert set(dag.params) == {"from", "to"}
    with pytest.raises(Exception, match=r"from|to"):
        dag.params.validate()


def test_it_cleans_and_validates_and_never_trains(dag):
    assert set(dag.task_ids) == {"workspace", "ingest", "clean", "validate", "record"}
    assert dag.get_task("validate").downstream_task_ids == {"record"}
