"""Hook of mkdocs: pages that lie at the repository's root or are made of a folder, and links that lead out of docs/.

On the forge every link of the repository works as it is written. On the site the root's pages are copied in, folders
get a page that lists them, and what is no page (manifests, modules) is named instead of linked.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
AT_ROOT = {"README.md": "index.md"} | {
    f"{name}.md": f"{name}.md"
    for name in ("README.zh", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SCOPE", "SECURITY")
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root, and a page for each folder that links name."""
    for name, target in AT_ROOT.items():
        files.append(File.generated(config, target, content=_rebased((ROOT / name).read_text(), ROOT)))
    for folder, title, lead in (
        ("decisions", "Decisions", "Choices that somebody will question, with what else there was."),
        ("contracts", "Contracts", "What both sides agree on, as committed; a change is a change of these files."),
        ("results", "Results", "Everything that was measured, with the command that makes it again."),
    ):
        files.append(File.generated(config, f"{folder}/index.md", content=_listed(folder, title, lead)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links of a page of docs/ at pages of the site."""
    source = page.file.abs_src_path
    return _rebased(markdown, Path(source).parent) if source else markdown


def _rebased(text: str, folder: Path) -> str:
    """Rewrite the links of a page that lies in ``folder`` of the repository; those inside code stay."""
    at_root = folder == ROOT

    def one(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return found.group(0)
        lies = (folder / path).resolve()
        if lies.is_relative_to(DOCS):
            if lies.is_dir():
                lies = lies / "index.md"
            here = DOCS if at_root else folder
            return f"{mark}[{words}]({_way(here, lies)}{'#' + anchor if anchor else ''})"
        name = str(lies.relative_to(ROOT))
        if name in AT_ROOT:
            way = _way(DOCS if at_root else folder, DOCS / AT_ROOT[name])
            return f"[{words}]({way}{'#' + anchor if anchor else ''})"
        return words if words.startswith("`") else f"{words} (`{name}`)"

    parts = re.split(r"(^```.*?^```|`[^`\n]*`)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if number % 2 else LINK.sub(one, part) for number, part in enumerate(parts))


def _way(here: Path, there: Path) -> str:
    """Relative way from a folder to a file."""
    common = next(parent for parent in (here, *here.parents) if there.is_relative_to(parent))
    up = "../" * len(here.relative_to(common).parts)
    return up + str(there.relative_to(common))


def _listed(folder: str, title: str, lead: str) -> str:
    rows = []
    for path in sorted((DOCS / folder).iterdir()):
        if path.suffix == ".md":
            heading, _, rest = path.read_text().lstrip("# ").partition("\n")
            made = re.search(r"`((?:python|make|loadmaster) [^`]+)`", rest) if folder == "results" else None
            rows.append(f"| [{heading.strip()}]({path.name}) | {f'`{made.group(1)}`' if made else ''} |")
        elif path.suffix == ".json" and not path.with_suffix(".md").exists():
            command = json.loads(path.read_text()).get("command") if folder == "results" else None
            rows.append(f"| [{path.stem}]({path.name}) | {f'`{command}`' if command else ''} |")
    head = "| | made by |" if folder == "results" else "| | |"
    return f"# {title}\n\n{lead}\n\n{head}\n| --- | --- |\n" + "\n".join(rows) + "\n"
