"""What the release before the move to ``wire/`` wrote opens, verifies and is served by this one.

``fixtures/yesterday.tar.gz`` was made by the code of commit 10799eb: two promotions that went live, a rollback, the
registry, the DVC remote, the service's store and its decision log, and one answer of each route. Its private key and
push token were thrown away.
"""

from __future__ import annotations

import json
import tarfile
import urllib.request
from pathlib import Path

import msgspec
import numpy as np
import pytest

from pipeline.registry import outcomes, places, restore, signing
from pipeline.registry.chain import Chain
from pipeline.registry.records import path_of, signature_path_of
from pipeline.registry.service import live_policy
from pipeline.registry.verify import verify
from sched_env import problems
from wire import bundle, graph, policy, records, signatures
from wire.contracts import decode, encode
from wire.contracts.decision import DecisionLine
from wire.contracts.place import PlaceRequest, PlaceResponse
from wire.contracts.policies import Policies
from wire.contracts.record import PromotionRecord
from wire.errors import BundleError

STATES = ["approved", "live", "approved", "live", "rolled_back"]


@pytest.fixture
def yesterday(home: Path) -> Path:
    """A var/ as the release before left it, after the one step of this upgrade; returns the folder above."""
    with tarfile.open(Path(__file__).parent / "fixtures" / "yesterday.tar.gz") as archive:
        archive.extractall(home.parent, filter="data")
    (key,) = signatures.public_keys(signing.trusted_folder())
    signing.trust([key])
    return home.parent


def test_the_upgrade_asks_for_its_one_step(yesterday: Path) -> None:
    (signing.trusted_folder() / signatures.LISTED).unlink()
    _, findings = verify()
    assert ["trusted.json is missing" in finding.reason for finding in findings] == [True]
    with pytest.raises(BundleError, match=r"keys trust KEY \[KEY \.\.\.\]"):
        Chain.open()


def test_the_registry_is_whole_and_its_records_are_signed(yesterday: Path) -> None:
    chain, findings = verify()
    assert findings == []
    assert chain is not None
    assert [record.state for record in chain.records] == STATES
    files = chain.mirror.files(str(chain.commit), "records/")
    for record in chain.records:
        data, signature = files[path_of(record.sequence)], files[signature_path_of(record.sequence)]
        assert encode(decode(data, PromotionRecord, source="")) == data
        (key,) = signing.public_keys()
        assert records.verify(data, signature, signing.public_keys(), source="") == key


def test_a_lost_var_comes_back_from_yesterdays_remotes(yesterday: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_REGISTRY", str(yesterday / "var" / "registry.git"))
    monkeypatch.setenv("LOADMASTER_DVC_REMOTE", str(yesterday / "var" / "dvc" / "remote"))
    monkeypatch.setenv("LOADMASTER_VAR", str(yesterday / "new"))
    restore.restore()
    assert verify()[1] == []
    store = Path("store", "functions", "live.json")
    assert (yesterday / "new" / store).read_bytes() == (yesterday / "var" / store).read_bytes()


def test_bundles_pass_every_check_under_their_old_digest(yesterday: Path) -> None:
    folders = sorted(places.bundles().iterdir())
    assert len(folders) == 2
    for folder in folders:
        signatures.verify(folder, signing.trusted_folder(), signing.revoked_file())
        loaded = policy.load(folder, problems.spec)
        assert loaded.manifest.digest == f"sha256:{folder.name}"
        assert loaded.models == {}
        assert bundle.replay_golden(loaded.session, loaded.bundle.golden) < 1e-6
        assert loaded.manifest.opset == graph.OPSET


def test_decision_log_lines_and_answers_are_read_strictly(yesterday: Path) -> None:
    lines = (yesterday / "var" / "log" / "decisions" / "decisions.jsonl").read_bytes().splitlines()
    read = [decode(line, DecisionLine, source="decisions.jsonl") for line in lines]
    since = {"arm": "live", "latency_us": None}  # what lines did not say yet
    again = [msgspec.json.decode(msgspec.json.encode(line)) for line in read]
    assert again == [msgspec.json.decode(line) | since for line in lines]
    assert [(line.request, line.chosen, line.feasible) for line in read] == [("old-1", "n2", 4), ("old-2", None, 0)]
    answered = decode((yesterday / "policies.json").read_bytes(), Policies, source="").policies["functions"]
    assert answered is not None
    assert (answered.digest, answered.counter) == (read[0].digest, read[0].counter)


def test_the_service_serves_yesterdays_store_and_the_chain_goes_on(yesterday: Path, real_service) -> None:
    asked = (yesterday / "place-request.json").read_bytes()
    decode(asked, PlaceRequest, source="")
    before = decode((yesterday / "place-response.json").read_bytes(), PlaceResponse, source="")
    signing.private_key()  # The old one was thrown away: a new one is made here, and trusted.
    with real_service() as url:
        live = live_policy(url, "functions")
        record = Chain.open().live("functions")
        assert live is not None
        assert record is not None
        assert (live.digest, live.counter) == (record.digest, record.counter)
        forward = outcomes.roll_back("functions", url, approver="ada", reason="again", to=before.digest)
        assert (forward.sequence, forward.digest) == (5, before.digest)
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/place", asked), timeout=60) as answer:
            after = decode(answer.read(), PlaceResponse, source="")
    assert verify()[1] == []
    assert (after.digest, len(after.placements)) == (before.digest, 2)
    for old, new in zip(before.placements, after.placements, strict=True):
        assert [entry.name for entry in new.ranked] == [entry.name for entry in old.ranked]
        assert (new.feasible, new.fallback) == (old.feasible, old.fallback)
        np.testing.assert_allclose(
            [entry.score for entry in new.ranked], [entry.score for entry in old.ranked], rtol=1e-5
        )
    history = (yesterday / "var" / "store" / "functions" / "history.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["counter"] for line in history] == [1, 2, 3, 4]
