"""A kube-prometheus-stack as it is installed, in a real Prometheus: what comes out equals what was true.

The stack (``benchmarks/queueing_cluster.py``) imports nothing of ours; nothing is set but the address. Its calls are
played by a queue on the machines on which their pods sit.
"""

import importlib
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import pytest
import yaml

from pipeline import datasets, windows
from pipeline.clean.command import clean
from pipeline.clean.config import CleanConfig
from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.prices import format_prices
from pipeline.sources.prometheus import PrometheusConfig
from pipeline.sources.prometheus_server import Server
from pipeline.validate.command import validate
from pipeline.validate.config import ValidateConfig
from pipeline.windows import Span
from sched_env import problems
from sched_env.recorded import AsRecorded
from sched_env.rollout import run_episodes

pytestmark = pytest.mark.prometheus

DAY = date(2026, 1, 5)
START = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp())
WINDOW_S = 300
SHIPPED = yaml.safe_load((Path(__file__).parents[3] / "params.yaml").read_text())
SHORT = {
    "functions": {"horizon": 8},
    "vm": {"horizon": 4},
    # Its nodes are never stressed: nothing would be offered at the shipped threshold.
    "pods": {"episode_windows": 4, "threshold": 0.3, "under_threshold": 0.0},
    "jobs": {"episode_jobs": 3},
}
UNTOLD = {}
"""Problem -> what decides and a default kube-prometheus-stack does not tell."""
PRICES = {"m5.xlarge": 0.192, "m5.2xlarge": 0.384, "g5.2xlarge": 1.212}


def load_stack():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
        return importlib.import_module("queueing_cluster").QueueingCluster


class Found:
    """The stack, and the windows that were made of it."""

    def __init__(self, stack, folder, verdict, manifest):
        self.stack, self.folder, self.verdict, self.manifest = stack, folder, verdict, manifest

    def rows(self, table, columns):
        return duckdb.sql(
            f"set timezone='UTC'; select {columns} from '{self.folder}/windows/{table}/*/*.parquet' order by all"
        ).fetchall()

    def by_window(self, table, key, column):
        """Key -> (windows, values) of a column."""
        found = {}
        start = f"(epoch(window_start)::bigint - {START}) // {WINDOW_S}"
        for name, window, value in self.rows(table, f"{key}, {start}, {column}"):
            found.setdefault(name, {})[window] = value
        return found


def scraped(scrapes, since_s, until_s=np.inf):
    """Whether a target was scraped in a span."""
    return bool(((scrapes >= since_s) & (scrapes < until_s)).any())


def scraped_at_work(stack, pod, since_s, until_s):
    """Whether a pod was scraped in a span in which it ran, by kube-state-metrics or by its kubelet."""
    since, until = max(since_s, pod.created_s), min(until_s, pod.ended_s)
    kubelet = stack.scrapes(f"kubelet-{pod.node}")
    return scraped(stack.scrapes("ksm"), since, until) or scraped(kubelet, max(since, pod.created_s + 3), until)


