"""One identity of code: the closure is what grimp finds, and a changed byte of it changes the name."""

import grimp
import pytest

from wire import closure

ROOTS = [
    "pipeline.train",
    "pipeline.clean.__main__",
    "pipeline.gate.__main__",
    "sched_env.jobs.problem",
    "placement.app",
]


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph(*closure.PACKAGES, exclude_type_checking_imports=True, cache_dir=None)


@pytest.mark.parametrize("root", ROOTS)
def test_the_closure_is_what_grimp_finds_and_the_packages_around_it(graph, root):
    found = graph.find_upstream_modules(root) | {root}
    around = {".".join(name.split(".")[:depth]) for name in found for depth in range(1, name.count(".") + 1)}
    imported_by_packages = {module for package in around for module in graph.find_upstream_modules(package)}
    assert {*closure.modules(root)} == found | around | imported_by_packages


def test_no_other_problem_is_in_the_closure_of_one():
    for problem in ("vm", "pods", "functions", "workflow", "jobs"):
        files = {path.as_posix() for path in closure.files(f"sched_env.{problem}.problem")}
        assert f"sched_env/{problem}/kernels.py" in files
        others = {"vm", "pods", "functions", "workflow", "jobs"} - {problem}
        assert not [path for path in files for other in others if path.startswith(f"sched_env/{other}/")]


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A tree of its own: a imports b inside a function, and c only for types."""
    package = tmp_path / "wire"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from wire import c\n"
        "def late():\n    from wire import b\n    return b\n"
    )
    for name in "bc":
        (package / f"{name}.py").write_text("VALUE = 1\n")
    (package / "settings.yaml").write_text("key: 1\n")
    monkeypatch.setattr(closure, "ROOT", tmp_path)

    def fingerprint():
        for cached in (closure.fingerprint, closure._imports):
            cached.cache_clear()
        return closure.fingerprint("wire.a")

    yield package, fingerprint
    for cached in (closure.fingerprint, closure._imports):
        cached.cache_clear()


@pytest.mark.parametrize(
    ("file", "matters"), [("a.py", True), ("b.py", True), ("settings.yaml", True), ("c.py", False)]
)
def test_a_changed_file_changes_the_name_if_it_is_in_the_closure(copied, file, matters):
    package, fingerprint = copied
    before = fingerprint()
    (package / file).write_text((package / file).read_text() + "# changed\n")
    assert (fingerprint() != before) == bool(matters)
