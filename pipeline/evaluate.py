"""Evaluate the exported bundle on the held-out windows: ``python -m pipeline.evaluate --problem functions``.

Runs the ONNX file, because that is what ships, beside the champion and the heuristics, all on the same start points
of the test windows and of variations of them (load up and down). One row for each (policy, trace) goes to the gate.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from tqdm import tqdm

from pipeline import datasets, paths, worst
from pipeline.backtest import Config as BacktestConfig
from pipeline.backtest import back_test
from pipeline.champion_policy import champion_policy
from pipeline.contracts.evaluation import (
    ASKED,
    BACKTEST_FILE,
    EPISODES,
    EPISODES_FILE,
    FIDELITY_FILE,
    FIDELITY_WINDOWS_FILE,
    HOUR,
    INTEGRITY_FILE,
    ORIGINS_FILE,
    SIZES_FILE,
    TERMS_FILE,
    Integrity,
    Origin,
    Origins,
    Terms,
)
from pipeline.datasets import Workload, workload
from pipeline.datasets.dataset import Rows
from pipeline.files import replaced_folder, write_atomic
from pipeline.gate.charts import furthest_behind
from pipeline.gate.episodes import align
from pipeline.parity import SIZES, Parity, draw
from pipeline.settings import load
from sched_env import problems
from sched_env.recorded import NAME as AS_RECORDED
from sched_env.recorded import AsRecorded, told
from sched_env.rollout import run_episodes
from sched_env.vector import make_vec
from wire import bundle
from wire.command import Verb, problem_option
from wire.contracts.feature_spec import ProblemName
from wire.errors import BundleError, run_cli
from wire.policy import GraphPolicy
from wire.policy import load as load_policy

log = logging.getLogger(__name__)

LATENCY_CANDIDATES, LATENCY_CALLS = 100, 2000
UNKEPT = ("start", "ended", "decision_us")
"""Of an episode: told by other columns, not a number, or different every time."""

Policy = str | AsRecorded | Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class EvaluateConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section ``evaluate.<problem>``."""

    traces: int
    """Start points in each scenario, spread over the test windows; the gate wants at least 200."""
    block_seconds: float | None = None
    """Start points within one such stretch of time are not independent: the gate resamples whole blocks. Null: as long
    as the longest episode of the test windows, which ``functions`` can tell."""
    loads: dict[str, float] = msgspec.field(default_factory=lambda: {"recorded": 1.0})
    """Scenario -> density of arrivals; 1 is as recorded."""
    heuristics: list[str] = msgspec.field(default_factory=list)
    """What the policy must beat; the best of them, whichever that turns out to be. Empty: all of the problem's."""
    bound: bool = True
    """Whether to work out what no policy could beat on each trace."""
    sizes: dict[str, float] = msgspec.field(default_factory=lambda: {"half": 0.5, "double": 2.0, "tenfold": 10.0})
    """Name -> how many times as large a cluster, under as many times the load. Shown beside the verdict, not part of
    it: the challenger, what it is compared with and the best rule alone play there."""
    size_traces: int = 48
    """Start points on each of those."""
    size_work: float = 5e7
    """Decisions times candidates that a policy may be asked at one of these sizes, some twenty seconds of CPU time:
    beyond it there are fewer start points, and below 10 of them the size is left out."""


FEWEST_AT_SIZE = 10
"""Start points, below which nothing is shown."""
Policies = dict[str, tuple[str, Policy]]


def episodes(data: Workload, policies: Policies, config: EvaluateConfig) -> pa.Table:
    """Run every policy on every start point of every scenario; every metric of the problem is kept."""
    rows: list[dict[str, Any]] = []
    asked = datasets.get(data.problem).asked
    with tqdm(total=len(config.loads) * len(policies), unit="run", desc="evaluate", disable=None) as progress:
        for scenario, load_factor in config.loads.items():
            at = data.scaled(load_factor)
            starts = at.starts(config.traces)
            # Blocks are counted in recorded time: the same start row is the same block at every load.
            blocks, limits = data.blocks(starts, config.block_seconds), _bounds(at, starts) if config.bound else []
            about = {HOUR: data.hours(starts), **({ASKED: asked(at.trace, at.scenario, starts)} if asked else {})}
            for name, policy in policies.items():
                rows += _played(at, scenario, name, policy, starts, blocks, limits, about)
                progress.update()
    return _table(rows)


