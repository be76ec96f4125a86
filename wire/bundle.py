"""The one checker of policy bundles: the exporter runs it on what it wrote, the service on what it was sent.

It works on bytes that were read once (and, in the service, whose signature has been verified), never on a path that
could change between check and use. Nothing here trusts the file: sizes are capped before anything is parsed, the
graph may hold only operators of the allow-list, and the golden vectors must come out as the exporter saw them.

``python -m wire.bundle DIRECTORY`` checks a bundle by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import stat
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wire.command import Verb
from wire.contracts import decode
from wire.contracts.bundle import (
    GOLDEN_FILE,
    MANIFEST_FILE,
    MASKED_SCORE,
    POLICY_FILE,
    SIGNATURE_FILE,
    Manifest,
    content_digest,
)
from wire.contracts.feature_spec import Feature, FeatureSpec
from wire.errors import BundleError, ContractError, legal, run_cli
from wire.graph import BoolArray, FloatArray, check_graph, open_session, refusing, scores

MIB = 1024 * 1024

CONTENT_FILES = (POLICY_FILE, GOLDEN_FILE)
"""Files the manifest must list, and no others."""

MAX_FILE_BYTES = {POLICY_FILE: 32 * MIB, GOLDEN_FILE: 64 * MIB, MANIFEST_FILE: MIB, SIGNATURE_FILE: MIB}
"""A policy of 13k parameters is 60 kB; a hundred times the largest we foresee still passes."""

MAX_BUNDLE_BYTES = sum(MAX_FILE_BYTES.values())

GOLDEN_TOLERANCE = 1e-4
"""Allowed |score - expected| / (1 + |expected|): other CPUs sum in another order, a wrong policy is far off."""


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


def read(directory: Path) -> dict[str, bytes]:
    """Read a bundle's files into memory, once; refuses links, strangers and files above their cap."""
    files: dict[str, bytes] = {}
    try:
        for path in sorted(directory.iterdir()):
            if path.name not in MAX_FILE_BYTES:
                raise BundleError(f"bundle holds {path.name!r}", legal(MAX_FILE_BYTES))
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                raise BundleError(f"{path.name} is not a regular file", "plain files, no links")
            _check_size(path.name, status.st_size)
            files[path.name] = path.read_bytes()
    except OSError as error:
        raise BundleError(f"bundle {directory} cannot be read: {error}") from error
    return files


def check(files: Mapping[str, bytes], known: Callable[[str], FeatureSpec] | None = None) -> Bundle:
    """Check everything that can be said without running the policy; raises :class:`BundleError` with the reason.

    Args:
        files: The bundle.
        known: Feature spec of a problem as it is built here (``sched_env.problems.spec``); the bundle's must fit it.
            Left out: whoever feeds the policy checks that.
    """
    for name in (*CONTENT_FILES, MANIFEST_FILE):
        if name not in files:
            raise BundleError(f"bundle has no {name}", f"the files {', '.join(MAX_FILE_BYTES)}")
    for name, data in files.items():
        if name not in MAX_FILE_BYTES:
            raise BundleError(f"bundle holds {name!r}", legal(MAX_FILE_BYTES))
        _check_size(name, len(data))
    manifest = check_manifest(files[MANIFEST_FILE])
    for name in CONTENT_FILES:
        found = hashlib.sha256(files[name]).hexdigest()
        if found != manifest.files[name]:
            raise BundleError(f"{name} has SHA-256 {found}", f"{manifest.files[name]} as its manifest says")
    if known is not None:
        check_spec(manifest.feature_spec, known(manifest.problem))
    check_graph(files[POLICY_FILE], manifest.feature_spec, manifest.opset)
    return Bundle(manifest, files[POLICY_FILE], check_golden(files[GOLDEN_FILE], manifest.feature_spec))


def check_manifest(data: bytes) -> Manifest:
    """Decode the manifest and hold it to its own digest."""
    try:
        manifest = decode(data, Manifest, source=MANIFEST_FILE)
    except ContractError as error:
        raise BundleError(error.found, error.expected, error.fix) from error
    if set(manifest.files) != set(CONTENT_FILES):
        raise BundleError(f"manifest lists {sorted(manifest.files)}", f"exactly {sorted(CONTENT_FILES)}")
    if manifest.feature_spec.problem != manifest.problem:
        raise BundleError(f"feature spec is of problem {manifest.feature_spec.problem}", manifest.problem)
    digest = content_digest(manifest.problem, manifest.feature_spec, manifest.files)
    if digest != manifest.digest:
        raise BundleError(f"manifest claims digest {manifest.digest}", f"{digest}, computed from its content")
    return manifest


