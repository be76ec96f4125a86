"""Replay files: write every decision of a rollout as a Parquet row, and read the states back.

A row holds the state *before* its decision, as the feature rows that changed since the episode's row before (in an
episode's first row: that differ from the file's ``initial``), and in the same way the shares of each place in use. What
happened after the decision is in its row too. See ``wire.contracts.replay``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from sched_env.occupancy import Event
from wire.contracts.feature_spec import FeatureSpec
from wire.contracts.replay import COLUMNS, READABLE, SCHEMA_VERSION, TOP_SCORES
from wire.errors import ContractError

if TYPE_CHECKING:
    from sched_env.vector import PlacementVectorEnv

ROWS_PER_GROUP = 8192
_VERSION_KEY = b"loadmaster.replay"


class Recorder:
    """Writes decisions of one environment after another; the file appears, complete, when the recorder closes.

    Args:
        path: The Parquet file.
        env: The environment whose first row is recorded.
        policy: Name or path of the policy.
    """

    def __init__(self, path: Path, env: PlacementVectorEnv, policy: str) -> None:
        self._path, self._part = path, path.with_name(path.name + ".part")
        self._env = env
        self._metadata = {
            _VERSION_KEY.decode(): str(SCHEMA_VERSION),
            "scenario": env.scenario.name,
            "policy": policy,
            "seed": str(env.seed),
            "feature_spec": msgspec.json.encode(env.feature_spec).decode(),
            "layout": json.dumps(env.layout()._asdict()),
        }
        self._rows: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._initial: NDArray[np.float32] | None = None
        self._before: NDArray[np.float32] | None = None
        self._use: NDArray[np.float32] | None = None
        self._use_before: NDArray[np.float32] | None = None
        self._resources: tuple[str, ...] = ()
        self._episodes: dict[int, dict[str, Any]] = {}
        self._found: list[Event] = []
        self._happened: Any = list
        self._writer: Any = None

    def decision(self, episode: int, step: int, action: int, scores: NDArray[Any] | None) -> None:
        """Note a decision before it is taken, with the scores if the policy gave any; :meth:`outcome` follows."""
        env, buffers = self._env, self._env.buffers
        seen = env.observe()
        candidates, mask = seen["candidates"][0], seen["mask"][0]
        shares = env.usage(0)
        use = np.stack(list(shares.values()), axis=1).astype(np.float32)
        if self._initial is None or self._use is None:
            self._initial, self._use, self._resources = candidates.copy(), use, tuple(shares)
        new = step == 0 or self._before is None or self._use_before is None
        touched = changed(self._initial if new else self._before, candidates)  # type: ignore[arg-type]
        used_of = changed(self._use if new else self._use_before, use)  # type: ignore[arg-type]
        self._before, self._use_before = candidates.copy(), use
        if step == 0:
            self._episodes[episode] = {"start": int(buffers.start[0])}
            graph = env.graph(0)
            if graph is not None:
                self._episodes[episode]["graph"] = graph
        self._found = env.found(0) if step == 0 else []
        best, top = np.empty(0, np.int64), np.empty(0)
        if scores is not None:
            best = np.argsort(-np.where(mask, scores, -np.inf), kind="stable")[: min(TOP_SCORES, int(mask.sum()))]
            top = scores[best]
        chosen = env.choice(0, action)
        tops = env.choices(0, best.tolist())
        alike = all(each.key == chosen.key for each in tops)
        row = {
            "episode": episode,
            "step": step,
            "time_s": float(buffers.time_s[0]),
            "request": seen["request"][0].tolist(),
            "action": action,
            "feasible": int(mask.sum()),
            "touched": touched.tolist(),
            "touched_features": candidates[touched].ravel().tolist(),
            "top_candidates": best.tolist(),
            "top_scores": top.tolist(),
            "who": env.label(0, chosen.key) if chosen.place >= 0 else "",
            "place": chosen.place,
            "places": len(use),
            "used_of": used_of.tolist(),
            "used": use[used_of].ravel().tolist(),
            "top_places": [each.place for each in tops],
            "top_who": [] if alike else [env.label(0, each.key) if each.place >= 0 else "" for each in tops],
        }
        for name, value in row.items():
            self._rows[name].append(value)
        self._happened = env.happened(0, action)

    def outcome(self, reward: float) -> None:
        """Note what the last decision brought, and what has happened since."""
        (start_s, end_s), events = self._happened()
        rows = self._rows
        rows["reward"].append(reward)
        rows["start_s"].append(start_s)
        rows["end_s"].append(end_s)
        events = [*self._found, *events]
        for name, field in (("event", "kind"), ("event_who", "who"), ("event_from", "source"), ("event_to", "target")):
            rows[name].append([getattr(event, field) for event in events])
        rows["event_s"].append([event.time_s for event in events])
        if len(rows["reward"]) >= ROWS_PER_GROUP:
            self._flush()

    def ended(self, episode: int, metrics: Mapping[str, Any]) -> None:
        """Note how an episode came out."""
        self._episodes.setdefault(episode, {})["metrics"] = dict(metrics)

    def forget(self) -> None:
        """Take the last decision back: it was infeasible and changed nothing."""
        decided = len(self._rows["reward"])
        for values in self._rows.values():
            del values[decided:]

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._writer is None:
            use = {"resources": self._resources, **_stored(self._use)}
            metadata = {**self._metadata, "initial": json.dumps(_stored(self._initial)), "use": json.dumps(use)}
            schema = pa.schema([(name, _arrow_type(kind)) for name, kind in COLUMNS.items()]).with_metadata(metadata)
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
            episodes = [self._episodes[number] for number in sorted(self._episodes)]
            self._writer.add_key_value_metadata({"episodes": json.dumps(episodes)})
        if self._writer is not None:
            self._writer.close()
            if kind is None:
                self._part.replace(self._path)
            else:
                self._part.unlink()


def _stored(array: NDArray[np.float32] | None) -> dict[str, Any]:
    given = np.zeros((0, 0), np.float32) if array is None else np.ascontiguousarray(array)
    return {"shape": given.shape, "float32": base64.b64encode(given.tobytes()).decode()}


def array_of(stored: Mapping[str, Any]) -> NDArray[np.float32]:
    """Read an array back from a file's metadata."""
    return np.frombuffer(base64.b64decode(stored["float32"]), np.float32).reshape(stored["shape"]).copy()


