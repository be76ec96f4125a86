import sys
import time

import pytest

from pipeline import progress
from pipeline.progress import Progress


def test_a_log_gets_a_line_now_and_then(capsys, monkeypatch):
    now = iter([0.0, 10.0, 31.0, 40.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    with Progress("ingest x", 4, "chunk", done=1) as bar:
        bar.add(rows=1000)
        bar.add(rows=2100, pieces=1)
        bar.add(pieces=1)
    assert capsys.readouterr().err == "ingest x: 2 of 4 chunks, 3,100 rows, 100 rows/s\n"


def test_a_terminal_gets_a_bar_with_rates(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("ingest x", 2, "chunk") as bar:
        bar.add(rows=1000, pieces=1)
        time.sleep(0.15)
        bar.add(rows=1000, pieces=1)
    said = capsys.readouterr().err
    assert "ingest x: 100%" in said
    assert "2,000 rows" in said
    assert "rows/s" in said
    assert "chunk/s" in said or "s/chunk" in said


def test_errors_pass_through():
    with pytest.raises(KeyError), Progress("x", 1, "day"):
        raise KeyError
