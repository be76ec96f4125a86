"""The one checker of policy bundles: the exporter runs it on what it wrote, the service on what it was sent.

It works on bytes that were read once (and, in the service, whose signature has been verified), never on a path that
could change between check and use. Nothing here trusts the file: sizes are capped before anything is parsed, the
graph may hold only operators of the allow-list, and the golden vectors must come out as the exporter saw them.

``python -m wire.bundle DIRECTORY`` checks a bundle by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from wire import golden, models
from wire.command import Verb
from wire.contracts import decode
from wire.contracts.bundle import (
    GOLDEN_FILE,
    MANIFEST_FILE,
    MASKED_SCORE,
    MODEL_NAMES,
    POLICY_FILE,
    SIGNATURE_FILE,
    Manifest,
    content_digest,
    model_file,
    model_golden_file,
)
from wire.contracts.feature_spec import Feature, FeatureSpec
from wire.errors import BundleError, ContractError, legal, run_cli
from wire.graph import BoolArray, FloatArray, check_graph, open_session, scores
from wire.models import CheckedModel

MIB = 1024 * 1024

CONTENT_FILES = (POLICY_FILE, GOLDEN_FILE)
"""Content that every bundle has; the manifest lists it, the files of its further models, and nothing else."""

REQUIRED_FILES = (*CONTENT_FILES, MANIFEST_FILE, SIGNATURE_FILE)
"""What a signed bundle has in any case."""

MAX_FILE_BYTES = {
    POLICY_FILE: 32 * MIB,
    GOLDEN_FILE: golden.MAX_BYTES,
    MANIFEST_FILE: MIB,
    SIGNATURE_FILE: MIB,
    **{model_file(name): 32 * MIB for name in MODEL_NAMES},
    **{model_golden_file(name): golden.MAX_BYTES for name in MODEL_NAMES},
}
"""Every file a bundle may have. A policy of 13k parameters is 60 kB; a hundred times the largest we foresee passes."""

_PARTS = ("candidates", "request", "mask", "scores")


@dataclass(frozen=True)
class GoldenCase:
    """Inputs of one candidate count and the scores the exporter saw."""

    candidates: FloatArray
    request: FloatArray
    mask: BoolArray
    scores: FloatArray


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files, manifest and graph have passed; not yet loaded."""

    manifest: Manifest
    policy: bytes
    golden: tuple[GoldenCase, ...]
    models: tuple[CheckedModel, ...] = ()


def read(directory: Path) -> dict[str, bytes]:
    """Read a bundle's files into memory, once; refuses links, strangers and files above their cap."""
    files: dict[str, bytes] = {}
    try:
        for path in sorted(directory.iterdir()):
            status = path.lstat()
            check_file(path.name, status.st_size)
            if not stat.S_ISREG(status.st_mode):
                raise BundleError(f"{path.name} is not a regular file", "plain files, no links")
            files[path.name] = path.read_bytes()
    except OSError as error:
        raise BundleError(f"bundle {directory} cannot be read: {error}") from error
    return files


def files_sha256(files: Mapping[str, bytes]) -> str:
    """Hash every file of a bundle, manifest and signature included: what a promotion record pins."""
    listing = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return hashlib.sha256(msgspec.json.encode(listing, order="sorted")).hexdigest()


def check_file(name: str, size: int) -> None:
    """Refuse a file that no bundle has, or one above its cap; asked before anything is read."""
    if name not in MAX_FILE_BYTES:
        raise BundleError(f"bundle holds {name!r}", legal(MAX_FILE_BYTES))
    if size > MAX_FILE_BYTES[name]:
        raise BundleError(f"{name} has {size} bytes", f"at most {MAX_FILE_BYTES[name]}")


Known = Callable[[str], FeatureSpec | tuple[FeatureSpec, ...]]
"""Problem -> the feature spec that is built here, or all of them (``sched_env.problems.spec``, ``spoken``)."""


def check(files: Mapping[str, bytes], known: Known | None = None) -> Bundle:
    """Check everything that can be said without running the policy; raises :class:`BundleError` with the reason.

    Args:
        files: The bundle.
        known: Feature specs that are built here, of which the bundle's must fit one. Left out: whoever feeds the
            policy checks that.
    """
    for name, data in files.items():
        check_file(name, len(data))
    for name in (*CONTENT_FILES, MANIFEST_FILE):
        if name not in files:
            raise BundleError(f"bundle has no {name}", f"the files {', '.join(REQUIRED_FILES)}")
    manifest = check_manifest(files[MANIFEST_FILE])
    unlisted = files.keys() - manifest.files.keys() - {MANIFEST_FILE, SIGNATURE_FILE}
    if unlisted:
        raise BundleError(f"bundle holds {sorted(unlisted)}", f"what its manifest lists: {sorted(manifest.files)}")
    for name, sha256 in manifest.files.items():
        if name not in files:
            raise BundleError(f"bundle has no {name}", "every file that its manifest lists")
        found = hashlib.sha256(files[name]).hexdigest()
        if found != sha256:
            raise BundleError(f"{name} has SHA-256 {found}", f"{sha256} as its manifest says")
    if known is not None:
        spoken = known(manifest.problem)
        check_spec(manifest.feature_spec, *(spoken if isinstance(spoken, tuple) else (spoken,)))
    check_graph(files[POLICY_FILE], manifest.feature_spec, manifest.opset)
    return Bundle(
        manifest,
        files[POLICY_FILE],
        check_golden(files[GOLDEN_FILE], manifest.feature_spec),
        tuple(models.check(name, spec, files, manifest.opset) for name, spec in manifest.model_specs.items()),
    )