def changed(before: NDArray[np.float32], now: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the candidates whose features differ; those that were not there before do."""
    common = min(len(before), len(now))
    different = np.flatnonzero(before[:common] != now[:common]) // max(now.shape[1], 1)
    return np.concatenate([np.unique(different), np.arange(common, len(now))])


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


class Head(NamedTuple):
    """What a replay file says of itself."""

    version: int
    scenario: str
    policy: str
    seed: str
    spec: FeatureSpec
    initial: NDArray[np.float32]
    layout: dict[str, Any] | None
    """``kind``, ``names`` and ``groups``; None in a file of before version 3, as the rest."""
    resources: tuple[str, ...]
    use: NDArray[np.float32] | None
    episodes: list[dict[str, Any]]


def head(path: Path) -> Head:
    """Read what a replay file says of itself.

    Raises:
        ContractError: When it is no replay, or of a version that this release does not know.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not the schema's metadata alone: what is known only at the end of a run is added to the file's.
        found = pq.read_metadata(path).metadata or {}
    except (OSError, pa.ArrowInvalid) as error:
        raise ContractError(
            f"{path} cannot be read: {error}", "a replay file", "write one with loadmaster rollout --record"
        ) from error
    version = found.get(_VERSION_KEY)
    if version not in {str(number).encode() for number in READABLE}:
        raise ContractError(
            f"{path} has replay version {version!r}",
            f"{', '.join(map(str, READABLE[:-1]))} or {READABLE[-1]}",
            "write one with loadmaster rollout --record",
        )
    use = json.loads(found[b"use"]) if b"use" in found else None
    return Head(
        version=int(version),
        scenario=found[b"scenario"].decode(),
        policy=found[b"policy"].decode(),
        seed=found[b"seed"].decode(),
        spec=msgspec.json.decode(found[b"feature_spec"], type=FeatureSpec),
        initial=array_of(json.loads(found[b"initial"])),
        layout=json.loads(found[b"layout"]) if b"layout" in found else None,
        resources=tuple(use["resources"]) if use else (),
        use=array_of(use) if use else None,
        episodes=json.loads(found.get(b"episodes", b"[]")),
    )


def frames(path: Path) -> Iterator[Frame]:
    """Read a replay file decision by decision, rebuilding every state; old rows get the columns of today."""
    import pyarrow.parquet as pq

    initial = head(path).initial
    state = initial.copy()
    for batch in pq.ParquetFile(path).iter_batches():
        for row in batch.to_pylist():
            if row["step"] == 0:
                state = initial.copy()
            touched = np.array(row["touched"], np.int64)
            size = max(len(state), int(touched.max(initial=-1)) + 1)
            grown = np.zeros((size, initial.shape[1]), np.float32)
            grown[: len(state)] = state
            grown[touched] = np.array(row["touched_features"], np.float32).reshape(len(touched), initial.shape[1])
            state = grown
            yield Frame(_of_today(row, size), state.copy())


def _of_today(row: dict[str, Any], places: int) -> dict[str, Any]:
    """Give a row of an older file the columns that it lacks."""
    if "who" in row:
        return row
    left, gone = row.get("departed", []), float("nan")
    row |= {"who": "", "place": row["action"], "places": places, "start_s": row["time_s"], "end_s": gone}
    row |= {"used_of": [], "used": [], "top_places": row["top_candidates"], "top_who": []}
    row |= {"event": ["end"] * len(left), "event_who": [str(who) for who in left]}
    row |= {"event_from": row.get("departed_from", []), "event_to": [-1] * len(left)}
    row["event_s"] = row.get("departed_s", [])
    return {name: row[name] for name in COLUMNS}
