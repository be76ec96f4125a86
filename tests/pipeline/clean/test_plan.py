"""Plans are made once, kept in files, and made anew when what they depend on has changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ibis
import pytest

from pipeline.clean import plan
from pipeline.clean.config import CleanConfig
from pipeline.clean.plan import Planner, Plans, promised

SCHEMA = ibis.schema({"a": "int64", "b": "float64"})


@contextmanager
def plans(folder: Path, made: list[str], config: CleanConfig | None = None) -> Iterator[Plans]:
    def compile_(table: ibis.Table) -> str:
        made.append("made")
        return str(ibis.to_sql(table, dialect="duckdb"))

    found = Plans(folder, config or CleanConfig(), compile_)
    yield found
    found.close()


def twice(planner: Planner) -> None:
    rows = planner.cache(promised("rows", SCHEMA).filter(ibis._.a > 0), "kept")
    planner.result("found", rows.select("b"))


def test_a_plan_is_made_once_and_read_by_later_runs(tmp_path: Path) -> None:
    made: list[str] = []
    with plans(tmp_path, made) as first:
        plan_ = first.get("x", SCHEMA, make=twice).result()
        assert first.get("x", SCHEMA, make=twice).result() is plan_
    with plans(tmp_path, made) as later:
        assert later.get("x", SCHEMA, make=twice).result() == plan_
    assert len(made) == 2
    assert [name for name, _ in plan_.steps] == ["kept"]
    assert '"kept"' in plan_.results["found"]


def test_other_tables_and_other_settings_have_other_plans(tmp_path: Path) -> None:
    made: list[str] = []
    with plans(tmp_path, made) as one:
        one.get("x", SCHEMA, make=twice).result()
        one.get("x", "another schema", make=twice).result()
    with plans(tmp_path, made, CleanConfig(fill_windows=1)) as other:
        other.get("x", SCHEMA, make=twice).result()
    assert len(made) == 6


def test_a_changed_definition_forgets_the_old_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    monkeypatch.setattr(plan, "SOURCES", (source,))
    made: list[str] = []
    for text in ("one", "two"):
        (source / "x.py").write_text(text)
        with plans(tmp_path / "plans", made) as found:
            found.get("x", SCHEMA, make=twice).result()
    assert len(made) == 4
    assert len(list((tmp_path / "plans").iterdir())) == 1


def test_a_damaged_file_is_made_anew(tmp_path: Path) -> None:
    made: list[str] = []
    with plans(tmp_path, made) as found:
        whole = found.get("x", SCHEMA, make=twice).result()
    (file,) = tmp_path.glob("*/*.json")
    file.write_bytes(file.read_bytes()[:20])
    with plans(tmp_path, made) as found:
        assert found.get("x", SCHEMA, make=twice).result() == whole
