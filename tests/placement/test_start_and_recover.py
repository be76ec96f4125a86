"""Whatever is broken at start, somebody answers; and what is put right is taken up without a restart."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from placement import appending, store
from placement.errors import StoreError, StoreLockedError
from placement.store import FolderStore, Pointer

Within = Callable[[Callable[[], bool]], None]


def rollback(client: Any, kit: Any) -> Any:
    return client.post("/v1/policies/functions/rollback", headers={"Authorization": f"Bearer {kit.TOKEN}"})


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory, workshop: Any, kit: Any) -> Path:
    """A store after two pushes; a trial each takes seconds, so that it is made once and copied."""
    made = kit.settings_in(tmp_path_factory.mktemp("pushed"), workshop)
    one, two = workshop.sample(1), workshop.sample(2)
    with kit.running(made) as client:
        assert kit.push(client, one, counter=1).is_success
        assert kit.push(client, two, counter=2, live=kit.digest_of(one)).is_success
    store_dir: Path = made.store_dir
    return store_dir


@pytest.fixture
def two_pushed(settings: Any, workshop: Any, kit: Any, pushed: Path) -> tuple[str, str]:
    """Digest of the previous policy and of the live one, which are in the store."""
    shutil.copytree(pushed, settings.store_dir)
    return kit.digest_of(workshop.sample(1)), kit.digest_of(workshop.sample(2))


@pytest.fixture
def full_disk(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Nothing below the service's folders can be written any more, as on a full disk; returns what frees it."""
    below = str(settings.store_dir.parent)
    context = monkeypatch.context()
    patch = context.__enter__()
    real_open, real_mkdir, real_os_open = Path.open, Path.mkdir, os.open

    def full() -> OSError:
        return OSError(errno.ENOSPC, "No space left on device")

    def open_(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if str(self).startswith(below) and set(mode) & set("wax+"):
            raise full()
        return real_open(self, mode, *args, **kwargs)

    def mkdir(self: Path, *args: Any, **kwargs: Any) -> None:
        if str(self).startswith(below) and not self.exists():
            raise full()
        real_mkdir(self, *args, **kwargs)

    def os_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if str(path).startswith(below) and flags & (os.O_WRONLY | os.O_RDWR):
            raise full()
        return real_os_open(path, flags, *args, **kwargs)

    patch.setattr(Path, "open", open_)
    patch.setattr(Path, "mkdir", mkdir)
    patch.setattr(appending.os, "open", os_open)
    return lambda: context.__exit__(None, None, None)


def test_with_a_full_disk_the_stored_policy_answers(
    settings: Any, kit: Any, two_pushed: tuple[str, str], full_disk: Callable[[], None]
) -> None:
    (settings.store_dir / "lock").unlink()
    settings.push_token_file.unlink()
    with kit.running(settings) as client:
        assert kit.place(client).json()["digest"] == two_pushed[1]
        assert client.get("/readyz").json()["degraded"] == {}
    full_disk()


def test_a_first_start_on_a_full_disk_answers_with_the_heuristic(
    settings: Any, kit: Any, full_disk: Callable[[], None]
) -> None:
    settings.push_token_file.unlink()
    with kit.running(settings) as client:
        assert kit.place(client).json()["placements"][0]["fallback"]
    full_disk()


def test_a_rollback_works_while_the_store_cannot_be_written_and_is_saved_later(
    settings: Any, kit: Any, workshop: Any, two_pushed: tuple[str, str], monkeypatch: pytest.MonkeyPatch, within: Within
) -> None:
    one, two = two_pushed
    live = settings.store_dir / "functions" / "live.json"
    with kit.running(msgspec.structs.replace(settings, retry_s=1)) as client:
        with monkeypatch.context() as patch:
            patch.setattr(store, "_write_durably", _raise(OSError(errno.EROFS, "Read-only file system")))
            answer = rollback(client, kit)
            assert (answer.status_code, answer.json()["digest"]) == (200, one)
            assert kit.place(client).json()["digest"] == one
            assert "Read-only" in client.get("/readyz").json()["degraded"]["functions"]
            assert json.loads(live.read_bytes())["digest"] == two
            refused = kit.push(client, workshop.sample(3), counter=9, live=one)
            assert (refused.status_code, "Read-only" in refused.json()["error"]) == (500, True)
        within(lambda: client.get("/readyz").json()["degraded"] == {})
        assert (json.loads(live.read_bytes())["digest"], json.loads(live.read_bytes())["counter"]) == (one, 3)
    with kit.running(settings) as client:
        assert kit.place(client).json()["digest"] == one


def _raise(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    "hostile",
    [b"[" * 900_000, b'{"verificationMaterial":' + b"[" * 500_000, b"\xff" * 100],
    ids=["deep", "deep inside", "no text"],
)
def test_a_hostile_signature_file_leaves_the_previous_policy_to_answer(
    settings: Any, kit: Any, two_pushed: tuple[str, str], hostile: bytes
) -> None:
    one, two = two_pushed
    folder = settings.store_dir / "functions" / "bundles" / two.removeprefix("sha256:")
    (folder / "signature.sig").write_bytes(hostile)
    with kit.running(settings) as client:
        assert kit.place(client).json()["digest"] == one
        assert client.get("/readyz").json()["degraded"]["functions"]


def test_a_trial_that_cannot_be_spawned_is_tried_again(
    settings: Any, kit: Any, workshop: Any, two_pushed: tuple[str, str], monkeypatch: pytest.MonkeyPatch, within: Within
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", _raise(BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")))
        with kit.running(msgspec.structs.replace(settings, retry_s=1)) as client:
            assert kit.place(client).json()["placements"][0]["fallback"]
            assert "trial cannot be started" in client.get("/readyz").json()["degraded"]["functions"]
            refused = kit.push(client, workshop.sample(3), counter=9, live=two_pushed[1])
            assert refused.status_code == 500, "it says nothing about the bundle: the pipeline may try again"
            patch.undo()
            within(lambda: client.get("/readyz").json()["degraded"] == {})
            assert kit.place(client).json()["digest"] == two_pushed[1]


