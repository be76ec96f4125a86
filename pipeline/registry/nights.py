"""What became of each night: the gate's verdict with its figures, and what people and the service did about it.

Everything is read from the registry: reports from the run's commit, answers from the records. Airflow's database can be
lost. ``loadmaster runs`` prints it, and the notes that ``nightly_retrain`` leaves in Airflow's grid are the same words.

    loadmaster runs                       every night, newest first
    loadmaster runs show RUN              one night, a line a problem
    loadmaster runs diff RUN RUN          two nights, figure by figure
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from pipeline.contracts.gate import Comparison
from pipeline.errors import RegistryError
from pipeline.gate import wording
from pipeline.registry import places
from pipeline.registry.chain import Chain
from pipeline.registry.git import Repository
from pipeline.registry.runs import PREFIX, REPORTS, branch_of, read_report, run_id_of
from wire.command import Verb, json_option
from wire.contracts.record import PromotionRecord
from wire.errors import ConfigError, run_cli

SLA, COST = "sla_violation_rate", "cost_usd"
NOT_ASKED = {"fail": "failed the gate", "inconclusive": "inconclusive", "unchanged": "unchanged"}
ENDED = {
    "approved": "approved, not live yet",
    "canary": "approved, tried as a canary",
    "live": "promoted",
    "failed": "push failed",
    "rejected": "rejected",
    "rolled_back": "rolled back to",
    "switched_off": "switched off",
}
WAITS = "passed, no answer yet"


class Figure(msgspec.Struct, frozen=True):
    """One metric of the challenger against one rival."""

    metric: str
    reference: str
    challenger: float
    rival: float
    better_by: float
    """Positive is good; a share of the rival's mean, or the metric's own unit (``unit``)."""
    lower: float | None
    upper: float | None
    unit: str

    @property
    def worse(self) -> bool:
        """Whether the estimate is on the wrong side, beyond what is written as zero."""
        return self.better_by < -5e-5

    def words(self) -> str:
        """Say the figure: the level, and how it differs; what got worse is marked."""
        change = wording.difference(self.metric, self.better_by) if self.unit == "absolute" else None
        mark = " ▲ WORSE" if self.worse else ""
        return (
            f"{self.metric} {wording.value(self.metric, self.challenger)} "
            f"(better by {change or wording.percent(self.better_by)}{mark})"
        )


class Outcome(msgspec.Struct, frozen=True):
    """One problem of one night."""

    run_id: str
    problem: str
    at: str
    """When the run was recorded."""
    commit: str
    verdict: str
    reason: str
    digest: str
    reference: str
    best_heuristic: str
    figures: list[Figure]
    ended: str
    by: str | None
    comment: str

    def line(self) -> str:
        """Say it in one line, what happened first."""
        who = f" by {self.by}" if self.by else ""
        said = f": {self.comment}" if self.by and self.comment else ""
        figures = "; ".join(figure.words() for figure in self.against(self.reference))
        against = "champion" if self.reference == "champion" else f"rule {self.reference}"
        why = f" ({self.reason})" if self.verdict != "pass" else ""
        return f"{self.problem}: {self.ended}{who}{said}{why}. Against the {against}: {figures or 'nothing measured'}"

    def against(self, rival: str) -> list[Figure]:
        """The figures against one rival: service level and cost first."""
        mine = [figure for figure in self.figures if figure.reference == rival]
        return sorted(mine, key=lambda figure: {SLA: 0, COST: 1}.get(figure.metric, 2))


def figures(report: dict[str, Any]) -> list[Figure]:
    """Take the figures that people ask for first out of a gate's report: service level, cost and primary metric."""
    found: dict[tuple[str, str], Figure] = {}
    rivals = {report.get("reference"), report.get("best_heuristic")}
    for row in report.get("comparisons") or ():
        try:
            one = msgspec.convert(row, Comparison)
        except msgspec.ValidationError:
            continue  # Written by another release: the verdict still counts, its table is read in the report.
        if one.scenario is None and one.reference in rivals:
            bounds = one.better_by
            found[one.metric, one.reference] = Figure(
                one.metric, one.reference, one.challenger_mean, one.reference_mean,
                bounds.estimate, bounds.lower, bounds.upper, one.unit,
            )  # fmt: skip
    return list(found.values())


