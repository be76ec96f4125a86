"""The question that a person is asked before a policy goes live, and what counts as their answer.

The question is made from the commit that ``record`` pushed, and names bundle, report and commit. The answer is read
from where Airflow keeps it (:mod:`pipeline.airflow_answers`) and counts only if it was given to that very question, by
an approver, on Approve; it is used once. XComs, task states and workspaces are no answers: others can write them.

    python -m pipeline.approval --problem functions --run-id X      prints the question as JSON
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from pipeline.errors import RegistryError
from pipeline.paths import REPORT_HTML, SHADOW_MARKDOWN
from pipeline.registry import runs, shown
from pipeline.registry.chain import sync
from pipeline.registry.records import is_a_name
from sched_env import problems
from wire import environment
from wire.command import Verb, problem_option
from wire.contracts.record import Answer
from wire.errors import ConfigError, run_cli

APPROVE, REJECT = "Approve", "Reject"

NO_REJECTION = "there is no rejection to record"
"""How ``promote --reject`` ends when nobody rejected anything."""

APPROVERS_ENV = environment.variable("approvers")
"""Environment variable naming the accounts that may approve: Airflow user names, with commas between them."""

TWO_PERSONS_ENV = environment.variable("two_persons")
"""``yes``: who started a run by hand may not approve it."""

GOOD_FOR = timedelta(hours=24)
"""How long after it was given an answer can be used."""


class Question(msgspec.Struct, frozen=True):
    """What a person is asked, and about what."""

    problem: str
    run_id: str
    commit: str
    digest: str
    report_sha256: str | None
    """None where no gate is behind it: going back needs an answer, not a verdict."""
    outcome: str
    reason: str
    """The gate's headline."""
    subject: str
    body: str


class Response(NamedTuple):
    """What was answered; ``answer`` is None after a time-out."""

    approved: bool
    answer: Answer | None
    comment: str


def question(problem: str, run_id: str) -> Question:
    """Make the question about a run's bundle, from what the registry recorded of the run."""
    # Statistics come with them: too heavy for a DAG file, which needs our names alone.
    from pipeline import brief

    mirror = sync()
    run = runs.recorded_run(mirror, run_id)
    path = runs.report_of(problem)
    folder = path.rpartition("/")[0]
    files = mirror.files(run.commit, f"{folder}/")
    report = runs.read_report(files.get(path, b""))
    if not report:
        raise RegistryError(f"commit {run.commit[:12]} holds no {path}", "the report of the gate stage")
    open_rules = [rule for rule in report.get("rules") or () if rule.get("outcome") in ("fail", "inconclusive")]
    if report.get("outcome") == "pass" and open_rules:
        raise RegistryError(
            f"{path} in commit {run.commit[:12]} says pass, and of its rule {open_rules[0].get('name')!r} "
            f"{open_rules[0].get('outcome')}",
            "a verdict that follows from its rules",
            "it was edited; run the gate again, in a new run",
        )
    digest, shown = str(report.get("digest")), runs.shown_sha256(mirror, run.commit, problem)
    text = files.get(f"{folder}/report.md", b"").decode(errors="replace")
    shadowed = files.get(f"{folder}/{SHADOW_MARKDOWN}", b"").decode(errors="replace")
    bound = {"bundle": digest, "report": f"sha256:{shown}", "commit": run.commit, "branch": runs.branch_of(run_id)}
    lines = "".join(f"- {name} `{value}`\n" for name, value in bound.items())
    return Question(
        problem=problem,
        run_id=run_id,
        commit=run.commit,
        digest=digest,
        report_sha256=shown,
        outcome=str(report.get("outcome")),
        reason=str(report.get("reason", "")),
        subject=brief.subject(problem, report),
        body=f"{brief.body(problem, report, _links(run.commit, problem, files), brief.live_traffic(files, folder))}\n"
        f"{shadowed}\n---\n\n{text}\n\n---\n"
        f"An answer counts once, and for nothing but this:\n\n{lines}",
    )


def _links(commit: str, problem: str, files: Collection[str]) -> list[str]:
    """Link to what there is to look at; nothing a report says is in these lines."""
    around = (
        f"[Look before you answer]({shown.address(commit, problem)}): replays of the worst episodes, what is live now"
    )
    whole = f"[The evaluation with its charts]({shown.address(commit, problem, REPORT_HTML)})"
    return [around, *([whole] if any(name.endswith(f"/{REPORT_HTML}") for name in files) else [])]


