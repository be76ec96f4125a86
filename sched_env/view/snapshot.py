"""A snapshot of a watched cluster (``GET /v1/clusters/{name}/snapshot``) as a run: a frame a sample of its window.

Nothing is decided in it: nodes are drawn with what their pods asked for and what these used, and every pod is there.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np

from sched_env import replay
from sched_env.traces import snapshot as snapshots
from sched_env.view.pack import Packed, Words
from wire.contracts.replay import EVENT_KINDS
from wire.contracts.snapshot import Snapshot, SnapshotPod
from wire.errors import TraceError

RESOURCES = ("cpu requested", "mem requested", "cpu used", "mem used")


def of_snapshot(path: Path) -> Packed:
    """Read a snapshot; pods whose use is not known count as using nothing, and the page says how many those are."""
    taken, nodes = snapshots.read(path)
    number = {node.name: at for at, node in enumerate(nodes)}
    pods = [pod for pod in taken.pods if pod.node in number]
    frames = max((len(samples) for pod in pods for samples in (pod.cpu_used, pod.mem_used)), default=0) or 1
    room = np.array([(node.cpu_cores, node.mem_gib) for node in nodes])
    asked, used = np.zeros((len(nodes), 2)), np.zeros((frames, len(nodes), 2))
    for pod in pods:
        at = number[pod.node]
        asked[at] += (pod.cpu_cores, pod.mem_gib)
        for column, samples in enumerate((pod.cpu_used, pod.mem_used)):
            used[frames - len(samples) :, at, column] += samples
    use = np.empty((frames, len(nodes), len(RESOURCES)), np.float32)
    use[:, :, :2], use[:, :, 2:] = asked / room, used / room
    changed = [replay.changed(use[at - 1], use[at]) if at else np.empty(0, np.int64) for at in range(frames)]
    words = Words()
    try:
        end_s = datetime.fromisoformat(taken.taken_at).timestamp()
    except ValueError as error:
        raise TraceError(f"{path}: taken_at is {taken.taken_at!r}", "an RFC 3339 time") from error
    time_s = end_s - taken.step_s * np.arange(frames - 1, -1, -1.0)
    arrays = {
        "use0": use[0].ravel(),
        "episode": np.zeros(frames, np.int32),
        "place": np.full(frames, -1, np.int32),
        "places": np.full(frames, len(nodes), np.int32),
        "feasible": np.zeros(frames, np.int32),
        "time_s": time_s,
        "start_s": time_s,
        "end_s": np.full(frames, np.nan),
        "reward": np.zeros(frames, np.float32),
        "request": np.empty(0, np.float32),
        "who": words.numbers([""] * frames),
        "note": words.numbers([_note(taken, pods)] * frames),
        "used_of": np.concatenate(changed).astype(np.int32),
        "used_at": np.concatenate([[0], np.cumsum([len(of) for of in changed])]).astype(np.int32),
        "used": np.concatenate([use[at][of].ravel() for at, of in enumerate(changed)]).astype(np.float32),
        "top_place": np.empty(0, np.int32),
        "top_score": np.empty(0, np.float32),
        "top_at": np.zeros(frames + 1, np.int32),
        "top_who": np.empty(0, np.int32),
        "top_who_at": np.zeros(frames + 1, np.int32),
        "event": np.full(len(pods), EVENT_KINDS.index("there"), np.uint8),
        "event_at": np.array([0, *[len(pods)] * frames], np.int32),
        "event_who": words.numbers(pod.name for pod in pods),
        "event_from": np.full(len(pods), -1, np.int32),
        "event_to": np.array([number[pod.node] for pod in pods], np.int32),
        "event_s": np.full(len(pods), time_s[0]),
    }
    return Packed(
        {
            "problem": "pods", "scenario": f"snapshot of {taken.cluster}", "policy": taken.taken_at, "seed": "",
            "source": path.name, "frames": frames, "kind": "node", "names": list(number), "groups": [],
            "resources": list(RESOURCES), "request": [], "episodes": [], "words": words.table, "live": True,
            "still": True,
        },
        arrays,
    )  # fmt: skip


def _note(taken: Snapshot, pods: list[SnapshotPod]) -> str:
    unknown = sum(not pod.cpu_used for pod in pods)
    where, movable = len({pod.node for pod in pods}), sum(pod.movable for pod in pods)
    known = f"; of {unknown} it is not known what they used" if unknown else ""
    return f"{len(pods)} pods on {where} of {len(taken.nodes)} nodes, {movable} movable{known}"
