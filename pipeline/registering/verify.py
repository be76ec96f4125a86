"""Proves that the registry is whole, or lists what is not: every finding names a file and a reason.

Looked at: the branch and its history, every record and signature, derived tags, keys, every bundle that was ever
approved (DVC objects, ``var/bundles``, the service's store), every run that a record names, and its data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline import signing
from pipeline.errors import RegistryError
from pipeline.registering import places, records, tags, verify_bundles, verify_runs, verify_store
from pipeline.registering.bundles import POINTERS
from pipeline.registering.chain import BRANCH, DVC_CONFIG, KEYS, TRUSTED_LIST, Chain, sync
from pipeline.registering.git import Repository
from pipeline.registering.records import Finding
from sched_env import signatures
from sched_env.errors import BundleError, LoadmasterError


def verify() -> tuple[Chain | None, list[Finding]]:
    """Look at everything; return the chain, if it can be read at all, and the findings."""
    try:
        findings = list(_keys()) + list(_objects())
        chain, faults = Chain.read(sync())
    except BundleError as error:  # revoked.json or a key file that cannot be read: nothing can be trusted
        return None, [Finding(error.found.split(":")[0], error.found)]
    except RegistryError as error:
        return None, [Finding(places.registry_remote(), error.found)]
    findings += faults
    if chain.commit is None:
        return chain, findings
    parts: list[Callable[[Chain], Iterator[Finding]]] = [
        _branch_history,
        _published,
        _tags,
        verify_bundles.findings,
        verify_runs.findings,
        verify_store.findings,
    ]
    for part in parts:
        try:
            findings += part(chain)
        except LoadmasterError as error:
            findings.append(Finding("registry", str(error)))
    return chain, list(dict.fromkeys(findings))


def _keys() -> Iterator[Finding]:
    """Check the key folders of this machine."""
    for folder in (signing.trusted_folder(), signing.retired_folder()):
        for key, path in signatures.trusted(folder).items():
            if path.stem != key:
                yield Finding(str(path), f"holds key {key[:12]}: replaced by another key")
    revoked = signatures.revocations(signing.revoked_file())
    trusted = signatures.trusted(signing.trusted_folder())
    for key in sorted(trusted.keys() & revoked.keys()):
        yield Finding(str(trusted[key]), "revoked, and still among the trusted keys")
    if len(trusted) > signing.VALID_AT_ONCE:
        yield Finding(
            str(signing.trusted_folder()), f"{len(trusted)} keys are trusted, {signing.VALID_AT_ONCE} at most"
        )
    private = signing.private_path()
    if private.exists():
        try:
            signing.refuse_readable(private)
            key = signing.current_key_id()
        except LoadmasterError as error:
            yield Finding(str(private), error.found.removeprefix(f"{private}: "))
            return
        if key not in trusted:
            yield Finding(str(private), f"its public half {key[:12]} is not trusted")


def _objects() -> Iterator[Finding]:
    """Let git check its own objects, where we can reach them."""
    remote = Path(places.registry_remote())
    for path in (remote, places.registry_mirror()):
        if (path / "HEAD").exists():
            done = Repository(path).complaints("fsck", "--no-dangling", "--no-progress")
            yield from (Finding(str(path), line) for line in done)


def _branch_history(chain: Chain) -> Iterator[Finding]:
    """Check that the branch only ever grew: one record a commit, in order, nothing edited or removed later."""
    log = chain.mirror.text(
        "log", "--reverse", "--name-status", "--no-renames", "--format=commit %H %P", str(chain.commit)
    )
    expected, commit = 0, ""
    for line in log.splitlines():
        if line.startswith("commit "):
            _, commit, *parents = line.split()
            if len(parents) > 1:
                yield Finding(f"commit {commit[:12]}", "a merge: records are written one after another")
            continue
        if not line.strip():
            continue
        status, path = line.split("\t", 1)
        if path.startswith(records.RECORDS):
            if status != "A":
                change = {"M": "edited", "D": "removed"}.get(status, status)
                yield Finding(path, f"{change} by commit {commit[:12]}: records are never changed")
            elif path.endswith(".json"):
                if path != records.path_of(expected):
                    yield Finding(
                        path, f"added by commit {commit[:12]} out of turn; next was {records.path_of(expected)}"
                    )
                expected += 1
        elif not path.startswith((POINTERS, KEYS)) and path != DVC_CONFIG[0]:
            yield Finding(path, f"added by commit {commit[:12]}: does not belong on {BRANCH}")
        elif status == "D":
            yield Finding(path, f"removed by commit {commit[:12]}")


def _published(chain: Chain) -> Iterator[Finding]:
    """Compare the keys that travel with the records with those of this machine."""
    known = signing.public_keys()
    revoked_here = signatures.revocations(signing.revoked_file())
    for path, data in chain.mirror.files(str(chain.commit), KEYS).items():
        key = path.removeprefix(KEYS).removesuffix(".pub")
        if path.endswith(".pub"):
            if key not in known:
                yield Finding(path, "published, but unknown on this machine: neither trusted nor retired")
            elif data != known[key].read_bytes():
                yield Finding(path, f"differs from {known[key]}")
        elif path == f"{KEYS}revoked.json":
            for listed in sorted(signatures.parse_revocations(data, source=path).keys() - revoked_here.keys()):
                yield Finding(str(signing.revoked_file()), f"lacks key {listed[:12]}, which {path} lists as revoked")
        elif path != TRUSTED_LIST:
            yield Finding(path, "keys/ holds *.pub, trusted.json and revoked.json only")


def _tags(chain: Chain) -> Iterator[Finding]:
    commits = chain.commits()
    if all(record.sequence in commits for record in chain.records):
        yield from tags.disagreements(chain.mirror, tags.derive(chain.records, commits))
