"""docs/workflows.md: its Python blocks run as they are printed, and print what the page says."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "workflows.md"


def test_the_page_runs_from_top_to_bottom(capsys):
    text = PAGE.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {"__name__": "page"})
    schedule, sheet, shapes, same = capsys.readouterr().out.splitlines()
    assert f"prints `{schedule}` and `{sheet}`" in text
    assert shapes.startswith("MultiDiscrete([2 2 2])")
    assert same == "True"
