"""A problem nobody has heard of goes all the way: dataset, train, export, evaluate, gate, push and place.

The problem is ``tests/shelves/problem.py``; nothing but the two registrations below tells anybody of it.
"""

import importlib.util
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from pipeline import datasets, evaluate, export, paths, train
from pipeline.contracts.windows import SCHEMA_VERSION, TABLES, VERSION_KEY
from pipeline.gate import command as gate
from pipeline.registry import service, signing
from placement.app import create_app
from placement.settings import Settings
from sched_env import problems
from wire import sample_bundle, signatures
from wire.contracts import encode
from wire.contracts.bundle import Manifest, Verdict

MODULE, SOURCE = "shelves_problem", Path(__file__).parent / "shelves" / "problem.py"

PARAMS = """
problems: [shelves]
splits: {train: 0.5, validation: 0.2, gap_windows: 1}
workload: {shelves: {scenario: shelves/small, horizon: 24}}
train: {shelves: {validation_traces: 4, maskable_ppo: {envs: 4, rollout_steps: 16, segments: 1, epochs: 1, batch: 32,
        hidden: 8, teacher_steps: 8, teacher_epochs: 1}}}
evaluate: {shelves: {traces: 12, block_seconds: 1800}}
backtest: {enabled: false}
gate: {bootstrap_samples: 200}
"""


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A day of windows with a parcel a minute, and the problem where it can be found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    monkeypatch.setattr(problems, "MODULES", dict(problems.MODULES))
    monkeypatch.setattr(datasets, "MODULES", dict(datasets.MODULES))
    found = importlib.util.spec_from_file_location(MODULE, SOURCE)
    monkeypatch.setitem(sys.modules, MODULE, importlib.util.module_from_spec(found))
    found.loader.exec_module(sys.modules[MODULE])
    problems.register("shelves", MODULE)
    datasets.register("shelves", MODULE)
    Path("params.yaml").write_text(PARAMS)
    times = pd.date_range(datetime(2026, 3, 2, tzinfo=UTC), periods=1440, freq="min", unit="us")
    sizes = np.random.default_rng(0).choice([1.0, 2.0, 3.0, 5.0], times.size)
    events = pd.DataFrame(
        {"time": times, "window_start": times.floor("5min"), "entity": times.astype(str), "mem_gib": sizes}
    )
    events = events.assign(cluster="c", kind="pod", action="create").reindex(columns=TABLES["events"].names)
    table = pa.Table.from_pandas(events, schema=TABLES["events"], preserve_index=False)
    file = paths.WINDOWS / "events" / "date=2026-03-02" / "part-0.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(table.replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION).encode()}), file)


def test_a_further_problem_is_trained_judged_pushed_and_asked(workspace):
    assert train.main(["--problem", "shelves", "--algorithm", "maskable_ppo", "--seed", "0"]) == 0
    assert export.main(["--problem", "shelves"]) == 0
    assert evaluate.main(["--problem", "shelves"]) == 0
    assert gate.main(["--problem", "shelves"]) == 0
    report = json.loads((paths.GATE / "shelves" / "report.json").read_text())
    assert (report["problem"], report["primary_metric"], report["reference"]) == ("shelves", "placed", "best_fit")
    assert report["bound_metric"] == "placed"
    assert 0 < report["comparisons"][0]["challenger_mean"] <= report["bound"]
    assert "used_litres" in pq.read_schema(paths.EVALUATION / "shelves" / "episodes.parquet").names

    bundle = paths.BUNDLES / "shelves"
    manifest = msgspec.json.decode((bundle / "manifest.json").read_bytes(), type=Manifest)
    judged = msgspec.structs.replace(manifest, gate=Verdict("pass", "as promote writes it"))
    (bundle / "manifest.json").write_bytes(encode(judged))
    signatures.sign(bundle, signing.private_key())
    files = {file.name: file.read_bytes() for file in bundle.iterdir()}
    record = encode(sample_bundle.record(files, counter=1, previous_digest=None))
    body = service.pack(files | {"record.json": record, "record.sig": signing.sign_bytes(record)})
    settings = Settings(store_dir=Path("store"), trusted_keys_dir=signing.trusted_folder(), log_dir=Path("log"),
                        push_token_file=Path("token"), revoked_keys_file=Path("revoked.json"))  # fmt: skip
    with TestClient(create_app(settings)) as client:
        sent = {"Authorization": f"Bearer {Path('token').read_text().strip()}", "If-None-Match": "*"}
        pushed = client.put("/v1/policies/shelves", content=body, headers=sent)
        assert pushed.status_code == 200, pushed.text
        shelves = [{"name": name, "state": {"room": room}} for name, room in (("a", 4.0), ("b", 9.0), ("c", 1.0))]
        asked = [{"id": "parcel", "fields": {"size": 2.0}}, {"id": "piano", "fields": {"size": 90.0}}]
        answer = client.post("/v1/place", json={"problem": "shelves", "candidates": shelves, "requests": asked}).json()
    parcel, piano = answer["placements"]
    assert answer["digest"] == report["digest"]
    assert {entry["name"] for entry in parcel["ranked"]} == {"a", "b"}
    assert not parcel["fallback"]
    assert "3 too little room" in piano["reason"]