def of_run(chain: Chain, run_id: str) -> list[Outcome]:
    """Return what became of each problem of a night, by the registry's word."""
    commit = chain.mirror.resolve(f"refs/remotes/origin/{branch_of(run_id)}")
    if commit is None:
        raise RegistryError(f"no run {run_id!r} is recorded", "a run that loadmaster runs lists")
    return list(_outcomes(chain, run_id, commit))


def all_nights(chain: Chain) -> list[Outcome]:
    """Return every recorded night, newest first."""
    refs = chain.mirror.refs(f"refs/remotes/origin/{PREFIX}*")
    found = [
        outcome
        for ref, commit in refs.items()
        for outcome in _outcomes(chain, run_id_of(ref.removeprefix("refs/remotes/origin/")), commit)
    ]
    return sorted(found, key=lambda outcome: (outcome.at, outcome.run_id), reverse=True)


def _outcomes(chain: Chain, run_id: str, commit: str) -> Iterator[Outcome]:
    at = _recorded_at(chain.mirror, commit)
    for path, data in chain.mirror.files(commit, REPORTS).items():
        if not path.endswith("/report.json"):
            continue
        report = read_report(data)
        problem = path.split("/")[-2]
        verdict, digest = str(report.get("outcome")), str(report.get("digest"))
        record = _last(chain, problem, run_id)
        yield Outcome(
            run_id=run_id,
            problem=problem,
            at=at,
            commit=commit,
            verdict=verdict,
            reason=str(report.get("reason", "")),
            digest=digest,
            reference=str(report.get("reference")),
            best_heuristic=str(report.get("best_heuristic")),
            figures=figures(report),
            ended=ENDED[record.state] if record else NOT_ASKED.get(verdict, WAITS),
            by=_person(chain, record),
            comment=record.reason if record else "",
        )


def _last(chain: Chain, problem: str, run_id: str) -> PromotionRecord | None:
    mine = [record for record in chain.of(problem) if record.run_id == run_id]
    return mine[-1] if mine else None


def _person(chain: Chain, record: PromotionRecord | None) -> str | None:
    """Name who answered: records that follow an answer (``live``, ``failed``) name nobody themselves."""
    if record is None:
        return None
    mine = [one for one in chain.of(record.problem) if one.run_id == record.run_id and one.approver]
    return mine[-1].approver if mine else None


def _recorded_at(mirror: Repository, commit: str) -> str:
    return mirror.text("show", "--no-patch", "--format=%cI", commit)


