"""Proves every bundle that was ever approved: pointer, DVC objects, local copy, manifest, signature."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipeline.registry import bundles, dvc_objects, places, signing
from pipeline.registry.chain import Chain
from pipeline.registry.records import Finding, last_good
from pipeline.registry.runs import LOCK, bundle_output
from wire import signatures
from wire.contracts.bundle import MANIFEST_FILE, SIGNATURE_FILE
from wire.contracts.record import PromotionRecord
from wire.errors import LoadmasterError


def findings(chain: Chain) -> Iterator[Finding]:
    """List what is wrong with any approved bundle."""
    commits = chain.commits()
    in_use = used_digests(chain)
    yield from _pointers(chain, commits)
    for record in chain.records:
        if record.state != "approved" or record.sequence not in commits:
            continue
        pointer = bundles.pointer_of(record.digest)
        document = chain.mirror.files(commits[record.sequence], pointer).get(pointer)
        newest = chain.approved(record.problem, record.digest) == record
        if document is None:
            yield Finding(pointer, f"missing in the commit of record {record.sequence}")
            continue
        try:
            output = bundles.pointed_at(document, pointer)
        except LoadmasterError as error:
            yield Finding.of(error)
            continue
        wrong = list(dvc_objects.faults(output, needed_by=f"record {record.sequence}"))
        yield from wrong
        members = {} if wrong else dvc_objects.members(output.md5)
        if members:
            reasons = _stored(members, record, serving=newest and record.digest in in_use)
            yield from (Finding(pointer, reason) for reason in reasons)
            yield from _unlike_its_stage(chain, record, members)
        if newest:
            yield from _local(record, members)


def _pointers(chain: Chain, commits: dict[int, str]) -> Iterator[Finding]:
    """Compare the branch's newest pointers, which `dvc pull` obeys, with those that came with an approval."""
    approved = {bundles.pointer_of(one.digest): one for one in chain.records if one.state == "approved"}
    for path, document in chain.mirror.files(str(chain.commit), bundles.POINTERS).items():
        record = approved.get(path)
        if record is None:
            yield Finding(path, "no record approved such a bundle")
        elif record.sequence in commits and chain.mirror.files(commits[record.sequence], path).get(path) != document:
            yield Finding(path, f"changed after record {record.sequence}, which came with it")


def _unlike_its_stage(chain: Chain, record: PromotionRecord, members: dict[str, str]) -> Iterator[Finding]:
    """Compare the approved files with those that the export stage of the run left in DVC."""
    lock = chain.mirror.files(record.git_commit, LOCK).get(LOCK)
    try:
        outputs = {out.path: out.md5 for out in dvc_objects.outputs(lock or b"outs: []", source=LOCK)}
        exported = dvc_objects.members(outputs.get(bundle_output(record.problem), ""))
    except LoadmasterError:
        return  # Told by verify_runs.
    for name in sorted(exported.keys() - {MANIFEST_FILE}):  # the manifest is completed by promote
        if members.get(name) != exported[name]:
            file = f"{bundles.POINTERS}{places.bundle(record.digest).name}/{name}"
            yield Finding(file, f"not what the run of record {record.sequence} exported, says its {LOCK}")


def used_digests(chain: Chain) -> set[str]:
    """Digests that are live, previous, or on their way."""
    used = set()
    for problem in {record.problem for record in chain.records}:
        for record in (chain.live(problem), chain.pending(problem)):
            if record is not None:
                used |= {record.digest, *([record.previous_digest] if record.previous_digest else [])}
    return used


def _stored(members: dict[str, str], record: PromotionRecord, *, serving: bool) -> list[str]:
    """Check the bundle as DVC holds it (name -> md5)."""
    with tempfile.TemporaryDirectory(prefix="loadmaster-verify-") as folder:
        copy = Path(folder, "bundle")
        copy.mkdir()
        for name, md5 in members.items():
            shutil.copyfile(str(dvc_objects.find(md5)), copy / Path(name).name)
        return list(_content_faults(copy, record, serving=serving))


def _content_faults(directory: Path, record: PromotionRecord, *, serving: bool) -> Iterator[str]:
    if bundles.files_sha256(directory) != record.bundle_sha256:
        yield f"points at other bytes than those record {record.sequence} approved"
    try:
        manifest = bundles.read_manifest(directory)
        key = signatures.signer(directory, signing.public_keys())
    except LoadmasterError as error:
        yield error.found.replace(str(directory), "bundle")
        return
    if (manifest.digest, manifest.problem) != (record.digest, record.problem):
        yield f"holds {manifest.problem} {manifest.digest}, not the bundle of record {record.sequence}"
    said = (manifest.lineage.git_commit, manifest.lineage.dvc_lock_sha256, manifest.lineage.run_id)
    if said != (record.git_commit, record.dvc_lock_sha256, record.run_id):
        yield f"its manifest names another run than record {record.sequence}"
    yield from _key_faults(key, record, serving=serving)


def _key_faults(key: str, record: PromotionRecord, *, serving: bool) -> Iterator[str]:
    """Judge the key that signed: the service must accept what is in use; history may rest on older keys."""
    revoked = signatures.revocations(signing.revoked_file()).get(key)
    if revoked is not None:
        if serving:
            yield f"in use, and signed by the revoked key {key[:12]} ({revoked.get('reason')}): promote it again"
        elif record.sequence > last_good(revoked)[0]:
            yield f"signed by key {key[:12]} after its revocation"
    elif serving and key not in signatures.trusted(signing.trusted_folder()):
        yield f"in use, and signed by the retired key {key[:12]}: the service would refuse it at its next start"


def _local(record: PromotionRecord, expected: dict[str, str]) -> Iterator[Finding]:
    """Compare the copy under ``var/bundles``, if there is one, file by file with the one in DVC (name -> md5)."""
    directory = places.bundle(record.digest)
    approved = f"record {record.sequence} approved"
    try:
        if not directory.exists() or bundles.files_sha256(directory) == record.bundle_sha256:
            return
    except LoadmasterError as error:
        yield Finding.of(error)
        return
    present = {path.name for path in directory.iterdir()}
    for name in sorted(present | expected.keys()):
        path = directory / name
        if name not in present:
            yield Finding(str(path), f"missing in the bundle that {approved}")
        elif name not in expected:
            yield Finding(str(path), f"not part of the bundle that {approved}")
        elif not dvc_objects.is_right(path, expected[name]):
            yield Finding(str(path), f"changed: not the bytes that {approved}")
    try:
        signatures.signer(directory, signing.public_keys())
    except LoadmasterError as error:
        yield Finding(str(directory / SIGNATURE_FILE), error.found.replace(str(directory), "bundle"))
