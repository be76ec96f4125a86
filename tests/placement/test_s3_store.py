"""Replicas over one S3 store: one flips, the others follow; of two one wins; a store that is gone stops nobody."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from placement.errors import StoreError
from placement.s3_store import S3Store
from placement.store import Pointer
from tests.servers import S3Server, s3_server
from wire.contracts import encode
from wire.errors import ConfigError

pytest.importorskip("obstore")
pytestmark = pytest.mark.s3


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3", "policies", monkeypatch) as made:
        yield made


URL = "s3://policies/live"


def pointer(counter: int, digest: str | None = None) -> Pointer:
    return Pointer(digest=digest, counter=counter, previous_digest=None, loaded_at="2026-01-01T00:00:00Z")


def test_a_flip_counts_for_everybody_and_only_from_what_is_live(server: S3Server) -> None:
    one, two = S3Store(URL, 2), S3Store(URL, 2)
    assert one.pointer("vm") is None
    one.flip("vm", pointer(1), None)
    assert two.pointer("vm") == pointer(1)
    with pytest.raises(StoreError, match="another replica changed it"):
        two.flip("vm", pointer(2), None)
    two.flip("vm", pointer(2), pointer(1))
    assert one.pointer("vm") == pointer(2)
    assert one.pointer("functions") is None


def test_of_many_flips_at_once_one_wins(server: S3Server) -> None:
    stores = [S3Store(URL, 2) for _ in range(8)]
    won: list[int] = []
    ready = threading.Barrier(len(stores))

    def flip(index: int) -> None:
        ready.wait()
        try:
            stores[index].flip("vm", pointer(1, "sha256:" + f"{index:064x}"), None)
            won.append(index)
        except StoreError:
            pass

    threads = [threading.Thread(target=flip, args=(index,)) for index in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert stores[0].pointer("vm") == pointer(1, "sha256:" + f"{won[0]:064x}")


def test_a_lost_or_broken_pointer_is_rebuilt_and_the_counter_goes_on(server: S3Server) -> None:
    store = S3Store(URL, 2)
    for counter in (1, 2, 3):
        store.flip("vm", pointer(counter), pointer(counter - 1) if counter > 1 else None)
    live = server.folder / "policies" / "live" / "vm" / "live.json"
    live.write_bytes(live.read_bytes()[:20])
    assert store.pointer("vm") == pointer(3)
    store.flip("vm", pointer(4), pointer(3))
    assert msgspec.json.decode(live.read_bytes())["counter"] == 4
    live.unlink()
    assert store.pointer("vm") == pointer(4)
    history = sorted((live.parent / "history").iterdir())
    history[-1].write_bytes(b"{")
    assert store.pointer("vm") == pointer(3)
    assert encode(pointer(1)) == history[0].read_bytes()


def test_old_bundles_go_and_pinned_ones_stay(server: S3Server) -> None:
    store = S3Store(URL, 2)
    names = [f"sha256:{index:064x}" for index in range(4)]
    for index, name in enumerate(names):
        store.save("vm", name, {"policy.onnx": b"x" * index, "manifest.json": b"{}"})
        time.sleep(1.1)  # times of objects have whole seconds
    live = Pointer(digest=names[0], counter=1, previous_digest=None, loaded_at="")
    store.flip("vm", live, None)
    assert store.bundle("vm", names[0]) == {"policy.onnx": b"", "manifest.json": b"{}"}
    assert set(store.bundle("vm", names[3])) == {"policy.onnx", "manifest.json"}
    for name in names[1:3]:
        with pytest.raises(StoreError, match="holds nothing"):
            store.bundle("vm", name)


def until(true: Any, timeout_s: float) -> float:
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < timeout_s, "it did not come"
        time.sleep(0.05)
    return time.monotonic() - started


@pytest.mark.timeout(300)
def test_replicas_follow_within_seconds_and_answer_while_the_store_is_gone(
    server: S3Server, settings: Any, kit: Any, workshop: Any, tmp_path: Path
) -> None:
    first = msgspec.structs.replace(settings, store_url=URL, follow_s=0.5)
    second = msgspec.structs.replace(first, log_dir=tmp_path / "second-log")
    one, two = workshop.sample(1), workshop.sample(2)

    def live(client: Any) -> str | None:
        entry = client.get("/v1/policies").json()["policies"]["functions"]
        return entry and entry["digest"]

    with kit.running(first) as a, kit.running(second) as b:
        assert kit.push(a, one, counter=1).status_code == 200
        until(lambda: live(b) == kit.digest_of(one), 20)
        assert kit.push(b, two, counter=2, live=kit.digest_of(one)).status_code == 200
        until(lambda: live(a) == kit.digest_of(two), 20)
        # A client that believes what was live before is told, whichever replica it asks.
        assert kit.push(a, one, counter=3, live=kit.digest_of(one)).status_code == 412
        server.process.send_signal(signal.SIGSTOP)
        for client in (a, b):
            assert kit.place(client).json()["digest"] == kit.digest_of(two)
        # The way back works in memory and says so; when the store is there again it is written, and followed.
        token = {"Authorization": f"Bearer {kit.TOKEN}"}
        assert a.post("/v1/policies/functions/rollback", headers=token).status_code == 200
        assert "in memory only" in a.get("/readyz").json()["degraded"]["functions"]
        assert live(a) == kit.digest_of(one)
        server.process.send_signal(signal.SIGCONT)
        a.portal.call(a.app.state.service.flip, a.app.state.service.live.recover, "functions")
        assert a.get("/readyz").json()["degraded"] == {}
        until(lambda: live(b) == kit.digest_of(one), 20)


def test_a_store_without_a_name_is_refused() -> None:
    for url in ("s3://", "gs://x", "policies"):
        with pytest.raises(ConfigError, match="s3://bucket/prefix"):
            S3Store(url, 2)
