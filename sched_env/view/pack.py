"""A run as the page reads it: a JSON head and a few flat arrays, whatever it was recorded from.

Nothing is computed here that the browser can compute faster from the arrays: states, trends and timelines are rebuilt
there in one pass (``web/run.js``).
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env import replay
from wire.contracts.feature_spec import Feature, FeatureSpec
from wire.contracts.replay import EVENT_KINDS
from wire.errors import ContractError

TYPES = {"f4": np.float32, "f8": np.float64, "i4": np.int32, "u1": np.uint8}


class Packed(NamedTuple):
    """A run, ready for the page."""

    head: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    def encoded(self) -> tuple[dict[str, Any], str]:
        """Return the head, with where each array lies in the block, and the block: compressed, as base64."""
        table, parts, at = {}, [], 0
        for name, array in self.arrays.items():
            kind = array.dtype.str[1:]
            data = np.ascontiguousarray(array).tobytes()
            table[name] = [kind, at, array.size]
            padding = -len(data) % 8  # typed arrays want their own alignment
            parts += [data, bytes(padding)]
            at += len(data) + padding
        block = zlib.compress(b"".join(parts), level=6)
        return {**self.head, "arrays": table, "bytes": at}, base64.b64encode(block).decode()


def of_replay(path: Path) -> Packed:
    """Read a replay file of any version."""
    import pyarrow.parquet as pq

    head = replay.head(path)
    if head.version < 3:
        return _of_old(path, head)
    wanted = [
        "episode", "time_s", "request", "feasible", "reward", "top_scores", "who", "place", "start_s", "end_s",
        "places", "used_of", "used", "top_places", "top_who", "event", "event_who", "event_from", "event_to", "event_s",
    ]  # fmt: skip
    table = pq.read_table(path, columns=wanted).combine_chunks()
    if table.num_rows == 0:
        raise ContractError(f"{path} holds no decision", "at least one")
    words = Words()
    arrays: dict[str, NDArray[Any]] = {"use0": _f4(head.use)}
    for name in ("episode", "place", "places", "feasible"):
        arrays[name] = table[name].to_numpy().astype(np.int32)
    for name in ("time_s", "start_s", "end_s"):
        arrays[name] = table[name].to_numpy().astype(np.float64)
    arrays["reward"] = table["reward"].to_numpy().astype(np.float32)
    arrays["request"] = _flat(table["request"])[0].astype(np.float32)
    arrays["who"] = words.numbers(table["who"].to_pylist())
    arrays["used_of"], arrays["used_at"] = _flat(table["used_of"])
    arrays["used"] = _flat(table["used"])[0].astype(np.float32)
    arrays["top_place"], arrays["top_at"] = _flat(table["top_places"])
    arrays["top_score"] = _flat(table["top_scores"])[0].astype(np.float32)
    names, arrays["top_who_at"] = _flat(table["top_who"])
    arrays["top_who"] = words.numbers(names)
    kinds, arrays["event_at"] = _flat(table["event"])
    arrays["event"] = np.array([EVENT_KINDS.index(kind) for kind in kinds], np.uint8)
    arrays["event_who"] = words.numbers(_flat(table["event_who"])[0])
    for name in ("event_from", "event_to"):
        arrays[name] = _flat(table[name])[0].astype(np.int32)
    arrays["event_s"] = _flat(table["event_s"])[0].astype(np.float64)
    layout = head.layout or {"kind": "candidate", "names": [], "groups": []}
    return Packed(
        {
            "problem": head.spec.problem, "scenario": head.scenario, "policy": _short(head.policy), "seed": head.seed,
            "source": path.name, "frames": table.num_rows, **layout, "resources": list(head.resources),
            "request": _described(head.spec.request), "episodes": head.episodes, "words": words.table, "live": False,
        },
        arrays,
    )  # fmt: skip


def _of_old(path: Path, head: replay.Head) -> Packed:
    """Read a file of before version 3: use is worked out from features, and places have numbers only."""
    resources = [name for name, _ in _shares(head.spec, head.initial)]
    if not resources:
        raise ContractError(
            f"{path} is of version {head.version} and its features do not say how much is in use",
            "a replay of version 3",
            "record the run again",
        )
    words, rows, width = Words(), [], 0
    columns: dict[str, list[Any]] = {name: [] for name in ("used_of", "used", "used_at", "top_at", "event_at")}
    before: NDArray[np.float32] | None = None
    for frame in replay.frames(path):
        use = np.stack([share for _, share in _shares(head.spec, frame.candidates)], axis=1).astype(np.float32)
        first = _stacked(head) if frame.row["step"] == 0 or before is None else before
        of = replay.changed(first, use)
        columns["used_at"].append(len(columns["used_of"]))
        columns["used_of"] += of.tolist()
        columns["used"] += use[of].ravel().tolist()
        before, width = use, max(width, len(use))
        rows.append(frame.row)
    flat = {name: [item for row in rows for item in row[name]] for name in ("request", "top_places", "top_scores")}
    events = {name: [item for row in rows for item in row[name]] for name in ("event_who", "event_from", "event_s")}
    arrays: dict[str, NDArray[Any]] = {
        "use0": _f4(_stacked(head)),
        **{
            name: np.array([row[name] for row in rows], np.int32) for name in ("episode", "place", "places", "feasible")
        },
        **{name: np.array([row[name] for row in rows], np.float64) for name in ("time_s", "start_s", "end_s")},
        "reward": np.array([row["reward"] for row in rows], np.float32),
        "request": np.array(flat["request"], np.float32),
        "who": words.numbers([""] * len(rows)),
        "used_of": np.array(columns["used_of"], np.int32),
        "used_at": np.array([*columns["used_at"], len(columns["used_of"])], np.int32),
        "used": np.array(columns["used"], np.float32),
        "top_place": np.array(flat["top_places"], np.int32),
        "top_score": np.array(flat["top_scores"], np.float32),
        "top_at": _offsets([len(row["top_places"]) for row in rows]),
        "top_who": np.empty(0, np.int32),
        "top_who_at": np.zeros(len(rows) + 1, np.int32),
        "event": np.full(len(events["event_who"]), EVENT_KINDS.index("end"), np.uint8),
        "event_at": _offsets([len(row["event_who"]) for row in rows]),
        "event_who": words.numbers(events["event_who"]),
        "event_from": np.array(events["event_from"], np.int32),
        "event_to": np.full(len(events["event_who"]), -1, np.int32),
        "event_s": np.array(events["event_s"], np.float64),
    }
    halves = head.spec.problem == "vm"
    return Packed(
        {
            "problem": head.spec.problem, "scenario": head.scenario, "policy": _short(head.policy), "seed": head.seed,
            "source": path.name, "frames": len(rows), "resources": resources, "words": words.table, "live": False,
            "kind": "half" if halves else "candidate",
            "names": [f"server {k // 2} half {k % 2}" if halves else str(k) for k in range(width)],
            "groups": [f"server {k // 2}" for k in range(width)] if halves else [],
            "request": _described(head.spec.request), "episodes": head.episodes,
        },
        arrays,
    )  # fmt: skip


class Words:
    """Every name once, and numbers in its place."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {"": 0}

    @property
    def table(self) -> list[str]:
        """The names by number; 0 is none."""
        return list(self._number)

    def numbers(self, names: Any) -> NDArray[np.int32]:
        """Return the number of each name."""
        return np.array([self._number.setdefault(name, len(self._number)) for name in names], np.int32)


