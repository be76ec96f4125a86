"""The list of slow tests is of tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_slow_test_is_there():
    for line in (ROOT / "tests" / "slow.txt").read_text().split():
        file, _, function = line.partition("::")
        text = (ROOT / file).read_text()  # a file that is gone is an error that names it
        name = function.rpartition("::")[2]
        assert not name or re.search(rf"def {name}\(", text), f"tests/slow.txt: {line}; make slow writes it anew"
