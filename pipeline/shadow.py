"""Shadow: what would the candidate have done with the calls that live traffic really made?

    python -m pipeline.shadow                     in a run's workspace: every problem that has a verdict

The service keeps a decision whole once in a while (``wire/contracts/sample.py``). Before a person is asked about a
candidate, it is shown those of the last windows (section ``shadow`` of ``params.yaml``), and chooses from the same
states. It answers nobody, and the service never sees it: nothing that no person has approved is loaded there
(docs/decisions/0055). ``data/shadow/<problem>/shadow.{json,md}`` go with the gate's report into the run's commit, onto
the page that the approver reads, and under the hash that the record names. Without a call it says so, at once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from pipeline import paths, settings
from pipeline.contracts.shadow import Differs, Field, Shadowed
from pipeline.files import write_atomic
from pipeline.gate.markdown import prose
from sched_env import problems
from sched_env.observation import Observation
from wire import environment, policy
from wire.command import Verb, params_option
from wire.contracts.feature_spec import ProblemName
from wire.contracts.sample import FILE_NAME, SampledLine
from wire.errors import ConfigError, run_cli

WINDOW_S = 300
EXAMPLES = 5
SHOWN_FIELDS = 6
BEST = 3
"""What was chosen counts as close when it is among so many best of the candidate's."""


class ShadowConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``shadow``."""

    windows: Annotated[int, msgspec.Meta(ge=1)] = 288
    """Windows before now whose calls are shown to the candidate: a day."""
    calls: Annotated[int, msgspec.Meta(ge=1)] = 2000
    """Of them, spread evenly, at most so many: a second of scoring."""


def sampled(folder: Path, problem: str, since_s: float) -> Iterator[SampledLine]:
    """Read what the service kept, oldest first; lines that a killed process or another release left are passed over."""
    decoder = msgspec.json.Decoder(SampledLine)
    numbered = sorted(folder.glob(f"{FILE_NAME}.[0-9]*"), key=lambda path: -int(path.suffix[1:]))
    for path in (*numbered, folder / FILE_NAME):
        if not path.is_file():
            continue
        with path.open("rb") as lines:
            for line in lines:
                try:
                    one = decoder.decode(line)
                except msgspec.DecodeError:
                    continue
                if one.problem == problem and datetime.fromisoformat(one.at).timestamp() >= since_s:
                    yield one


def shadow(problem: ProblemName, bundle: Path, lines: Sequence[SampledLine], config: ShadowConfig) -> Shadowed:
    """Ask a bundle what it would have chosen, call by call.

    Args:
        problem: Whose calls.
        bundle: The exported bundle of the night.
        lines: Calls of the last windows, oldest first.
        config: How many of them.
    """
    candidate = policy.load(bundle, problems.spoken)
    known = problems.get(problem)
    build = known.builder(candidate.manifest.feature_spec.version)
    chosen = [lines[place] for place in _spread(len(lines), config.calls)]
    agreed = close = skipped = 0
    answered: Counter[str] = Counter()
    examples: list[Differs] = []
    ahead: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in known.state_fields}
    ours: dict[str, list[float]] = {name: [] for name in known.state_fields}
    compared: list[SampledLine] = []
    for line in chosen:
        columns = {name: np.array(values, np.float64) for name, values in line.columns.items()}  # null becomes NaN
        with np.errstate(all="ignore"):
            seen = build(columns, line.request.fields)
        place = line.names.index(line.chosen) if line.chosen in line.names else -1
        scores = _scores(candidate, seen)
        if place < 0 or scores is None or not seen.mask[place]:
            skipped += 1
            continue
        order = np.argsort(-scores, kind="stable")  # as the service ranks
        compared.append(line)
        answered["heuristic" if line.fallback or line.digest is None else line.digest] += 1
        rank = int(np.flatnonzero(order == place)[0]) + 1
        close += rank <= BEST
        if rank == 1:
            agreed += 1
            continue
        for name, column in columns.items():
            if name in theirs:
                theirs[name].append(float(column[place]))
                ours[name].append(float(column[order[0]]))
        own = int(order[0])
        ahead.append(float((scores[own] - scores[place]) / max(scores[seen.mask].std(), 1e-12)))
        both = float(scores[place]), float(scores[own])
        examples.append(Differs(line.at, line.request.id, line.chosen, line.names[own], rank, *both))
    return Shadowed(
        problem=problem,
        digest=candidate.manifest.digest,
        windows=config.windows,
        calls=len(compared),
        recorded=len(lines),
        skipped=skipped,
        first=compared[0].at if compared else None,
        last=compared[-1].at if compared else None,
        agreed=agreed,
        close=close,
        ahead=float(np.median(ahead)) if ahead else None,
        answered_by=dict(answered),
        fields=_fields(theirs, ours),
        examples=[examples[place] for place in _spread(len(examples), EXAMPLES)],
    )


def _spread(count: int, most: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int)).tolist() if count else []


def _scores(candidate: policy.GraphPolicy, seen: Observation) -> np.ndarray | None:
    """Score every candidate, minus infinity where it cannot go; None where the policy cannot say."""
    if not (seen.mask.any() and np.isfinite(seen.candidates).all() and np.isfinite(seen.request).all()):
        return None
    scores = candidate(seen.candidates[None], seen.request[None], seen.mask[None])[0]
    if not np.isfinite(scores[seen.mask]).all():
        return None
    return np.where(seen.mask, scores, -np.inf)


def _fields(theirs: dict[str, list[float]], ours: dict[str, list[float]]) -> list[Field]:
    """Where the two choices differ most: means of the state of what each chose, where they chose differently."""
    found = []
    for name, values in theirs.items():
        if not values:
            continue
        one, two = np.array(values), np.array(ours[name])
        both = np.isfinite(one) & np.isfinite(two)
        spread = float(np.concatenate([one[both], two[both]]).std()) if both.any() else 0.0
        if spread > 0.0:
            apart = float((two[both] - one[both]).mean()) / spread
            found.append((abs(apart), Field(name, float(one[both].mean()), float(two[both].mean()))))
    return [field for apart, field in sorted(found, key=lambda pair: -pair[0])[:SHOWN_FIELDS] if apart > 0.01]


def headline(seen: Shadowed) -> str:
    """Say in one line what a person must know of it."""
    if not seen.calls:
        return f"no live traffic was seen in the last {seen.windows} windows: it was not shadowed"
    share = 100 * (seen.calls - seen.agreed) / seen.calls
    return (
        f"it would have chosen otherwise in {share:.1f} % of {seen.calls} calls that were really made in the last "
        f"{seen.windows} windows"
    )


def markdown(seen: Shadowed, units: dict[str, str]) -> str:
    """Write the section of the page. Names of requests and candidates come from whoever asked the service."""
    lines = ["### In the shadow of what is live", "", headline(seen)[0].upper() + headline(seen)[1:] + "."]
    if not seen.calls:
        return "\n".join(lines) + "\n"
    by = ", ".join(
        f"{'the heuristic' if who == 'heuristic' else f'`{who[:19]}`'} {count}"
        for who, count in seen.answered_by.items()
    )
    lines += [
        "",
        f"Calls from {seen.first} to {seen.last}, answered by {by}. What was chosen is among its {BEST} best in "
        f"{100 * seen.close / seen.calls:.1f} %"
        + (f"; where they differ, its own choice is ahead by {seen.ahead:.2f} of its spread" if seen.ahead else "")
        + ". It answered nobody; it says nothing of what would have come of it.",
    ]
    if seen.skipped:
        lines.append(f"{seen.skipped} calls could not be compared.")
    if seen.fields:
        lines += ["", "Where it chooses otherwise, what is chosen has on average:", "",
                  "| | by what is live | by the candidate |", "|---|---|---|"]  # fmt: skip
        lines += [
            f"| {field.name} ({units.get(field.name) or '-'}) | {field.live:.4g} | {field.candidate:.4g} |"
            for field in seen.fields
        ]
    if seen.examples:
        lines += ["", "| at | request | chosen | it would have | rank and score of what was chosen | of its own |",
                  "|---|---|---|---|---|---|"]  # fmt: skip
        for one in seen.examples:
            names = " | ".join(prose(name[:60]) for name in (one.request, one.live, one.candidate))
            lines.append(f"| {one.at} | {names} | {one.rank}: {one.score_live:.3g} | {one.score:.3g} |")
    return "\n".join(lines) + "\n"


def write(problem: ProblemName, config: ShadowConfig, log: Path, now_s: float) -> Shadowed:
    """Shadow one problem of the workspace, once for a bundle: run again, it changes nothing that was recorded."""
    bundle, out = paths.BUNDLES / problem, paths.SHADOW / problem
    file = out / paths.SHADOW_JSON
    if file.is_file():
        before = msgspec.json.decode(file.read_bytes(), type=Shadowed)
        if before.digest == policy.load(bundle).manifest.digest:
            return before
    lines = list(sampled(log, problem, now_s - config.windows * WINDOW_S))
    seen = shadow(problem, bundle, lines, config)
    units = {name: unit for name, (unit, _) in problems.get(problem).state_fields.items()}
    write_atomic(out / paths.SHADOW_MARKDOWN, markdown(seen, units).encode())
    write_atomic(file, msgspec.json.format(msgspec.json.encode(seen), indent=1) + b"\n")
    return seen


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    params_option(parser, paths.PARAMS)
    parser.add_argument("--log", type=Path, help="folder of the service's logs (default: where the settings say)")


def run(options: argparse.Namespace) -> int:
    """Shadow every problem that has a verdict, and say what was seen."""
    config = settings.load("shadow", ShadowConfig, options.params, default=ShadowConfig())
    log = options.log or environment.place("log_dir")
    now_s = time.time()
    judged = [name for name in problems.names() if (paths.GATE / name / paths.REPORT_JSON).is_file()]
    if not judged:
        raise ConfigError(f"{paths.GATE.absolute()} holds no report", "a workspace in which a gate was run")
    for problem in judged:
        seen = write(problem, config, log, now_s)
        sys.stdout.write(f"{problem}: {headline(seen)}\n")
    until = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
    sys.stdout.write(f"{len(judged)} problems shadowed, up to {until}\n")
    return 0


main = Verb("python -m pipeline.shadow", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
