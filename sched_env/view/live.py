"""Live decisions as a run: the service's decision log, line by line.

The log says what was chosen, by which scores and why, not how much of each node was in use: what is drawn for a place
is how often it was chosen, and the page says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np

from sched_env.view.pack import Packed, Words
from wire.contracts.decision import DecisionLine
from wire.errors import ContractError


def lines(path: Path) -> list[DecisionLine]:
    """Read a decision log; the last line may be half written while the service runs."""
    decoder = msgspec.json.Decoder(DecisionLine)
    found = []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(f"{path} cannot be read: {error}", "a decision log (decisions.jsonl)") from error
    rows = text.splitlines()
    for number, line in enumerate(rows, start=1):
        try:
            found.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            if number == len(rows) and not text.endswith("\n"):
                break
            raise ContractError(f"{path}, line {number}: {error}", "a line of the decision log") from error
    if not found:
        raise ContractError(f"{path} holds no decision", "at least one")
    return found


def of_log(path: Path, problem: str | None = None) -> Packed:
    """Read a decision log; of several problems, the one named, or the one with the most decisions."""
    everything = lines(path)
    counts: dict[str, int] = {}
    for line in everything:
        counts[line.problem] = counts.get(line.problem, 0) + 1
    if problem is not None and problem not in counts:
        raise ContractError(f"{path} has no decision of {problem}", " or ".join(counts))
    wanted = problem or max(counts, key=lambda name: counts[name])
    return of_lines([line for line in everything if line.problem == wanted], path.name)


def of_lines(found: list[DecisionLine], source: str) -> Packed:
    """Pack decisions of one problem."""
    words = Words()
    names: dict[str, int] = {}
    for line in found:
        for name in (*(name for name, _ in line.top), *([line.chosen] if line.chosen else [])):
            names.setdefault(name, len(names))
    place = np.array([names[line.chosen] if line.chosen else -1 for line in found], np.int32)
    chosen = np.flatnonzero(place >= 0)
    most = int(np.bincount(place[chosen], minlength=1).max()) if chosen.size else 1
    often, used_at = np.zeros(max(len(names), 1)), [0]
    used_of: list[int] = []
    used: list[float] = []
    for at in place.tolist():  # what a decision chose is seen in the frame after it
        used_at.append(len(used_of))
        if at >= 0:
            often[at] += 1
            used_of.append(at)
            used.append(often[at] / most)
    digests = list(dict.fromkeys(line.digest or "no policy" for line in found))
    nothing, frames = np.full(len(found), np.nan), len(found)
    time_s = np.array([datetime.fromisoformat(line.at).timestamp() for line in found])
    arrays = {
        "use0": np.zeros(max(len(names), 1), np.float32),
        "episode": np.zeros(frames, np.int32),
        "place": place,
        "places": np.full(frames, max(len(names), 1), np.int32),
        "feasible": np.array([line.feasible for line in found], np.int32),
        "time_s": time_s,
        "start_s": time_s,
        "end_s": nothing,
        "reward": np.zeros(frames, np.float32),
        "request": np.empty(0, np.float32),
        "who": words.numbers(line.request for line in found),
        "note": words.numbers(_note(line) for line in found),
        "used_of": np.array(used_of, np.int32),
        "used_at": np.array(used_at, np.int32),
        "used": np.array(used, np.float32),
        "top_place": np.array([names[name] for line in found for name, _ in line.top], np.int32),
        "top_score": np.array([score for line in found for _, score in line.top], np.float32),
        "top_at": np.concatenate([[0], np.cumsum([len(line.top) for line in found])]).astype(np.int32),
        "top_who": np.empty(0, np.int32),
        "top_who_at": np.zeros(frames + 1, np.int32),
        "event": np.empty(0, np.uint8),
        "event_at": np.zeros(frames + 1, np.int32),
        "event_who": np.empty(0, np.int32),
        "event_from": np.empty(0, np.int32),
        "event_to": np.empty(0, np.int32),
        "event_s": np.empty(0),
    }
    return Packed(
        {
            "problem": found[0].problem, "scenario": "live decisions", "policy": _policies(digests), "seed": "",
            "source": source, "frames": frames, "kind": "node", "names": list(names) or ["(nowhere)"], "groups": [],
            "resources": ["times chosen"], "request": [], "episodes": [], "words": words.table, "live": True,
        },
        arrays,
    )  # fmt: skip


def _note(line: DecisionLine) -> str:
    fallback = f"; the heuristic answered: {line.fallback}" if line.fallback else ""
    return f"{line.reason}{fallback} (policy {(line.digest or 'none')[:12]}, {line.candidates} candidates)"


def _policies(digests: Iterable[str]) -> str:
    return ", ".join(digest[:12] for digest in digests)
