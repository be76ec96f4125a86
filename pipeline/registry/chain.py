"""The chain of promotion records on branch ``promotions``: read whole, appended to by compare-and-set.

A writer reads the chain, decides, commits on top of what it read, and pushes record, signature, bundle pointer, keys
and tags in one atomic push. If somebody else was first, the remote refuses; the decision is then taken again on the new
chain, where it either still holds (another problem moved) or fails with the reason.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import UNSET

from pipeline.errors import RegistryError
from pipeline.registry import anchor_file, places, records, signing, tags
from pipeline.registry.git import Repository, stale_lock
from pipeline.registry.records import Finding
from wire import signatures
from wire.contracts import decode, encode
from wire.contracts.record import PromotionRecord, record_sha256
from wire.records import RecordSignature

BRANCH = "refs/heads/promotions"
TRACKED = "refs/remotes/origin/promotions"
ANCHOR = "refs/loadmaster/anchor"
"""The newest head of ``promotions`` that this machine has seen whole: the remote may only ever grow beyond it."""

ATTEMPTS = 20
"""Writers that lose a race decide again; each loss means somebody else made progress."""

KEYS = "keys/"
TRUSTED_LIST = f"{KEYS}trusted.json"
"""Which of the published keys the service accepts; the others are good for the history only."""
REVOKED_LIST, RETIRED_LIST = f"{KEYS}revoked.json", f"{KEYS}retired.json"

DVC_CONFIG = ".dvc/config", b"[core]\n    analytics = false\n"
"""Makes a checkout of ``promotions`` a DVC repository: ``git clone -b promotions`` and ``dvc pull`` bring bundles."""


@dataclass(frozen=True)
class Chain:
    """The records as read at one moment."""

    mirror: Repository
    commit: str | None
    records: list[PromotionRecord] = field(default_factory=list)
    obstacle: list[str] = field(default_factory=list)
    """Lock files that a push met."""

    @classmethod
    def open(cls) -> Chain:
        """Fetch and read the chain; refuse one that was tampered with."""
        mirror = sync()
        chain, findings = cls.read(mirror)
        if findings:
            more = f" ({len(findings) - 1} more)" if len(findings) > 1 else ""
            raise RegistryError(
                f"the registry is not whole: {findings[0]}{more}",
                fix="nothing was written; python -m pipeline.registry verify lists every finding",
            )
        if chain.commit is not None:
            chain.remember(chain.commit)
        return chain

    @classmethod
    def read(cls, mirror: Repository) -> tuple[Chain, list[Finding]]:
        """Read what was fetched last, with everything that is wrong with it."""
        anchor = mirror.resolve(ANCHOR)
        commit = _beyond(mirror, anchor)
        findings = []
        if anchor and not _descends(mirror, commit, anchor):
            found = commit[:12] if commit else "no branch at all"
            findings.append(
                Finding("branch promotions", f"history was rewritten: {anchor[:12]} was seen here, remote has {found}")
            )
        files = mirror.files(commit, records.RECORDS) if commit else {}
        chained, faults = records.examine(files, signing.public_keys(), signing.ended())
        return cls(mirror, commit, chained), findings + faults + list(anchor_file.findings(chained))

    def head(self) -> tuple[int, str] | None:
        """Sequence and hash of the newest record."""
        return (self.records[-1].sequence, record_sha256(self.records[-1])) if self.records else None

    def of(self, problem: str) -> list[PromotionRecord]:
        """The records of one problem."""
        return [record for record in self.records if record.problem == problem]

    def live(self, problem: str) -> PromotionRecord | None:
        """The record that says what is live."""
        return records.live(self.of(problem))

    def live_since(self, problem: str) -> str | None:
        """When the live policy began to answer, by the service's word; signing it anew changes nothing of that."""
        since = None
        for record in reversed(records.changes(self.of(problem))):
            if record.state == records.OFF or record.digest != self.live_digest(problem):
                break
            since = record.loaded_at or record.decided_at
        return since

    def live_digest(self, problem: str) -> str | None:
        """The digest that is live, as far as the records know."""
        record = self.live(problem)
        return record.digest if record else None

    def pending(self, problem: str) -> PromotionRecord | None:
        """The approved record that is neither live nor failed yet."""
        mine = self.of(problem)
        settled = {record.counter for record in mine if record.state in ("live", "failed")}
        waiting = [record for record in mine if record.state == "approved" and record.counter not in settled]
        return waiting[-1] if waiting else None

    def counter(self, problem: str) -> int:
        """The highest counter given out."""
        return max((record.counter for record in self.of(problem)), default=0)

    def approved(self, problem: str, digest: str) -> PromotionRecord | None:
        """The newest record that approved a digest."""
        mine = [record for record in self.of(problem) if record.state == "approved" and record.digest == digest]
        return mine[-1] if mine else None

    def next_record(self, **fields: Any) -> PromotionRecord:
        """Build the record that would come next: position, hash of the one before and time are filled in."""
        head = self.head()
        # What a record of schema 1 did not say, one that follows it does not know either.
        fields |= {name: blank for name, blank in _NEWER.items() if fields.get(name, UNSET) is UNSET}
        return PromotionRecord(
            sequence=head[0] + 1 if head else 0,
            previous_record_sha256=head[1] if head else None,
            # Clocks of several machines differ a little; the chain's own order is never put in doubt by them.
            decided_at=max([now(), *(record.decided_at for record in self.records[-1:])]),
            **fields,
        )

    def follow_up(self, record: PromotionRecord, **changes: Any) -> PromotionRecord:
        """Build a later record about the same bundle: what is not in ``changes`` is taken over."""
        kept = {name: getattr(record, name) for name in _CARRIED} | changes
        return self.next_record(**kept)

    def commits(self) -> dict[int, str]:
        """Sequence -> the commit that added the record."""
        if self.commit is None:
            return {}
        log = self.mirror.text(
            "log",
            "--first-parent",
            "--diff-filter=A",
            "--format=commit %H",
            "--name-only",
            self.commit,
            "--",
            "records/",
        )
        added: dict[int, str] = {}
        commit = ""
        for line in log.splitlines():
            if line.startswith("commit "):
                commit = line.removeprefix("commit ")
            elif line.endswith(".json"):
                added[int(Path(line).stem)] = commit
        return added

    def write(self, record: PromotionRecord, files: Mapping[str, bytes]) -> bool:
        """Push one record with everything that belongs to it; False if somebody else was first."""
        data = encode(record)
        content = {
            records.path_of(record.sequence): data,
            records.signature_path_of(record.sequence): signing.sign_bytes(data),
            **files,
        }
        message = f"{record.problem}: {record.state} {record.digest[:19]}\n\n{record.reason}\n"
        commit = self._commit(content, message, record.decided_at)
        before = self.commits()
        derived = tags.derive([*self.records, record], before | {record.sequence: commit})
        fresh = derived.keys() - tags.derive(self.records, before).keys()
        refspecs = [f"+{tags.make(self.mirror, name, derived[name])}:refs/tags/{name}" for name in sorted(fresh)]
        pushed = self._push(commit, refspecs)
        if pushed:
            anchor_file.append(record)
        return pushed

    def refuse_withdrawn(self, record: PromotionRecord) -> None:
        """Raise if the key that signed a record has been revoked or retired since: it puts nothing live any more."""
        path = records.signature_path_of(record.sequence)
        key = decode(self.mirror.files(str(self.commit), path)[path], RecordSignature, source=path).key_id
        if (entry := signing.ended().get(key)) is not None:
            raise RegistryError(
                f"{path}: signed by key {key[:12]}, whose {entry['by']} came at {entry.get('at')}",
                "a key that is good now",
                "python -m pipeline.verify_live settles it as failed; then promote again",
            )

    def publish_keys(self, message: str) -> None:
        """Push the public keys and revocations; they travel with the records so that a restore can check them."""
        if not self._push(self._commit({}, message, now()), []):
            raise RegistryError("somebody else wrote to the registry at the same moment", fix="run it again")

    def _commit(self, files: Mapping[str, bytes], message: str, when: str) -> str:
        config_path, config = DVC_CONFIG
        everything = {config_path: config, **published_keys(), **files}
        return self.mirror.commit(everything, message, parent=self.commit, when=when)

    def _push(self, commit: str, refspecs: list[str]) -> bool:
        remote = places.registry_remote()
        try:
            self.mirror.push(remote, f"{commit}:{BRANCH}", *refspecs)
        except RegistryError as error:
            # "cannot lock ref": somebody else is writing this very moment, unless they were killed while they did.
            if "lock" in str(error) or sync().resolve(TRACKED) != self.commit:
                self.obstacle.append(stale_lock(str(error)))
                return False
            raise RegistryError(f"the registry at {remote} did not take the push: {error.found}") from error
        self.remember(commit)
        return True

    def remember(self, commit: str) -> None:
        """Move the anchor forward; if another process moves it at the same moment, theirs is as good."""
        before = self.mirror.resolve(ANCHOR)
        if before != commit:
            self.mirror.succeeds("update-ref", ANCHOR, commit, before or "0" * 40)


