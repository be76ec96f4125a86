"""The list of slow tests is of tests that exist, and they are left out."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_slow_test_is_there():
    for line in (ROOT / "tests" / "slow.txt").read_text().split():
        file, _, function = line.partition("::")
        text = (ROOT / file).read_text()  # a file that is gone is an error that names it
        name = function.rpartition("::")[2]
        assert not name or re.search(rf"def {name}\(", text), f"tests/slow.txt: {line}; make slow writes it anew"


def test_what_is_listed_is_marked_before_anything_is_chosen():
    listed = (ROOT / "tests" / "slow.txt").read_text().split()
    file = next(line.partition("::")[0] for line in listed if "::" not in line)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "-m", "not slow", file]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "no tests collected" in found.stdout
    assert "deselected" in found.stdout
