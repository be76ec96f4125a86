"""The gate: evaluation in, verdict out. ``run`` writes the report, ``explain`` prints why, rule by rule.

``data/evaluation/<problem>`` -> ``data/gate/<problem>/report.{json,md,html}`` and ``data/metrics/gate-<problem>.json``.
The verdict is data, so every verdict exits 0; only a gate that cannot judge (no evaluation, wrong rules) does not.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import msgspec

from pipeline import champions, paths, settings
from pipeline.contracts.evaluation import (
    BACKTEST_FILE,
    EPISODES_FILE,
    FIDELITY_FILE,
    INTEGRITY_FILE,
    ORIGINS_FILE,
    SIZES_FILE,
    TERMS_FILE,
    Backtest,
    Integrity,
    Origins,
    Terms,
)
from pipeline.contracts.gate import GateReport
from pipeline.errors import GateError
from pipeline.files import write_atomic
from pipeline.gate import charts, episodes, html, markdown, replays
from pipeline.gate.config import Config
from pipeline.gate.explain import explain
from pipeline.gate.verdict import Circumstances, judge
from pipeline.paths import REPORT_HTML, REPORT_JSON, REPORT_MARKDOWN
from sched_env import problems
from wire.command import Verb, params_option, problem_option
from wire.contracts import Document, decode
from wire.contracts.feature_spec import ProblemName


class _Validated(msgspec.Struct):
    """All the gate needs of validation's verdict."""

    warnings: list[str]
    drifted: bool


def judge_and_write(
    problem: ProblemName,
    config: Config,
    *,
    evaluation: Path,
    out: Path,
    metrics: Path,
    around: Circumstances,
    policies: Path | None = None,
) -> GateReport:
    """Judge one evaluation and write the report in its three forms, and the flat numbers for ``dvc metrics``.

    The page has the learning curves of the trainings in ``policies``, and beside it lie the worst episodes' replays.
    """
    table = episodes.read(evaluation / EPISODES_FILE)
    terms, integrity = _document(evaluation / TERMS_FILE, Terms), _document(evaluation / INTEGRITY_FILE, Integrity)
    if terms is None or integrity is None:
        absent = TERMS_FILE if terms is None else INTEGRITY_FILE
        raise GateError(f"{evaluation / absent} does not exist", fix="run `dvc repro evaluate` first")
    if terms.problem != problem:
        raise GateError(f"{evaluation / TERMS_FILE} is about {terms.problem}", problem)
    report = judge(terms, table, integrity, config, around)
    write_atomic(out / REPORT_JSON, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    write_atomic(out / REPORT_MARKDOWN, markdown.render(report).encode())
    pages = replays.pages(evaluation, lambda name, data: write_atomic(out / name, data))
    drawn = charts.sections(report, table, policies or evaluation / "none", pages)
    write_atomic(out / REPORT_HTML, html.render(report, drawn).encode())
    write_atomic(metrics, (json.dumps(flat(report), indent=1) + "\n").encode())
    return report


def flat(report: GateReport) -> dict[str, float | None]:
    """The handful of numbers that nights are compared by: the verdict, and each metric with its two differences."""
    numbers: dict[str, float | None] = {"passed": float(report.outcome == "pass"), "gap_closed": report.gap_closed}
    sides = {report.reference: "reference", report.best_heuristic: "best_heuristic"}
    for row in report.comparisons:
        if row.reference in sides and row.scenario is None:
            name = f"{row.metric}_better_than_{sides[row.reference]}"
            numbers |= {row.metric: row.challenger_mean, name: row.better_by.estimate}
    return numbers


def circumstances(*, evaluation: Path, validation: Path, bundle: Path, champion: Path) -> Circumstances:
    """Collect what stands around the evaluation: back-test, validation's warnings and drift, the champion's age."""
    verdict = _document(validation, _Validated)
    if verdict is None:
        verdict = _Validated([f"no validation verdict at {validation}"], drifted=False)
    # Both ends come from the bundles, not from the clock: a cached stage and a rerun must agree.
    new, old = champions.origin(bundle), champions.live(champion)
    age = None if new is None or old is None else (new.windows_end - old.windows_end).total_seconds() / 86_400.0
    origins = _document(evaluation / ORIGINS_FILE, Origins)
    return Circumstances(
        _document(evaluation / BACKTEST_FILE, Backtest),
        age,
        old.density if old else 1.0,
        verdict.drifted,
        verdict.warnings,
        _document(evaluation / FIDELITY_FILE, Backtest),
        origins.origins if origins else (),
        episodes.read(evaluation / SIZES_FILE) if (evaluation / SIZES_FILE).exists() else None,
    )


def _document(path: Path, kind: type[Document]) -> Document | None:
    return decode(path.read_bytes(), kind, source=str(path)) if path.exists() else None


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("command", nargs="?", choices=("run", "explain"), default="run")
    problem_option(parser, problems.names())
    params_option(parser, paths.PARAMS)
    parser.add_argument("--data", type=Path, default=paths.DATA, help="folder of the stages' outputs")
    parser.add_argument("--champions", type=Path, default=paths.CHAMPIONS, help="folder of the live bundles")


def run(chosen: argparse.Namespace) -> int:
    """Judge, or say why it was judged so."""
    problem: ProblemName = chosen.problem
    data: Path = chosen.data
    out = data / "gate" / problem
    if chosen.command == "explain":
        report = _document(out / REPORT_JSON, GateReport)
        if report is None:
            raise GateError(
                f"{out / REPORT_JSON} does not exist", fix=f"run python -m pipeline.gate --problem {problem}"
            )
        sys.stdout.write(explain(report))
        return 0
    evaluation = data / "evaluation" / problem
    report = judge_and_write(
        problem,
        settings.load("gate", Config, chosen.params),
        evaluation=evaluation,
        out=out,
        metrics=data / "metrics" / f"gate-{problem}.json",
        policies=data / "policies" / problem,
        around=circumstances(
            evaluation=evaluation,
            validation=data / "validation" / "verdict.json",
            bundle=data / "bundles" / problem,
            champion=chosen.champions / problem,
        ),
    )
    sys.stdout.write(f"{problem}: {report.outcome}: {report.reason}\n")
    return 0


main = Verb("python -m pipeline.gate", __doc__, arguments, run)