def note(outcomes: Sequence[Outcome], limit: int = 1000) -> str:
    """Say a night in the note of its Airflow run, which holds a thousand characters: a line a problem."""
    share = limit // max(len(outcomes), 1) - 1
    lines = (outcome.line() for outcome in sorted(outcomes, key=lambda outcome: outcome.problem))
    return "\n".join(line if len(line) <= share else line[: share - 1] + "…" for line in lines)


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Draw the nights as a table; without one, say how the first is made."""
    if not outcomes:
        yield "no night is in the registry yet: make run, or nightly_retrain in Airflow"
        return
    header = ("run", "problem", "verdict", "ended", "SLA violations", "cost", "against champion", "best rule", "who")
    rows = [header, *(_row(outcome) for outcome in outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _row(outcome: Outcome) -> tuple[str, ...]:
    mine = {figure.metric: figure for figure in outcome.against(outcome.reference)}
    rule = {figure.metric: figure for figure in outcome.against(outcome.best_heuristic)}
    primary = next((metric for metric in mine if metric not in (SLA, COST)), None)

    def level(metric: str) -> str:
        return wording.value(metric, mine[metric].challenger) if metric in mine else "-"

    def change(found: dict[str, Figure]) -> str:
        if primary is None or primary not in found:
            return "-"
        figure = found[primary]
        relative = figure.unit == "relative"
        return wording.percent(figure.better_by) if relative else wording.difference(primary, figure.better_by)

    champion = change(mine) if outcome.reference == "champion" else "none live"
    cells = (outcome.run_id, outcome.problem, outcome.verdict, outcome.ended, level(SLA), level(COST), champion)
    return (*cells, change(rule), outcome.by or "-")


def difference(chain: Chain, first: str, second: str) -> Iterator[str]:
    """Say in what two nights differ: verdict, end, figures, and the parameters they ran with."""
    one, two = ({outcome.problem: outcome for outcome in of_run(chain, run)} for run in (first, second))
    for problem in sorted(one.keys() | two.keys()):
        left, right = one.get(problem), two.get(problem)
        yield f"{problem}:"
        for name in ("verdict", "ended", "by", "digest", "reference"):
            yield from _change(name, getattr(left, name, None), getattr(right, name, None))
        was, now = ({(f.reference, f.metric): f for f in side.figures} if side else {} for side in (left, right))
        for reference, metric in sorted(was.keys() | now.keys()):
            values = (
                wording.value(metric, side[reference, metric].challenger) if (reference, metric) in side else None
                for side in (was, now)
            )
            yield from _change(f"{metric} (beside {reference})", *values)
    before, after = (chain.mirror.files(_commit(chain, run), "params.yaml") for run in (first, second))
    if before != after:
        yield (
            "params.yaml differs: "
            + f"git -C {chain.mirror.path} diff {_commit(chain, first)[:12]} "
            + (f"{_commit(chain, second)[:12]} -- params.yaml")
        )


def _commit(chain: Chain, run_id: str) -> str:
    return str(chain.mirror.resolve(f"refs/remotes/origin/{branch_of(run_id)}"))


def _change(name: str, left: object, right: object) -> Iterator[str]:
    if left != right:
        yield f"  {name}: {'-' if left is None else left} -> {'-' if right is None else right}"


def matching(chain: Chain, name: str) -> str:
    """Complete the beginning of a run's id, or ``latest``, to the id of one run."""
    ids = list(dict.fromkeys(outcome.run_id for outcome in all_nights(chain)))
    if name == "latest" and ids:
        return ids[0]
    found = [run_id for run_id in ids if run_id == name] or [run_id for run_id in ids if run_id.startswith(name)]
    if len(found) != 1:
        raise ConfigError(f"{len(found)} recorded runs begin with {name!r}", "one", "loadmaster runs lists them")
    return found[0]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--problem", help="only this one")
    json_option(parser, "every night")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    one = commands.add_parser("show", help="one night, a line a problem")
    one.add_argument("run")
    one = commands.add_parser("diff", help="two nights, figure by figure")
    one.add_argument("first")
    one.add_argument("second")
    one = commands.add_parser("note", help="what the note in Airflow's grid says of a night")
    one.add_argument("run")


def run(options: argparse.Namespace) -> int:
    """Print what was asked for; without a registry here, say so and make none."""
    places.require_registry()
    chain = Chain.open()
    if options.command == "diff":
        lines = difference(chain, matching(chain, options.first), matching(chain, options.second))
    elif options.command == "note":
        lines = iter(note(of_run(chain, options.run)).splitlines())
    else:
        wanted = [one for one in all_nights(chain) if options.problem in (None, one.problem)]
        if options.command == "show":
            chosen = matching(chain, options.run)
            lines = (outcome.line() for outcome in wanted if outcome.run_id == chosen)
        elif options.json:
            lines = iter([msgspec.json.encode(wanted).decode()])
        else:
            lines = table(wanted)
    for line in lines:
        sys.stdout.write("".join(c if c.isprintable() else "?" for c in line) + "\n")
    return 0


main = Verb("python -m pipeline.registry.nights", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
