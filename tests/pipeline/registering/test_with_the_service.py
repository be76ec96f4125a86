"""The joint with the real placement service: what the registry pushes is taken, what it records is what is live."""

from __future__ import annotations

import json
import shutil
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline import promote, push, signing
from pipeline.errors import PushError
from pipeline.registering import outcomes, places, restore
from pipeline.registering.chain import Chain
from pipeline.registering.service import live_policy, push_token
from pipeline.registering.verify import verify

uvicorn = pytest.importorskip("uvicorn")
app = pytest.importorskip("placement.app")
sample_bundle = pytest.importorskip("sched_env.sample_bundle")

pytestmark = pytest.mark.usefixtures("dvc_in_process")


@contextmanager
def real_service() -> Iterator[str]:
    """Run the service on a free port, with the keys and the store of this var/."""
    from placement.settings import load

    server = uvicorn.Server(uvicorn.Config(app.create_app(load()), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not server.started and time.monotonic() < until:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


def judged(run_dir: Path, *, seed: int, champion: str | None) -> Path:
    """Put a real policy, and the gate's word on it, into a run."""
    bundle, report = run_dir / "data" / "bundles" / "functions", run_dir / "data" / "gate" / "functions" / "report.json"
    shutil.rmtree(bundle)
    bundle.mkdir()
    for name, data in sample_bundle.build(seed=seed, hidden=8).items():
        (bundle / name).write_bytes(data)
    verdict = {"digest": json.loads((bundle / "manifest.json").read_text())["digest"], "champion_digest": champion}
    content = json.dumps(json.loads(report.read_text()) | verdict)
    report.unlink()
    report.write_text(content)
    return run_dir


def roll_back(url: str, counter: int) -> None:
    headers = {"Authorization": f"Bearer {push_token()}", "X-Loadmaster-Counter": str(counter)}
    request = urllib.request.Request(f"{url}/v1/policies/functions/rollback", headers=headers, method="POST", data=b"")
    urllib.request.urlopen(request, timeout=60).close()


def test_promote_push_verify_roll_back_and_restore_with_the_real_service(nights) -> None:
    with real_service() as url:
        records = []
        for seed, name in enumerate(("one", "two"), start=1):
            champion = records[-1].digest if records else None
            clone = judged(nights / name, seed=seed, champion=champion)
            promote.promote("functions", clone, run_id=name, approver="ada", reason="")
            push.push("functions", url)
            records.append(outcomes.confirm("functions", url))
        answer = live_policy(url, "functions")
        assert answer is not None
        assert (answer.digest, answer.counter) == (records[1].digest, 2)
        assert records[1].loaded_at == answer.loaded_at
        assert verify()[1] == [], "store and records agree"

        roll_back(url, 3)
        with pytest.raises(PushError, match="the records say"):
            outcomes.confirm("functions", url)
        assert any("live.json" in finding.file for finding in verify()[1])
        flip = outcomes.reconcile("functions", url)
        assert flip is not None
        assert (flip.state, flip.digest) == ("rolled_back", records[0].digest)
        assert verify()[1] == []

    store = places.store()
    before = {path.name: path.read_bytes() for path in (store / "functions").iterdir() if path.is_file()}
    shutil.rmtree(store)
    restore.restore()
    assert {path.name: path.read_bytes() for path in (store / "functions").iterdir() if path.is_file()} == before
    with real_service() as url:
        answer = live_policy(url, "functions")
        assert answer is not None
        assert (answer.digest, answer.counter) == (records[0].digest, 3)


def test_a_refusal_by_the_real_service_changes_nothing_and_is_recorded(nights, tmp_path, monkeypatch) -> None:
    promote.promote("functions", judged(nights / "one", seed=1, champion=None), run_id="one", approver="ada", reason="")
    # The service has heard of a stolen key before this machine has.
    revoked = tmp_path / "revoked.json"
    revoked.write_text(json.dumps({"revoked": {signing.current_key_id(): {"reason": "stolen"}}}))
    monkeypatch.setenv("LOADMASTER_REVOKED_KEYS_FILE", str(revoked))
    with real_service() as url:
        with pytest.raises(PushError, match=r"422: .*stolen"):
            push.push("functions", url)
        assert live_policy(url, "functions") is None
    assert [record.state for record in Chain.open().records] == ["approved", "failed"]
    assert "stolen" in Chain.open().records[-1].reason