def test_whatever_a_library_raises_the_service_starts(
    settings: Any, kit: Any, two_pushed: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement.intake.bundle.check", _raise(MemoryError("no room")))
    with kit.running(settings) as client:
        assert kit.place(client).json()["placements"][0]["fallback"]
        assert "MemoryError" in client.get("/readyz").json()["degraded"]["functions"]


def test_a_damaged_policy_that_is_put_right_answers_without_a_restart(
    settings: Any, kit: Any, two_pushed: tuple[str, str], within: Within
) -> None:
    one, two = two_pushed
    policy = settings.store_dir / "functions" / "bundles" / two.removeprefix("sha256:") / "policy.onnx"
    whole = policy.read_bytes()
    policy.write_bytes(kit.flip_byte(whole))
    with kit.running(msgspec.structs.replace(settings, retry_s=1)) as client:
        assert kit.place(client).json()["digest"] == one
        policy.write_bytes(whole)
        within(lambda: kit.place(client).json()["digest"] == two)
        assert 'loadmaster_policy_degraded{problem="functions"} 0.0' in client.get("/metrics").text


def test_a_deleted_pointer_does_not_restart_the_counter(
    settings: Any, kit: Any, workshop: Any, two_pushed: tuple[str, str]
) -> None:
    (settings.store_dir / "functions" / "live.json").unlink()
    with kit.running(settings) as client:
        entry = client.get("/v1/policies").json()["policies"]["functions"]
        assert (entry["digest"], entry["counter"]) == (two_pushed[1], 2)
        assert kit.push(client, workshop.sample(1), counter=1).status_code == 412
        assert kit.push(client, workshop.sample(3), counter=2, live=two_pushed[1]).status_code == 412


def test_a_pointer_deleted_under_a_running_service_does_not_either(
    live_client: Any, settings: Any, workshop: Any, kit: Any
) -> None:
    (settings.store_dir / "functions" / "live.json").unlink()
    assert kit.push(live_client, workshop.sample(2), counter=1).status_code == 412
    assert kit.push(live_client, workshop.sample(2), counter=2, live=kit.digest_of(workshop.sample(1))).is_success


def test_a_deleted_lock_is_taken_again_and_two_services_never_write_one_store(tmp_path: Path) -> None:
    first = FolderStore(tmp_path, keep_bundles=2)
    pointer = Pointer("sha256:" + "0" * 64, 1, None, "2026-01-01T00:00:00+00:00")
    (tmp_path / "lock").unlink()
    first.flip("functions", pointer, expected=None)
    with pytest.raises(StoreLockedError):
        FolderStore(tmp_path, keep_bundles=2)
    (tmp_path / "lock").unlink()
    second = FolderStore(tmp_path, keep_bundles=2)
    with pytest.raises(StoreError, match="in use by process"):
        first.flip("functions", msgspec.structs.replace(pointer, counter=2), expected=pointer)
    second.close()
    first.flip("functions", msgspec.structs.replace(pointer, counter=2), expected=pointer)
    first.close()


def test_half_a_line_of_the_history_spoils_no_other(tmp_path: Path) -> None:
    kept = FolderStore(tmp_path, keep_bundles=2)
    pointer = Pointer("sha256:" + "0" * 64, 1, None, "2026-01-01T00:00:00+00:00")
    with (tmp_path / "functions" / "history.jsonl").open("wb") as history:
        history.write(b'{"digest": "sha256:00')
    kept.flip("functions", pointer, expected=None)
    (tmp_path / "functions" / "live.json").unlink()
    assert kept.pointer("functions") == pointer


def test_half_a_line_of_the_decision_log_spoils_no_other(settings: Any, kit: Any) -> None:
    log = settings.log_dir / "decisions.jsonl"
    settings.log_dir.mkdir(parents=True)
    log.write_bytes(b'{"at": "2026-01-01T00:00:00Z", "pro')
    with kit.running(settings) as client:
        kit.place(client)
    torn, whole = log.read_bytes().splitlines()
    assert (torn, json.loads(whole)["request"]) == (b'{"at": "2026-01-01T00:00:00Z", "pro', "r0")


def test_a_line_that_broke_off_in_the_middle_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = appending.AppendedFile(tmp_path / "log", mib=1, kept=2)
    file.append(b"one\n")
    real, calls = os.write, []

    def short(handle: int, data: Any) -> int:
        calls.append(handle)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, bytes(data)[:2])

    with monkeypatch.context() as patch:
        patch.setattr(appending.os, "write", short)
        with pytest.raises(OSError, match="No space"):
            file.append(b"two\n")
    file.append(b"three\n")
    file.close()
    assert (tmp_path / "log").read_bytes() == b"one\ntw\nthree\n"


def test_a_store_that_vanishes_is_made_anew(live_client: Any, settings: Any, workshop: Any, kit: Any) -> None:
    shutil.rmtree(settings.store_dir)
    answer = kit.push(live_client, workshop.sample(2), counter=2, live=kit.digest_of(workshop.sample(1)))
    assert (answer.status_code, "store says" in answer.json()["error"]) == (500, True)
    assert kit.place(live_client).json()["digest"] == kit.digest_of(workshop.sample(1))
