"""docs/pods.md: its examples are the definition, and run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "pods.md"


def test_the_examples_of_the_page_hold():
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert code.count("assert ") >= 9
    exec(compile(code, str(PAGE), "exec"), {"__name__": "page"})
