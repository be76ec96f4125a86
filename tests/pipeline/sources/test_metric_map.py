import pytest
import yaml

from pipeline.contracts.raw import METRICS
from pipeline.sources.metric_map import DEFAULT_MAP, Entry, load_map, parse_matchers
from wire.errors import ConfigError

CPU = Entry("node_cpu_seconds", {"node": ["{node}", "{instance:host}"]}, ["cpu_a", "cpu_b"], where='mode!~"idle|wait"')


def test_the_shipped_map_covers_every_exporter_and_window_table():
    groups = load_map().groups
    assert list(groups)[:4] == ["node_exporter", "kube_state_metrics", "cadvisor", "dcgm"]
    assert load_map().counting() == ["knative", "openfaas", "istio", "nginx"]
    covered = {entry.metric for entries in groups.values() for entry in entries}
    # Gauges of use are for sources without counters; limits of disk and requests' disk use no exporter shows.
    assert set(METRICS) - covered == {
        "node_cpu_used_cores", "node_net_used_bytes_s", "node_disk_used_iops", "node_disk_capacity_iops",
        "pod_net_used_bytes_s", "pod_disk_used_iops", "function_disk_ops",
    }  # fmt: skip


def test_queries_take_one_step_and_group_by_the_labels_they_need():
    assert CPU.promql("14999ms", 'cluster="x"') == (
        'sum by (instance, node) (last_over_time({__name__=~"cpu_a|cpu_b",mode!~"idle|wait",cluster="x"}[14999ms]))'
    )


def test_histograms_keep_their_bounds_and_scrape_times_do_not():
    entry = Entry("function_response_seconds_bucket", {"function": ["{f}"]}, ["x_bucket"])
    assert "by (f, le)" in entry.promql("1s", "")
    assert "by (f)" in entry.time_promql("")


@pytest.mark.parametrize(
    ("labels", "accepted"), [({"mode": "user"}, True), ({"mode": "idle"}, False), ({"mode": "idler"}, True), ({}, True)]
)
def test_matchers_choose_as_prometheus_does(labels, accepted):
    assert CPU.accepts(labels) is accepted


def test_templates_fall_back_and_filter():
    assert CPU.canonical({"node": "n1", "instance": "10.0.0.1:9100"}) == {"node": "n1"}
    assert CPU.canonical({"node": "", "instance": "10.0.0.1:9100"}) == {"node": "10.0.0.1"}
    assert CPU.canonical({"job": "x"}) is None
    gateway = Entry("function_requests", {"function": ["{f:openfaas}"]}, ["x"])
    assert gateway.canonical({"f": "resize.fn"}) == {"function": "fn/resize"}
    assert gateway.canonical({"f": "resize"}) == {"function": "openfaas-fn/resize"}, "OpenFaaS's own namespace"


def test_parts_of_a_sum_count_once_and_unknown_values_do_not_count():
    entry = Entry("node_net_capacity_bytes_s", {"node": ["{instance:host}"]}, ["speed"], each=["device"], above=0)
    assert entry.promql("59s", "") == (
        'sum by (instance) (max by (device, instance) (last_over_time({__name__="speed"}[59s]) > 0))'
    )


def test_what_pods_ask_for_ends_when_they_complete():
    requests = next(entry for entry in load_map().groups["kube_state_metrics"] if entry.metric == "pod_info")
    assert requests.promql("1s", 'cluster="x"').endswith(
        "unless on (namespace, pod) (max by (namespace, pod) (last_over_time("
        'kube_pod_status_phase{phase=~"Succeeded|Failed",cluster="x"}[1s])) == 1)'
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "node_cpus"}, "not a canonical metric"),
        ({"labels": {"pod": ["{pod}"]}}, "no label 'node'"),
        ({"labels": {"node": ["{node}"], "zone": ["{z}"]}}, "unknown label zone"),
        ({"labels": {"node": ["{node:short}"]}}, "filter 'short'"),
        ({"labels": {"node": ["fixed"]}}, "names no label"),
        ({"from": []}, "from is empty"),
        ({"fallback": "node_cpus"}, "fallback 'node_cpus' is not a canonical metric"),
        ({"where": "mode=idle"}, "cannot be read"),
        ({"where": 'mode=~"["'}, "no regular expression"),
        ({"query": "up{$matcher}"}, "placeholder 'matcher'"),
        ({"combine": "mean"}, "Invalid enum value"),
        ({"fom": ["x"]}, "unknown field"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path, change, message):
    entry = {"metric": "node_cpu_seconds", "from": ["x"], "labels": {"node": ["{node}"]}, **change}
    (tmp_path / "m.yaml").write_text(yaml.safe_dump({"groups": {"mine": [entry]}}))
    with pytest.raises(ConfigError, match=message):
        load_map(tmp_path / "m.yaml")


def test_unknown_groups_and_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"'openfass'.*openfaas"):
        load_map().entries(["openfass"])
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        load_map(tmp_path / "none.yaml")
    assert DEFAULT_MAP.name == "metrics.yaml"


def test_groups_that_count_the_same_requests_are_warned_about(caplog):
    load_map().entries(["openfaas", "cadvisor"])
    assert not caplog.text
    load_map().entries(["openfaas", "istio"])
    assert "['openfaas', 'istio'] all count requests" in caplog.text
    with pytest.raises(ConfigError, match="each group once"):
        load_map().entries(["cadvisor", "cadvisor"])


def test_matchers_are_read_in_full():
    assert parse_matchers('a="1", b!~"x|y"') == [("a", "=", "1"), ("b", "!~", "x|y")]
    assert parse_matchers("") == []
