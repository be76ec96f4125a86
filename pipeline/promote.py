"""Promote: sign the bundle of a recorded run and record that a person approved it; or record that nobody did.

    python -m pipeline.promote --problem functions --run-id X --airflow-task nightly_retrain/approve
    python -m pipeline.promote --problem functions --run-id X --approver NAME --reason TEXT
    python -m pipeline.promote --reject --problem functions --run-id X ...
    python -m pipeline.promote --resign --problem functions --approver NAME --reason "key rotated"

Everything comes from the commit that ``record`` pushed and, by its hashes, from DVC; a workspace that has changed since
is refused. The signed bundle is stored first and the record last, in one atomic push: whatever is killed in between,
the registry holds either no trace of the promotion or all of it, and running it again ends well.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import airflow_answers, approval
from pipeline.approval import Question, Response
from pipeline.errors import RegistryError
from pipeline.registry import bundles, records, runs, terminal
from pipeline.registry.chain import Chain, append
from pipeline.registry.runs import Run
from pipeline.registry.views import describe
from sched_env import problems
from wire.command import Verb, problem_option
from wire.contracts.bundle import Manifest, Verdict
from wire.contracts.record import Answer, PromotionRecord
from wire.errors import ConfigError, run_cli


class Case(NamedTuple):
    """What there is to decide about: a recorded run, its bundle and the gate's word on it."""

    asked: Question
    run: Run
    report: dict[str, Any]
    manifest: Manifest


def promote(
    problem: str, *, run_id: str, approver: str = "", reason: str = "", answer: Answer | None = None
) -> PromotionRecord:
    """Sign a run's bundle and write the ``approved`` record.

    Args:
        problem: Which of the run's bundles.
        run_id: The Airflow run id; ``record`` must have pushed its branch.
        approver: The person who decided, typed at a terminal by whoever holds the key; there must be one.
        reason: Their words.
        answer: Instead of ``approver``: what Airflow keeps of their answer.
    """
    asked = approval.question(problem, run_id)
    given = answer or terminal.typed(approver, digest=asked.digest, report_sha256=asked.report_sha256)
    if asked.outcome != "pass":
        raise RegistryError(f"the gate said {asked.outcome}: {asked.reason}", "pass")
    chain = Chain.open()
    done = _done_before(chain, asked)
    if done is not None:
        return done
    with bundles.of_run(chain.mirror, asked.commit, problem) as exported:
        case = _case(chain, asked, exported)
        _check_still_valid(chain, case, given)
        verdict = Verdict(outcome="pass", reason=asked.reason)
        directory = bundles.finalise(exported, case.run, verdict)
    pointer, sha256 = bundles.store(directory), bundles.files_sha256(directory)

    def decide(chain: Chain) -> PromotionRecord:
        _check_still_valid(chain, case, given)
        return chain.next_record(
            **_facts(chain, case),
            state="approved",
            counter=chain.counter(problem) + 1,
            approver=given.person_name,
            reason=reason or "no comment given",
            bundle_sha256=sha256,
            answer=given,
        )

    return append(decide, files={bundles.pointer_of(asked.digest): pointer})


def reject(
    problem: str, *, run_id: str, approver: str | None = None, reason: str = "", answer: Answer | None = None
) -> PromotionRecord:
    """Record that a bundle was turned down: by a person, or (no ``approver``, no ``answer``) by nobody answering."""
    asked = approval.question(problem, run_id)
    given = answer
    if given is None and approver is not None:
        given = terminal.typed(approver, digest=asked.digest, report_sha256=asked.report_sha256)
    chain = Chain.open()
    mine = chain.of(problem)
    same = mine and (mine[-1].state, mine[-1].run_id, mine[-1].digest) == ("rejected", run_id, asked.digest)
    if same and (given is None or mine[-1].approver == given.person_name):  # a person's no is kept beside a time-out
        return mine[-1]
    with bundles.of_run(chain.mirror, asked.commit, problem) as exported:
        case = _case(chain, asked, exported)

    def decide(chain: Chain) -> PromotionRecord:
        _refuse_used(chain, given)
        return chain.next_record(
            **_facts(chain, case),
            state="rejected",
            counter=chain.counter(problem),
            approver=given.person_name if given else None,
            reason=reason or ("no comment given" if given else "nobody answered in time"),
            answer=given,
        )

    return append(decide)


