"""Steps are transactions with legal states; SQLite has one owner, PostgreSQL a leader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from placement.cpn.records import Attempt, Job
from placement.cpn.states import LEGAL, STATES
from placement.cpn.store import DeposedError, JobStore, StaleError, read_only
from tests import servers
from wire.errors import ConfigError


def a_job(name: str = "one", tenant: str = "t") -> Job:
    return Job(
        name, 0, tenant, name, name, "d", "m", 1.0, 2.0, 3.0, 4.0, 5.0, 0, None, "store", 3, 10.0, "waiting", 0, 0,
        None, None, 10.0, 0.0, None, None, "",
    )  # fmt: skip


def an_attempt(job: str, number: int = 1) -> Attempt:
    return Attempt(job, number, "m", "c", "n", "c/n/gpu0", "fifo", 11.0, 12.0, 20.0, "")


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.postgres(tmp_path_factory.mktemp("postgres") / "pg", "jobs") as address:
        yield f"postgresql+psycopg://{address}"


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobStore]:
    postgres = request.param == "postgres"
    opened = JobStore(request.getfixturevalue("postgres") if postgres else f"sqlite:///{tmp_path}/jobs.db")
    if opened.shared:
        with opened._engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM attempts")
            connection.exec_driver_sql("DELETE FROM moves")
            connection.exec_driver_sql("DELETE FROM jobs")
    opened.lead()
    yield opened
    opened.close()


def test_a_submission_is_taken_once_and_counts_against_its_tenant(store: JobStore) -> None:
    first = store.accept(a_job(), "{}", 2)
    again = store.accept(a_job(), "{}", 2)
    assert first is not None
    assert again is not None
    assert first[1]
    assert not again[1]
    assert again[0].id == first[0].id
    assert store.accept(a_job("two"), "{}", 2) is not None
    assert store.accept(a_job("three"), "{}", 2) is None
    assert store.accept(a_job("four", "other"), "{}", 2) is not None
    assert [job.name for job in store.active()] == ["one", "two", "four"]
    assert store.last_seq() >= store.active()[-1].seq


def test_every_illegal_step_is_refused_and_nothing_changes(store: JobStore) -> None:
    for source in STATES:
        for target in STATES:
            if target in LEGAL[source]:
                continue
            job = a_job(f"{source}-{target}")
            job.state = source
            store.accept(job, "{}", None)
            with pytest.raises(StaleError), store.step("test") as step:
                step.move(job, target, 1.0)
            found = store.job(job.id)
            assert found is not None
            assert found.state == source


def test_a_step_is_whole_or_not_at_all(store: JobStore) -> None:
    job = a_job()
    store.accept(job, "{}", None)
    with pytest.raises(StaleError), store.step("test") as step:  # noqa: PT012 - all of it is undone
        step.begin_attempt(an_attempt(job.id))
        step.move(job, "scheduled", 11.0, attempt=1)
        step.move(job, "transferring", 11.0)
    assert not store.attempts([job.id])
    found = store.job(job.id)
    assert found is not None
    assert found.state == "waiting"
    with store.step("test") as step:
        step.begin_attempt(an_attempt(job.id))
        step.move(job, "scheduled", 11.0, attempt=1, card="c/n/gpu0")
    with pytest.raises(StaleError), store.step("test") as step:
        step.move(job, "scheduled", 11.0)  # what we know of it is old
    assert [one.kube_name for one in store.open_attempts()] == ["lm-one-1"]
    assert [move["target"] for move in store.moves(job.id)] == ["waiting", "scheduled"]


def test_who_was_replaced_can_write_nothing(store: JobStore) -> None:
    job = a_job()
    store.accept(job, "{}", None)
    mine = store._epoch
    store.lead()  # as another replica does
    store._epoch = mine
    with pytest.raises(DeposedError), store.step("test") as step:
        step.move(job, "scheduled", 1.0)
    found = store.job(job.id)
    assert found is not None
    assert found.state == "waiting"


def test_changes_by_users_are_read_in_their_order(store: JobStore) -> None:
    before = store.last_seq()
    for name in ("one", "two"):
        store.accept(a_job(name), "{}", None)
    store.ask_to_cancel("one", 5.0)
    touched = store.touched_since(before)
    assert [(job.id, job.cancel_at) for job in touched] == [("two", None), ("one", 5.0)]
    assert store.touched_since(touched[-1].touched) == []
    assert store.ask_to_cancel("nobody", 5.0) is None


def test_a_second_process_is_refused_with_sqlite_and_may_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    first = JobStore(url)
    first.accept(a_job(), "{}", None)
    with pytest.raises(ConfigError, match="PostgreSQL"):
        JobStore(url)
    with read_only(url) as beside:
        assert [job.id for job in beside.active()] == ["one"]
    first.close()
    again = JobStore(url)
    assert [job.id for job in again.active()] == ["one"]
    again.close()


def test_a_file_that_is_no_database_is_refused_and_its_lock_let_go(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        JobStore(f"sqlite:///{tmp_path}/jobs.db")
    (tmp_path / "jobs.db").unlink()
    JobStore(f"sqlite:///{tmp_path}/jobs.db").close()  # in the same process: nobody holds it


def test_a_store_that_is_none_is_refused(tmp_path: Path) -> None:
    for url in ("mysql://x", "nonsense"):
        with pytest.raises(ConfigError, match="sqlite:///PATH"):
            JobStore(url)
    with pytest.raises(ConfigError, match="no such file"), read_only(f"sqlite:///{tmp_path}/none.db"):
        pass
