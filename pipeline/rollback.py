"""Going back, asked in Airflow: the question about a version that was live once, and what follows from the answer.

    python -m pipeline.rollback versions --problem vm               what there is to choose from
    python -m pipeline.rollback question --problem vm --run-id X    prints the question as JSON
    python -m pipeline.rollback flip --problem vm --run-id X --airflow-task rollback/approve --url http://…

As with a promotion, the answer is read from Airflow, held against the very question, and used once (decision 17). What
it is about is fixed when the question is put: the policy that is live and the one to go back to.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import msgspec

from pipeline import airflow_answers, approval
from pipeline.approval import Question
from pipeline.errors import RegistryError
from pipeline.registry import outcomes, records
from pipeline.registry.chain import Chain
from pipeline.registry.service import url_option
from pipeline.registry.views import describe
from sched_env import problems
from wire.command import Verb, problem_option
from wire.contracts.record import PromotionRecord
from wire.errors import ConfigError, run_cli


def versions(chain: Chain, problem: str) -> list[PromotionRecord]:
    """Return the flips of a problem, newest first, each policy once: what one can go back to, and what is live."""
    found: dict[str, PromotionRecord] = {}
    for record in reversed(records.changes(chain.of(problem))):
        if record.state != records.OFF:
            found.setdefault(record.digest, record)
    return list(found.values())


def target(chain: Chain, problem: str, to: str) -> PromotionRecord:
    """Find the version to go back to: by the beginning of its digest, or the one before what is live."""
    known, live = versions(chain, problem), chain.live_digest(problem)
    wanted = to.removeprefix("sha256:")
    found = [one for one in known if one.digest != live and one.digest.removeprefix("sha256:").startswith(wanted)]
    if wanted and len(found) != 1:
        listed = ", ".join(one.digest[:19] for one in known if one.digest != live) or "none"
        raise ConfigError(
            f"{len(found)} earlier versions of {problem} begin with {to!r}", "one", f"there are: {listed}"
        )
    if not found:
        raise RegistryError(f"{problem} has no earlier version", "a policy that was live before the one that is now")
    return found[0]


def question(problem: str, run_id: str, *, to: str = "", reason: str = "") -> Question:
    """Make the question; the same chain gives the same words."""
    chain = Chain.open()
    live, back = chain.live(problem), target(chain, problem, to)
    approved = chain.approved(problem, back.digest)
    now = f"`{live.digest}` (counter {live.counter})" if live else "no policy: the rule answers"
    lines = [
        f"**{problem}: back to the version of {back.decided_at}**",
        "",
        f"- live now: {now}",
        f"- back to: `{back.digest}`, trained by run `{back.run_id}`, approved by {_plain(approved)}",
        f"- why: {_words(reason) or 'no reason was given'}",
        "",
        "Nothing is retrained. The service holds the version before in memory; an older one is pushed again, signed.",
        "",
        "---",
        "An answer counts once, and for nothing but this:",
        "",
        f"- bundle `{back.digest}`",
        f"- instead of `{live.digest if live else None}`, counter {chain.counter(problem)}",
    ]
    return Question(
        problem=problem,
        run_id=run_id,
        commit=chain.commit or "",
        digest=back.digest,
        report_sha256=None,
        outcome="rollback",
        reason=reason,
        subject=f"Roll {problem} back to {back.digest[:19]}?",
        body="\n".join(lines) + "\n",
    )


def flip(problem: str, run_id: str, *, dag: str, task: str, url: str, to: str, reason: str) -> PromotionRecord:
    """Go back if an approver said so to this very question; run again, it finds what it has done."""
    chain = Chain.open()
    mine = [one for one in chain.of(problem) if _answered_in(one, f"airflow/{dag}/", run_id)]
    if mine:
        return outcomes.confirm(problem, url)
    asked = question(problem, run_id, to=to, reason=reason)
    said = airflow_answers.response(asked, dag, task)
    if said is None or not said.approved or said.answer is None:
        raise RegistryError(
            f"rollback refused: nobody approved {dag}/{task} of run {run_id!r}",
            f"{approval.APPROVE} by an approver, as Airflow keeps it",
            "nothing was changed",
        )
    if (used := records.answered_before(said.answer.id, chain.records)) is not None:
        raise RegistryError(f"that answer was used for record {used.sequence}", "an answer that counts once")
    return outcomes.roll_back(
        problem,
        url,
        approver=said.answer.person_name,
        reason=said.comment or reason,
        to=asked.digest,
        answer=said.answer,
    )


def _answered_in(record: PromotionRecord, prefix: str, run_id: str) -> bool:
    from urllib.parse import quote

    return bool(record.answer) and record.answer.id.startswith(f"{prefix}{quote(run_id, safe='')}/")  # type: ignore[union-attr]


def _plain(record: PromotionRecord | None) -> str:
    return _words(record.approver or "nobody") if record else "nobody"


def _words(text: str) -> str:
    from pipeline.gate.markdown import prose

    return prose(text)


def listing(chain: Chain) -> Iterator[str]:
    """Say what there is to choose from, problem by problem, newest first."""
    for problem in problems.names():
        live = chain.live_digest(problem)
        for record in versions(chain, problem):
            mark = "live" if record.digest == live else "    "
            yield f"{problem:<10} {mark}  {record.digest}  since {record.decided_at}  run {record.run_id}"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("versions", help="what there is to go back to")
    for name, text in (("question", "print the question as JSON"), ("flip", "go back, if it was approved")):
        one = commands.add_parser(name, help=text)
        problem_option(one, problems.names())
        one.add_argument("--run-id", required=True)
        one.add_argument("--to", default="", help="beginning of a digest; without it, the version before")
        one.add_argument("--reason", default="", help="why this is asked")
        if name == "flip":
            one.add_argument("--airflow-task", metavar="DAG/TASK", required=True)
            url_option(one)


def run(options: argparse.Namespace) -> int:
    """List, ask or flip."""
    if options.command == "versions":
        sys.stdout.write("".join(f"{line}\n" for line in listing(Chain.open())))
        return 0
    if options.command == "question":
        if not approval.approvers():
            raise ConfigError(f"{approval.APPROVERS_ENV} names nobody", "the accounts that may approve")
        asked = question(options.problem, options.run_id, to=options.to, reason=options.reason)
        sys.stdout.write(msgspec.json.encode(asked).decode() + "\n")
        return 0
    dag, _, task = options.airflow_task.rpartition("/")
    done = flip(
        options.problem, options.run_id, dag=dag, task=task, url=options.url, to=options.to, reason=options.reason
    )
    sys.stdout.write(describe(done) + "\n")
    return 0


main = Verb("python -m pipeline.rollback", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
