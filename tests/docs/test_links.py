"""The documentation leads somewhere: links, anchors, and every command it names."""

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

from wire import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for path in ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@cache
def anchors(path: Path) -> set[str]:
    """Names under which a page's headings can be reached, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code(text: str) -> list[str]:
    """Lines of code blocks and code spans: what a reader would type."""
    blocks = re.findall(r"^ *```[a-z]*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    outside = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [line.strip() for block in blocks for line in block.splitlines()] + re.findall(r"`([^`\n]+)`", outside)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.name} links to {target}"
        assert found.is_relative_to(ROOT), f"{page.name} links out of the repository: {target}"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page):
    for line in code(page.read_text()):
        for module in re.findall(r"\bpython3? -m ((?:wire|sched_env|pipeline|placement|dags)[\w.]*)", line):
            name = module.rstrip(".")
            assert importlib.util.find_spec(name) is not None, f"{page.name} names python -m {name}"
        for script in re.findall(r"\bpython3? ((?:benchmarks|scripts)/\S+\.py)", line):
            assert (ROOT / script).is_file(), f"{page.name} names {script}"
        if named := re.match(r"(?:\$ )?loadmaster ([a-z][a-z-]*)", line):
            assert named.group(1) in cli.verbs(), f"{page.name} names loadmaster {named.group(1)}"
        if named := re.match(r"(?:\$ )?make ([a-z]+)\b", line):
            assert named.group(1) in TARGETS, f"{page.name} names make {named.group(1)}"
