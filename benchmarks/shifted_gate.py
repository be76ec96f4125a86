"""The part of ``shifted.py`` that judges: bundles made, evaluated and passed or not by the pipeline's own code.

Nothing of the verdict is worked out here. A scorer becomes the bundle that would ship (``pipeline.export``), what stage
0 asks of it is measured on that file, the episodes are those of ``pipeline.evaluate`` with its section of params.yaml
(three loads, 250 starts each, all rules of the problem) and ``pipeline.gate.verdict.judge`` has the gate's section.
What a benchmark has no honest value for stays away: no back-test, no replay as recorded, no count of origins.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from quality_cases import Part
from quality_parts import Figures, Ints

from pipeline import datasets, evaluate, export, settings
from pipeline.contracts.evaluation import Integrity
from pipeline.contracts.gate import GateReport
from pipeline.gate.config import Config
from pipeline.gate.episodes import CHALLENGER, CHAMPION, HEURISTIC, Episodes, align
from pipeline.gate.verdict import judge
from pipeline.parity import SIZES, Parity
from pipeline.policies.onnx_graph import to_onnx
from pipeline.policies.scorer import Scorer
from sched_env import problems
from wire import bundle, graph, policy, sample_bundle

PROBLEM = "functions"
RECORDED = "recorded"
"""The load of params.yaml that is neither busier nor quieter than the part itself."""


class Shipped(NamedTuple):
    """A policy as it would ship."""

    files: dict[str, bytes]
    policy: policy.GraphPolicy
    parity: Parity


def ship(scorer: Scorer, folder: Path, part: Part) -> Shipped:
    """Make the bundle of a training, as ``export`` does, and load it through the checks of the service."""
    spec = problems.get(PROBLEM).seen(part.scenario).spec
    made = to_onnx(scorer, spec)
    session = graph.open_session(made)
    files = sample_bundle.assemble(spec, made, golden=export.golden(session, spec), algorithm="expert")
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return Shipped(files, policy.load(folder, lambda _: spec), export.compare(scorer, session, spec))


class Verdict(NamedTuple):
    """What the gate said."""

    report: GateReport
    """With time blocks as ``evaluate`` cuts them."""
    shorter: GateReport
    """With blocks as long as the longest episode."""
    episodes: Episodes
    """In those blocks."""


class Court:
    """The test part of one shift: every policy runs its episodes once, however many verdicts it appears in."""

    def __init__(self, part: Part, begin: int) -> None:
        trace, nodes = part.trace
        cut = trace.rows(begin, len(trace))
        self.work = datasets.Workload(PROBLEM, part.scenario, (cut, nodes), "", "")
        asked = settings.load(f"evaluate.{PROBLEM}", evaluate.EvaluateConfig)
        # The bound is shown in reports and in no rule.
        self.asked = msgspec.structs.replace(asked, bound=False)
        self.config = settings.load("gate", Config)
        longest_s = datasets.get(PROBLEM).longest_s
        assert longest_s is not None
        self.longest_s = float(np.ceil(longest_s(self.work.trace, part.scenario)))
        rules = problems.get(PROBLEM).seen(part.scenario)
        self.rules = self.run({name: (HEURISTIC, rules.rule(name)) for name in asked.heuristics})

    def run(self, policies: dict[str, tuple[str, Any]]) -> pa.Table:
        """Let ``evaluate`` run policies."""
        return evaluate.episodes(self.work, policies, self.asked)

    def verdict(self, new: Shipped, old: Shipped, champion: pa.Table) -> Verdict:
        """Judge one training against another, as a night would; and once more with the shortest blocks."""
        challenger = self.run({CHALLENGER: (CHALLENGER, new.policy)})
        episodes = align(pa.concat_tables([challenger, champion, self.rules]), source="shifted.py")
        found = Integrity(
            parity_max_error=new.parity.max_error,
            parity_argmax_equal=new.parity.argmax_equal,
            permutation_invariant=new.parity.permutation_invariant,
            mask_violations=new.parity.mask_violations,
            golden_max_error=bundle.replay_golden(new.policy.session, new.policy.bundle.golden),
            decision_p99_us=evaluate.decision_p99_us(new.policy),
            bundle_errors=[],
            sizes=list(SIZES),
            digest=new.policy.manifest.digest,
            champion_digest=old.policy.manifest.digest,
        )
        shorter = self.shorter(episodes)
        terms = evaluate.terms(self.work, {})
        report, again = (judge(terms, each, found, self.config) for each in (episodes, shorter))
        return Verdict(report, again, shorter)

    def shorter(self, episodes: Episodes) -> Episodes:
        """Cut time into blocks as long as the longest episode.

        The pipeline rounds that up to whole 1,000 s so that nights keep their blocks; where a shift presses hours of
        the trace into fewer, that leaves too few of them.
        """
        starts = np.array([int(trace) for trace in episodes.traces], np.int64)
        return dataclasses.replace(episodes, block=self.work.blocks(starts, self.longest_s))

    def champion(self, old: Shipped) -> pa.Table:
        """Run what was live."""
        return self.run({CHAMPION: (CHAMPION, old.policy)})


def figures(episodes: Episodes, who: str, names: tuple[str, ...]) -> Figures:
    """Take a policy's figures at the load as it is."""
    rows = episodes.scenario == episodes.scenarios.index(RECORDED)
    return {name: episodes.metric(who, name)[rows] for name in names}


def blocks(episodes: Episodes) -> Ints:
    """Return the time blocks of those figures."""
    return np.asarray(episodes.block[episodes.scenario == episodes.scenarios.index(RECORDED)], np.int64)


def shown(found: Verdict) -> dict[str, Any]:
    """Keep of a verdict what the page tells: what it is, why, and every rule."""
    report, shorter = found.report, found.shorter
    return {
        "outcome": report.outcome,
        "reason": report.reason,
        "best_heuristic": report.best_heuristic,
        "traces": report.traces,
        "blocks": report.blocks,
        "rules": [msgspec.to_builtins(rule) for rule in report.rules],
        "warnings": list(report.warnings),
        "with_shorter_blocks": {"outcome": shorter.outcome, "reason": shorter.reason, "blocks": shorter.blocks},
    }