def _beyond(mirror: Repository, anchor: str | None) -> str | None:
    """Return the head that was fetched; fetch again if it is behind the anchor.

    Another process of this machine may have pushed, and moved the anchor, after our fetch, or have put an older answer
    of the remote in the place of a newer one. What is fetched after the anchor was read must descend from it.
    """
    commit = mirror.resolve(TRACKED)
    for _ in range(3):
        if anchor is None or _descends(mirror, commit, anchor):
            break
        commit = sync().resolve(TRACKED)
    return commit


def _descends(mirror: Repository, commit: str | None, anchor: str) -> bool:
    return commit is not None and mirror.succeeds("merge-base", "--is-ancestor", anchor, commit)


_CARRIED = (
    "problem", "digest", "previous_digest", "counter", "run_id", "git_commit", "dvc_lock_sha256", "data_range", "gate",
    "bundle_sha256", "kind", "report_sha256", "rules_off",
)  # fmt: skip

_NEWER: dict[str, Any] = {"kind": "promotion", "answer": None, "report_sha256": None, "rules_off": {}}
"""What records have since schema 2, and what it is when nobody says otherwise."""


def append(decide: Callable[[Chain], PromotionRecord], *, files: Mapping[str, bytes] | None = None) -> PromotionRecord:
    """Append the record that ``decide`` builds from the chain; it is asked again whenever somebody else was first.

    Args:
        decide: Builds the record, or raises when the chain no longer allows it.
        files: What else belongs into the same commit.
    """
    for _ in range(ATTEMPTS):
        chain = Chain.open()
        record = decide(chain)
        if chain.write(record, files or {}):
            return record
        time.sleep(random.uniform(0.02, 0.2))  # noqa: S311  (spreads the writers; nothing secret)
    if lock := next(filter(None, chain.obstacle), ""):
        raise RegistryError(
            f"the registry is locked: {lock}",
            "a lock that its owner removes within a second",
            "nothing was recorded; if no git process runs there any more, it was killed: delete that file",
        )
    raise RegistryError(
        f"the registry changed under {ATTEMPTS} attempts to write", fix="nothing was recorded; run it again"
    )


