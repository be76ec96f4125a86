"""The approval with Airflow's metadata in PostgreSQL: whatever happens on the way, registry, service and answer agree.

PostgreSQL's own programs run as `nobody`; stages are stand-ins that end in a moment, everything else is real.
"""

import os
import signal
import sys
import time

import psutil
import pytest

from pipeline.local import servers
from pipeline.local.__main__ import DAG
from pipeline.local.airflow_api import AirflowError
from pipeline.registry.chain import Chain
from pipeline.registry.places import workspace
from pipeline.registry.verify import verify
from tests.servers import postgres
from tests.standing_night import APPROVER, asked, ended, live, standing, state_of, until

pytestmark = [pytest.mark.airflow, pytest.mark.soak, pytest.mark.timeout(3500)]
WAIT_HOURS = 0.08
"""How long a question waits here: long enough to kill and start a scheduler, short enough to be waited for."""


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    root = tmp_path_factory.mktemp("postgres")
    with postgres(root / "pg", "airflow") as address:
        more = {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg://{address}",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"postgresql+psycopg_async://{address}",
            "LOADMASTER_APPROVERS": APPROVER,
            "LOADMASTER_APPROVAL_HOURS": str(WAIT_HOURS),
            "LOADMASTER_CANARY_DWELL_MINUTES": "0",
            "LOADMASTER_CANARY_CALLS": "0",
        }
        with standing(root / "night", more) as both:
            yield both


def ours(*words):
    """Find processes of this test by words of their command line."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            line = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        if all(word in line for word in words):
            found.append(process)
    return found


def agree(settings):
    """Hold registry and service together: what is live is what the newest record says, and a person is behind it."""
    chain = Chain.open()
    record = chain.live("functions")
    assert live(settings) == (record.digest if record else None)
    for one in chain.records:
        assert one.state != "approved" or one.approver == APPROVER
    assert verify()[1] == []
    return [one.state for one in chain.records]


@pytest.fixture(scope="module")
def first(local):
    """A viewer tries, the scheduler dies while the question waits, the approver answers, and then once more."""
    settings, people = local
    run = asked(people["adam"])
    refused = []
    for name, option in (("vera", "Approve"), ("adam", "Approve")):
        try:
            people[name].answer(DAG, run, "approve", -1, option, "me")
        except AirflowError as error:
            refused.append(str(error))
    (scheduler,) = ours("airflow", "scheduler", "--skip-serve-logs")[:1]
    os.killpg(os.getpgid(scheduler.pid), signal.SIGKILL)
    before = agree(settings)
    with servers.server_process(
        "Airflow's scheduler", [sys.executable, "-m", "airflow", "scheduler", "--skip-serve-logs"],
        env=servers.airflow_environment(settings), log=settings.var / "log" / "airflow.log",
        ready=lambda: True, timeout_s=60,
    ):  # fmt: skip
        people[APPROVER].answer(DAG, run, "approve", -1, "Approve", "first")
        try:
            people[APPROVER].answer(DAG, run, "approve", -1, "Reject", "second thoughts")
        except AirflowError as error:
            refused.append(str(error))
        tasks = ended(people["adam"], run)
        yield run, before, refused, tasks


def test_the_metadata_is_in_postgresql(local):
    settings, _ = local
    assert not list((settings.var / "airflow").glob("*.db"))


def test_a_viewer_cannot_answer_and_nobody_answers_twice(first):
    _, before, refused, _ = first
    assert before == [], "nothing was promoted without an answer"
    assert ["403" in refused[0], "403" in refused[1], "409" in refused[2]] == [True, True, True], refused


def test_a_scheduler_killed_during_the_wait_loses_nothing(local, first):
    settings, _ = local
    assert first[3]["verify"] == "success", first[3]
    assert agree(settings)[:2] == ["approved", "live"]


def test_a_rejection_is_kept_and_pushes_nothing(local, first):
    settings, people = local
    before = live(settings)
    run = asked(people["adam"])
    people[APPROVER].answer(DAG, run, "approve", -1, "Reject", "not today")
    tasks = ended(people["adam"], run)
    assert (tasks["promote"], tasks["rejected"]) == ("skipped", "success")
    assert live(settings) == before
    record = Chain.open().records[-1]
    assert (record.state, record.approver, record.reason) == ("rejected", APPROVER, "not today")
    agree(settings)


def test_nobody_answering_promotes_nothing_and_is_kept(local, first):
    settings, people = local
    before = live(settings)
    run = asked(people["adam"])
    tasks = ended(people["adam"], run)
    assert (tasks["promote"], tasks["push"]) == ("skipped", "skipped"), tasks
    record = Chain.open().records[-1]
    assert (record.state, record.approver) == ("rejected", None)
    assert live(settings) == before
    agree(settings)


def test_a_bundle_changed_after_it_was_shown_is_refused(local, first):
    settings, people = local
    before, records = live(settings), len(Chain.open().records)
    run = asked(people["adam"])
    path = workspace(run) / "data" / "bundles" / "functions" / "policy.onnx"
    data = path.read_bytes()
    path.unlink()  # a link into the cache: not to be written through
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    people[APPROVER].answer(DAG, run, "approve", -1, "Approve", "what I saw")
    tasks = ended(people["adam"], run)
    assert tasks["promote"] == "failed", tasks
    assert (live(settings), len(Chain.open().records)) == (before, records)
    agree(settings)


def test_a_worker_killed_during_push_goes_on_and_the_canary_ends_live(local, first):
    settings, people = local
    run = asked(people["adam"], {"rollout": "canary"})
    (service,) = ours("-m placement")[:1]
    service.suspend()  # the push waits for the service: long enough to be met
    try:
        people[APPROVER].answer(DAG, run, "approve", -1, "Approve", "slowly")
        until(lambda: ours("pipeline.rollout"), "the push never began")
        for process in ours("pipeline.rollout"):
            worker = process.parent()
            process.kill()
            if worker is not None:
                worker.kill()
    finally:
        service.resume()
    tasks = ended(people["adam"], run)
    assert tasks["verify"] == "success", tasks
    assert agree(settings)[-5:] == ["approved", "canary", "canary", "canary", "live"]
    assert state_of(people["adam"], run, "canary") == "success"
    time.sleep(1)
    assert Chain.open().records[-1].run_id == run
