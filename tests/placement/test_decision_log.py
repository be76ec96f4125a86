"""The decision log: one line a decision, rotated, never in the way."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from placement.decision_log import FILE_NAME, DecisionLog
from placement.metrics import Metrics
from placement.ranking import feature_hash
from sched_env import problems


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


def test_it_is_rotated_by_size_and_the_oldest_falls_off(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placement.appending.MIB", 1000)
    small = msgspec.structs.replace(settings, log_file_mib=1, log_files=2)
    for first in range(0, 100, 5):
        log = DecisionLog(small, Metrics())
        for number in range(first, first + 5):
            log.write({"number": number, "filler": "x" * 80})
        log.close()
    found = sorted(path.name for path in settings.log_dir.iterdir())
    assert [name for name in found if name != FILE_NAME] == [f"{FILE_NAME}.1", f"{FILE_NAME}.2"]
    kept = [line["number"] for number in (2, 1) for line in lines(settings.log_dir / f"{FILE_NAME}.{number}")]
    if (settings.log_dir / FILE_NAME).exists():
        kept += [line["number"] for line in lines(settings.log_dir / FILE_NAME)]
    assert kept == list(range(kept[0], 100))
    assert kept[0] > 0


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