def resign(problem: str, *, approver: str, reason: str) -> PromotionRecord:
    """Sign the live bundle anew with the current key: after a rotation, or when the key that signed it was revoked.

    The policy stays the same, but what the service holds changes: so it is approved, counted and pushed like any other.
    """
    chain = Chain.open()
    live = chain.live(problem)
    if live is None:
        raise RegistryError(f"no policy of {problem} is live", "a bundle to sign")
    given = terminal.typed(approver, digest=live.digest, report_sha256=live.report_sha256 or None)
    directory = bundles.sign_anew(bundles.approved(chain, live, history=True))
    pointer, sha256 = bundles.store(directory), bundles.files_sha256(directory)

    def decide(chain: Chain) -> PromotionRecord:
        now, pending = chain.live(problem), chain.pending(problem)
        if now is None or now.digest != live.digest or pending is not None:
            raise RegistryError(f"another promotion of {problem} came first", fix="look at it, then run this again")
        return chain.follow_up(
            now,
            state="approved",
            counter=chain.counter(problem) + 1,
            previous_digest=now.digest,
            approver=given.person_name,
            reason=reason or "signed anew",
            bundle_sha256=sha256,
            kind="resign",
            answer=given,
        )

    return append(decide, files={bundles.pointer_of(live.digest): pointer})


def _case(chain: Chain, asked: Question, exported: Path) -> Case:
    """Hold the bundle that the run exported against the question: its report must be about it."""
    manifest = bundles.read_manifest(exported)
    if (manifest.problem, manifest.digest) != (asked.problem, asked.digest):
        raise RegistryError(
            f"the report in commit {asked.commit[:12]} is about {asked.digest}",
            f"{manifest.digest}, the bundle of this run",
            "run the gate again, in a new run",
        )
    path = runs.report_of(asked.problem)
    files = chain.mirror.files(asked.commit, path, runs.LOCK)
    run = Run(asked.run_id, asked.commit, hashlib.sha256(files[runs.LOCK]).hexdigest())
    return Case(asked, run, runs.read_report(files[path]), manifest)


def _done_before(chain: Chain, asked: Question) -> PromotionRecord | None:
    """Find the record an earlier attempt of this very promotion has written."""
    for record in (chain.pending(asked.problem), chain.live(asked.problem)):
        if record is not None and (record.digest, record.run_id) == (asked.digest, asked.run_id):
            return record
    return None


def _check_still_valid(chain: Chain, case: Case, given: Answer) -> None:
    """Refuse when the world is no longer the one the gate judged and the person approved."""
    asked = case.asked
    pending, live = chain.pending(asked.problem), chain.live(asked.problem)
    if pending is not None:
        raise RegistryError(
            f"another promotion of {asked.problem} came first: record {pending.sequence}, {pending.digest[:19]}, "
            f"approved by {pending.approver} at {pending.decided_at}, is not live yet",
            "one promotion of a problem at a time; nothing of yours was recorded",
            "finish it (python -m pipeline.push, then verify_live), then run the gate against the new champion",
        )
    if live is not None and live.digest == asked.digest:
        raise RegistryError(f"{asked.digest} is live already (record {live.sequence})", "another bundle")
    if (given.digest, given.report_sha256) != (asked.digest, asked.report_sha256):
        raise RegistryError(
            f"{given.person_name} answered about {given.digest} and another report",
            f"an answer about {asked.digest}",
            "nothing was recorded; clear the approve task: it asks again",
        )
    _refuse_used(chain, given)
    if (once := records.spent(asked.run_id, chain.of(asked.problem))) is not None:
        raise RegistryError(
            f"run {asked.run_id!r} was {once.state} before (record {once.sequence}, {once.decided_at})",
            "a fresh gate and a fresh answer",
            "nothing was recorded; start a new run, or go back with python -m pipeline.registry rollback --to",
        )
    judged_against, champion = case.report.get("champion_digest"), live.digest if live else None
    if judged_against != champion:
        raise RegistryError(
            f"the gate compared with {judged_against or 'the heuristics'}, but {champion or 'nothing'} is live",
            "a verdict against the policy that is live",
            "nothing was recorded; run evaluate and gate again, in a new run",
        )