def _shares(spec: FeatureSpec, candidates: NDArray[np.float32]) -> list[tuple[str, NDArray[np.float32]]]:
    column = {feature.name: number for number, feature in enumerate(spec.candidate)}
    found: list[tuple[str, NDArray[np.float32]]] = []
    for name in ("cpu", "mem", "gpu_mem"):
        if f"{name}_free" in column and f"{name}_capacity" in column:
            free, capacity = candidates[:, column[f"{name}_free"]], candidates[:, column[f"{name}_capacity"]]
            found.append((name, (1.0 - free / np.maximum(capacity, 1e-9)).astype(np.float32)))
        elif f"{name}_after" in column:
            found.append((f"{name} with the request", candidates[:, column[f"{name}_after"]]))
    return found


def _stacked(head: replay.Head) -> NDArray[np.float32]:
    return np.stack([share for _, share in _shares(head.spec, head.initial)], axis=1).astype(np.float32)


def _f4(array: NDArray[np.float32] | None) -> NDArray[np.float32]:
    return np.zeros(0, np.float32) if array is None else array.ravel().astype(np.float32)


def _flat(column: Any) -> tuple[Any, NDArray[np.int32]]:
    """Return the values of a column of lists, one after another, and where each row's begin."""
    array = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    if hasattr(array, "chunks"):
        array = array.chunk(0)
    offsets = array.offsets.to_numpy()
    values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    text = str(values.type) == "string"
    return values.to_pylist() if text else values.to_numpy(), (offsets - offsets[0]).astype(np.int32)


def _offsets(counts: list[int]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _described(features: tuple[Feature, ...]) -> list[list[str]]:
    return [[feature.name, feature.unit] for feature in features]


def _short(policy: str) -> str:
    """Name a policy that is a file by its last two parts: nobody needs the path of another machine."""
    return "/".join(Path(policy).parts[-2:])


def encode_head(head: dict[str, Any]) -> str:
    """Return a head as JSON that can stand in a page."""
    return json.dumps(_finite(head), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
