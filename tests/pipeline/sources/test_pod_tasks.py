"""Executions of workflows from pods: who waited for whom, and what is left out."""

from pipeline.sources import Tally
from pipeline.sources.pod_tasks import Ran, parents_of, tasks_table

DAY = (0, 86_400)


def ran(name, created, ended, execution="data/etl-1", **more):
    row = {"at": created, "entity": f"data/{name}", "cluster": "c", "execution": execution, "function": "data/etl"}
    return Ran({**row, **more}, ended, created + 1.0)


def test_a_task_waited_for_those_that_had_just_ended():
    pods = [ran("a", 0, 10), ran("b", 12, 40), ran("c", 12, 30), ran("d", 42, 50), ran("e", 60, 70)]
    assert parents_of(pods) == [[], ["a"], ["a"], ["b", "c"], ["d"]]


def test_tasks_made_together_did_not_wait_for_each_other():
    assert parents_of([ran("a", 0, 0.5), ran("b", 0, 5)]) == [[], []]


def test_a_task_of_no_length_has_ended_before_what_follows():
    assert parents_of([ran("a", 0, 5), ran("b", 6, 6), ran("c", 8, 9)]) == [[], ["a"], ["b"]]


def test_rows_tell_times_from_the_start_of_the_execution():
    pods = [ran("etl-1-get-31", 100, 130, node="n", cpu_cores=0.5), ran("etl-1-put-32", 133, 150)]
    rows = tasks_table(pods, DAY, Tally()).to_pylist()
    assert [(row["task"], row["start_s"], row["runtime_s"], row["parents"]) for row in rows] == [
        ("etl-1-get-31", 1.0, 29.0, None),
        ("etl-1-put-32", 34.0, 16.0, "etl-1-get-31"),
    ]
    assert [row["function"] for row in rows] == ["data/etl/get", "data/etl/put"]
    assert {row["time"].timestamp() for row in rows} == {100.0}
    assert all(row["estimated"] for row in rows)


def test_an_execution_that_goes_on_is_left_out_and_said():
    tally = Tally()
    pods = [ran("a", 80_000, 80_100), ran("b", 80_103, None), ran("z", 90_000, 90_001, "data/etl-2")]
    assert tasks_table(pods, DAY, tally).num_rows == 0
    assert tally.skipped == {"pods of executions that went on beyond their day": 2}