def on_other_sizes(data: Workload, policies: Policies, config: EvaluateConfig, *, decisions: float) -> pa.Table | None:
    """Run policies on the cluster at other sizes, each under as many times the load; None: there are none.

    Args:
        data: The cluster as it is.
        policies: Who plays.
        config: Which sizes.
        decisions: Of an episode on the cluster as it is.
    """
    rows: list[dict[str, Any]] = []
    work = max(decisions, 1.0) * make_vec(data.scenario, 1, trace=data.trace).width
    # Candidates are as many times as many; so are decisions, but where as many as before are played on a full cluster.
    grows = 1.0 if data.scenario.horizon and told(data.trace) else 2.0
    with tqdm(total=len(config.sizes) * len(policies), unit="run", desc="other sizes", disable=None) as progress:
        for scenario, factor in config.sizes.items():
            affordable = int(config.size_work / (work * factor**grows))
            if affordable < FEWEST_AT_SIZE:
                said = "%s: not shown at %g times its size: more than %g decisions times candidates (size_work)"
                log.warning(said, data.problem, factor, config.size_work)
                continue
            at = data.resized(factor)
            if at is None:
                return None
            starts = at.starts(min(config.size_traces, affordable))
            # As many times as dense: what lay in one block of recorded time lies in one so much shorter.
            blocks = at.blocks(starts, config.block_seconds and config.block_seconds / factor)
            for name, policy in policies.items():
                rows += _played(at, scenario, name, policy, starts, blocks, [], {})
                progress.update()
    return _table(rows) if rows else None


def _played(
    at: Workload,
    scenario: str,
    name: str,
    policy: tuple[str, Policy],
    starts: Rows,
    blocks: Rows,
    limits: list[float | None],
    about: Mapping[str, NDArray[np.float64]],
) -> list[dict[str, Any]]:
    """Play an episode from each start and return its row."""
    kind, decides = policy
    return [
        {
            **{column: value for column, value in result.items() if column not in UNKEPT},
            **{column: float(values[number]) for column, values in about.items()},
            "policy": name,
            "kind": kind,
            "scenario": scenario,
            "trace": str(starts[number]),
            "block": int(blocks[number]),
            "oom": int(result.get("oom", 0)),
            "bound": limits[number] if limits else None,
        }
        for number, result in enumerate(run_episodes(at.scenario, decides, starts, trace=at.trace))
    ]


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    own = sorted({column for row in rows for column in row} - {*EPISODES.names})
    return pa.Table.from_pylist(rows, schema=pa.schema([*EPISODES, *(pa.field(name, pa.float64()) for name in own)]))


def _bounds(data: Workload, starts: Rows) -> list[float | None]:
    """Return what no policy can beat from each start; nothing at all where it is not known for all of them."""
    limits = (
        problems.get(data.problem).simulation().bounds(make_vec(data.scenario, 1, trace=data.trace), starts.tolist())
    )
    return [] if None in limits else limits


def terms(data: Workload, sizes: Mapping[str, float]) -> Terms:
    """Say what a workload is judged by, and on which other sizes of its cluster it is shown."""
    value, loaded = problems.get(data.problem).seen(data.scenario), data.scenario
    primary = value.primary(loaded)
    return Terms(
        problem=data.problem,
        scenario=loaded.name,
        primary_metric=primary,
        higher_is_better=value.better(primary) > 0,
        bound_metric=value.bound_metric(loaded),
        fallback=value.fallback,
        guardrails=list(value.guardrails(loaded)),
        horizon=loaded.horizon,
        wanted_horizon=data.wanted_horizon,
        density=data.density,
        asked_in=datasets.get(data.problem).asked_in,
        sizes=dict(sizes),
    )


def decision_p99_us(policy: GraphPolicy) -> float:
    """99th percentile of scoring one request against a hundred candidates, in microseconds of this thread's CPU.

    CPU time, because a verdict must not depend on what else the machine was doing at night; the service measures its
    own wall time.
    """
    spec = policy.manifest.feature_spec
    candidates, request, mask = draw(spec, rows=1, size=LATENCY_CANDIDATES, seed=3)
    spent = np.empty(LATENCY_CALLS)
    for call in range(LATENCY_CALLS):
        began = time.thread_time()
        policy(candidates, request, mask)
        spent[call] = time.thread_time() - began
    return float(np.quantile(spent, 0.99) * 1e6)


def integrity(problem: ProblemName, policy: GraphPolicy, champion: GraphPolicy | None) -> Integrity:
    """Collect stage 0 of the gate: what export measured, and what the shipped file does here."""
    exported = json.loads((paths.metrics_of("export", problem)).read_text())
    parity = msgspec.convert({key: exported[key] for key in Parity.__struct_fields__}, Parity)
    errors: list[str] = []
    golden_error: float | None = None
    try:
        golden_error = bundle.replay_golden(policy.session, policy.bundle.golden)
    except BundleError as error:
        errors.append(str(error))
    return Integrity(
        parity_max_error=parity.max_error,
        parity_argmax_equal=parity.argmax_equal,
        permutation_invariant=parity.permutation_invariant,
        mask_violations=parity.mask_violations,
        golden_max_error=golden_error,
        decision_p99_us=decision_p99_us(policy),
        bundle_errors=errors,
        sizes=list(SIZES),
        digest=policy.manifest.digest,
        champion_digest=champion.manifest.digest if champion else None,
    )


