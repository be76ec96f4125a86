"""Write docs/notebooks from the pages that are tutorials: ``make reference``; the text is written once, in the page."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = {"serverless": "serverless.md", "vmagent": "vmagent.md"}


def notebook(page: str) -> dict[str, Any]:
    """Return a page as a notebook: its prose in between, its Python to run."""
    text = (DOCS / page).read_text()
    cells = []
    for number, part in enumerate(re.split(r"^```python\n(.*?)^```\n", text, flags=re.DOTALL | re.MULTILINE)):
        if not part.strip():
            continue
        code = number % 2 == 1
        source = part.strip() if code else re.sub(r"\]\((?![a-z]+:|#)", "](../", part.strip())
        cell: dict[str, Any] = {"cell_type": "code" if code else "markdown", "id": f"cell-{len(cells)}", "metadata": {}}
        cell["source"] = source.splitlines(keepends=True)
        if code:
            cell |= {"execution_count": None, "outputs": []}
        cells.append(cell)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def main() -> int:
    """Write both."""
    for name, page in PAGES.items():
        path = DOCS / "notebooks" / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n")
        sys.stdout.write(f"docs/notebooks/{path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
