"""Read ``evaluate``'s episodes into aligned arrays: one row a (scenario, trace), the same for every policy.

Everything the statistics take for granted is checked here, with the row's name in the error: each policy ran every
trace exactly once, blocks agree, no value is missing or NaN.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.contracts.evaluation import EPISODES
from pipeline.errors import GateError
from pipeline.statistics.estimators import Floats

CHALLENGER, CHAMPION, HEURISTIC = "challenger", "champion", "heuristic"
KINDS = (CHALLENGER, CHAMPION, HEURISTIC)
_KEYS = ("policy", "kind", "scenario", "trace", "block")


@dataclass(frozen=True)
class Episodes:
    """Held-out episodes of every policy on the same traces."""

    scenarios: tuple[str, ...]
    scenario: NDArray[np.intp]
    """Index into ``scenarios`` of each trace."""
    block: NDArray[np.int_]
    traces: tuple[str, ...]
    values: dict[str, dict[str, Floats]]
    """Policy -> metric -> one value a trace."""
    heuristics: tuple[str, ...]
    champion: bool
    """Whether a champion ran too."""

    def __len__(self) -> int:
        return len(self.traces)

    def metric(self, policy: str, name: str) -> Floats:
        """Values of one metric; the error lists what there is."""
        try:
            return self.values[policy][name]
        except KeyError:
            known = sorted(self.values[CHALLENGER]) if policy in self.values else sorted(self.values)
            raise GateError(
                f"the evaluation has no {name!r} for policy {policy!r}",
                f"one of {', '.join(known)}",
                "name another in params.yaml (gate), or let evaluate write it",
            ) from None


def read(path: Path) -> Episodes:
    """Read and check ``episodes.parquet``."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        raise GateError(f"{path} does not exist", fix="run `dvc repro evaluate` first") from error
    except pa.ArrowInvalid as error:
        raise GateError(f"{path} is not a Parquet file: {error}") from error
    return align(table, source=str(path))


def align(table: pa.Table, *, source: str) -> Episodes:
    """Check a table of episodes and align its policies on (scenario, trace)."""
    required = [field.name for field in EPISODES if not field.nullable]
    if missing := [name for name in required if name not in table.column_names]:
        raise GateError(f"{source} has no column {', '.join(missing)}", "the columns of pipeline.contracts.evaluation")
    if table.num_rows == 0:
        raise GateError(f"{source} is empty", "one row a policy and trace")
    for name in _KEYS:
        if table[name].null_count:
            raise GateError(f"{source}: column {name} is null in {table[name].null_count} rows")
    table = table.sort_by([("scenario", "ascending"), ("trace", "ascending")])
    policy = table["policy"].to_numpy(zero_copy_only=False)
    kinds = _kinds(table, source)
    metrics = _metrics(table, source)
    keys: dict[str, list[tuple[str, str]]] = {}
    values: dict[str, dict[str, Floats]] = {}
    blocks: dict[str, NDArray[np.int_]] = {}
    for name in kinds:
        rows = np.flatnonzero(policy == name)
        part = table.take(rows)
        keys[name] = list(zip(part["scenario"].to_pylist(), part["trace"].to_pylist(), strict=True))
        blocks[name] = part["block"].to_numpy(zero_copy_only=False)
        values[name] = {metric: column[rows] for metric, column in metrics.items()}
    _check_pairs(keys, blocks, source)
    labels = [scenario for scenario, _ in keys[CHALLENGER]]
    scenarios, scenario = np.unique(np.asarray(labels, dtype=object).astype(str), return_inverse=True)
    return Episodes(
        scenarios=tuple(str(label) for label in scenarios),
        scenario=scenario,
        block=blocks[CHALLENGER],
        traces=tuple(trace for _, trace in keys[CHALLENGER]),
        values=values,
        heuristics=tuple(sorted(name for name, kind in kinds.items() if kind == HEURISTIC)),
        champion=CHAMPION in kinds,
    )


def _kinds(table: pa.Table, source: str) -> dict[str, str]:
    """Policy -> kind; challenger and champion are called by their kind, so that reports can name them."""
    pairs = pa.table({"policy": table["policy"], "kind": table["kind"]}).group_by(["policy", "kind"]).aggregate([])
    kinds: dict[str, str] = {}
    for policy, kind in zip(pairs["policy"].to_pylist(), pairs["kind"].to_pylist(), strict=True):
        if kind not in KINDS:
            raise GateError(f"{source}: policy {policy!r} is of kind {kind!r}", f"one of {', '.join(KINDS)}")
        if policy in kinds:
            raise GateError(f"{source}: policy {policy!r} is both {kinds[policy]} and {kind}", "one kind a policy")
        if (policy in {CHALLENGER, CHAMPION} or kind != HEURISTIC) and policy != kind:
            raise GateError(f"{source}: policy {policy!r} is of kind {kind}", f"policy {kind!r} for that kind")
        kinds[policy] = kind
    if CHALLENGER not in kinds or HEURISTIC not in kinds.values():
        raise GateError(f"{source} has {', '.join(sorted(kinds))}", "a challenger and at least one heuristic")
    return kinds


def _metrics(table: pa.Table, source: str) -> dict[str, Floats]:
    """Every numeric column as float64; a column that is null throughout is a metric the problem does not have."""
    metrics: dict[str, Floats] = {}
    for name in table.column_names:
        column = table[name]
        if name in _KEYS or not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
            continue
        if column.null_count == table.num_rows and table.schema.field(name).nullable:
            continue
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            where = ", ".join(f"{key} {table[key][row].as_py()!r}" for key in ("policy", "scenario", "trace"))
            seen = "missing" if column[row].as_py() is None else repr(column[row].as_py())
            count = int((~np.isfinite(values)).sum())
            raise GateError(
                f"{source}: {name} is {seen} in the row of {where} ({count} such rows)",
                "a finite number in every row, or null in all",
                "look at that episode in evaluate",
            )
        metrics[name] = values
    return metrics


def _check_pairs(keys: dict[str, list[tuple[str, str]]], blocks: dict[str, NDArray[np.int_]], source: str) -> None:
    """Every policy ran the challenger's traces, each once, in the same time blocks."""
    wanted = keys[CHALLENGER]
    for policy, found in keys.items():
        if len(set(found)) != len(found):
            twice = next(key for key, after in itertools.pairwise(found) if key == after)
            raise GateError(f"{source}: policy {policy!r} ran scenario {twice[0]!r}, trace {twice[1]!r} twice", "once")
        if found != wanted:
            scenario, trace = min(set(found) ^ set(wanted))
            lacks = policy if (scenario, trace) in set(wanted) else CHALLENGER
            raise GateError(
                f"{source}: policy {lacks!r} has no episode of scenario {scenario!r}, trace {trace!r}",
                "the same traces for every policy: the statistics are paired",
            )
        if not np.array_equal(blocks[policy], blocks[CHALLENGER]):
            row = int(np.flatnonzero(blocks[policy] != blocks[CHALLENGER])[0])
            raise GateError(
                f"{source}: scenario {wanted[row][0]!r}, trace {wanted[row][1]!r} is in block {blocks[policy][row]} "
                f"for {policy!r} and {blocks[CHALLENGER][row]} for the challenger",
                "one time block a trace",
            )