def approvers() -> tuple[str, ...]:
    """The accounts that may approve; naming nobody lets nobody approve."""
    return tuple(name.strip() for name in os.environ.get(APPROVERS_ENV, "").split(",") if name.strip())


def two_persons() -> bool:
    """Whether a run needs an approver other than the person who started it."""
    value = os.environ.get(TWO_PERSONS_ENV, "no")
    if value not in ("yes", "no"):
        raise ConfigError(f"{TWO_PERSONS_ENV} is {value!r}", "yes or no")
    return value == "yes"


def read(
    detail: Mapping[str, Any],
    asked: Question,
    *,
    where: str,
    allowed: Collection[str],
    not_by: str | None = None,
    at: datetime | None = None,
) -> Response | None:
    """Read Airflow's HITL detail; None while nobody has answered and no time-out has.

    Args:
        detail: What ``…/hitlDetails`` says.
        asked: The question as it must have been put.
        where: Names the task that asked: DAG, run and task.
        allowed: Accounts that may answer.
        not_by: Account that may not, although it is allowed to.
        at: The time now.

    Raises:
        RegistryError: It is an answer, and not one that counts.
    """
    if not detail.get("response_received"):
        return None
    comment = str((detail.get("params_input") or {}).get("comment") or "")
    chosen, user = list(detail.get("chosen_options") or []), detail.get("responded_by_user")
    if user is None:
        return Response(approved=False, answer=None, comment=comment or "nobody answered in time")
    person, name = str(user.get("id") or ""), str(user.get("name") or user.get("id") or "")
    faults = []
    if (detail.get("subject"), detail.get("body")) != (asked.subject, asked.body):
        faults.append(f"it was given to another question than the one about {asked.digest[:19]} in {asked.commit[:12]}")
    if person not in allowed:
        names = ", ".join(sorted(allowed)) or f"nobody: set {APPROVERS_ENV}"
        faults.append(f"{person!r} is none of the approvers ({names})")
    if not detail.get("assigned_users"):
        faults.append("the question was put to everybody, not to the approvers")
    if not is_a_name(name):
        faults.append(f"{name!r} cannot be read as a name")
    if not_by is not None and person == not_by:
        faults.append(f"{person!r} started this run, and two persons must agree ({TWO_PERSONS_ENV})")
    given = _moment(detail.get("responded_at"))
    if given is None or not -timedelta(minutes=5) <= (at or datetime.now(UTC)) - given <= GOOD_FOR:
        faults.append(f"it was given at {detail.get('responded_at')}, which is not within the last {GOOD_FOR}")
    if chosen not in ([APPROVE], [REJECT]):
        faults.append(f"{chosen!r} is neither {APPROVE} nor {REJECT}")
    if faults or given is None:
        raise RegistryError(
            f"the answer of {name!r} to {where} does not count: {'; '.join(faults)}",
            "an approver's own answer to this question",
            "nothing was recorded; clear the approve task: it asks again",
        )
    answer = Answer(
        id=f"airflow/{where}/{given.isoformat()}/{person}",
        source="airflow",
        person_id=person,
        person_name=name,
        answered_at=given.isoformat(),
        asked_at=str(detail.get("created_at")),
        digest=asked.digest,
        report_sha256=asked.report_sha256,
    )
    return Response(approved=chosen == [APPROVE], answer=answer, comment=comment)


def _moment(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment.astimezone(UTC) if moment.tzinfo else None


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    problem_option(parser, problems.names())
    parser.add_argument("--run-id", required=True, help="the run's id")


def run(options: argparse.Namespace) -> int:
    """Print the question on one line; a gate that did not pass, or nobody to ask, is an error."""
    asked = question(options.problem, options.run_id)
    if asked.outcome != "pass":
        raise RegistryError(f"the gate said {asked.outcome}: {asked.reason}", "pass: there is nothing to ask")
    if not approvers():
        raise ConfigError(
            f"{APPROVERS_ENV} names nobody", "the accounts that may approve", "set it, then clear approve"
        )
    sys.stdout.write(msgspec.json.encode(asked).decode() + "\n")
    return 0


main = Verb("python -m pipeline.approval", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
