"""The durable state: SQLite by default, PostgreSQL where several replicas share it.

Every step of a job is one transaction, and names the states it may come from: what has moved on meanwhile is left
alone and the caller told. Whoever leads holds an epoch; a leader that was replaced finds another epoch in the store and
can write nothing more, whatever its lease says.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from placement.cpn import crash
from placement.cpn.records import Attempt, Job
from placement.cpn.states import ENDED, IN_LINE, LEGAL, ON_A_CARD, State
from wire.errors import ConfigError, LoadmasterError

SQLITE = "sqlite"
WAIT_S = 30.0
"""For another writer; transactions take milliseconds."""

ACTIVE: tuple[State, ...] = (*IN_LINE, *ON_A_CARD)
"""Asked for by name, not as what has not ended: an index finds these among a hundred thousand that have."""

metadata = sa.MetaData()
JOBS, ATTEMPTS, MOVES, META = (
    sa.Table(name, metadata, *(sa.Column(column) for column in columns))
    for name, columns in (
        ("jobs", (*Job.__dataclass_fields__, "manifest")),
        ("attempts", tuple(Attempt.__dataclass_fields__)),
        ("moves", ("id", "job", "attempt", "at", "source", "target", "note")),
        ("meta", ("name", "value")),
    )
)
_JOB_COLUMNS = [JOBS.c[name] for name in Job.__dataclass_fields__]


class DeposedError(LoadmasterError):
    """Raised when another replica leads by now; nothing was written."""


class StaleError(LoadmasterError):
    """Raised when a job is no longer in the state that a step begins from; nothing was written."""


class JobStore:
    """The store.

    Args:
        url: ``sqlite:///path`` or ``postgresql+psycopg://…``.
    """

    def __init__(self, url: str) -> None:
        try:
            self._engine = _engine(url)
        except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ModuleNotFoundError) as error:
            raise ConfigError(
                f"store {url.rsplit('@', maxsplit=1)[-1]!r}: {error}", "sqlite:///PATH or postgresql+psycopg://…"
            ) from error
        self.shared = self._engine.dialect.name != SQLITE
        self._lock: IO[bytes] | None = None
        self._epoch = 0
        if not self.shared:
            self._lock = _only_one(Path(self._engine.url.database or ""))
        try:
            self._migrate()
        except BaseException as error:
            self.close()
            if not isinstance(error, sa.exc.DBAPIError):
                raise
            raise ConfigError(
                f"store {url.rsplit('@', maxsplit=1)[-1]!r}: {error.orig}", "a database that answers"
            ) from error

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _migrate(self) -> None:
        settings = Config()
        settings.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        with self._engine.begin() as connection:
            if self.shared:
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(7205759)"))
            settings.attributes["connection"] = connection
            command.upgrade(settings, "head")

    # Leading

    def lead(self) -> None:
        """Become the one who may write steps; whoever led before can write no more."""
        with self._engine.begin() as connection:
            self._epoch = _next(connection, "epoch")

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[Step]:
        """One transaction of the leader; all of it happens, or nothing."""
        crash.point(f"before {what}")
        with self._engine.begin() as connection:
            asked = sa.select(META.c.value).where(META.c.name == "epoch").with_for_update()
            epoch = connection.execute(asked).scalar_one()
            if epoch != self._epoch:
                raise DeposedError(f"epoch {epoch} leads", f"epoch {self._epoch}, ours")
            yield Step(connection)
        crash.point(f"after {what}")

    # What users do, at any replica

    def accept(self, job: Job, manifest: str, most_active: int | None) -> tuple[Job, bool] | None:
        """Take a job in; a submission that is known returns the job it made.

        Returns:
            The job, and whether it is new; None when the tenant has as many jobs as it may.
        """
        with self._engine.begin() as connection:
            job.seq = _next(connection, "seq")  # takes the row's lock: submissions commit in their order
            found = connection.execute(
                sa.select(*_JOB_COLUMNS).where(JOBS.c.tenant == job.tenant, JOBS.c.key == job.key)
            ).one_or_none()
            if found is not None:
                return Job(*found), False
            if most_active is not None:
                active = connection.execute(
                    sa.select(sa.func.count()).where(JOBS.c.tenant == job.tenant, JOBS.c.state.in_(ACTIVE))
                ).scalar_one()
                if active >= most_active:
                    return None
            job.touched = job.seq
            values = {name: getattr(job, name) for name in Job.__dataclass_fields__}
            connection.execute(JOBS.insert().values(**values, manifest=manifest))
            _note(connection, job.id, 0, job.submitted_at, "", job.state, "submitted")
        return job, True

    def ask_to_cancel(self, job: str, now: float) -> Job | None:
        """Note that a user withdraws a job; the controller does the rest. None: there is no such job."""
        with self._engine.begin() as connection:
            touched = _next(connection, "seq")
            connection.execute(
                JOBS.update()
                .where(JOBS.c.id == job, JOBS.c.state.not_in(ENDED), JOBS.c.cancel_at.is_(None))
                .values(cancel_at=now, touched=touched)
            )
            found = connection.execute(sa.select(*_JOB_COLUMNS).where(JOBS.c.id == job)).one_or_none()
        return None if found is None else Job(*found)

    # Reading

    def touched_since(self, seq: int) -> list[Job]:
        """Return the jobs that users submitted or withdrew since, in the order in which they did."""
        asked = sa.select(*_JOB_COLUMNS).where(JOBS.c.touched > seq).order_by(JOBS.c.touched)
        return [Job(*row) for row in self._rows(asked)]

    def active(self) -> list[Job]:
        """Return all jobs that have not ended, in order of submission."""
        asked = sa.select(*_JOB_COLUMNS).where(JOBS.c.state.in_(ACTIVE)).order_by(JOBS.c.seq)
        return [Job(*row) for row in self._rows(asked)]

    def last_seq(self) -> int:
        """Return the number of the last change by a user."""
        return int(self._rows(sa.select(META.c.value).where(META.c.name == "seq"))[0][0])

    def job(self, job: str) -> Job | None:
        """Return a job by its id."""
        rows = self._rows(sa.select(*_JOB_COLUMNS).where(JOBS.c.id == job))
        return Job(*rows[0]) if rows else None

    def jobs(
        self,
        *,
        tenant: str | None = None,
        states: Sequence[State] | None = None,
        before: int | None = None,
        most: int = 100,
    ) -> list[Job]:
        """Return jobs, newest first; ``before`` is the ``seq`` at which the page before ended."""
        asked = sa.select(*_JOB_COLUMNS).order_by(JOBS.c.seq.desc()).limit(most)
        if tenant is not None:
            asked = asked.where(JOBS.c.tenant == tenant)
        if states is not None:
            asked = asked.where(JOBS.c.state.in_(states))
        if before is not None:
            asked = asked.where(JOBS.c.seq < before)
        return [Job(*row) for row in self._rows(asked)]

    def manifest(self, job: str) -> str:
        """Return a job's manifest, as it was submitted (JSON)."""
        return str(self._rows(sa.select(JOBS.c.manifest).where(JOBS.c.id == job))[0][0])

    def attempts(self, jobs: Iterable[str]) -> list[Attempt]:
        """Return the attempts of these jobs, oldest first."""
        asked = sa.select(ATTEMPTS).where(ATTEMPTS.c.job.in_(list(jobs))).order_by(ATTEMPTS.c.decided_at)
        return [Attempt(*row) for row in self._rows(asked)]

    def open_attempts(self) -> list[Attempt]:
        """Return the attempts that have not ended."""
        on_card = sa.select(JOBS.c.id, JOBS.c.attempt).where(JOBS.c.state.in_(ON_A_CARD)).subquery()
        asked = sa.select(ATTEMPTS).join(
            on_card, sa.and_(ATTEMPTS.c.job == on_card.c.id, ATTEMPTS.c.number == on_card.c.attempt)
        )
        return [Attempt(*row) for row in self._rows(asked)]

    def shared_cards_with(self, card: str, since: float) -> list[Attempt]:
        """Return the attempts that ran on a card and ended after a time."""
        asked = sa.select(ATTEMPTS).where(ATTEMPTS.c.card == card, ATTEMPTS.c.ended_at > since)
        return [Attempt(*row) for row in self._rows(asked)]

    def last_ends(self, most: int = 1000) -> dict[str, float]:
        """Return when a job last left each card, of the attempts that ended last."""
        asked = (
            sa.select(ATTEMPTS.c.card, ATTEMPTS.c.ended_at)
            .where(ATTEMPTS.c.ended_at.is_not(None), ATTEMPTS.c.tried_at.is_not(None))
            .order_by(ATTEMPTS.c.ended_at.desc())
            .limit(most)
        )
        return {str(card): float(at) for card, at in reversed(self._rows(asked))}

    def last_card(self) -> str | None:
        """Return where the last decision sent a job."""
        rows = self._rows(sa.select(ATTEMPTS.c.card).order_by(ATTEMPTS.c.decided_at.desc()).limit(1))
        return str(rows[0][0]) if rows else None

    def service(self) -> dict[str, float]:
        """Return the card seconds that each model has had."""
        asked = (
            sa.select(ATTEMPTS.c.model, sa.func.sum(ATTEMPTS.c.ended_at - ATTEMPTS.c.started_at))
            .where(ATTEMPTS.c.ended_at.is_not(None), ATTEMPTS.c.started_at.is_not(None))
            .group_by(ATTEMPTS.c.model)
        )
        return {str(model): float(seconds) for model, seconds in self._rows(asked)}

    def measured(self, model: str) -> list[tuple[str, float]]:
        """Return the card and the seconds an iteration of each finished attempt of a model, oldest first."""
        asked = (
            sa.select(ATTEMPTS.c.card, (ATTEMPTS.c.ended_at - ATTEMPTS.c.started_at) / JOBS.c.epochs)
            .join(JOBS, JOBS.c.id == ATTEMPTS.c.job)
            .where(ATTEMPTS.c.model == model, ATTEMPTS.c.outcome == "finished", ATTEMPTS.c.started_at.is_not(None))
            .order_by(ATTEMPTS.c.ended_at.desc())
            .limit(100)
        )
        return [(str(card), float(seconds)) for card, seconds in self._rows(asked)][::-1]

    def counts(self) -> dict[str, int]:
        """Return how many jobs are in each state."""
        asked = sa.select(JOBS.c.state, sa.func.count()).group_by(JOBS.c.state)
        return {str(state): int(count) for state, count in self._rows(asked)}

    def moves(self, job: str) -> list[dict[str, Any]]:
        """Return all that happened to a job."""
        asked = sa.select(MOVES).where(MOVES.c.job == job).order_by(MOVES.c.id)
        return [dict(row._mapping) for row in self._rows(asked)]

    def everything(self) -> tuple[list[Job], list[Attempt], list[dict[str, Any]]]:
        """Return all jobs, attempts and moves, for a report."""
        return (
            [Job(*row) for row in self._rows(sa.select(*_JOB_COLUMNS).order_by(JOBS.c.seq))],
            [Attempt(*row) for row in self._rows(sa.select(ATTEMPTS).order_by(ATTEMPTS.c.decided_at))],
            [dict(row._mapping) for row in self._rows(sa.select(MOVES).order_by(MOVES.c.id))],
        )

    def to_export(self, most: int) -> list[tuple[Attempt, Job]]:
        """Return ended attempts that no nightly run has been told of."""
        asked = (
            sa.select(ATTEMPTS, *_JOB_COLUMNS)
            .join(JOBS, JOBS.c.id == ATTEMPTS.c.job)
            .where(ATTEMPTS.c.exported == 0, ATTEMPTS.c.ended_at.is_not(None))
            .order_by(ATTEMPTS.c.ended_at)
            .limit(most)
        )
        width = len(Attempt.__dataclass_fields__)
        return [(Attempt(*row[:width]), Job(*row[width:])) for row in self._rows(asked)]

    def mark_exported(self, attempts: Iterable[Attempt]) -> None:
        """Note that these have been told."""
        with self._engine.begin() as connection:
            for one in attempts:
                here = (ATTEMPTS.c.job == one.job) & (ATTEMPTS.c.number == one.number)
                connection.execute(ATTEMPTS.update().where(here).values(exported=1))

    def _rows(self, asked: sa.Select[Any]) -> Sequence[Any]:
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            return connection.execute(asked).all()


