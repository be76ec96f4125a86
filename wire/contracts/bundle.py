"""The policy bundle: ``policy.onnx`` + ``golden.npz`` + ``manifest.json`` + signature, named by its digest.

The digest covers what decides placements (problem, feature spec and content files), not what is told about it
(metrics, gate verdict, times): a rebuild from the same commit and data has the same digest. The signature covers
every byte, the manifest's prose included.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from wire.contracts.feature_spec import FeatureSpec, ProblemName

POLICY_FILE = "policy.onnx"
GOLDEN_FILE = "golden.npz"
MANIFEST_FILE = "manifest.json"
SIGNATURE_FILE = "signature.sig"

CANDIDATES_INPUT, REQUEST_INPUT, MASK_INPUT, SCORES_OUTPUT = "candidates", "request", "mask", "scores"
"""Names of the ONNX graph's inputs (float32 [B, C, F], float32 [B, R], bool [B, C]) and output (float32 [B, C])."""

MASKED_SCORE = -1e8
"""What the graph answers for a candidate whose mask is off."""


class Lineage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The way back from a live decision to what made it."""

    git_commit: str
    dvc_lock_sha256: str
    run_id: str
    windows_start: str
    """First window of the data range, RFC 3339 UTC."""
    windows_end: str
    """End of the data range, exclusive."""


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The gate's word on this bundle; written into the manifest by ``promote``."""

    outcome: Literal["pass", "fail", "inconclusive", "unchanged"]
    reason: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``manifest.json``."""

    problem: ProblemName
    feature_spec: FeatureSpec
    files: dict[str, str]
    """Content files of the bundle and their SHA-256 (hex); manifest and signature themselves are not listed."""
    digest: str
    algorithm: str
    opset: int
    params: dict[str, object]
    """The parameters of the stages that made the policy, as in params.yaml."""
    metrics: dict[str, float]
    lineage: Lineage
    gate: Verdict | None = None
    schema: Literal[1] = 1


def content_digest(problem: ProblemName, feature_spec: FeatureSpec, files: dict[str, str]) -> str:
    """Name a bundle by what decides placements: ``sha256:<hex>``."""
    identity = {"problem": problem, "feature_spec": feature_spec, "files": files}
    return "sha256:" + hashlib.sha256(msgspec.json.encode(identity, order="sorted")).hexdigest()