def check_spec(spec: FeatureSpec, known: FeatureSpec) -> None:
    """Refuse a feature spec that this release cannot fill in."""
    if spec.version != known.version:
        raise BundleError(
            f"{spec.problem} feature spec has version {spec.version}",
            f"version {known.version}, the one built here",
            "retrain with this release, or run the service of the release that made it",
        )
    for side in ("candidate", "request"):
        theirs, ours = _columns(getattr(spec, side)), _columns(getattr(known, side))
        if theirs != ours:
            raise BundleError(f"{side} features of {spec.problem} v{spec.version} are {theirs}", str(ours))


def _columns(features: Iterable[Feature]) -> list[tuple[str, str, float]]:
    # Scale is the graph's own affair and live_source is prose: neither changes what the service feeds in.
    return [(feature.name, feature.unit, feature.default) for feature in features]


def check_golden(data: bytes, spec: FeatureSpec) -> tuple[GoldenCase, ...]:
    """Decode golden vectors: at least two sizes (so that a frozen axis shows), right shapes, finite numbers."""
    with refusing(f"{GOLDEN_FILE} cannot be read", "sizes and four arrays a size"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > MAX_FILE_BYTES[GOLDEN_FILE]:
            raise BundleError(f"{GOLDEN_FILE} unpacks to {unpacked} bytes", f"at most {MAX_FILE_BYTES[GOLDEN_FILE]}")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            sizes = [int(size) for size in arrays["sizes"]]
            cases = [
                GoldenCase(*(arrays[f"{part}_{size}"] for part in ("candidates", "request", "mask", "scores")))
                for size in sizes
            ]
    if len(set(sizes)) < 2:
        raise BundleError(f"{GOLDEN_FILE} has sizes {sizes}", "two different candidate counts or more")
    for size, case in zip(sizes, cases, strict=True):
        rows = case.scores.shape[0] if case.scores.ndim else 0
        expected: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
            "candidates": ((rows, size, len(spec.candidate)), np.float32),
            "request": ((rows, len(spec.request)), np.float32),
            "mask": ((rows, size), np.bool_),
            "scores": ((rows, size), np.float32),
        }
        for part, (shape, dtype) in expected.items():
            array = getattr(case, part)
            if rows == 0 or array.shape != shape or array.dtype != dtype:
                found = f"{GOLDEN_FILE} {part}_{size} is {array.dtype}{list(array.shape)}"
                raise BundleError(found, f"{np.dtype(dtype)}{list(shape)} with at least one row")
            if not np.isfinite(array).all():
                raise BundleError(f"{GOLDEN_FILE} {part}_{size} holds NaN or infinity", "finite numbers")
    return tuple(cases)


def replay_golden(session: Any, golden: Iterable[GoldenCase]) -> float:
    """Replay the golden vectors; returns the worst relative difference, raises when a score or a choice differs."""
    worst = 0.0
    for case in golden:
        size = case.mask.shape[1]
        with refusing(f"{POLICY_FILE} fails on golden vectors of size {size}"):
            found = scores(session, case.candidates, case.request, case.mask)
        if found.shape != case.scores.shape or not np.isfinite(found).all():
            raise BundleError(f"golden vectors of size {size} give shape {found.shape}, or NaN", "the recorded scores")
        if (found[~case.mask] != np.float32(MASKED_SCORE)).any():
            raise BundleError(f"golden vectors of size {size}: a masked candidate is scored", f"{MASKED_SCORE:g}")
        gap = np.abs(found - case.scores) / (1.0 + np.abs(case.scores))
        worst = max(worst, float(gap[case.mask].max(initial=0.0)))
        if worst > GOLDEN_TOLERANCE:
            raise BundleError(f"golden scores of size {size} differ by {worst:.2e}", f"at most {GOLDEN_TOLERANCE:g}")
    return worst


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("directory", type=Path)


def run(options: argparse.Namespace) -> int:
    """Check a bundle directory and say what it is, as one line of JSON."""
    bundle = check(read(options.directory))
    worst = replay_golden(open_session(bundle.policy), bundle.golden)
    manifest = bundle.manifest
    summary = {"problem": manifest.problem, "digest": manifest.digest, "golden_difference": worst, "ok": True}
    sys.stdout.write(json.dumps(summary) + "\n")
    return 0


main = Verb("python -m wire.bundle", "Check a policy bundle and say what it is, as one line of JSON.", arguments, run)


def _check_size(name: str, size: int) -> None:
    if size > MAX_FILE_BYTES[name]:
        raise BundleError(f"{name} has {size} bytes", f"at most {MAX_FILE_BYTES[name]}")


if __name__ == "__main__":
    run_cli(main)
