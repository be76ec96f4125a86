"""Runtime models, topologies, profiles and queues: what is asked once, what is refused, what is filled in."""

from __future__ import annotations

import numpy as np
import pytest

from sched_env.jobs import synthetic as synthetic_jobs
from sched_env.jobs import trace as traces
from sched_env.jobs.gavel import spread
from sched_env.jobs.profiles import Measured, ProfileFit, complete
from sched_env.jobs.runtime import RuntimeModel, from_table
from sched_env.jobs.state import cards_of
from sched_env.jobs.tables import JobTrace, RuntimeTable
from sched_env.jobs.topology import load
from sched_env.jobs.workload import Workload
from sched_env.vector import make_vec
from wire.errors import TraceError


def test_a_predictor_is_asked_once_for_each_set_whatever_the_order():
    asked = []

    def predict(card_type, models):
        asked.append((card_type, models))
        return [1.0 + len(models)] * len(models)

    model = RuntimeModel(predict)
    assert model.seconds("A", ["b", "a"]) == model.seconds("A", ["a", "b"]) == (3.0, 3.0)
    assert asked == [("A", ("a", "b"))]
    model.table(["A", "B"], ["a", "b", "c"])
    model.table(["A", "B"], ["a", "b", "c"])
    assert len(asked) == len(set(asked)) == model.asked == 2 * (3 + 6 + 10)


def test_a_callable_and_its_table_give_the_same_episode(jobs, network, runtime):
    trace = jobs(*[(float(t), ["small", "medium"][t % 2], 300, 3.0) for t in range(12)])
    where = network([("fast", 16.0), ("slow", 16.0)])
    model = RuntimeModel(runtime)
    metrics = []
    for times in (model, model.table(where.card_types, trace.model_names)):
        env = make_vec("jobs/cpn", 1, trace=Workload(trace, where, times), episode_jobs=12)
        env.reset(options={"starts": [0], "park": True})
        while env.buffers.active[0]:
            *_, infos = env.step(env.buffers.mask.argmax(axis=1))
        metrics.append(infos["episode"]["mean_completion_s"][0])
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize("answer", [[0.0, 1.0], [-1.0, 1.0], [float("nan"), 1.0], [1.0]])
def test_nonsense_from_the_predictor_is_replaced_and_flagged(answer):
    model = RuntimeModel(lambda _, models: answer if len(models) == 2 else [0.5] * len(models))
    assert model.seconds("A", ["a", "b"]) == (1.0, 1.0)  # evenly shared: twice the time alone
    assert list(model.fallbacks) == [("A", ("a", "b"))]


def test_a_predictor_that_is_down_gives_estimates_not_errors():
    def predict(card_type, models):
        if card_type == "B":
            raise ConnectionError("refused")
        return [0.25] * len(models)

    model = RuntimeModel(predict)
    model.seconds("A", ["a"])
    assert model.seconds("B", ["a"]) == (0.25,)  # as on the card that is known
    assert model.seconds("B", ["z"]) == (1.0,)
    assert "ConnectionError: refused" in model.fallbacks["B", ("a",)]


def test_predictions_may_differ_from_what_happens(jobs, network, runtime):
    # The predictor takes the slow card for the fast one: minimum completion time goes wrong, and the episode is true.
    trace, where = jobs((0.0, "small", 1000, 2.0)), network([("fast", 16.0)], [("slow", 16.0)])
    swapped = {"fast": "slow", "slow": "fast"}
    wrong = RuntimeModel(lambda kind, models: runtime(swapped[kind], models))
    from sched_env.rollout import run_episodes

    for predicted, expected in ((None, 100.0), (wrong, 200.0)):
        load_ = Workload(trace, where, RuntimeModel(runtime), predicted)
        episode = run_episodes("jobs/cpn", "min_completion_time", [0], trace=load_, episode_jobs=1)[0]
        assert episode["makespan_s"] == pytest.approx(expected)


def test_tables_refuse_what_kernels_cannot_replay():
    good = {
        "arrival_s": [0.0, 1.0],
        "model": [0, 0],
        "epochs": [1.0, 1.0],
        "gpu_mem": [1.0, 1.0],
        "model_names": ("m",),
    }
    JobTrace(**good)
    for change, message in (
        ({"arrival_s": [1.0, 0.0]}, "falls at row 1"),
        ({"model": [0, 1]}, "row 1: 1"),
        ({"epochs": [1.0, 0.0]}, "positive"),
        ({"gpu_mem": [1.0]}, "shape"),
        ({"data_gb": [-1.0, 0.0]}, "at least 0"),
    ):
        with pytest.raises(TraceError, match=message):
            JobTrace(**{**good, **change})
    seconds = np.ones((1, 1, 2, 2))
    seconds[0, 0, 0, 1] = 2.0
    with pytest.raises(TraceError, match="order of the co-runners"):
        RuntimeTable(("A",), ("m",), seconds)
    with pytest.raises(TraceError, match="'z' has no run times"):
        synthetic_jobs.runtime(("A100",)).select(("A100",), ("z",))


