"""From a training to a bundle: what ships decides like what was trained, at every size."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline import evaluate, export, paths, train
from pipeline.datasets import Workload
from pipeline.parity import draw
from pipeline.policies.checkpoint import Trained
from pipeline.policies.scorer import Scorer
from sched_env import problems, scenarios
from sched_env.functions import synthetic as synthetic_functions
from wire import bundle, graph
from wire.contracts.bundle import MASKED_SCORE
from wire.errors import LoadmasterError

SPEC = problems.spec("functions")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with two trainings of different worth, exported; the windows are replaced by a generated workload."""
    folder = tmp_path_factory.mktemp("export")
    nodes = synthetic_functions.nodes(6, 1000.0, 5000.0)
    trace = synthetic_functions.serverless(400, 5, float(nodes.cpu.sum()), 0.6, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        data = Workload(
            "functions",
            scenarios.load("functions/serverless", {"horizon": 32}),
            (trace, nodes),
            "2026-01-01T00:00:00+00:00",
            "2026-01-02T00:00:00+00:00",
        )
        for module in (export, evaluate):
            patch.setattr(module, "workload", lambda *_: data)
        Path("params.yaml").write_text("workload: {functions: {}}\ntrain: {functions: {}}\n")
        for seed, score in ((0, -2.0), (1, -1.0)):
            torch.manual_seed(seed)
            description = train.Description("functions", "maskable_ppo", seed, 16, score, {"return": score})
            target = paths.POLICIES / "functions" / f"maskable_ppo-{seed}"
            train.write(target, Trained(Scorer(SPEC, 16), [{"segment": 0.0, "return": score}]), description)
        export.export("functions")
        yield folder


@pytest.fixture
def inside(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def test_the_seed_that_did_best_on_validation_is_exported(inside):
    manifest = bundle.check(bundle.read(paths.BUNDLES / "functions")).manifest
    assert manifest.params["seed"] == 1
    assert manifest.metrics == {"validation_return": -1.0}


def test_the_graph_decides_like_the_network_at_every_size(inside):
    measured = json.loads((paths.METRICS / "export-functions.json").read_text())
    assert measured["max_error"] < 1e-5
    assert measured["argmax_equal"]
    assert measured["permutation_invariant"]
    assert measured["mask_violations"] == 0


@pytest.mark.parametrize("size", [1, 2, 3, 5, 50, 1000, 5000])
def test_one_file_serves_any_number_of_candidates(inside, size):
    session = graph.open_session((paths.BUNDLES / "functions" / "policy.onnx").read_bytes())
    candidates, request, mask = draw(SPEC, rows=3, size=size, seed=9)
    scores = graph.scores(session, candidates, request, mask)
    assert scores.shape == (3, size)
    assert (scores[~mask] == np.float32(MASKED_SCORE)).all()


def test_equal_trainings_give_equal_bytes_without_a_trace_of_this_machine(inside):
    before = bundle.read(paths.BUNDLES / "functions")
    export.export("functions")
    assert bundle.read(paths.BUNDLES / "functions") == before
    assert str(Path(export.__file__).parent).encode() not in before["policy.onnx"]


def test_a_bundle_that_does_not_decide_like_the_network_is_not_written(inside, monkeypatch):
    before = bundle.read(paths.BUNDLES / "functions")
    monkeypatch.setattr(export, "compare", lambda *_: export.Parity(0.0, False, True, 0))
    with pytest.raises(LoadmasterError, match="does not decide like the network"):
        export.export("functions")
    assert bundle.read(paths.BUNDLES / "functions") == before


def test_nothing_to_export_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / paths.POLICIES / "functions").mkdir(parents=True)
    with pytest.raises(LoadmasterError, match="run the train stages first"):
        export.export("functions")


def test_every_policy_is_judged_on_the_same_traces(inside, monkeypatch):
    monkeypatch.setattr(evaluate, "origins", lambda *_: [])  # a generated workload comes from no windows
    Path("params.yaml").write_text(
        "workload: {functions: {}}\ntrain: {functions: {}}\n"
        "evaluate: {functions: {traces: 8, block_seconds: 60, loads: {recorded: 1.0, busy: 1.3},"
        " heuristics: [first_fit, least_allocated]}}\nbacktest: {enabled: false}\n"
    )
    shutil.copytree(paths.BUNDLES / "functions", Path("champions/functions/bundle"))
    (Path("data/windows/nodes/date=2026-01-01")).mkdir(parents=True)
    assert evaluate.main(["--problem", "functions"]) == 0
    import pyarrow.parquet as pq

    table = pq.read_table(paths.EVALUATION / "functions" / "episodes.parquet").to_pandas()
    assert set(table.policy) == {"challenger", "champion", "first_fit", "least_allocated"}
    assert (table.groupby(["scenario", "trace"]).policy.nunique() == 4).all()
    paired = table.pivot_table(index=["scenario", "trace"], columns="policy", values="return")
    assert (paired.challenger == paired.champion).all(), "the same file on the same trace earns the same"
    assert (table.infeasible == 0).all()
    integrity = json.loads((paths.EVALUATION / "functions" / "integrity.json").read_text())
    assert integrity["digest"] == integrity["champion_digest"]
    assert integrity["bundle_errors"] == []
    backtest = json.loads((paths.EVALUATION / "functions" / "backtest.json").read_text())
    assert backtest["live"] == integrity["digest"]
    assert "switched off" in backtest["skipped"]
