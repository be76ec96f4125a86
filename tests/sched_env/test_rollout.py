"""The rollout command and function, replay files and ONNX policies."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from sched_env import problems, rollout
from sched_env.replay import frames
from sched_env.vector import SHEET, make_vec
from wire import sample_bundle
from wire.contracts.replay import COLUMNS
from wire.errors import BundleError, ConfigError, ContractError

STARTS = [1000, 1500, 2000, 2500, 3000]


def lines(capsys, *arguments):
    assert rollout.main([str(argument) for argument in arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_json_is_one_line_an_episode_and_the_summary_last(capsys, tmp_path):
    starts = tmp_path / "starts.json"
    starts.write_text(json.dumps(STARTS))
    *episodes, last = lines(
        capsys, "--scenario", "vm/fading", "--policy", "first_fit", "--starts", starts, "--set", "servers=3", "--json"
    )
    assert [episode["start"] for episode in episodes] == STARTS
    for episode in episodes:
        assert episode["ended"] in ("full", "end_of_trace", "horizon")
        assert episode["return"] == episode["placed"] > 0
        assert episode["servers"] == 3
        assert {*SHEET, "infeasible", "decision_us", "bound"} <= set(episode)
    summary = last["summary"]
    assert summary["placed"] == np.mean([episode["placed"] for episode in episodes])
    assert summary["infeasible"] == 0
    assert summary["price_assumed"] is True
    assert {"bound", "gap_closed", "decision_us", "sla_violation_rate", "cost_usd", "return_std"} <= set(summary)


def test_people_get_lines_and_a_table(capsys):
    rollout.main(["--scenario", "fading", "--policy", "best_fit", "--episodes", "2", "--set", "servers=1"])
    text = capsys.readouterr().out
    assert text.count("ended full") == 2
    assert "sla_violation_rate" in text


def test_results_do_not_depend_on_what_runs_beside_them(monkeypatch):
    keys = {"servers": 2, "seed": 3}
    together = rollout.run_episodes("vm/recovering", "random_feasible", STARTS, **keys)
    monkeypatch.setattr(rollout, "BATCH", 2)
    apart = rollout.run_episodes("vm/recovering", "random_feasible", STARTS, **keys)
    for one, other in zip(together, apart, strict=True):
        assert {**one, "decision_us": 0} == {**other, "decision_us": 0}


def test_the_bound_of_each_start_and_the_share_of_the_gap_closed_are_filled_in(capsys):
    arguments = [
        "--scenario",
        "vm/recovering",
        "--policy",
        "first_fit",
        "--episodes",
        3,
        "--set",
        "servers=2",
        "--json",
    ]
    *plain, summary = lines(capsys, *arguments)
    assert {episode["bound"] for episode in plain} == {summary["summary"]["bound"]} == {None}
    *episodes, last = lines(capsys, *arguments, "--bound", "--best-heuristic", "random_feasible")
    assert all(episode["placed"] <= episode["bound"] for episode in episodes)
    summary = last["summary"]
    assert summary["bound"] == np.mean([episode["bound"] for episode in episodes])
    *_, random = lines(capsys, *arguments, "--policy", "random_feasible")
    base = random["summary"]["placed"]
    assert summary["gap_closed"] == pytest.approx((summary["placed"] - base) / (summary["bound"] - base))


def test_start_points_are_drawn_from_the_seed():
    def starts(seed):
        results = rollout.run_episodes("vm/fading", "first_fit", seed=seed, episodes=4, servers=1)
        return [episode["start"] for episode in results]

    assert starts(1) == starts(1) != starts(2)


def test_waiting_times_give_a_percentile():
    results = rollout.run_episodes("vm/recovering", "first_fit", STARTS, servers=1, ending="wait")
    assert all(0.0 <= episode["p99_wait_s"] <= episode["wait_s"] for episode in results)
    assert any(episode["p99_wait_s"] > 0 for episode in results)


def test_a_callable_and_a_heuristic_that_agree_give_the_same_episodes():
    def lowest(candidates, request, mask):
        assert candidates.dtype == request.dtype == np.float32
        assert mask.dtype == np.bool_
        return -np.broadcast_to(np.arange(mask.shape[1]), mask.shape)

    def placed(policy):
        results = rollout.run_episodes("vm/expanding", policy, STARTS, servers=2, max_servers=4, horizon=300)
        return [episode["placed"] for episode in results]

    assert placed(lowest) == placed("first_fit")


@pytest.mark.parametrize(
    ("scenario", "keys"),
    [("vm/expanding", {"servers": 2, "max_servers": 6}), ("functions/serverless", {"num_nodes": 5})],
)
def test_a_replay_rebuilds_every_state(tmp_path, scenario, keys):
    path = tmp_path / "deep" / "run.parquet"
    results = rollout.run_episodes(scenario, "best_fit", [5, 900], record=path, horizon=150, **keys)
    env = make_vec(scenario, 1, horizon=150, **keys)
    decisions = iter(frames(path))
    for number, start in enumerate((5, 900)):
        env.reset(options={"starts": [start], "park": True})
        total, step = 0.0, 0
        while env.buffers.active[0]:
            row, candidates = next(decisions)
            seen = env.observe()
            assert (row["episode"], row["step"]) == (number, step)
            np.testing.assert_array_equal(candidates[: env.width], seen["candidates"][0])
            np.testing.assert_array_equal(row["request"], seen["request"][0])
            assert row["feasible"] == seen["mask"][0].sum()
            assert row["action"] == row["top_candidates"][0]
            assert len(row["top_candidates"]) == min(16, row["feasible"])
            assert row["top_scores"] == sorted(row["top_scores"], reverse=True)
            assert set(row) == set(COLUMNS)
            _, reward, *_ = env.step([row["action"]])
            assert row["reward"] == pytest.approx(reward[0])
            total += reward[0]
            step += 1
        assert total == pytest.approx(results[number]["return"])
    assert next(decisions, None) is None


def test_a_replay_carries_its_metadata_and_is_complete_or_absent(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "run.parquet"
    rollout.run_episodes("vm/fading", "best_fit", [1000], record=path, servers=1, seed=4)
    metadata = pq.read_schema(path).metadata
    assert (metadata[b"scenario"], metadata[b"policy"], metadata[b"seed"]) == (b"vm/fading", b"best_fit", b"4")
    assert json.loads(metadata[b"feature_spec"])["problem"] == "vm"

    def fails(candidates, request, mask):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rollout.run_episodes("vm/fading", fails, [1000], record=tmp_path / "half.parquet", servers=1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.parquet"]
    pq.write_table(pa.table({"episode": [1]}), tmp_path / "other.parquet")
    with pytest.raises(ContractError, match="replay version None; expected 1, 2 or 3"):
        next(frames(tmp_path / "other.parquet"))


def cheapest_graph(spec, weight_of_first):
    """A graph whose score is the first candidate feature times a weight, with the mask inside."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    weights = np.zeros((len(spec.candidate), 1), np.float32)
    weights[0] = weight_of_first
    constants = {"w": weights, "axis": np.array([2]), "off": np.float32(-1e8)}
    nodes = [
        helper.make_node("MatMul", ["candidates", "w"], ["wide"]),
        helper.make_node("Squeeze", ["wide", "axis"], ["flat"]),
        helper.make_node("Where", ["mask", "flat", "off"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "policy",
        [
            helper.make_tensor_value_info("candidates", TensorProto.FLOAT, ["B", "C", len(spec.candidate)]),
            helper.make_tensor_value_info("request", TensorProto.FLOAT, ["B", len(spec.request)]),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, ["B", "C"]),
        ],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["B", "C"])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_an_onnx_file_decides_through_the_same_command(capsys, tmp_path):
    pytest.importorskip("onnxruntime")
    path = tmp_path / "policy.onnx"
    path.write_bytes(cheapest_graph(problems.spec("vm"), 1.0).SerializeToString())
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for name, data in sample_bundle.assemble(problems.spec("vm"), path.read_bytes(), opset=20).items():
        (bundle / name).write_bytes(data)
    for policy in (path, bundle):  # the bare graph, or the bundle around it
        *episodes, last = lines(
            capsys, "--scenario", "vm/fading", "--policy", policy, "--episodes", 3, "--set", "servers=2", "--json"
        )
        assert last["summary"]["policy"] == str(policy)
        assert all(episode["placed"] > 10 for episode in episodes)
    path.write_bytes(b"no graph")
    with pytest.raises(BundleError, match="cannot load"):
        rollout.run_episodes("vm/fading", str(path), [1000])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "fist_fit"], "neither a heuristic of vm nor a file; expected one of random_feasible, first_fit"),
        (["--policy", "first_fit", "--set", "servers"], "--set 'servers'; expected key=value"),
        (["--policy", "first_fit", "--set", "servers=-1"], "key 'servers' is -1"),
        (["--policy", "first_fit", "--starts", "nowhere.json"], "--starts nowhere.json"),
        (["--policy", "first_fit", "--trace", "nowhere.csv"], "trace nowhere.csv does not exist"),
        (["--policy", "first_fit", "--episodes", "0"], "no start points"),
        (["--policy", "first_fit", "--best-heuristic", "best_fit"], "--best-heuristic without --bound"),
        (["--policy", "first_fit", "--bound", "--best-heuristic", "bestfit"], "vm has no heuristic 'bestfit'"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(arguments, message):
    with pytest.raises(Exception, match=message):
        rollout.main(["--scenario", "vm/fading", *arguments])


@pytest.mark.parametrize("text", ['{"a": 1}', "[1.5]", "[-1]", "[", "[true]"])
def test_a_wrong_list_of_starts_is_named(tmp_path, text):
    path = tmp_path / "starts.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="a JSON list of trace rows"):
        rollout.main(["--scenario", "vm/fading", "--policy", "first_fit", "--starts", str(path)])


def test_a_typo_in_the_policy_is_said_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr(rollout, "make_vec", lambda *_, **__: pytest.fail("an environment was made"))
    for arguments, says in (
        (["--policy", "best_fitt"], "did you mean 'best_fit'"),
        (["--policy", "best_fit", "--bound", "--best-heuristic", "frist_fit"], "no heuristic 'frist_fit'"),
    ):
        with pytest.raises(ConfigError, match=says):
            rollout.main(["--scenario", "vm/fading", *arguments])


@pytest.mark.parametrize("scenario", ["vm/recovering", "functions/serverless", "jobs/cpn"])
def test_a_typo_in_the_policy_is_reported_before_anything_is_compiled(scenario, tmp_path):
    """On a machine that has compiled nothing yet, where the first step takes tens of seconds."""
    done = subprocess.run(
        [sys.executable, "-m", "sched_env.rollout", "--scenario", scenario, "--policy", "best_fitt", "--episodes", "1"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: policy 'best_fitt' is neither a heuristic of")
    assert "compiling" not in done.stderr + done.stdout
    assert list(tmp_path.iterdir()) == []
