"""What a restart finds: verified anew, damaged, or killed in the middle of a push."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from sched_env import problems


def folder_of(settings: Any, digest: str) -> Path:
    path: Path = settings.store_dir / "functions" / "bundles" / digest.removeprefix("sha256:")
    return path


@pytest.fixture
def two_pushed(settings: Any, workshop: Any, kit: Any) -> tuple[str, str]:
    """Digest of the previous policy and of the live one."""
    one, two = workshop.sample(1), workshop.sample(2)
    with kit.running(settings) as client:
        assert kit.push(client, one, counter=1).status_code == 200
        assert kit.push(client, two, counter=2, live=kit.digest_of(one)).status_code == 200
    return kit.digest_of(one), kit.digest_of(two)


def test_the_live_policy_answers_again_after_a_restart(settings: Any, kit: Any, two_pushed: tuple[str, str]) -> None:
    one, two = two_pushed
    with kit.running(settings) as client:
        entry = client.get("/v1/policies").json()["policies"]["functions"]
        assert (entry["digest"], entry["counter"], entry["previous_digest"]) == (two, 2, one)
        assert kit.place(client).json()["digest"] == two
        assert client.get("/readyz").json()["degraded"] == {}
        sent = {"Authorization": f"Bearer {kit.TOKEN}", "X-Loadmaster-Counter": "3"}
        assert client.post("/v1/policies/functions/rollback", headers=sent).json()["digest"] == one


def test_a_damaged_live_policy_leaves_the_previous_one_to_answer(
    settings: Any, kit: Any, workshop: Any, two_pushed: tuple[str, str]
) -> None:
    one, two = two_pushed
    damaged = folder_of(settings, two) / "policy.onnx"
    damaged.write_bytes(kit.flip_byte(damaged.read_bytes()))
    with kit.running(settings) as client:
        entry = client.get("/v1/policies").json()["policies"]["functions"]
        assert (entry["digest"], entry["counter"]) == (one, 2)
        assert "signature" in entry["degraded"]
        assert "functions" in client.get("/readyz").json()["degraded"]
        assert 'loadmaster_policy_degraded{problem="functions"} 1.0' in client.get("/metrics").text
        placed = kit.place(client).json()
        assert placed["digest"] == one
        assert not placed["placements"][0]["fallback"]
        # The registry still believes that the damaged one is live; pushing it again repairs the store.
        assert kit.push(client, workshop.sample(2), counter=3, live=two).status_code == 200
        assert client.get("/readyz").json()["degraded"] == {}
    with kit.running(settings) as client:
        assert kit.place(client).json()["digest"] == two


def test_with_both_damaged_the_heuristic_answers(settings: Any, kit: Any, two_pushed: tuple[str, str]) -> None:
    for digest in two_pushed:
        (folder_of(settings, digest) / "manifest.json").write_bytes(b"{}")
    with kit.running(settings) as client:
        entry = client.get("/v1/policies").json()["policies"]["functions"]
        assert (entry["digest"], entry["counter"]) == (None, 2)
        assert entry["degraded"]
        assert client.get("/readyz").status_code == 200
        placed = kit.place(client).json()
        assert placed["digest"] is None
        assert placed["placements"][0]["fallback"]
        assert problems.get("functions").fallback in placed["placements"][0]["reason"]


def test_a_pointer_beyond_repair_is_shown_as_damage(settings: Any, kit: Any, two_pushed: tuple[str, str]) -> None:
    (settings.store_dir / "functions" / "live.json").write_bytes(b"?")
    (settings.store_dir / "functions" / "history.jsonl").unlink()
    with kit.running(settings) as client:
        entry = client.get("/v1/policies").json()["policies"]["functions"]
        assert (entry["digest"], entry["counter"]) == (None, 0)
        assert "live.json" in entry["degraded"]
        assert kit.place(client).json()["placements"][0]["fallback"]


def test_a_missing_bundle_folder_is_a_damaged_store(settings: Any, kit: Any, two_pushed: tuple[str, str]) -> None:
    one, two = two_pushed
    folder_of(settings, two).rename(folder_of(settings, two).with_name("gone"))
    with kit.running(settings) as client:
        assert kit.place(client).json()["digest"] == one


def test_a_bundle_in_the_place_of_another_is_not_taken(settings: Any, kit: Any, two_pushed: tuple[str, str]) -> None:
    one, two = two_pushed
    for file in folder_of(settings, one).iterdir():
        (folder_of(settings, two) / file.name).write_bytes(file.read_bytes())
    with kit.running(settings) as client:
        entry = client.get("/v1/policies").json()["policies"]["functions"]
        assert entry["digest"] == one
        assert "in the place of" in entry["degraded"]


def test_a_key_revoked_since_takes_its_policies_with_it(
    settings: Any, kit: Any, workshop: Any, two_pushed: tuple[str, str]
) -> None:
    from wire import signatures

    key = signatures.key_id(workshop.public)
    settings.revoked_keys_file.write_text(json.dumps({"revoked": {key: {"reason": "stolen"}}}))
    with kit.running(settings) as client:
        assert "stolen" in client.get("/v1/policies").json()["policies"]["functions"]["degraded"]


class Process:
    """The service as its own process, to be killed."""

    def __init__(self, settings: Any, tmp_path: Path) -> None:
        names = ("store_dir", "trusted_keys_dir", "revoked_keys_file", "push_token_file", "log_dir", "deadline_ms")
        environ = {f"LOADMASTER_{name.upper()}": str(getattr(settings, name)) for name in names}
        port = 20000 + os.getpid() % 20000
        self.address = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "placement", "--port", str(port), "--log-level", "warning"]
        with (tmp_path / "service.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=os.environ | environ, stdout=log, stderr=log)
        for _ in range(600):
            assert self.process.poll() is None, (tmp_path / "service.log").read_text()
            with contextlib.suppress(httpx.TransportError):
                httpx.get(self.address + "/healthz")
                return
            time.sleep(0.05)
        raise AssertionError("the service did not start")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def test_told_to_stop_it_writes_its_log_and_lets_the_store_go(settings: Any, kit: Any, tmp_path: Path) -> None:
    service = Process(settings, tmp_path)
    with httpx.Client(base_url=service.address, timeout=60) as client:
        for _ in range(20):
            assert kit.place(client).status_code == 200
    service.process.terminate()
    assert service.process.wait(timeout=30) in (0, -signal.SIGTERM)  # uvicorn ends by the signal it was sent
    assert len((settings.log_dir / "decisions.jsonl").read_text().splitlines()) == 20
    with kit.running(settings) as client:
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("delay_s", [0.3, 1.0])
def test_killed_during_a_push_it_comes_back_with_the_old_or_the_new(
    settings: Any, kit: Any, workshop: Any, tmp_path: Path, delay_s: float
) -> None:
    one, two = workshop.sample(1), workshop.sample(2)
    service = Process(settings, tmp_path)
    with httpx.Client(base_url=service.address, timeout=60) as client:
        assert kit.push(client, one, counter=1).status_code == 200

        def attempt() -> None:
            with contextlib.suppress(httpx.TransportError):
                kit.push(client, two, counter=2, live=kit.digest_of(one))

        pushing = threading.Thread(target=attempt)
        pushing.start()
        time.sleep(delay_s)
        service.kill()
        pushing.join()
    service = Process(settings, tmp_path)
    try:
        with httpx.Client(base_url=service.address, timeout=60) as client:
            entry = client.get("/v1/policies").json()["policies"]["functions"]
            assert entry["degraded"] is None
            assert entry["digest"] in (kit.digest_of(one), kit.digest_of(two))
            assert kit.place(client).json()["digest"] == entry["digest"]
            if entry["counter"] == 1:
                assert kit.push(client, two, counter=2, live=entry["digest"]).status_code == 200
    finally:
        service.kill()


def test_a_second_service_on_the_same_store_says_so_and_stops(settings: Any, kit: Any) -> None:
    environ = {
        "LOADMASTER_STORE_DIR": str(settings.store_dir),
        "LOADMASTER_PUSH_TOKEN_FILE": str(settings.push_token_file),
    }
    with kit.running(settings):
        second = subprocess.run(
            [sys.executable, "-m", "placement", "--port", "0"],
            env=os.environ | environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert second.returncode == 2
    assert "is in use by process" in second.stderr
    assert "Traceback" not in second.stderr
