"""Two promotions at the same moment, and a kill before each write of a promotion: the registry stays whole."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import promote
from pipeline.registry import bundles, chain, runs, terminal
from pipeline.registry.chain import Chain
from pipeline.registry.git import Repository
from pipeline.registry.verify import verify
from pipeline.registry.views import status
from wire.contracts.record import PromotionRecord

KILLED = 137
FORK = multiprocessing.get_context("fork")


pytestmark = pytest.mark.usefixtures("dvc_in_process")


def approve(run_dir: Path, approver: str = "ada") -> None:
    runs.record_run(run_dir, run_dir.name)
    promote.promote("functions", run_id=run_dir.name, approver=approver, reason="")


def in_child(action: Callable[[], None]) -> int:
    """Run in a forked process and return its exit code."""

    def run() -> None:
        code = 0
        try:
            action()
        except BaseException:
            traceback.print_exc()
            code = 1
        os._exit(code)

    child = FORK.Process(target=run)
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def rejection(now: Chain, person: str) -> PromotionRecord:
    first = now.records[0]
    answer = terminal.typed(person, digest=first.digest, report_sha256=first.report_sha256 or None)
    return now.follow_up(first, state="rejected", approver=person, answer=answer, reason="no", bundle_sha256=None)


WRITING = {"push", "update-ref", "commit-tree", "mktag", "write-tree"}


def die_before_write(number: int) -> None:
    """Arrange for the process to end, without any clean-up, right before its write of that number."""
    left = number

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os._exit(KILLED)

    for owner, name in (
        (Path, "rename"),
        (Path, "replace"),
        (Path, "hardlink_to"),
        (bundles, "dvc"),
        (runs, "_push_data"),
    ):
        original = getattr(owner, name)

        def counted(*arguments: object, _original: Callable[..., object] = original) -> object:
            count()
            return _original(*arguments)

        setattr(owner, name, counted)
    spawn = Repository._spawn

    def counted_spawn(self: Repository, arguments: tuple[str, ...], *rest: object) -> object:
        if arguments[0] in WRITING:
            count()
        return spawn(self, arguments, *rest)  # type: ignore[arg-type]

    Repository._spawn = counted_spawn  # type: ignore[method-assign, assignment]


def test_a_kill_before_any_write_leaves_a_registry_that_is_whole_and_can_go_on(nights, forget_run, tmp_path) -> None:
    forget_run("one")  # so that recording it is among the writes
    pristine = tmp_path / "pristine"
    subprocess.run(["cp", "-a", str(nights.parent), str(pristine)], check=True)
    outcomes: list[str] = []
    for number in range(100):
        subprocess.run(["rm", "-rf", str(nights.parent)], check=True)
        subprocess.run(["cp", "-a", str(pristine), str(nights.parent)], check=True)
        code = in_child(lambda number=number: (die_before_write(number), approve(nights / "one")))  # type: ignore[misc]
        if code == 0:
            break
        assert code == KILLED, "the child failed by itself"
        chain, findings = verify()
        assert findings == [], f"killed before write {number}: {findings}"
        assert chain is not None
        said = "; ".join(status(chain))
        outcomes.append(said)
        assert said == "" or "was approved by ada" in said
        # The same command again finishes the job, exactly once.
        approve(nights / "one")
        assert [record.state for record in Chain.open().records] == ["approved"]
        assert verify()[1] == []
    assert number >= 12, "too few writes were seen: the counting is broken"
    assert "" in outcomes
    assert "was approved by ada" in outcomes[-1], "the last kill comes after the record was pushed, and is told"


def test_two_promotions_at_the_same_moment_one_wins_the_other_is_told(nights, monkeypatch) -> None:
    both_have_read = FORK.Barrier(2)
    messages = FORK.Queue()
    write = Chain.write

    waited: list[bool] = []  # each child has its own

    def wait_then_write(self: Chain, *arguments: object) -> bool:
        if not waited:  # only the first attempt of each: later ones must not wait for anybody, nor meet again
            waited.append(True)
            both_have_read.wait(60)
        return write(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Chain, "write", wait_then_write)

    def contend(name: str, approver: str) -> None:
        try:
            approve(nights / name, approver)
            messages.put((approver, "won"))
        except Exception as error:
            messages.put((approver, str(error)))

    children = [FORK.Process(target=contend, args=pair) for pair in (("one", "ada"), ("two", "bob"))]
    for child in children:
        child.start()
    told = dict(messages.get(timeout=120) for _ in children)
    for child in children:
        child.join()
    assert list(told.values()).count("won") == 1, told
    (winner,) = [name for name, message in told.items() if message == "won"]
    loser = told["bob" if winner == "ada" else "ada"]
    assert "came first: record 0, sha256:" in loser
    assert f"approved by {winner}" in loser
    assert "nothing of yours was recorded" in loser
    chain, findings = verify()
    assert findings == []
    assert chain is not None
    assert [record.approver for record in chain.records] == [winner]


def test_writers_that_do_not_conflict_all_get_through_in_one_chain(nights) -> None:
    def turn_down(number: int) -> None:
        chain.append(lambda now: rejection(now, f"p{number}"))

    promote.reject("functions", run_id="one", approver="p0", reason="no")
    children = [FORK.Process(target=turn_down, args=(number,)) for number in range(1, 5)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    whole, findings = verify()
    assert findings == []
    assert whole is not None
    assert {record.approver for record in whole.records} == {f"p{number}" for number in range(5)}
    assert [record.sequence for record in whole.records] == list(range(5))


def test_a_reader_whose_fetch_is_older_than_anothers_push_does_not_cry_tampering(nights) -> None:
    """The other process pushes and moves the anchor between our fetch and our look at it."""
    promote.reject("functions", run_id="one", approver="p0", reason="no")
    behind = Chain.open()
    newer = chain.append(lambda now: rejection(now, "p1"))
    behind.mirror.run("update-ref", chain.TRACKED, str(behind.commit))
    seen, findings = Chain.read(behind.mirror)
    assert findings == []
    assert seen.records[-1] == newer
