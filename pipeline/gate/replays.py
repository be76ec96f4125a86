"""The replays of the worst episodes as pages beside the report; ``evaluate`` recorded them (``pipeline.worst``)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sched_env.view import pack, page

FOLDER, INDEX = "worst", "index.json"


def pages(evaluation: Path, write: Callable[[str, bytes], None]) -> dict[tuple[str, str], str]:
    """Write a page for each recorded episode; returns (scenario, trace) -> the page's file name."""
    index = evaluation / FOLDER / INDEX
    if not index.exists():
        return {}
    written = {}
    for number, entry in enumerate(json.loads(index.read_text()), start=1):
        runs = []
        for name, file in zip(entry["policies"], entry["files"], strict=True):
            packed = pack.of_replay(evaluation / FOLDER / file)
            head: dict[str, Any] = {**packed.head, "policy": name}
            runs.append(packed._replace(head=head))
        title = f"Worst episode {number}: {entry['scenario']}, trace {entry['trace']}"
        file = f"worst-{number}.html"
        write(file, page.html(runs, title).encode())
        written[entry["scenario"], entry["trace"]] = file
    return written