def check_manifest(data: bytes) -> Manifest:
    """Decode the manifest and hold it to its own digest."""
    try:
        manifest = decode(data, Manifest, source=MANIFEST_FILE)
    except ContractError as error:
        raise BundleError(error.found, error.expected, error.fix) from error
    listed = set(CONTENT_FILES)
    for name in manifest.model_specs:
        listed |= {model_file(name), model_golden_file(name)}
    if set(manifest.files) != listed:
        raise BundleError(f"manifest lists {sorted(manifest.files)}", f"exactly {sorted(listed)}")
    if manifest.feature_spec.problem != manifest.problem:
        raise BundleError(f"feature spec is of problem {manifest.feature_spec.problem}", manifest.problem)
    digest = content_digest(manifest.problem, manifest.feature_spec, manifest.files, manifest.model_specs)
    if digest != manifest.digest:
        raise BundleError(f"manifest claims digest {manifest.digest}", f"{digest}, computed from its content")
    return manifest


def check_spec(spec: FeatureSpec, *known: FeatureSpec) -> None:
    """Refuse a feature spec that this release cannot fill in.

    Args:
        spec: The bundle's.
        known: Those that are built here, the present one first.
    """
    same = next((one for one in known if one.version == spec.version), None)
    if same is None:
        raise BundleError(
            f"{spec.problem} feature spec has version {spec.version}",
            f"version {' or '.join(str(one.version) for one in known)}, built here",
            "retrain with this release, or run the service of the release that made it",
        )
    for side in ("candidate", "request"):
        theirs, ours = _columns(getattr(spec, side)), _columns(getattr(same, side))
        if theirs != ours:
            raise BundleError(f"{side} features of {spec.problem} v{spec.version} are {theirs}", str(ours))


def _columns(features: Iterable[Feature]) -> list[tuple[str, str, float]]:
    # Scale is the graph's own affair and live_source is prose: neither changes what the service feeds in.
    return [(feature.name, feature.unit, feature.default) for feature in features]


def check_golden(data: bytes, spec: FeatureSpec) -> tuple[GoldenCase, ...]:
    """Decode the policy's golden vectors: two candidate counts or more, right shapes, finite numbers, open masks."""
    cases = []
    for size, arrays in golden.load(data, GOLDEN_FILE, _PARTS).items():
        rows = arrays["scores"].shape[0] if arrays["scores"].ndim else 0
        expected = {
            "candidates": ((rows, size, len(spec.candidate)), "float32"),
            "request": ((rows, len(spec.request)), "float32"),
            "mask": ((rows, size), "bool"),
            "scores": ((rows, size), "float32"),
        }
        golden.hold_to(arrays, expected, size, GOLDEN_FILE)
        cases.append(GoldenCase(**arrays))
    telling = [case for case in cases if (np.count_nonzero(case.mask, axis=1) > 1).any()]
    if len(telling) < 2:
        raise BundleError(
            f"{GOLDEN_FILE} has {len(telling)} sizes with a request of two allowed candidates or more",
            "two or more: what the mask hides is compared with nothing",
        )
    return tuple(cases)


def replay_golden(session: Any, cases: Sequence[GoldenCase]) -> float:
    """Replay the policy's golden vectors; returns the worst difference, a share of the spread, or raises."""
    worst, apart = 0.0, golden.spread((case.scores[case.mask] for case in cases), GOLDEN_FILE)
    for case in cases:
        what = f"{POLICY_FILE} of size {case.mask.shape[1]}"
        found = golden.run(partial(scores, session, case.candidates, case.request, case.mask), case.scores, what)
        if (found[~case.mask] != np.float32(MASKED_SCORE)).any():
            raise BundleError(f"golden vectors: {what} scores a masked candidate", f"{MASKED_SCORE:g}")
        worst = max(worst, golden.compare(found[case.mask], case.scores[case.mask], what, apart))
    return worst


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("directory", type=Path)


def run(options: argparse.Namespace) -> int:
    """Check a bundle directory and say what it is, as one line of JSON."""
    bundle = check(read(options.directory))
    worst = replay_golden(open_session(bundle.policy), bundle.golden)
    opened = models.open_all(bundle.models)
    manifest = bundle.manifest
    summary = {"problem": manifest.problem, "digest": manifest.digest, "golden_difference": worst, "ok": True}
    summary |= {"models": sorted(opened)} if opened else {}
    sys.stdout.write(json.dumps(summary) + "\n")
    return 0


main = Verb("python -m wire.bundle", "Check a policy bundle and say what it is, as one line of JSON.", arguments, run)


if __name__ == "__main__":
    run_cli(main)
