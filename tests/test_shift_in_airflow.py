"""A load that doubles: seen by watch_live in a real Prometheus, trained on at once, judged against what is live.

Airflow, registry, service and Prometheus are real; the stages are stand-ins that end in a moment. Whether a policy that
is trained for the shifted load is better there than the one before is measured by ``benchmarks/early_night.py``.
"""

import time
from contextlib import contextmanager
from datetime import UTC, datetime

import numpy as np
import pytest
import yaml

from pipeline.local.__main__ import DAG
from pipeline.local.airflow_api import ENDED
from pipeline.registry import places
from pipeline.registry.chain import Chain
from pipeline.watch import drift, page
from tests.pipeline.sources.conftest import running_prometheus
from tests.standing_night import APPROVER, asked, ended, live, standing, until

pytestmark = [pytest.mark.airflow, pytest.mark.prometheus, pytest.mark.soak, pytest.mark.timeout(3000)]
WATCH = "watch_live"
SHIFTED_FOR_S = 1200
"""How long the load has been doubled when the first look comes."""


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    root = tmp_path_factory.mktemp("shift")
    more = {"LOADMASTER_APPROVERS": APPROVER, "LOADMASTER_WATCH_FILE": str(root / "watch.yaml")}
    with standing(root, more, (DAG, WATCH)) as both:
        both[1]["adam"].wait_for_dag(WATCH)
        yield both


@contextmanager
def a_load_that_doubled(folder):
    """Eight days of calls in a Prometheus of our own, which have been twice as many for a little while."""
    folder.mkdir()
    rng, now_s = np.random.default_rng(8), time.time() // 300 * 300
    times = np.arange(now_s - 8 * drift.DAY_S, now_s + 2 * 3600, 300)
    with (folder / "text").open("w") as file:
        for name in range(6):
            rhythm = 1 + 0.4 * np.sin(2 * np.pi * times / drift.DAY_S)
            values = (1 + name) * rhythm * np.exp(rng.normal(0, 0.1, len(times)))
            values *= np.where(times >= now_s - SHIFTED_FOR_S, 2.0, 1.0)
            file.writelines(f'calls{{f="{name}"}} {v:.6f} {at:.0f}\n' for at, v in zip(times, values, strict=True))
        file.write("# EOF\n")
    with running_prometheus(folder, folder / "text") as address:
        yield address


@pytest.fixture(scope="module")
def first(local):
    """A first policy, approved and live."""
    settings, people = local
    run = asked(people["adam"])
    people[APPROVER].answer(DAG, run, "approve", -1, "Approve", "the first")
    assert ended(people["adam"], run)["verify"] == "success"
    return live(settings)


@pytest.fixture(scope="module")
def looks(local, first):
    """The first two looks at the load that has doubled; returns what became of the tasks of each."""
    settings, people = local
    root, api = settings.var.parent, people["adam"]

    def ended_looks():
        runs = api.call("GET", f"/dags/{WATCH}/dagRuns", params={"order_by": "start_date"})["dag_runs"]
        return [run["dag_run_id"] for run in runs if run["state"] in ENDED]

    with a_load_that_doubled(root / "prometheus") as address:
        # Looks here come seconds apart; by the quarter of an hour that is usual the second would not count.
        asked = "problems: {functions: {features: {calls: calls}, load: calls}}\n"
        watched = f"reference_days: 7\nevery_seconds: 2\n{asked}"
        (root / "watch.yaml").write_text(f"prometheus: {address}\n{watched}")
        # The DAG's own quarter of an hour may come between ours: what counts is which look was the first.
        while len(found := ended_looks()) < 2:
            run = api.start(WATCH)
            until(lambda run=run: api.run_state(WATCH, run) in ENDED, "the look never ended")
    return [{row["task_id"]: row["state"] for row in api.tasks(WATCH, run)} for run in found[:2]]


def test_the_second_look_is_sure_and_starts_a_training(local, looks):
    settings, _ = local
    before, after = looks
    assert before["functions.start_retrain"] == "skipped", "one look is none"
    assert after["functions.start_retrain"] == "success", after
    assert "times the load of an hour ago" in (settings.var / "watch" / page.PAGE).read_text()


def test_the_early_night_is_about_that_problem_at_its_load_and_is_judged_against_what_is_live(local, first, looks):
    settings, people = local
    run = f"load__functions__{datetime.now(UTC):%Y-%m-%d}"
    until(
        lambda: any(
            row["task_id"] == "approve" and row["state"] in ("awaiting_input", "deferred")
            for row in people["adam"].tasks(DAG, run)
        ),
        "the early night never asked",
    )
    asked_for = yaml.safe_load((places.workspace(run, settings.var) / "params.yaml").read_text())
    assert asked_for["seeds"] == [0, 1], "a night that starts early has a size of its own"
    assert asked_for["workload"]["functions"]["density"] == pytest.approx(2.0, rel=0.15)
    time.sleep(10)
    people[APPROVER].answer(DAG, run, "approve", -1, "Approve", "the load has doubled")
    assert ended(people["adam"], run)["verify"] == "success"
    records = Chain.open().records
    assert [record.state for record in records] == ["approved", "live", "approved", "live"]
    assert records[2].run_id == run
    assert records[2].gate["champion_digest"] == first == records[2].previous_digest
    assert live(settings) == records[2].digest != first
