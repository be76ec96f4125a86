"""How often the gate errs: simulated nights with a known truth, each judged by the whole gate.

    python -m pipeline.gate.error_rates --nights 2000 --out docs/results/error_rates

One scenario of 200 traces in 20 time blocks (the least the rules accept), paired deviation 5 % with heavy tails and a
tenth of the variance shared within a block: dissimilar policies, the hard end of what was measured. More data, or more
similar policies, only make the rates better. The rules are those of section ``gate`` in params.yaml.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from scipy.special import betaincinv

from pipeline import settings
from pipeline.files import write_atomic
from pipeline.gate.config import Config
from pipeline.gate.simulated import HEALTHY, LEVELS, TERMS, simulate
from pipeline.gate.verdict import judge
from wire.command import Verb, params_option
from wire.errors import run_cli

SEED = 7
DEVIATION = 0.05 / 2.0**0.5
"""Of one policy; a paired difference of two then has 5 %."""

EQUAL = {"challenger": 0.0, "champion": 0.0, "least_allocated": -0.1, "first_fit": -0.2}
BETTER = EQUAL | {"challenger": 0.02}


class Truth(NamedTuple):
    """What is so in every night of one experiment, and what was promised about it."""

    name: str
    better: Mapping[str, float]
    promise: str
    most_passed: float = 1.0
    """Share of nights that may end in ``pass``."""
    least_passed: float = 0.0
    worse: Mapping[str, float] = {}
    blocks: int = 20
    traces_per_block: int = 10
    shared: float = 0.1
    weight: float = 1.0
    """Nights of this truth for each night asked for: rates near 0 or 1 need fewer."""


def truths(config: Config) -> Iterator[Truth]:
    """The experiments, with guardrails two of *these* rules' margins worse."""
    never = "passes in at most 5 %"
    yield Truth("equal to the champion", EQUAL, never, most_passed=0.05)
    yield Truth(
        "equal to the champion and to both heuristics",
        EQUAL | {"least_allocated": 0.0, "first_fit": 0.0},
        never,
        most_passed=0.05,
    )
    yield Truth(
        "equal, only 10 blocks, 30 % of the variance shared",
        EQUAL, never, most_passed=0.05, blocks=10, traces_per_block=20, shared=0.3,
    )  # fmt: skip
    yield Truth("better by 2 %", BETTER, "passes in at least 80 %", least_passed=0.8)
    for metric in (name for name in LEVELS if name in config.guardrails and name not in config.switched_off):
        margin = config.guardrails[metric].of(LEVELS[metric]) / LEVELS[metric]
        yield Truth(
            f"better by 2 %, {metric} two margins worse",
            BETTER, "caught in at least 95 %", most_passed=0.05, worse={metric: 2.0 * margin}, weight=0.25,
        )  # fmt: skip


class Rates(NamedTuple):
    """What the gate said in many nights of one truth."""

    nights: int
    verdicts: Counter[str]
    rules: Counter[tuple[str, str]]
    """(rule, outcome) -> nights."""

    @property
    def passed(self) -> float:
        """Share of nights that passed."""
        return self.verdicts["pass"] / self.nights

    def interval(self) -> tuple[float, float]:
        """Clopper and Pearson's exact 95 % interval of that share."""
        k, n = self.verdicts["pass"], self.nights
        lower = float(betaincinv(k, n - k + 1, 0.025)) if k else 0.0
        return lower, float(betaincinv(k + 1, n - k, 0.975)) if k < n else 1.0


def nights(truth: Truth, count: int, config: Config) -> Rates:
    """Judge ``count`` nights of one truth; the seeds are the nights' numbers."""
    verdicts: Counter[str] = Counter()
    rules: Counter[tuple[str, str]] = Counter()
    for night in range(count):
        data = simulate(
            truth.better,
            seed=[SEED, night],
            scenarios=("load-1.0",),
            deviation=DEVIATION,
            worse=truth.worse,
            blocks=truth.blocks,
            traces_per_block=truth.traces_per_block,
            shared=truth.shared,
        )
        report = judge(TERMS, data, HEALTHY, config)
        verdicts[report.outcome] += 1
        rules.update((rule.name, rule.outcome) for rule in report.rules)
    return Rates(count, verdicts, rules)


def _row(truth: Truth, config: Config, found: Rates) -> dict[str, Any]:
    lower, upper = found.interval()
    return {
        "truth": truth.name,
        "interval": config.interval,
        "promise": truth.promise,
        "nights": found.nights,
        "passed": found.passed,
        "passed_lower": lower,
        "passed_upper": upper,
        "verdicts": dict(sorted(found.verdicts.items())),
        "kept": truth.least_passed <= found.passed <= truth.most_passed,
    }


def _markdown(document: dict[str, Any]) -> str:
    lines = [
        "# Error rates of the gate",
        "",
        f"Made by `{document['command']}`; {document['samples']:,} resamples a night. "
        "Every night is simulated with a known truth and judged by the whole gate; what a night looks like is said in "
        "`pipeline/gate/error_rates.py`. In brackets: the exact 95 % interval of the share.",
        "",
        "| truth | interval | promised | passed | fail | inconclusive | nights |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in document["rows"]:
        said = row["verdicts"]
        share = f"{100 * row['passed']:.1f} % ({100 * row['passed_lower']:.1f}–{100 * row['passed_upper']:.1f})"
        lines.append(
            f"| {row['truth']} | {row['interval']} | {row['promise']} | {share}{'' if row['kept'] else ' **broken**'} "
            f"| {said.get('fail', 0):,} | {said.get('inconclusive', 0):,} | {row['nights']:,} |"
        )
    return "\n".join(lines) + "\n"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--nights", type=int, default=2000, help="a truth; rates near 0 or 1 take a quarter")
    parser.add_argument("--samples", type=int, default=1000, help="resamples a night; the gate itself takes 10,000")
    params_option(parser, settings.PARAMS_FILE)
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md as well")


def run(chosen: argparse.Namespace) -> int:
    """Simulate the nights; 1: a promise of the gate is broken."""
    rules = settings.load("gate", Config, chosen.params)
    rows, began = [], time.process_time()
    for interval in ("percentile", "bca"):
        config = msgspec.structs.replace(rules, bootstrap_samples=chosen.samples, interval=interval)
        for truth in truths(config):
            found = nights(truth, max(1, round(chosen.nights * truth.weight)), config)
            rows.append(_row(truth, config, found))
            sys.stdout.write(f"{interval}: {truth.name}: {dict(found.verdicts)}\n")
            sys.stdout.flush()
    document = {
        "command": f"python -m pipeline.gate.error_rates --nights {chosen.nights} --samples {chosen.samples}",
        "samples": chosen.samples,
        "seed": SEED,
        "cpu_s": round(time.process_time() - began),
        "rows": rows,
    }
    if chosen.out:
        write_atomic(chosen.out.with_suffix(".json"), json.dumps(document, indent=1).encode() + b"\n")
        write_atomic(chosen.out.with_suffix(".md"), _markdown(document).encode())
    broken = [row["truth"] for row in rows if not row["kept"]]
    sys.stdout.write(json.dumps({"kept": not broken, "broken": broken, "cpu_s": document["cpu_s"]}) + "\n")
    return 1 if broken else 0


main = Verb("python -m pipeline.gate.error_rates", (__doc__ or "").splitlines()[0], arguments, run)


if __name__ == "__main__":
    run_cli(main)
