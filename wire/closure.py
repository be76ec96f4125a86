"""The one identity of code: a module and everything of ours that it imports, read from the source.

Whatever is kept because "the code has not changed" (DVC's stages, mapped windows, plans of cleaning, checkpoints of
trainings, compiled kernels) asks this module, so that all of them mean the same. Imports inside functions count; those
under ``TYPE_CHECKING`` do not; modules that a registry names by a literal string are handed in as further roots.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("wire", "sched_env", "pipeline", "placement", "dags")
DATA_FILES = {"": "*.yaml", "problem.py": "scenarios/*.yaml"}
"""Module of a folder (any) -> files that it reads at run time, which belong to the code like itself."""


def modules(*roots: str) -> tuple[str, ...]:
    """Return the roots, what they import directly or not, and the packages they are in, in order of name."""
    found: set[str] = set()
    left = list(roots)
    while left:
        name = left.pop()
        if name in found or not _file(name):
            continue
        found.add(name)
        left += [*_imports(name), *([name.rpartition(".")[0]] if "." in name else [])]
    return tuple(sorted(found))


def files(*roots: str) -> tuple[Path, ...]:
    """Return the source and data files of a closure, relative to the repository."""
    sources = [path for name in modules(*roots) if (path := _file(name))]
    data = {
        file
        for path in sources
        for name, glob in DATA_FILES.items()
        if path.name.endswith(name)
        for file in path.parent.glob(glob)
    }
    return tuple(sorted(path.relative_to(ROOT) for path in {*sources, *data}))


@lru_cache
def fingerprint(*roots: str) -> str:
    """Name the code behind some modules by its content."""
    digest = hashlib.sha256()
    for path in files(*roots):
        digest.update(path.as_posix().encode() + b"\0" + hashlib.sha256((ROOT / path).read_bytes()).digest())
    return digest.hexdigest()


def _file(module: str) -> Path | None:
    """Return the source of a module of ours."""
    if module.partition(".")[0] not in PACKAGES:
        return None
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


@cache
def _imports(module: str) -> tuple[str, ...]:
    path = _file(module)
    return tuple(_named(ast.parse(path.read_text()))) if path else ()


def _named(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of ours that import statements name, those under TYPE_CHECKING left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            # ``from package import module`` names a module too.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from _named(node)
