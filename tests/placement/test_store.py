"""The folder store: one process, atomic flips, nothing lost to a kill at any moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from placement.errors import StoreError
from placement.store import FolderStore, Pointer

A, B = ("sha256:" + letter * 64 for letter in "ab")
OLD, NEW = {"policy.onnx": b"old", "manifest.json": b"{}"}, {"policy.onnx": b"new", "manifest.json": b"{ }"}


def pointer(digest: str, counter: int, previous: str | None = None) -> Pointer:
    return Pointer(digest, counter, previous, "2026-01-01T00:00:00.000+00:00")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = FolderStore(tmp_path / "store", keep_bundles=3)
    yield opened
    opened.close()


def test_what_is_saved_and_flipped_is_there_after_reopening(store: FolderStore) -> None:
    assert store.pointer("vm") is None
    store.save("vm", A, OLD)
    assert store.pointer("vm") is None
    store.flip("vm", pointer(A, 1), expected=None)
    store.close()
    again = FolderStore(store.root, keep_bundles=3)
    assert again.pointer("vm") == pointer(A, 1)
    assert again.bundle("vm", A) == OLD
    assert again.pointer("functions") is None
    again.close()


def test_a_second_process_is_refused_and_told_who_has_it(store: FolderStore) -> None:
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        FolderStore(store.root, keep_bundles=3)
    assert (store.root / "lock").read_text() == str(os.getpid())


def test_a_flip_needs_the_pointer_it_expects(store: FolderStore) -> None:
    store.save("vm", A, OLD)
    store.flip("vm", pointer(A, 1), expected=None)
    with pytest.raises(StoreError, match="is live"):
        store.flip("vm", pointer(B, 2), expected=None)
    assert store.pointer("vm") == pointer(A, 1)


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:../../x", "md5:" + "a" * 64, "sha256:" + "A" * 64])
def test_a_digest_that_is_none_never_becomes_a_path(store: FolderStore, digest: str) -> None:
    with pytest.raises(StoreError, match="64 hex digits"):
        store.save("vm", digest, OLD)


def test_the_same_digest_with_another_manifest_replaces_the_bundle(store: FolderStore) -> None:
    store.save("vm", A, OLD)
    store.save("vm", A, NEW)
    assert store.bundle("vm", A) == NEW
    assert [path.name for path in (store.root / "vm" / "bundles").iterdir()] == ["a" * 64]


def test_old_bundles_are_pruned_but_never_live_or_previous(store: FolderStore) -> None:
    digests = [f"sha256:{number:064x}" for number in range(8)]
    before: Pointer | None = None
    for number, digest in enumerate(digests):
        store.save("vm", digest, OLD)
        os.utime(store.root / "vm" / "bundles" / digest.removeprefix("sha256:"), (number, number))
        after = pointer(digest, number + 1, before.digest if before else None)
        store.flip("vm", after, expected=before)
        before = after
    kept = {path.name for path in (store.root / "vm" / "bundles").iterdir()}
    assert kept == {digest.removeprefix("sha256:") for digest in digests[-3:]}


def test_a_damaged_pointer_is_taken_from_the_history(store: FolderStore) -> None:
    store.save("vm", A, OLD)
    store.flip("vm", pointer(A, 1), expected=None)
    store.flip("vm", pointer(A, 2, A), expected=pointer(A, 1))
    (store.root / "vm" / "live.json").write_bytes(b'{"digest": "sha2')
    with (store.root / "vm" / "history.jsonl").open("ab") as history:
        history.write(b'{"torn')
    assert store.pointer("vm") == pointer(A, 2, A)
    (store.root / "vm" / "history.jsonl").unlink()
    with pytest.raises(StoreError, match=r"restore live\.json"):
        store.pointer("vm")


def _dying_at(step: int, names: list[str]) -> Callable[[], None]:
    """Make the process end, as by kill -9, at the step-th of the system calls that change the disk."""
    left = [step]

    def wrap(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1
            return original(*args, **kwargs)

        return call

    def install() -> None:
        os.fsync = wrap(os.fsync)
        for name in names:
            setattr(Path, name, wrap(getattr(Path, name)))

    return install


@pytest.mark.parametrize("replacing", [False, True], ids=["new digest", "same digest"])
def test_killed_at_any_step_of_a_push_the_store_is_as_before_or_as_after(tmp_path: Path, replacing: bool) -> None:
    target = A if replacing else B
    ended = False
    for step in range(40):
        root = tmp_path / f"store-{step}"
        store = FolderStore(root, keep_bundles=3)
        store.save("vm", A, OLD)
        store.flip("vm", pointer(A, 1), expected=None)
        store.close()
        child = os.fork()
        if child == 0:
            try:
                again = FolderStore(root, keep_bundles=3)
                _dying_at(step, ["rename", "replace", "mkdir"])()
                again.save("vm", target, NEW)
                again.flip("vm", pointer(target, 2, A), expected=pointer(A, 1))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        store = FolderStore(root, keep_bundles=3)
        live = store.pointer("vm")
        assert live in (pointer(A, 1), pointer(target, 2, A))
        assert live is not None
        files = store.bundle("vm", live.digest)
        assert files in (OLD, NEW)
        if live.counter == 2:
            assert files == NEW
        assert not (root / "staging").exists()
        store.close()
        ended = os.waitstatus_to_exitcode(status) == 0
        if ended:
            assert live.counter == 2
            break
    assert ended
    assert step > 6  # the loop went through every step of the write, not just the first
