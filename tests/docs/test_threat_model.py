"""Every test that the threat model names is there: a promise without its test is none."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
DEFINED = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
NAMES = set(re.findall(r"^def test_(\w+)", DEFINED, re.MULTILINE))


def test_every_file_and_every_test_it_names_is_there() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and " | " in line]
    named = set()
    for row in rows:
        for text in re.findall(r"`([^`]+)`", row.rstrip("| ").rpartition(" | ")[2]):
            if text.endswith((".py", "/")):
                assert (ROOT / "tests" / text).exists() or (ROOT / text).exists() or [*(ROOT / "tests").rglob(text)], (
                    text
                )
            elif re.fullmatch(r"[a-z0-9_]{12,}…?(\[.*\])?", text):
                named.add(text.partition("[")[0].removesuffix("…"))
    assert len(named) > 40, "the page names its tests otherwise than this test reads them"
    lost = sorted(name for name in named if not any(known.startswith(name) for known in NAMES))
    assert not lost, lost
