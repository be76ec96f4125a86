"""What is asked of Airflow's API, and how its answers are put together."""

import pytest

from pipeline.local import __main__ as local
from pipeline.local.airflow_api import AirflowApi


@pytest.fixture
def api(monkeypatch):
    """A client without a server: `answer` is what it is told."""
    monkeypatch.setattr(AirflowApi, "__init__", lambda self: None)
    return AirflowApi()


def test_a_night_of_more_tasks_than_a_page_is_read_whole(api, monkeypatch):
    rows = [{"task_id": str(number)} for number in range(230)]

    def call(_method, _path, params):
        first = params["offset"]
        return {"task_instances": rows[first : first + min(params["limit"], 100)], "total_entries": len(rows)}

    monkeypatch.setattr(api, "call", call)
    assert api.tasks("nightly_retrain", "one") == rows


@pytest.mark.parametrize("prefix", ["", "functions."])
def test_the_end_says_of_every_problem_whether_it_is_live_and_why(api, monkeypatch, capsys, prefix):
    states = {"report": "success", "verify": "success", "train": "success"}
    tasks = [{"task_id": prefix + name, "map_index": -1, "state": state} for name, state in states.items()]
    if prefix:
        tasks += [
            {"task_id": f"vm.{name}", "map_index": -1, "state": state}
            for name, state in (("report", "success"), ("verify", "skipped"))
        ]
        tasks += [{"task_id": f"jobs.{name}", "map_index": -1, "state": "skipped"} for name in ("report", "verify")]
    monkeypatch.setattr(api, "tasks", lambda _dag, _run: tasks)
    monkeypatch.setattr(
        api, "xcom", lambda _dag, _run, task, _index, _key: "inconclusive: too few" if "vm" in task else "pass: better"
    )
    assert local.explain(api, "one") is True
    said = capsys.readouterr().out.splitlines()
    expected = [f"  {prefix.replace('.', ': ')}live; gate: pass: better"]
    assert said == expected + (["  vm: not live; gate: inconclusive: too few"] if prefix else [])
