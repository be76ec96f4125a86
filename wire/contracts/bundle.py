"""The policy bundle: ``policy.onnx`` + ``golden.npz`` + ``manifest.json`` + signature, named by its digest.

A bundle may carry further models that its problem asks beside the policy (run times, lifetimes, forecasts):
``model-<name>.onnx`` with ``model-<name>-golden.npz`` and a :class:`ModelSpec` in the manifest.

The digest covers what decides placements (problem, feature spec, model specs and content files), not what is told
about it (metrics, gate verdict, times): a rebuild from the same commit and data has the same digest. The signature
covers every byte, the manifest's prose included.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, get_args

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

PARITY_SIZES = (1, 2, 3, 5, 20, 100, 1000)
"""Candidate counts at which an exported graph is compared with its network; exporters like to freeze the small ones."""

GOLDEN_SIZES = (1, 2, 3, 20, 100)
"""Candidate counts of the golden vectors."""

ModelName = Literal["runtime", "lifetime", "forecast"]
MODEL_NAMES: tuple[ModelName, ...] = get_args(ModelName)
"""The further models there may be: seconds a job runs beside others, seconds a VM lives, the load that comes."""


def model_file(name: ModelName) -> str:
    """File of a further model."""
    return f"model-{name}.onnx"


def model_golden_file(name: ModelName) -> str:
    """File of its golden vectors: ``sizes``, and for each size every input and the output as ``<port>_<size>``."""
    return f"model-{name}-golden.npz"


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


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one number along the last axis of an input means."""

    name: str
    unit: str


class ModelInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One input of a model's graph."""

    name: str
    dtype: Literal["float32", "int64", "bool"]
    axes: Annotated[tuple[int | None, ...], msgspec.Meta(min_length=1, max_length=4)]
    """Length of each axis, null for one that must stay open; the first is the rows asked about, and open."""
    columns: tuple[Column, ...]
    """The last axis, number by number; empty when that axis is open."""


class ModelSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a further model is asked, and what it answers for each row."""

    inputs: Annotated[tuple[ModelInput, ...], msgspec.Meta(min_length=1, max_length=8)]
    output: str
    """Name of the graph's one output, float32."""
    unit: str
    """Of the output."""
    version: int
    output_axes: Annotated[tuple[int | None, ...], msgspec.Meta(min_length=1, max_length=4)] = (None,)
    """One number a row; with more axes (the steps of a forecast, quantiles) their lengths follow."""


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
    models: dict[ModelName, ModelSpec] | msgspec.UnsetType = msgspec.UNSET
    """Further models by name. Left out, not empty, when there are none: a service of the release before knows no such
    field, and takes the bundle."""
    schema: Literal[1] = 1

    @property
    def model_specs(self) -> dict[ModelName, ModelSpec]:
        """The further models; empty when there are none."""
        return self.models or {}


def content_digest(
    problem: ProblemName,
    feature_spec: FeatureSpec,
    files: dict[str, str],
    models: dict[ModelName, ModelSpec] | None = None,
) -> str:
    """Name a bundle by what decides placements: ``sha256:<hex>``. Without models it is what it always was."""
    identity: dict[str, object] = {"problem": problem, "feature_spec": feature_spec, "files": files}
    if models:
        identity["models"] = models
    return "sha256:" + hashlib.sha256(msgspec.json.encode(identity, order="sorted")).hexdigest()