def _refuse_used(chain: Chain, given: Answer | None) -> None:
    used = records.answered_before(given.id, chain.records) if given else None
    if given is not None and used is not None:
        raise RegistryError(
            f"the answer that {given.person_name} gave at {given.answered_at} was used for record {used.sequence}",
            "an answer that counts once",
            "nothing was recorded; clear the approve task: it asks again",
        )


def _facts(chain: Chain, case: Case) -> dict[str, Any]:
    """What records of every kind carry about a run's bundle."""
    lineage = case.manifest.lineage
    return {
        "problem": case.asked.problem,
        "digest": case.asked.digest,
        "previous_digest": chain.live_digest(case.asked.problem),
        "run_id": case.run.run_id,
        "git_commit": case.run.commit,
        "dvc_lock_sha256": case.run.dvc_lock_sha256,
        "data_range": (lineage.windows_start, lineage.windows_end),
        "gate": case.report,
        "kind": "promotion",
        "report_sha256": case.asked.report_sha256,
        "rules_off": dict(case.report.get("rules_off") or {}),
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    problem_option(parser, problems.names())
    parser.add_argument("--run-id", help="the run's id")
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--approver", default="", help="the person who decided")
    who.add_argument("--airflow-task", metavar="DAG/TASK", help="the task whose answer, kept by Airflow, decides")
    parser.add_argument("--reason", default="", help="their words; those of an answer in Airflow come with it")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--reject", action="store_true", help="record a rejection")
    instead.add_argument("--resign", action="store_true", help="sign the live bundle anew with the current key")


def run(options: argparse.Namespace) -> int:
    """Write the record that was asked for, and say what it says."""
    problem, approver, reason = options.problem, options.approver, options.reason
    if options.resign:
        record = resign(problem, approver=approver, reason=reason)
    elif options.run_id is None:
        raise ConfigError("no --run-id", "the run whose bundle it is about", "only --resign does without one")
    elif options.airflow_task:
        return _as_airflow_says(options)
    elif options.reject:
        record = reject(problem, run_id=options.run_id, approver=approver.strip() or None, reason=reason)
    else:
        record = promote(problem, run_id=options.run_id, approver=approver, reason=reason)
    sys.stdout.write(describe(record) + "\n")
    return 0


def _as_airflow_says(options: argparse.Namespace) -> int:
    """Promote on an approver's Approve, reject on anything else that ended the question; never the other way round."""
    dag, _, task = options.airflow_task.rpartition("/")
    asked = approval.question(options.problem, options.run_id)
    said: Response | None = airflow_answers.response(asked, dag, task)
    if options.reject:
        if said is None or said.approved:
            word = "nobody has answered" if said is None else "it was approved"
            sys.stdout.write(f"{options.problem}: {word}; {approval.NO_REJECTION}\n")
            return 0
        record = reject(options.problem, run_id=options.run_id, answer=said.answer, reason=said.comment)
    elif said is None or not said.approved or said.answer is None:
        word = "nobody has answered" if said is None or said.answer is None else "the answer was Reject"
        raise RegistryError(
            f"promotion refused: {word} to {options.airflow_task} of run {options.run_id!r}",
            f"{approval.APPROVE} by an approver, as Airflow keeps it",
            "answer the approve task in Airflow (Browse > Required Actions); a task set to success is no answer",
        )
    else:
        record = promote(options.problem, run_id=options.run_id, answer=said.answer, reason=said.comment)
    sys.stdout.write(describe(record) + "\n")
    return 0


main = Verb("python -m pipeline.promote", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