def origins(problem: ProblemName, data: Workload) -> list[Origin]:
    """Say where every number of the evaluation comes from: the workload's, and the simulator's own."""
    count = datasets.get(problem).origins
    found = count(paths.WINDOWS, datetime.fromisoformat(data.start), datetime.fromisoformat(data.end)) if count else []
    calibration = datasets.calibration(problem)
    for value in calibration.values if calibration else []:
        numbers = {origin: int(value.origin == origin) for origin in ("measured", "estimated", "assumed")}
        decides = datasets.get(problem).decisive.get(value.name, "")
        found.append(Origin(value.name, **numbers, decides=decides, needs=value.needs))
    return found


def summary(table: pa.Table, primary: str) -> dict[str, dict[str, float]]:
    """Mean of the primary metric, return, SLA violation rate and cost of each policy, over all scenarios."""
    columns = tuple(dict.fromkeys((primary, "return", "sla_violation_rate", "cost_usd")))
    means = table.group_by("policy").aggregate([(column, "mean") for column in columns]).to_pylist()
    return {row["policy"]: {column: row[f"{column}_mean"] for column in columns} for row in means}


def _compared(policies: Policies, table: pa.Table, judged: Terms) -> Policies:
    """Return the challenger, what it is compared with, and the best rule."""
    means = summary(table, judged.primary_metric)
    better = 1.0 if judged.higher_is_better else -1.0
    rules = [name for name, (kind, _) in policies.items() if kind == "heuristic" and name != AS_RECORDED]
    best = max(rules, key=lambda name: better * means[name][judged.primary_metric])
    chosen = {"challenger", "champion", judged.fallback, best}
    return {name: policy for name, policy in policies.items() if name in chosen}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    problem_option(parser, problems.names())


def run(options: argparse.Namespace) -> int:
    """Evaluate the exported bundle of a problem."""
    problem: ProblemName = options.problem
    config = load(f"evaluate.{problem}", EvaluateConfig)
    data = workload(problem, "test")
    value = problems.get(problem).seen(data.scenario)
    challenger = load_policy(paths.BUNDLES / problem, lambda _: value.spec)
    live = paths.CHAMPIONS / problem
    champion = champion_policy(problem, data.scenario)
    policies: Policies = {"challenger": ("challenger", challenger)}
    if champion is not None:
        policies["champion"] = ("champion", champion)
    policies |= {name: ("heuristic", value.rule(name)) for name in config.heuristics or value.heuristics}
    check = datasets.get(problem).check
    fidelity = check(data, paths.WINDOWS, AsRecorded(), AS_RECORDED) if check and told(data.trace) else None
    if fidelity is not None and not fidelity[0].skipped:  # else episodes cannot be played as they were recorded
        policies[AS_RECORDED] = ("heuristic", AsRecorded())
    # What was measured beside what is simulated is of the load as it was; what is judged, of the load as it is.
    data = data.at_present_load()
    judged = terms(data, config.sizes)
    table = episodes(data, policies, config)
    with replaced_folder(paths.EVALUATION / problem) as folder:
        pq.write_table(table, folder / EPISODES_FILE)
        compared, decisions = _compared(policies, table, judged), pc.mean(table["placed"]).as_py()
        other = on_other_sizes(data, compared, config, decisions=decisions)
        if other is not None:
            pq.write_table(other, folder / SIZES_FILE)
        rival = "champion" if champion is not None else judged.fallback
        if rival in policies:
            lost = furthest_behind(
                align(table, source="the evaluation"), judged.primary_metric, judged.higher_is_better, rival
            )
            worst.record(folder, lost, data, config.loads, {name: policies[name][1] for name in ("challenger", rival)})
        (folder / TERMS_FILE).write_bytes(msgspec.json.encode(judged))
        (folder / INTEGRITY_FILE).write_bytes(msgspec.json.encode(integrity(problem, challenger, champion)))
        backtest = back_test(problem, live, paths.WINDOWS, load("backtest", BacktestConfig))
        if backtest is not None:
            (folder / BACKTEST_FILE).write_bytes(msgspec.json.encode(backtest))
        if fidelity is not None:
            figures, by_window = fidelity
            (folder / FIDELITY_FILE).write_bytes(msgspec.json.encode(figures))
            by_window.to_parquet(folder / FIDELITY_WINDOWS_FILE)
        (folder / ORIGINS_FILE).write_bytes(msgspec.json.encode(Origins(origins(problem, data))))
    means = summary(table, judged.primary_metric)
    write_atomic(paths.metrics_of("evaluate", problem), json.dumps(means, indent=2, sort_keys=True).encode() + b"\n")
    for name, row in sorted(
        means.items(), key=lambda item: -value.better(judged.primary_metric) * item[1][judged.primary_metric]
    ):
        sys.stdout.write(f"{name:<22}" + "".join(f"  {key} {value:9.4f}" for key, value in row.items()) + "\n")
    return 0


main = Verb("python -m pipeline.evaluate", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
