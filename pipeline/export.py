"""Export the best training of a problem as a policy bundle: ``python -m pipeline.export --problem functions``.

Chooses among the seeds by what they did on the validation windows, writes the ONNX graph (any batch, any number of
candidates, mask and normalisation inside), golden vectors and manifest, and checks that torch and onnxruntime agree.
The bundle depends on its inputs alone, so equal inputs give equal bytes; who made it, when and with what verdict is
added by ``promote``.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
from typing import Any

import msgspec
import numpy as np
import yaml

from pipeline import paths
from pipeline.datasets import calibration, workload
from pipeline.errors import DataError
from pipeline.files import replaced_folder, write_atomic
from pipeline.model_folder import SPEC_FILE
from pipeline.parity import SIZES, Parity, draw
from pipeline.policies.onnx_graph import to_onnx
from pipeline.policies.scorer import Scorer, TorchPolicy
from pipeline.train import read
from sched_env import problems
from wire import bundle, graph
from wire.command import Verb, problem_option
from wire.contracts import decode
from wire.contracts.bundle import (
    GOLDEN_FILE,
    MANIFEST_FILE,
    MODEL_NAMES,
    POLICY_FILE,
    Lineage,
    Manifest,
    ModelName,
    ModelSpec,
    content_digest,
    model_file,
    model_golden_file,
)
from wire.contracts.feature_spec import FeatureSpec, ProblemName
from wire.errors import run_cli

GOLDEN_SIZES = (1, 2, 3, 20, 100)
GOLDEN_ROWS = 4


def compare(scorer: Scorer, session: Any, spec: FeatureSpec) -> Parity:
    """Hold the graph against the network at every size, and against itself with the candidates shuffled."""
    network = TorchPolicy(scorer)
    worst, equal, invariant, violations = 0.0, True, True, 0
    for size in SIZES:
        candidates, request, mask = draw(spec, rows=16, size=size, seed=1)
        expected = network(candidates, request, mask)
        found = graph.scores(session, candidates, request, mask)
        largest = np.abs(np.where(mask, expected, 0.0)).max(axis=1, keepdims=True)
        worst = max(worst, float((np.abs(found - expected) / (1.0 + largest))[mask].max()))
        equal &= bool((found.argmax(axis=1) == expected.argmax(axis=1)).all())
        violations += int((~np.take_along_axis(mask, found.argmax(axis=1)[:, None], axis=1)).sum())
        order = np.random.default_rng(size).permutation(size)
        shuffled = graph.scores(session, candidates[:, order], request, mask[:, order])
        invariant &= bool((order[shuffled.argmax(axis=1)] == found.argmax(axis=1)).all())
    return Parity(worst, equal, invariant, violations)


def golden(session: Any, spec: FeatureSpec) -> bytes:
    """Record inputs and the graph's scores at several sizes; the service replays them before it swaps."""
    arrays: dict[str, np.ndarray] = {"sizes": np.array(GOLDEN_SIZES)}
    for size in GOLDEN_SIZES:
        observation = draw(spec, rows=GOLDEN_ROWS, size=size, seed=2)
        for name, array in zip(("candidates", "request", "mask"), observation, strict=True):
            arrays[f"{name}_{size}"] = array
        arrays[f"scores_{size}"] = graph.scores(session, *observation)
    buffer = io.BytesIO()
    np.savez(
        buffer, allow_pickle=False, **arrays
    )  # uncompressed, and zip entries of np.savez carry no time: equal bytes
    return buffer.getvalue()


def export(problem: ProblemName) -> Manifest:
    """Write ``data/bundles/<problem>`` from the best of ``data/policies/<problem>/*``."""
    trainings = sorted(path for path in (paths.POLICIES / problem).iterdir() if path.is_dir() and path.name[0] != ".")
    if not trainings:
        raise DataError(f"{paths.POLICIES / problem} holds no training", "at least one", "run the train stages first")
    best = max(trainings, key=lambda folder: read(folder)[0].objective)
    description, weights = read(best)
    train, test = workload(problem, "train"), workload(problem, "test")
    spec = problems.get(problem).seen(train.scenario).spec
    scorer = Scorer(spec, description.hidden)
    scorer.load_state_dict(weights)
    policy = to_onnx(scorer, spec)
    session = graph.open_session(policy)
    parity = compare(scorer, session, spec)
    if not (parity.argmax_equal and parity.mask_violations == 0):
        raise DataError(f"the exported graph of {best} does not decide like the network: {parity}")
    files = {POLICY_FILE: policy, GOLDEN_FILE: golden(session, spec)}
    specs = _further(problem, files)
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest = Manifest(
        problem=problem,
        feature_spec=spec,
        files=hashes,
        digest=content_digest(problem, spec, hashes, specs),
        algorithm=description.algorithm,
        opset=graph.OPSET,
        params={"seed": description.seed, **_params(problem)},
        metrics={f"validation_{name}": value for name, value in description.validation.items()},
        lineage=Lineage(git_commit="", dvc_lock_sha256="", run_id="", windows_start=train.start, windows_end=test.end),
        models=specs or msgspec.UNSET,
    )
    with replaced_folder(paths.BUNDLES / problem) as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        (folder / MANIFEST_FILE).write_bytes(
            msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=2)
        )
    bundle.check(bundle.read(paths.BUNDLES / problem), lambda _: spec)
    measured = {"digest": manifest.digest, "seed": description.seed, **msgspec.structs.asdict(parity)}
    write_atomic(paths.metrics_of("export", problem), json.dumps(measured, indent=2).encode() + b"\n")
    return manifest


def _further(problem: str, files: dict[str, bytes]) -> dict[ModelName, ModelSpec]:
    """Add the further models that stages before made for a problem; ``bundle.check`` holds them to their specs."""
    specs: dict[ModelName, ModelSpec] = {}
    for name in MODEL_NAMES:
        folder = paths.MODELS / problem / name
        if (folder / SPEC_FILE).exists():
            specs[name] = decode((folder / SPEC_FILE).read_bytes(), ModelSpec, source=str(folder / SPEC_FILE))
            for file in (model_file(name), model_golden_file(name)):
                files[file] = (folder / file).read_bytes()
    return specs


def _params(problem: str) -> dict[str, object]:
    document = yaml.safe_load(paths.PARAMS.read_text())
    found = calibration(problem)
    fitted = {"calibration": msgspec.to_builtins(found)} if found else {}
    return {"workload": document["workload"][problem], "train": document["train"][problem], **fitted}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    problem_option(parser, problems.names())


def run(options: argparse.Namespace) -> int:
    """Export the best training of a problem."""
    export(options.problem)
    return 0


main = Verb("python -m pipeline.export", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
