"""The decision log: one line a decision, rotated, never in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from placement import decision_files
from placement.arms import Arm
from placement.decision_log import FILE_NAME, HASHED_LATER_ROWS, Decided, DecisionLog
from placement.metrics import Metrics
from placement.ranking import feature_hash
from sched_env import problems
from wire.contracts.decision import DecisionLine, arrow_schema
from wire.contracts.place import Ranked


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_leads_back_from_the_decision_to_what_made_it(settings: Any, workshop: Any, kit: Any) -> None:
    sent = kit.body(6, requests=2)
    with kit.running(settings) as client:
        kit.push(client, workshop.sample(1), counter=4)
        answered = kit.place(client, sent).json()
        kit.place(client, kit.body(2, cpu=99.0))
    first, _, nowhere = lines(settings.log_dir / FILE_NAME)
    ranked = answered["placements"][0]["ranked"]
    assert first["digest"] == kit.digest_of(workshop.sample(1))
    assert (first["counter"], first["request"], first["fallback"]) == (4, "r0", None)
    assert (first["chosen"], first["runner_up"]) == (ranked[0]["name"], ranked[1]["name"])
    assert first["top"] == [[entry["name"], entry["score"]] for entry in ranked]
    assert (first["candidates"], first["feasible"], first["propensity"]) == (6, 6, 1.0)
    columns = {name: [node["state"][name] for node in sent["candidates"]] for name in sent["candidates"][0]["state"]}
    rebuilt = problems.get("functions").build(columns, sent["requests"][0]["fields"])
    assert first["features"] == feature_hash(rebuilt)
    assert (nowhere["chosen"], nowhere["propensity"]) == (None, None)


def test_switched_off_it_writes_nothing(settings: Any, kit: Any) -> None:
    with kit.running(msgspec.structs.replace(settings, decision_log=False)) as client:
        kit.place(client)
        assert len(client.get("/v1/decisions").json()["decisions"]) == 1
    assert not settings.log_dir.exists()


def decided(number: int) -> Decided:
    at_s = datetime(2026, 3, 1, 0, number // 60, number % 60, 125_000, UTC).timestamp()
    ranked = [Ranked("a", 1.5), Ranked("b", 0.25)]
    arm = Arm("live", None, None)
    return Decided(at_s, "functions", arm, f"r{number}", "0" * 32, 9, 2, ranked, None, "x" * 400, 12.34)


def line(number: int) -> DecisionLine:
    return decided(number).line()


def test_an_observation_waits_for_its_hash_only_while_that_is_cheap(settings: Any) -> None:
    log = DecisionLog(msgspec.structs.replace(settings, decision_log=False), Metrics())
    build = problems.get("functions").build
    for size in (10, HASHED_LATER_ROWS + 1):
        seen = build({"cpu_capacity": np.full(size, 4.0)}, {})
        log.write(decided(size)._replace(features=seen, candidates=size))
        assert log.recent()[0].features == feature_hash(seen)
    late, soon = log._recent
    assert (late.candidates, late.features is seen) == (10, False)
    assert not isinstance(late.features, str)
    assert soon.features == feature_hash(seen), "large ones are not kept in memory"


def test_full_files_become_parquet_and_the_oldest_fall_off(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placement.appending.MIB", 3000)
    monkeypatch.setattr(decision_files, "convert_beside", decision_files.convert)  # many processes would take long
    small = msgspec.structs.replace(settings, log_file_mib=1, log_files=2)
    for first in range(0, 100, 5):
        log = DecisionLog(small, Metrics())
        for number in range(first, first + 5):
            log.write(decided(number))
        log.close()
    left = [path.name for path in settings.log_dir.iterdir() if not path.name.endswith(".parquet")]
    assert set(left) <= {FILE_NAME, f"{FILE_NAME}.1"}, "the last one may wait for the next start"
    files = sorted(settings.log_dir.glob("*.parquet"))
    assert len(files) == 2
    tables = [pq.read_table(path) for path in files]
    assert all(table.schema.equals(arrow_schema()) for table in tables)
    rows = pa.concat_tables(tables).to_pylist()
    kept = [int(row["request"][1:]) for row in rows]
    assert kept == list(range(kept[0], kept[-1] + 1))
    assert kept[0] > 0
    assert (rows[0]["top"], rows[0]["scores"]) == (["a", "b"], [1.5, 0.25])
    assert rows[0]["time"].isoformat() == line(kept[0]).at.replace(".125", ".125000")


def test_a_kill_between_lines_and_parquet_loses_and_doubles_nothing(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_files, "convert_beside", decision_files.convert)
    settings.log_dir.mkdir(parents=True)
    encoded = [msgspec.json.encode(line(number)) for number in range(20)]
    torn = b"\n".join(encoded) + b'\n{"at": "2026-0'  # killed in the middle of a line
    rotated = settings.log_dir / f"{FILE_NAME}.1"
    for _ in range(2):  # the second time as if it had been killed before the lines were removed
        rotated.write_bytes(torn)
        (settings.log_dir / "decisions-half.new").write_bytes(b"PAR1")
        metrics = Metrics()
        log = DecisionLog(settings, metrics)
        log.write(decided(20))
        log.close()
        assert metrics.log_lost._value.get() == 1, "the torn line is counted"
    assert not rotated.exists()
    (file,) = settings.log_dir.glob("*.parquet")
    assert pq.read_table(file)["request"].to_pylist() == [f"r{number}" for number in range(20)]


def test_it_is_rotated_by_age_too_and_ingest_reads_it_back(settings: Any, kit: Any, workshop: Any, within: Any) -> None:
    with kit.running(msgspec.structs.replace(settings, log_file_s=1)) as client:
        kit.push(client, workshop.sample(1), counter=4)
        kit.place(client, kit.body(6, requests=3))
        within(lambda: bool(list(settings.log_dir.glob("*.parquet"))))
    script = (
        "import sys; from pathlib import Path; from pipeline.ingest import IngestConfig, Range, ingest;"
        "from pipeline.sources.decisions import DecisionsConfig;"
        "made = ingest(IngestConfig('decisions', decisions=DecisionsConfig([sys.argv[1]], 'lab')), Range(),"
        " Path(sys.argv[2])); print(made.rows['decisions'])"
    )
    out = settings.log_dir.parent / "raw"
    command = [sys.executable, "-c", script, str(settings.log_dir / "decisions-*.parquet"), str(out)]
    environ = os.environ | {"LOADMASTER_VAR": str(settings.log_dir.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3"]
    (landed,) = out.glob("decisions/date=*/cluster=lab/*.parquet")
    rows = pq.read_table(landed, partitioning=None).to_pylist()
    assert [row["request"] for row in rows] == ["r0", "r1", "r2"]
    assert {row["digest"] for row in rows} == {kit.digest_of(workshop.sample(1))}
    assert all(row["latency_us"] > 0 and row["cluster"] == "lab" for row in rows)


def test_lines_that_cannot_be_written_are_counted_and_decisions_go_on(settings: Any, kit: Any) -> None:
    with kit.running(settings) as client:
        settings.log_dir.write_text("in the way")
        assert kit.place(client).status_code == 200
        for _ in range(200):
            if "loadmaster_decision_log_lost_total 1.0" in client.get("/metrics").text:
                break
            time.sleep(0.02)
        assert "loadmaster_decision_log_lost_total 1.0" in client.get("/metrics").text
        settings.log_dir.unlink()
        settings.log_dir.mkdir()
        assert kit.place(client).status_code == 200
    assert len(lines(settings.log_dir / FILE_NAME)) == 1
