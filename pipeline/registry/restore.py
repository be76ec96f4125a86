"""Brings a lost ``var/`` back from the git remote and the DVC remote: registry, keys, bundles, cache, policy store.

The private key and the push token are not restored: they never leave the machine, and new ones are made on first use.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pipeline.errors import RegistryError
from pipeline.files import write_atomic
from pipeline.registry import bundles, places, signing, tags
from pipeline.registry.chain import ANCHOR, BRANCH, KEYS, RETIRED_LIST, REVOKED_LIST, TRACKED, TRUSTED_LIST, Chain, sync
from pipeline.registry.git import Repository
from pipeline.registry.records import OFF, changes
from pipeline.registry.runs import branch_of
from wire import signatures
from wire.contracts.record import PromotionRecord


def restore(*, trust: Iterable[str] = ()) -> list[str]:
    """Rebuild what is missing; what is there and right is left alone. Returns what was done, line by line.

    Args:
        trust: Beginnings of the key ids that may be trusted; empty: those that the remote publishes. Only used when
            this machine has no keys of its own.
    """
    mirror = sync()
    done = _push_back(mirror)
    commit = mirror.resolve(TRACKED)
    if commit is None:
        raise RegistryError(
            f"the registry at {places.registry_remote()} has no branch promotions",
            "the git remote that the promotions were recorded in",
            f"set {places.REGISTRY_ENV} to it",
        )
    done += _restore_keys(mirror.files(commit, KEYS), list(trust))
    chain = Chain.open()
    done += rebuild_tags(chain)
    done += _restore_objects(chain)
    done += _restore_bundles(chain)
    done += _restore_store(chain)
    return done


def rebuild_tags(chain: Chain) -> list[str]:
    """Make the tags of the remote what the records say: missing ones added, moved ones put back, strangers removed."""
    derived = tags.derive(chain.records, chain.commits())
    wrong = [finding.file.removeprefix("tag ") for finding in tags.disagreements(chain.mirror, derived)]
    if not wrong:
        return []
    refspecs = [
        f"+{tags.make(chain.mirror, name, derived[name])}:refs/tags/{name}" if name in derived else f":refs/tags/{name}"
        for name in wrong
    ]
    chain.mirror.push(places.registry_remote(), *refspecs)
    sync()
    return [f"tag {name}: rebuilt from the records" for name in wrong]


def _push_back(mirror: Repository) -> list[str]:
    """If the remote lost its branch and our mirror remembers it, give it back, with the runs its records name."""
    anchor = mirror.resolve(ANCHOR)
    if mirror.resolve(TRACKED) is not None or anchor is None:
        return []
    mirror.run("update-ref", TRACKED, anchor)
    chain, findings = Chain.read(mirror)
    if findings:
        raise RegistryError(f"the mirror is not whole either: {findings[0]}")
    runs = {f"{record.git_commit}:refs/heads/{branch_of(record.run_id)}" for record in chain.records}
    mirror.push(places.registry_remote(), f"{anchor}:{BRANCH}", *sorted(runs))
    sync()
    return [f"registry: {len(chain.records)} records and {len(runs)} runs given back to the remote from the mirror"]


def _restore_keys(published: dict[str, bytes], trust: list[str]) -> list[str]:
    if signing.public_keys():
        return []
    try:
        trusted = msgspec.json.decode(published.get(TRUSTED_LIST, b"[]"), type=list[str])
    except msgspec.DecodeError as error:
        raise RegistryError(f"{TRUSTED_LIST} of the remote: {error}", "a list of key ids") from error
    # Before the keys themselves: keys without a list are refused, also those that a killed restore left.
    signing.list_trusted(trusted)
    done = []
    for path, data in sorted(published.items()):
        if not path.endswith(".pub"):
            continue
        key = _key_id(data)
        if path != f"{KEYS}{key}.pub":
            raise RegistryError(f"the remote publishes key {key} as {path}", f"{KEYS}{key}.pub", "do not trust it")
        if trust and not any(key.startswith(one) for one in trust):
            raise RegistryError(f"the remote publishes key {key}", f"one that begins with {' or '.join(trust)}")
        folder = signing.trusted_folder() if key in trusted else signing.retired_folder()
        write_atomic(folder / f"{key}.pub", data)
        done.append(f"key {key}: {folder.name}" + ("" if trust else ", because the remote says so; compare its id"))
    for name, file in ((REVOKED_LIST, signing.revoked_file()), (RETIRED_LIST, signing.retired_file())):
        if name in published:
            write_atomic(file, published[name])
            done.append(f"list of {file.stem} keys")
    return done


def _key_id(public: bytes) -> str:
    """The id of a key by its content: its name is only what somebody calls it."""
    with tempfile.NamedTemporaryFile(prefix="loadmaster-key-", suffix=".pub") as file:
        file.write(public)
        file.flush()
        return signatures.key_id(Path(file.name))


def _restore_objects(chain: Chain) -> list[str]:
    """Fill the DVC cache: every bundle ever approved, and the data of every run."""
    approved = {record.digest: record for record in chain.records if record.state == "approved"}
    commits = chain.commits()
    with bundles.dvc_folder() as root:
        for record in chain.records:
            if record.state == "approved":
                pointer = bundles.pointer_of(record.digest)
                file = root / str(record.sequence) / pointer
                file.parent.mkdir(parents=True)
                document = chain.mirror.files(commits[record.sequence], pointer)[pointer]
                bundles.pointed_at(document, pointer)
                file.write_bytes(document)
        if approved:
            bundles.dvc(root, "fetch", "--quiet")
    branches = _fetch_runs(chain)
    return [f"DVC cache: {len(approved)} bundles and the data of {branches} runs"]


def _fetch_runs(chain: Chain) -> int:
    """Let DVC fetch what the locks of all run branches name, through a throw-away clone."""
    with tempfile.TemporaryDirectory(prefix="loadmaster-runs-") as folder:
        clone = Repository.create(Path(folder, "clone", ".git"))
        clone.run("config", "core.bare", "false")
        source = "+refs/remotes/origin/runs/*:refs/heads/runs/*"
        clone.run("fetch", "--quiet", "--no-tags", str(chain.mirror.path), source)
        heads = clone.refs("refs/heads")
        if not heads:
            return 0
        work = clone.path.parent
        first = min(heads).removeprefix("refs/heads/")
        subprocess.run(["git", "-C", str(work), "checkout", "--quiet", "--force", first], check=True)
        (work / ".dvc").mkdir(exist_ok=True)
        (work / ".dvc" / "config.local").write_text(bundles.dvc_settings())
        done = subprocess.run(
            [sys.executable, "-m", "dvc", "fetch", "--quiet", "--all-branches"],
            cwd=work, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RegistryError(
                f"dvc fetch ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}",
                fix=f"see that the DVC remote {places.dvc_remote()} can be reached, then run restore again",
            )
        return len(heads)


def _restore_bundles(chain: Chain) -> list[str]:
    done = []
    for record in {one.digest: one for one in chain.records if one.state == "approved"}.values():
        directory = places.bundle(record.digest)
        if not bundles.holds(directory, record.bundle_sha256):
            bundles.approved(chain, record, history=True)
            done.append(f"bundle {record.digest}")
    return done


def _restore_store(chain: Chain) -> list[str]:
    """Write the service's store as its own flips left it: bundles, the pointer, and every pointer before it."""
    done = []
    for problem in sorted({record.problem for record in chain.records}):
        flips = changes(chain.of(problem))
        folder = places.store() / problem
        if not flips or (folder / "live.json").exists():
            continue
        with _stopped_service(places.store()):
            for digest in {flips[-1].digest, flips[-1].previous_digest} - {None}:
                target = folder / "bundles" / places.bundle(str(digest)).name
                if not target.exists():
                    shutil.copytree(places.bundle(str(digest)), target)
            pointers = [_pointer(record) for record in flips]
            write_atomic(folder / "history.jsonl", b"".join(pointer + b"\n" for pointer in pointers))
            write_atomic(folder / "live.json", pointers[-1])
        done.append(f"policy store: {problem} is {flips[-1].state}: {flips[-1].digest}, counter {flips[-1].counter}")
    return done


def _pointer(flip: PromotionRecord) -> bytes:
    """Write a flip as the service does (placement/store.py; a test reads it back with the service's own code)."""
    pointer = {
        "digest": None if flip.state == OFF else flip.digest,
        "counter": flip.counter,
        "previous_digest": flip.previous_digest,
        "loaded_at": flip.loaded_at or flip.decided_at,
        "schema": 1,
    }
    return json.dumps(pointer, sort_keys=True, separators=(",", ":")).encode()


@contextmanager
def _stopped_service(store: Path) -> Iterator[None]:
    store.mkdir(parents=True, exist_ok=True)
    with (store / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RegistryError(f"{store} is in use", "a stopped placement service", "stop it, then restore") from error
        yield
