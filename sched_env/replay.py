"""Replay files: write every decision of a rollout as a Parquet row, and read the states back.

A row holds the state *before* its decision, as the feature rows that changed since the episode's row before (in an
episode's first row: that differ from the file's ``initial``). See ``wire.contracts.replay``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from wire.contracts.feature_spec import FeatureSpec
from wire.contracts.replay import COLUMNS, SCHEMA_VERSION, TOP_SCORES
from wire.errors import ContractError

ROWS_PER_GROUP = 8192
_VERSION_KEY = b"loadmaster.replay"


class Departure(NamedTuple):
    """Something placed that left."""

    who: int
    candidate: int
    time_s: float


class Recorder:
    """Writes decisions of one environment after another; the file appears, complete, when the recorder closes.

    Args:
        path: The Parquet file.
        scenario: Named in the file's metadata, as ``policy`` and ``seed`` are.
        policy: Name or path of the policy.
        seed: Seed of the rollout.
        spec: Meaning of the features.
    """

    def __init__(self, path: Path, *, scenario: str, policy: str, seed: int, spec: FeatureSpec) -> None:
        self._path, self._part = path, path.with_name(path.name + ".part")
        self._metadata = {
            _VERSION_KEY.decode(): str(SCHEMA_VERSION),
            "scenario": scenario,
            "policy": policy,
            "seed": str(seed),
            "feature_spec": msgspec.json.encode(spec).decode(),
        }
        self._rows: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._initial: NDArray[np.float32] | None = None
        self._before: NDArray[np.float32] | None = None
        self._writer: Any = None

    def decision(
        self,
        episode: int,
        step: int,
        time_s: float,
        candidates: NDArray[np.float32],
        request: NDArray[np.float32],
        mask: NDArray[np.bool_],
        scores: NDArray[Any] | None,
        action: int,
    ) -> None:
        """Note a decision, with the scores if the policy gave any; what it brought follows with :meth:`outcome`."""
        if self._initial is None:
            self._initial = candidates.copy()
        before = self._initial if step == 0 or self._before is None else self._before
        touched = _changed(before, candidates)
        self._before = candidates.copy()
        best, top = np.empty(0, np.int64), np.empty(0)
        if scores is not None:
            best = np.argsort(-np.where(mask, scores, -np.inf), kind="stable")[: min(TOP_SCORES, int(mask.sum()))]
            top = scores[best]
        row = {
            "episode": episode,
            "step": step,
            "time_s": time_s,
            "request": request.tolist(),
            "action": action,
            "feasible": int(mask.sum()),
            "touched": touched.tolist(),
            "touched_features": candidates[touched].ravel().tolist(),
            "top_candidates": best.tolist(),
            "top_scores": top.tolist(),
        }
        for name, value in row.items():
            self._rows[name].append(value)

    def outcome(self, reward: float, departures: Sequence[Departure]) -> None:
        """Note what the last decision brought, and who has left since."""
        self._rows["reward"].append(reward)
        for name, field in (("departed", "who"), ("departed_from", "candidate"), ("departed_s", "time_s")):
            self._rows[name].append([getattr(departure, field) for departure in departures])
        if len(self._rows["reward"]) >= ROWS_PER_GROUP:
            self._flush()

    def forget(self) -> None:
        """Take the last decision back: it was infeasible and changed nothing."""
        decided = len(self._rows["reward"])
        for values in self._rows.values():
            del values[decided:]

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._writer is None:
            initial = np.zeros((0, 0), np.float32) if self._initial is None else self._initial
            shape = {"shape": initial.shape, "float32": base64.b64encode(initial.tobytes()).decode()}
            schema = pa.schema([(name, _arrow_type(kind)) for name, kind in COLUMNS.items()])
            schema = schema.with_metadata({**self._metadata, "initial": json.dumps(shape)})
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._part, schema, compression="zstd")
        self._writer.write_table(pa.table(self._rows, schema=self._writer.schema))
        self._rows = {name: [] for name in COLUMNS}

    def close(self) -> None:
        """Write what is left and put the file in place."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        if self._writer is not None:
            self._writer.close()
            if kind is None:
                self._part.replace(self._path)
            else:
                self._part.unlink()


def _changed(before: NDArray[np.float32], now: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the candidates whose features differ; those that were not there before do."""
    common = min(len(before), len(now))
    same = np.flatnonzero((before[:common] != now[:common]).any(axis=1))
    return np.concatenate([same, np.arange(common, len(now))])


def _arrow_type(kind: str) -> Any:
    import pyarrow as pa

    if kind.startswith("list<"):
        return pa.list_(_arrow_type(kind[len("list<") : -1]))
    return getattr(pa, kind)()


class Frame(NamedTuple):
    """One decision with its whole state."""

    row: dict[str, Any]
    """The columns of ``COLUMNS``."""
    candidates: NDArray[np.float32]
    """[C, F] before the decision; a copy of its own."""


def frames(path: Path) -> Iterator[Frame]:
    """Read a replay file decision by decision, rebuilding every state."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    metadata = file.schema_arrow.metadata or {}
    version = metadata.get(_VERSION_KEY)
    if version not in (b"1", str(SCHEMA_VERSION).encode()):
        raise ContractError(f"{path} has replay version {version!r}", f"1 or {SCHEMA_VERSION}")
    stored = json.loads(metadata[b"initial"])
    initial = np.frombuffer(base64.b64decode(stored["float32"]), np.float32).reshape(stored["shape"])
    state = initial.copy()
    for batch in file.iter_batches():
        for row in batch.to_pylist():
            if row["step"] == 0:
                state = initial.copy()
            touched = np.array(row["touched"], np.int64)
            size = max(len(state), int(touched.max(initial=-1)) + 1)
            grown = np.zeros((size, initial.shape[1]), np.float32)
            grown[: len(state)] = state
            grown[touched] = np.array(row["touched_features"], np.float32).reshape(len(touched), initial.shape[1])
            state = grown
            yield Frame(row, state.copy())