def sync() -> Repository:
    """Fetch the remote into the mirror and return it; the embedded remote is made on first use."""
    remote = places.registry_remote()
    if places.is_embedded():
        Repository.create(Path(remote))
    mirror = Repository.create(places.registry_mirror())
    for attempt in range(ATTEMPTS):
        try:
            mirror.run(
                "fetch", "--quiet", "--prune", "--no-tags", "--no-write-fetch-head", remote,
                "+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*",
            )  # fmt: skip
        except RegistryError as error:
            # Two fetches into one mirror meet on a ref's lock file; the other one is done in a moment.
            if "lock" not in str(error) or attempt == ATTEMPTS - 1:
                lock = stale_lock(str(error))
                raise RegistryError(
                    f"the registry at {remote} cannot be read: {lock or error.found}",
                    fix="if no git process runs there any more, it was killed: delete that file"
                    if lock
                    else f"set {places.REGISTRY_ENV} to a git repository, or run registry restore",
                ) from error
            time.sleep(random.uniform(0.02, 0.2))  # noqa: S311
        else:
            break
    return mirror


def published_keys() -> dict[str, bytes]:
    """What belongs into ``keys/`` on branch ``promotions``: public keys and revocations."""
    signing.private_key()
    published = {f"{KEYS}{key}.pub": path.read_bytes() for key, path in signing.public_keys().items()}
    published[TRUSTED_LIST] = json.dumps(sorted(signatures.trusted(signing.trusted_folder()))).encode() + b"\n"
    for name, path in ((REVOKED_LIST, signing.revoked_file()), (RETIRED_LIST, signing.retired_file())):
        if path.exists():
            published[name] = path.read_bytes()
    return published


def now() -> str:
    """The time, as records carry it: RFC 3339, UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