def test_a_topology_file_says_where_cards_are_and_what_links_cost(tmp_path):
    path = tmp_path / "net.yaml"
    path.write_text(
        """
datacenters:
  - {name: store}
  - name: east
    clusters:
      - name: c1
        nodes:
          - name: n1
            cpu_cores: 32
            mem_gib: 128
            bandwidth_mb_s: 50
            cards: [{type: A100, mem_gib: 40, usd_per_hour: 1.8, count: 2}, {type: P100, mem_gib: 16}]
links: [{from: store, to: east, bandwidth_mb_s: 200, usd_per_gb: 0.1}]
"""
    )
    where = load(str(path), 0)
    assert len(where) == 3
    assert where.card_types == ("A100", "P100")
    np.testing.assert_allclose(where.seconds_per_gb(), [[1024 / 50], [1024 / 50]])  # the node is narrower than the link
    np.testing.assert_allclose(where.usd_per_gb(), [[0.1], [0.0]])
    path.write_text(path.read_text().replace("from: store", "from: nowhere"))
    with pytest.raises(TraceError, match="nowhere"):
        load(str(path), 0)
    with pytest.raises(TraceError, match="testbed, mixed"):
        load("nothing.yaml", 0)


def test_the_testbed_is_the_upstreams():
    where = load("testbed", 0)
    counts = {name: int((where.card_type == t).sum()) for t, name in enumerate(where.card_types)}
    assert counts == {"RTX4090": 2, "A100": 1, "P100": 6}
    assert len(where.clusters) == 3


def test_profiles_keep_what_was_measured_and_fill_in_the_rest():
    truth = synthetic_jobs.runtime(("P100", "A100"))
    predict, names = from_table(truth), truth.model_names
    sets = [(name,) for name in names] + [(a, b) for a in names for b in names if a < b]
    measured = [Measured(t, s, tuple(predict(t, s))) for t in truth.card_types for s in sets if s != ("cnn-small",)]
    table = complete(measured, truth.card_types, names)
    k, other = names.index("cnn-large"), names.index("transformer")
    assert table.seconds[k, 0, other + 1, 0] == pytest.approx(truth.seconds[k, 0, other + 1, 0])
    error = np.abs(np.log(table.seconds / truth.seconds))
    assert np.median(error) < 0.15  # triples and the model never seen alone are fitted
    alone = table.seconds[:, :, :1, :1]
    assert (table.seconds >= alone - 1e-12).all()
    with pytest.raises(TraceError, match="no measurement"):
        ProfileFit([], ("A100",), names)


def test_generated_queues_are_what_they_say():
    where = synthetic_jobs.mixed(20)
    one, two = (synthetic_jobs.queue(2000, where, load=2.0, data_gb=10.0, seed=5) for _ in range(2))
    np.testing.assert_array_equal(one.arrival_s, two.arrival_s)
    assert one.data_gb.mean() == pytest.approx(10.0, rel=0.15)
    alone = synthetic_jobs.runtime(where.card_types).seconds[:, where.card_type, 0, 0].mean(axis=1)
    offered = float((one.epochs * alone[one.model]).sum() / one.arrival_s[-1] / len(where))
    assert offered == pytest.approx(2.0, rel=0.1)


def test_the_lp_of_gavel_balances_a_fluid():
    # Model 0 is as fast anywhere; model 1 is ten times slower on type 1. All of model 1 belongs on type 0.
    shares = spread(np.array([100.0, 100.0]), np.array([[1.0, 1.0], [1.0, 10.0]]), np.array([1.0, 1.0]))
    np.testing.assert_allclose(shares, [[0.0, 1.0], [1.0, 0.0]], atol=1e-7)
    shares = spread(np.array([100.0, 0.0]), np.array([[1.0, np.inf], [1.0, 1.0]]), np.array([1.0, 1.0]))
    np.testing.assert_allclose(shares, [[1.0, 0.0], [0.0, 0.0]], atol=1e-7)


@pytest.mark.shared
def test_the_public_queues_are_read_with_their_profiles(queues):
    profiles = queues.parent / "cpn-gpu-profiles" / traces.COLOCATIONS
    for name, count in ((traces.QUEUE_40, 40), (traces.QUEUE_100, 100)):
        load_ = traces.cpn_workload(queues / name, profiles)
        assert len(load_.jobs) == count
        assert load_.jobs.data_gb.max() == 0.0
        assert np.isfinite(load_.runtime.seconds).all()
        moved = traces.cpn_workload(queues / name, profiles, draw_data=0)
        assert (moved.jobs.data_gb > 0).all()
        big = {load_.jobs.model_names[k] for k in set(load_.jobs.model[load_.jobs.gpu_mem >= 10.0].tolist())}
        assert big == {"glm4", "llama3", "qwen2.5"}


@pytest.mark.shared
def test_only_the_upstreams_memory_check_runs_out_of_memory_on_the_public_queue(queues):
    from sched_env.rollout import run_episodes

    profiles = queues.parent / "cpn-gpu-profiles" / traces.COLOCATIONS
    load_ = traces.cpn_workload(queues / traces.QUEUE_100, profiles)
    corrected = run_episodes("jobs/testbed", "fifo", [0], trace=load_, episode_jobs=100)[0]
    assert (corrected["oom"], corrected["failed"], corrected["placed"]) == (0, 0, 100)
    fault = run_episodes("jobs/fifo-upstream", "fifo", [0], trace=load_, episode_jobs=100)[0]
    assert fault["oom"] > 0


def test_kernels_see_arrays_of_one_kind_whether_or_not_those_of_a_topology_can_be_written():
    topology = make_vec("jobs/cpn", 1, cards=4, trace_rows=50).topology
    of_windows = make_vec("jobs/cpn", 1, cards=4, trace_rows=50).topology
    for value in vars(of_windows).values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    for ours, theirs in zip(cards_of(topology), cards_of(of_windows), strict=True):
        if isinstance(theirs, np.ndarray):
            assert theirs.flags.writeable
        np.testing.assert_array_equal(ours, theirs)