def untold_s(stack, pod):
    """Seconds of each window in which no scrape can tell whether a pod was there; and of them, of its deletion."""
    unknown, gone = np.zeros(stack.windows), np.zeros(stack.windows)
    scrapes = stack.scrapes("ksm")
    if pod.ended_s == pod.shown_until_s < stack.end_s:  # deleted: between the last scrape that saw it and the next
        low, high = (scrapes[scrapes < pod.ended_s][-1:], scrapes[scrapes >= pod.ended_s][:1])
        ends = [max([*low, pod.created_s]), min([*high, stack.end_s])]
        first, last = (int((at - START) // WINDOW_S) for at in ends)
        for window in range(max(first, 0), min(last + 1, stack.windows)):
            begin = START + window * WINDOW_S
            gone[window] = max(min(ends[1], begin + WINDOW_S) - max(ends[0], begin), 0.0)
    for at in (pod.created_s, pod.ended_s):  # windows that it touched so briefly that no scrape fell into its part
        if START <= at < stack.end_s:
            window = int((at - START) // WINDOW_S)
            begin = START + window * WINDOW_S
            if not scraped_at_work(stack, pod, begin, begin + WINDOW_S):
                unknown[window] = min(pod.ended_s, begin + WINDOW_S) - max(pod.created_s, begin)
    if pod.key == "shop/db-0":
        # A window has one row of a name: that of two lives is told of one of them.
        ends = [at for other in stack.pods if other.key == pod.key for at in (other.created_s, other.ended_s)]
        unknown[[int((at - START) // WINDOW_S) for at in ends if START <= at < stack.end_s]] = WINDOW_S
    return unknown, gone


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((3.0, 60), id="small"),
        pytest.param((72.0, 30), id="three-days", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def found(request, tmp_path_factory, serve_prometheus):
    hours, scrape_s = request.param
    folder = tmp_path_factory.mktemp("stack")
    stack = load_stack()(START, hours, scrape_s)
    stack.write(folder / "stack.om")
    (folder / "prices.csv").write_bytes(format_prices(PRICES))
    last = DAY + timedelta(days=max(round(hours / 24) - 1, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOADMASTER_VAR", str(folder / "var"))
        with serve_prometheus(folder, folder / "stack.om") as address:
            config = PrometheusConfig([Server("prod", address)])
            config = IngestConfig("prometheus", prices=str(folder / "prices.csv"), prometheus=config)
            manifest = ingest(config, Range(DAY, last), folder / "raw")
        clean(folder / "raw", folder / "windows", CleanConfig())
        verdict = validate(folder / "windows", folder / "validation", ValidateConfig())
    return Found(stack, folder, verdict, manifest)


def test_every_machine_is_one_node(found):
    wanted = [
        (
            m.name,
            m.cores,
            m.cores - 0.2,
            m.mem_gib,
            m.mem_gib - 1,
            m.cards or None,
            m.instance_type,
            PRICES[m.instance_type],
        )
        for m in sorted(found.stack.machines, key=lambda machine: machine.name)
    ]
    columns = (
        "node, max(cpu_capacity_cores), max(cpu_allocatable_cores), max(mem_capacity_gib), max(mem_allocatable_gib), "
        "max(gpu_allocatable_cards), max(instance_type), max(price_usd_per_hour)"
    )
    table = f"{found.folder}/windows/nodes/*/*.parquet"
    got = duckdb.sql(f"select {columns} from '{table}' group by node order by node").fetchall()
    assert [row[0] for row in got] == [row[0] for row in wanted]
    for row, want in zip(got, wanted, strict=True):
        assert row[1:6] == pytest.approx(want[1:6]) if want[5] else row[5] is None
        assert row[1:5] == pytest.approx(want[1:5])
        assert row[6:] == want[6:]


def test_a_network_card_of_unknown_speed_has_no_capacity(found):
    speed = found.by_window("nodes", "node", "net_capacity_mb_s")
    told = {m.name: m.nic_bytes_s / 1e6 if m.nic_bytes_s > 0 else None for m in found.stack.machines}
    assert {node: set(values.values()) for node, values in speed.items()} == {n: {mb_s} for n, mb_s in told.items()}
    assert None in told.values()
    assert not any("negative" in rule for (rule,) in found.rows("quarantine", "rule"))


def test_nothing_is_put_aside(found):
    assert found.rows("quarantine", "rule, raw") == []


def test_nodes_are_active_when_ordinary_pods_may_go_there(found):
    active = found.by_window("nodes", "node", "active")
    for machine in found.stack.machines:
        got = np.array([active[machine.name][w] for w in range(found.stack.windows)])
        np.testing.assert_array_equal(got, found.stack.active(machine), machine.name)


def test_pods_have_their_workload_owner_size_and_node(found):
    stack, got = found.stack, {row[0]: row[1:] for row in found.rows("pods", "distinct pod, function, owner_kind")}
    asked = stack.scrapes("ksm")
    # Who lived between two scrapes was seen by nobody, or at work alone by the kubelet: then nobody told whose it is.
    told = {pod.key for pod in stack.pods if scraped(asked, pod.created_s, pod.shown_until_s)}
    seen = {pod.key for pod in stack.pods if scraped_at_work(stack, pod, pod.created_s, pod.ended_s)}
    assert set(got) == seen
    lives = {pod.key: pod for pod in stack.pods}
    for key, found_owner in got.items():
        kind, name = lives[key].owner
        name = "kube-apiserver" if kind == "Node" else name or lives[key].name
        wanted = (f"{lives[key].namespace}/{name}", kind or None) if key in told else (None, None)
        assert found_owner == wanted, key
    sizes = found.rows("pods", "distinct pod, node, cpu_request_cores, mem_request_gib, gpu_request_cards")
    wanted = {
        (pod.key, pod.node, pod.cpu_request, pod.mem_request_gib, pod.cards or None)
        for pod in stack.pods
        if pod.key in seen & told - {"shop/db-0"}
    }
    assert {row for row in sizes if row[0] in told - {"shop/db-0"}} == wanted
    owners = {(pod.namespace, pod.owner[1] or pod.name) for pod in stack.pods}
    assert len({function for function, _ in got.values() if function}) == len(owners), (
        "a CronJob is one workload, not one a run"
    )


def test_lives_are_told_exactly(found):
    """Creation and completion to the second; a deletion is between two scrapes, so known to half an interval.

    Whom no scrape saw has no events, and whom the scrapes of a minute did not miss has not been deleted.
    """
    stack = found.stack
    columns = "entity, action, epoch(time), node, function, owner_kind, cpu_cores, gpus, runtime_s"
    events = found.rows("events", columns)
    got = {(row[0], row[1], row[3]): row for row in events}
    assert len(got) == len(events)
    asked, wanted = stack.scrapes("ksm"), set()
    for pod in stack.pods:
        if not scraped(asked, pod.created_s, pod.shown_until_s):
            continue
        if pod.created_s >= START:
            wanted.add((pod.key, "create", pod.node))
            row = got[pod.key, "create", pod.node]
            assert row[2] == pod.created_s
            assert row[5:8] == (pod.owner[0] or None, pod.cpu_request, pod.cards or None)
        exact = scraped(asked, pod.ended_s, pod.shown_until_s)
        last_seen = asked[asked < pod.shown_until_s][-1]
        if exact or (pod.shown_until_s < stack.end_s and scraped(asked, last_seen + 60)):
            wanted.add((pod.key, "delete", pod.node))
            row = got[pod.key, "delete", pod.node]
            assert abs(row[2] - pod.ended_s) <= (0 if exact else stack.scrape_s / 2), pod.key
            if exact:
                assert row[8] == pytest.approx(pod.ended_s - pod.created_s - 2)
    assert set(got) == wanted


def test_a_name_that_is_given_again_has_two_lives_on_two_nodes(found):
    first, second = (pod for pod in found.stack.pods if pod.key == "shop/db-0")
    node = found.by_window("pods", "pod", "node")["shop/db-0"]
    size = found.by_window("pods", "pod", "cpu_request_cores")["shop/db-0"]
    gone = int((first.ended_s - START) // WINDOW_S)
    back = int((second.created_s - START) // WINDOW_S) + 1
    assert {node[w] for w in range(gone)} == {first.node}
    assert {node[w] for w in range(back, found.stack.windows)} == {second.node}
    assert {size[w] for w in range(gone)} == {1.0}
    assert {size[w] for w in range(back, found.stack.windows)} == {1.5}


def test_completed_pods_ask_for_nothing(found):
    """Requested cores are off by no more than what no scrape can tell, computed pod by pod from their true lives."""
    stack = found.stack
    asked = found.by_window("nodes", "node", "cpu_requested_cores")
    slack = {machine.name: np.full(stack.windows, 1e-6) for machine in stack.machines}
    lost = dict.fromkeys(slack, 1e-3)
    for pod in stack.pods:
        unknown, gone = untold_s(stack, pod)
        slack[pod.node] += pod.cpu_request * (unknown + gone) / WINDOW_S
        # Half-way between two scrapes is told, so no deletion is off by more than half of the time between them. Errors
        # need not cancel out: an autoscaler and the scrapes may keep the same minute.
        lost[pod.node] += pod.cpu_request * (unknown + gone / 2)[1:-1].sum()
    for machine in stack.machines:
        want = stack.requested_cores(machine.name)
        got = np.array([asked[machine.name][w] for w in range(stack.windows)])
        assert (got <= machine.cores).all()
        off = got - want
        assert (np.abs(off) <= slack[machine.name])[1:-1].all(), (machine.name, np.abs(off).max())
        assert abs(off[1:-1].sum() * WINDOW_S) <= lost[machine.name], machine.name


def test_use_equals_the_truth(found):
    stack = found.stack
    use = found.by_window("nodes", "node", "cpu_used_mean_cores")
    for machine in stack.machines:
        want = stack.node_cpu(machine.name)
        got = np.array([use[machine.name][w] for w in range(stack.windows)], dtype=float)
        # A window's edges lie between two scrapes, so it has a little of what its neighbours used.
        jumps = np.abs(np.diff(want, prepend=want[0])) + np.abs(np.diff(want, append=want[-1]))
        off = np.abs(got - want) - 0.2 - jumps * stack.scrape_s / WINDOW_S
        assert off[1:-1].max() < 0.0, machine.name
        assert abs(np.nansum(got[1:-1]) / want[1:-1].sum() - 1) < 0.01, machine.name
    pods = found.by_window("pods", "pod", "cpu_used_mean_cores")
    for pod in stack.pods:
        if pod.created_s < START and np.isinf(pod.ended_s):
            got = np.array([pods[pod.key][w] for w in range(1, stack.windows - 1)], dtype=float)
            assert abs(np.nanmean(got) / pod.use[1:-1].mean() - 1) < 0.02, pod.key


def test_requests_are_counted_through_the_ingress_and_its_restart(found):
    requests = found.by_window("functions", "function", "requests")
    mean = found.by_window("functions", "function", "response_mean_s")
    p95 = found.by_window("functions", "function", "response_p95_s")
    assert set(requests) == set(found.stack.names)
    inner = range(1, found.stack.windows - 1)
    for name in requests:
        want = found.stack.requests[name][1:-1]
        got = np.array([requests[name].get(w) or 0.0 for w in inner])
        assert abs(got.sum() / want.sum() - 1) < 0.005
        told = np.array([mean[name].get(w) or 0.0 for w in inner])
        truth = found.stack.response_s[name][1:-1]
        assert (told * got).sum() == pytest.approx((truth * want).sum(), rel=0.01)
        plenty = want > 0.5 * want.mean()
        assert np.median(np.abs(told[plenty] / truth[plenty] - 1)) < 0.03
        assert np.median([p95[name][w + 1] for w in np.flatnonzero(plenty)]) > np.median(told[plenty])


def test_histograms_count_the_calls_within_each_bound(found):
    rows = found.rows("responses", "function, le_s, calls")
    for name, want in found.stack.requests.items():
        for bound in (0.05, 0.25, 1.0, np.inf):
            got = sum(calls for function, le, calls in rows if function == name and le == bound)
            within = found.stack.answered_within(name, bound)
            assert got == pytest.approx(within.sum(), rel=0.02, abs=2), (name, bound)
        assert want.sum() == pytest.approx(sum(c for f, le, c in rows if f == name and np.isinf(le)), rel=0.02)


def test_cards_are_whole_and_busy_while_the_job_runs(found):
    train = next(pod for pod in found.stack.pods if pod.cards)
    rows = found.rows("cards", "distinct node, card, model, gpu_mem_capacity_gib")
    assert rows == [("gpu-1", f"GPU-{card}", "NVIDIA A10G", pytest.approx(22500 / 1024)) for card in (0, 1)]
    busy = found.by_window("cards", "card", "gpu_used_mean_ratio")["GPU-0"]
    low, high = (int((at - START) // WINDOW_S) for at in (train.created_s, train.ended_s))
    assert {round(busy[w], 9) for w in range(low + 1, high)} == {0.8}
    used = found.by_window("nodes", "node", "gpu_used_mean_cards")["gpu-1"]
    other = found.by_window("cards", "card", "gpu_used_mean_ratio")["GPU-1"]
    assert 0.3 < np.mean([other[w] for w in range(found.stack.windows)]) < 0.7
    # Each card's mean is over its own scrapes, so where a job ends within a window the sum differs by a little.
    assert max(abs(used[w] - busy[w] - other[w]) for w in range(low + 1, high)) < 0.1


def test_pods_of_a_workflow_are_its_tasks_and_their_times_say_who_waited_for_whom(found):
    columns = "workflow, task, epoch(time), function, node, runtime_s, start_s, parents, cpu_cores, estimated"
    rows = found.rows("tasks", columns)
    lives = {pod.name: pod for pod in found.stack.pods if pod.created_by[0] == "Workflow"}
    assert {row[1] for row in rows} == set(lives)
    for workflow, task, time, function, node, runtime_s, start_s, parents, cores, estimated in rows:
        pod = lives[task]
        assert workflow == f"data/{pod.created_by[1]}"
        assert (time + start_s, runtime_s) == pytest.approx((pod.created_s + 2, pod.ended_s - pod.created_s - 2))
        assert (node, cores, estimated) == (pod.node, pod.cpu_request, True)
        template = task.rsplit("-", 2)[1]
        assert function == f"data/etl/{template}"
        mine = [name for name in lives if name.startswith(f"{pod.created_by[1]}-")]
        before = {"fetch": "none", "map": "-fetch-", "reduce": "-map-"}[template]
        assert sorted((parents or "").split()) == sorted(name for name in mine if before in name)


def test_the_night_goes_on(found):
    assert found.verdict.errors == []
    assert found.manifest.settings["prometheus"]["groups"]["prod"][-1] == "nginx"


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("problem", ["functions", "pods", "vm", "jobs", "workflow"])
def test_every_problem_can_be_trained_on_it(found, problem, monkeypatch):
    """Calibrated, loaded and played from the stack's own state; nothing that decides is merely assumed."""
    monkeypatch.chdir(found.folder)
    monkeypatch.setenv("LOADMASTER_VAR", str(found.folder / "var"))
    config = datasets.WorkloadConfig(
        scenario=SHIPPED["workload"][problem]["scenario"], overrides=SHORT.get(problem, {})
    )
    days = Span(datetime.fromtimestamp(START, UTC), datetime.fromtimestamp(START + found.stack.length_s, UTC))
    folder, dataset = found.folder / "windows", datasets.get(problem)
    fitted = dataset.fit(folder, days, config.load)
    trace = dataset.load(folder, days.start, days.end)
    scenario = config.load({**fitted.overrides, **datasets.brought(trace, problem)})
    trace = datasets.apply(trace, problem, fitted)
    starts = dataset.starts(trace, scenario)
    assert len(starts) > 2
    for policy in (AsRecorded(), problems.get(problem).fallback):
        episodes = run_episodes(scenario, policy, starts[:2], trace=trace)
        assert all(episode["steps"] > 0 for episode in episodes)
    told = dataset.origins(folder, days.start, days.end)
    assumed = {origin.feature for origin in told if origin.decides and origin.assumed_share > 0.5}
    assert assumed <= UNTOLD.get(problem, set()), assumed


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_recorded_placements_give_what_was_measured(found, monkeypatch):
    """Calibrated on the train windows, replayed on the test windows: within 10 % of what the queue did there."""
    if found.stack.length_s < 86_400:
        pytest.skip("hours are too few to calibrate on some and to judge on others")
    monkeypatch.setenv("LOADMASTER_VAR", str(found.folder / "var"))
    folder, end = found.folder / "windows", datetime.fromtimestamp(START + found.stack.length_s, UTC)
    parts = windows.splits(datetime.fromtimestamp(START, UTC), end, windows.SplitConfig(**SHIPPED["splits"]))
    config, dataset = datasets.WorkloadConfig(scenario="functions/serverless", horizon=128), datasets.get("functions")
    fitted = dataset.fit(folder, parts.train, config.load)
    trace = datasets.apply(dataset.load(folder, parts.test.start, parts.test.end), "functions", fitted)
    span = parts.test.start.isoformat(), parts.test.end.isoformat()
    told, _ = dataset.check(
        datasets.Workload("functions", config.load(fitted.overrides), trace, *span), folder, AsRecorded(), "recorded"
    )
    off = {one.metric: one for one in told.figures}
    assert {*off} == {"sla_violation_rate", "response_ratio", "response_ratio_p95", "used_cores", "cost_usd"}
    for metric, one in off.items():
        close = metric.endswith("_rate") and abs(one.predicted - one.measured) <= 0.005
        assert close or one.relative_error <= 0.1, one