def is_there(url: str) -> bool:
    """Whether a store was ever made; of a server nobody knows before asking."""
    return not url.startswith(SQLITE) or Path(sa.make_url(url).database or "").is_file()


@contextlib.contextmanager
def read_only(url: str) -> Iterator[JobStore]:
    """Open a store to read it, also beside the controller whose it is."""
    store = JobStore.__new__(JobStore)
    if not is_there(url):
        raise ConfigError(f"store {url}: there is no such file", "the store of a controller")
    store._engine, store._lock, store._epoch = _engine(url), None, -1
    store.shared = store._engine.dialect.name != SQLITE
    try:
        yield store
    except sa.exc.DBAPIError as error:
        raise ConfigError(f"store {url.rsplit('@', 1)[-1]}: {error.orig}", "the store of a controller") from error
    finally:
        store.close()


class Step:
    """What one transaction of the leader may do."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def move(self, job: Job, target: State, at: float, note: str = "", **values: Any) -> None:
        """Bring a job from the state it is known to be in to another.

        Raises:
            StaleError: When the store knows it to be elsewhere.
        """
        if target not in LEGAL[job.state]:
            raise StaleError(
                f"job {job.id}: {job.state} -> {target}", f"one of {', '.join(LEGAL[job.state]) or 'none'}"
            )
        here = (JOBS.c.id == job.id) & (JOBS.c.state == job.state) & (JOBS.c.attempt == job.attempt)
        done = self._connection.execute(JOBS.update().where(here).values(state=target, **values))
        if done.rowcount != 1:
            raise StaleError(f"job {job.id} is no longer {job.state} in attempt {job.attempt}")
        _note(self._connection, job.id, values.get("attempt", job.attempt), at, job.state, target, note)

    def update(self, job: Job, **values: Any) -> None:
        """Change what is known of a job, its state apart."""
        self._connection.execute(JOBS.update().where(JOBS.c.id == job.id).values(**values))

    def begin_attempt(self, attempt: Attempt) -> None:
        """Enter an attempt; a number can be given once."""
        values = {name: getattr(attempt, name) for name in Attempt.__dataclass_fields__}
        self._connection.execute(ATTEMPTS.insert().values(**values))

    def change_attempt(self, attempt: Attempt, **values: Any) -> None:
        """Add facts to an attempt."""
        here = (ATTEMPTS.c.job == attempt.job) & (ATTEMPTS.c.number == attempt.number)
        self._connection.execute(ATTEMPTS.update().where(here).values(**values))


def _engine(url: str) -> sa.Engine:
    engine = sa.create_engine(url, pool_pre_ping=not url.startswith(SQLITE))
    if engine.dialect.name == SQLITE:
        Path(engine.url.database or "").parent.mkdir(parents=True, exist_ok=True)

        def connected(connection: Any, _record: Any) -> None:
            connection.isolation_level = None  # we say ourselves where a transaction begins
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")  # what was accepted survives a power cut
            connection.execute(f"PRAGMA busy_timeout={int(WAIT_S * 1000)}")

        sa.event.listen(engine, "connect", connected)
        # A transaction that reads first and writes later could otherwise find the lock taken by another one.
        sa.event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: sa.Connection) -> None:
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _only_one(path: Path) -> IO[bytes]:
    """Refuse a second process: with SQLite there is one replica."""
    lock = path.with_name(path.name + ".lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise ConfigError(
            f"{path} is another controller's", "one process with SQLite", "use PostgreSQL for more than one replica"
        ) from error
    return lock


def _next(connection: sa.Connection, name: str) -> int:
    asked = META.update().where(META.c.name == name).values(value=META.c.value + 1).returning(META.c.value)
    return int(connection.execute(asked).scalar_one())


def _note(connection: sa.Connection, job: str, attempt: int, at: float, source: str, target: str, note: str) -> None:
    values = {"job": job, "attempt": attempt, "at": at, "source": source, "target": target, "note": note}
    connection.execute(MOVES.insert().values(**values))
