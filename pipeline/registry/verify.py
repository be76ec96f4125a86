"""Proves that the registry is whole, or lists what is not: every finding names a file and a reason.

Looked at: the branch and its history, every record and signature, derived tags, keys, every bundle that was ever
approved (DVC objects, ``var/bundles``, the service's store), every run that a record names, and its data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from pipeline.errors import RegistryError
from pipeline.registry import places, records, signing, tags, verify_bundles, verify_runs, verify_store
from pipeline.registry.bundles import POINTERS
from pipeline.registry.chain import BRANCH, DVC_CONFIG, KEYS, RETIRED_LIST, REVOKED_LIST, TRUSTED_LIST, Chain, sync
from pipeline.registry.git import Repository
from pipeline.registry.records import Finding
from pipeline.registry.service import live_policy
from sched_env import problems
from wire import signatures
from wire.errors import BundleError, LoadmasterError

CLOCKS_DIFFER = timedelta(minutes=5)
"""How far the clocks of two machines that keep time may be apart."""


def verify(url: str | None = None) -> tuple[Chain | None, list[Finding]]:
    """Look at everything; return the chain, if it can be read at all, and the findings.

    Args:
        url: Address of a placement service, whose counters are held against the records: it remembers flips that a
            registry which was cut short does not.
    """
    try:
        findings = list(_keys()) + list(_objects())
        chain, faults = Chain.read(sync())
    except BundleError as error:  # revoked.json or a key file that cannot be read: nothing can be trusted
        return None, [Finding(error.found.split(":")[0], error.found)]
    except RegistryError as error:
        return None, [Finding(places.registry_remote(), error.found)]
    findings += faults
    parts: list[Callable[[Chain], Iterator[Finding]]] = [verify_store.findings, verify_runs.verdicts]
    if chain.commit is not None:
        parts = [
            _branch_history,
            _head,
            _future,
            _published,
            _tags,
            verify_bundles.findings,
            verify_runs.findings,
            *parts,
        ]
    if url is not None:
        parts.append(lambda chain: _behind(chain, url))
    for part in parts:
        try:
            findings += part(chain)
        except LoadmasterError as error:
            findings.append(Finding("registry", str(error)))
    return chain, list(dict.fromkeys(findings))


def _behind(chain: Chain, url: str) -> Iterator[Finding]:
    """Ask the service how far it has come."""
    for problem in problems.names():
        answer = live_policy(url, problem)
        counter = answer.counter if answer is not None else None
        if counter is not None and counter > chain.counter(problem):
            known = chain.counter(problem)
            yield Finding(
                url, f"{problem} is at counter {counter} there, the records end at {known}: they were cut short"
            )


def _keys() -> Iterator[Finding]:
    """Check the key folders of this machine."""
    revoked = signatures.revocations(signing.revoked_file())
    trusted = signatures.trusted(signing.trusted_folder())
    for folder in (signing.trusted_folder(), signing.retired_folder()):
        for path in sorted(folder.glob("*.pub")):
            key = signatures.key_id(path)
            if path.stem != key:
                yield Finding(str(path), f"holds key {key[:12]}: replaced by another key")
            elif folder == signing.retired_folder():
                continue
            elif key in revoked:
                yield Finding(str(path), "revoked, and still among the trusted keys")
            elif key not in trusted:
                yield Finding(str(path), "dropped here: the list of trusted keys does not name it")
    if len(trusted) > signing.VALID_AT_ONCE:
        yield Finding(
            str(signing.trusted_folder()), f"{len(trusted)} keys are trusted, {signing.VALID_AT_ONCE} at most"
        )
    private = str(signing.private_path()).split("?")[0]
    if signing.has_private_key():
        try:
            signing.refuse_readable(signing.private_path())
            key = signing.current_key_id()
        except LoadmasterError as error:
            yield Finding(private, error.found.removeprefix(f"{private}: "))
            return
        if key not in trusted:
            yield Finding(private, f"its public half {key[:12]} is not trusted")


def _objects() -> Iterator[Finding]:
    """Let git check its own objects, where we can reach them."""
    remote = Path(places.registry_remote())
    for path in (remote, places.registry_mirror()):
        if (path / "HEAD").exists():
            repository = Repository(path)
            yield from (Finding(str(path), disguise) for disguise in repository.disguises())
            done = repository.complaints("fsck", "--no-dangling", "--no-progress")
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


def _head(chain: Chain) -> Iterator[Finding]:
    """Check what a checkout of the branch would obey: plain files, and DVC settings that name no remote."""
    for path, mode in chain.mirror.modes(str(chain.commit)).items():
        if mode != "100644":
            yield Finding(path, f"has mode {mode}: the branch holds plain files only")
    path, content = DVC_CONFIG
    if chain.mirror.files(str(chain.commit), path).get(path) != content:
        yield Finding(path, "changed: a checkout of the branch would use other settings")


def _future(chain: Chain) -> Iterator[Finding]:
    """Compare records with the clock; not asked before writing, or one wrong clock would stop every promotion."""
    limit = (datetime.now(UTC) + CLOCKS_DIFFER).isoformat(timespec="seconds")
    for record in chain.records:
        if record.decided_at > limit:
            path = records.path_of(record.sequence)
            yield Finding(path, f"decided at {record.decided_at}, in the future: a wrong clock, or invented")


def _published(chain: Chain) -> Iterator[Finding]:
    """Compare the keys that travel with the records with those of this machine."""
    known = signing.public_keys()
    revoked_here = signatures.revocations(signing.revoked_file())
    trusted_here = signatures.trusted(signing.trusted_folder())
    for path, data in chain.mirror.files(str(chain.commit), KEYS).items():
        key = path.removeprefix(KEYS).removesuffix(".pub")
        if path.endswith(".pub"):
            if key not in known:
                yield Finding(path, "published, but unknown on this machine: neither trusted nor retired")
            elif data != known[key].read_bytes():
                yield Finding(path, f"differs from {known[key]}")
        elif path == TRUSTED_LIST:
            try:
                listed_keys = msgspec.json.decode(data, type=list[str])
            except msgspec.DecodeError as error:
                yield Finding(path, f"not a list of keys ({error})")
                continue
            for listed in sorted(set(listed_keys) - trusted_here.keys()):
                yield Finding(path, f"lists key {listed[:12]}, which is not trusted here")
        elif path not in (REVOKED_LIST, RETIRED_LIST):
            yield Finding(path, "keys/ holds *.pub, trusted.json, retired.json and revoked.json only")
    published = {path.removeprefix(KEYS).removesuffix(".pub") for path in chain.mirror.paths(str(chain.commit))}
    # Our own newest key is published with the next record; any other came by no way that leaves a trace.
    mine = {signing.current_key_id()} if signing.has_private_key() else set()
    for key in sorted(trusted_here.keys() - published - mine):
        yield Finding(str(trusted_here[key]), "trusted here, and never published with a record")
    for listed in sorted(_ever_revoked(chain) - revoked_here.keys()):
        yield Finding(
            str(signing.revoked_file()), f"lacks key {listed[:12]}, which was revoked ({REVOKED_LIST} of the branch)"
        )


def _ever_revoked(chain: Chain) -> set[str]:
    """Every key that the branch has ever listed as revoked: that cannot be taken back."""
    commits = chain.mirror.text("log", "--format=%H", str(chain.commit), "--", REVOKED_LIST).split()
    lists = [chain.mirror.files(commit, REVOKED_LIST).get(REVOKED_LIST, b'{"revoked": {}}') for commit in commits]
    return {key for data in lists for key in signatures.parse_revocations(data, source=REVOKED_LIST)}


def _tags(chain: Chain) -> Iterator[Finding]:
    commits = chain.commits()
    if all(record.sequence in commits for record in chain.records):
        yield from tags.disagreements(chain.mirror, tags.derive(chain.records, commits))
