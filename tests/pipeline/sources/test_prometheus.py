from datetime import UTC, date, datetime, timedelta

import duckdb
import numpy as np
import pytest

from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.sources.prometheus import PrometheusConfig
from pipeline.sources.prometheus_server import Server

pytestmark = pytest.mark.prometheus

DAY = date(2026, 1, 5)
START = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp())


@pytest.fixture(scope="module")
def day(exporter_day):
    return exporter_day(nodes=4, pods_per_node=5, start_s=START, hours=24, scrape_s=60)


@pytest.fixture(scope="module")
def prometheus(day, serve_prometheus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prometheus")
    day.write(folder / "day.om")
    with serve_prometheus(folder, folder / "day.om") as address:
        yield address


def settings(address, **more):
    server = Server(name="prod", url=address)
    return IngestConfig(source="prometheus", prometheus=PrometheusConfig(clusters=[server], step_seconds=60, **more))


@pytest.fixture(scope="module")
def raw(prometheus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOADMASTER_VAR", str(folder / "var"))
        manifest = ingest(settings(prometheus, chunk_seconds=21_600), Range(DAY, DAY), folder / "raw")
    return folder / "raw", manifest


def rows(raw, sql, table="samples"):
    relation = f"read_parquet('{raw[0]}/{table}/*/*/*.parquet')"
    return duckdb.sql("set timezone='UTC'; " + sql.replace("RAW", relation)).fetchall()


def test_every_scrape_of_a_counter_arrives_once(day, raw):
    [(count, distinct)] = rows(
        raw, "select count(*), count(distinct (time, pod)) from RAW where metric = 'pod_cpu_seconds'"
    )
    lost = {day.born: lambda t: t >= day.change_s, day.gone: lambda t: t < day.change_s}
    expected = sum(
        int(lost.get(p, lambda t: t > 0)(day.scrapes(day.pod_node[p] % 60)).sum()) for p in range(len(day.pods))
    )
    assert count == distinct == expected


def test_counters_keep_the_time_of_their_scrape(day, raw):
    found = rows(raw, "select node, epoch(time)::bigint, value from RAW where metric = 'node_cpu_seconds'")
    assert len(found) == sum(len(day.scrapes(n % 60)) for n in range(day.nodes))
    for n, name in enumerate(day.names):
        times, values = np.array(sorted((t, v) for node, t, v in found if node == name)).T
        np.testing.assert_array_equal(times, day.scrapes(n % 60))
        np.testing.assert_allclose(values, day.counter(day.node_cpu[n], times.astype(int)), rtol=1e-9)


def test_memory_is_total_less_available(day, raw):
    found = dict(
        rows(
            raw,
            f"select node, value from RAW where metric = 'node_mem_used_bytes' and epoch(time) < {START + 60}",
        )
    )
    assert found == {name: 16 * 2**30 - day.node_mem_free[n, 0] for n, name in enumerate(day.names)}


def test_all_tables_have_what_their_windows_need(day, raw):
    _, manifest = raw
    needed = {
        "node_cpu_seconds", "node_cpu_capacity_cores", "node_mem_capacity_bytes", "node_info", "node_ready",
        "pod_cpu_seconds", "pod_mem_used_bytes", "pod_cpu_request_cores", "pod_mem_request_bytes", "pod_info",
        "function_requests", "function_response_seconds_sum", "function_response_seconds_bucket",
        "card_gpu_used_ratio", "card_mem_used_bytes", "card_mem_capacity_bytes", "card_info", "node_gpu_used_cards",
    }  # fmt: skip
    assert needed <= set(manifest.metrics)
    assert "chunks without node_exporter.node_net_bytes" in manifest.skipped


def test_pods_know_their_node_and_function(day, raw):
    found = {pod: (node, function) for pod, node, function in rows(
        raw, "select distinct pod, node, function from RAW where metric = 'pod_info'")}  # fmt: skip
    for p, pod in enumerate(day.pods):
        assert found[f"fn/{pod}"] == (day.names[day.pod_node[p]], f"fn/{pod.split('-')[0]}")


def test_units_are_base_units(raw):
    [(ratio, used, capacity)] = rows(
        raw,
        """select max(value) filter (metric = 'card_gpu_used_ratio'),
           max(value) filter (metric = 'card_mem_used_bytes'),
           max(value) filter (metric = 'card_mem_capacity_bytes') from RAW""",
    )
    assert (ratio, used, capacity) == (0.4, 1000 * 2**20, 24000 * 2**20)


def test_created_and_deleted_pods_are_events(day, raw):
    found = rows(raw, "select entity, action, epoch(time), cpu_cores, mem_bytes, node, function from RAW", "events")
    assert {(entity, action) for entity, action, *_ in found} == {
        (f"fn/{day.pods[day.born]}", "create"),
        (f"fn/{day.pods[day.gone]}", "delete"),
    }
    when = {action: time for _, action, time, *_ in found}
    assert when["create"] == day.change_s - 2
    assert day.change_s - 60 <= when["delete"] <= day.change_s + 120
    assert {row[3:] for row in found} == {
        (0.5, 2**30, day.names[day.pod_node[p]], f"fn/{day.pods[p].split('-')[0]}") for p in (day.born, day.gone)
    }


def test_labels_of_pods_knative_and_istio_are_understood(serve_prometheus, tmp_path):
    t = START + 600
    lines = {
        "kube_pod_info": [
            'namespace="fn",pod="a-1",node="n1",created_by_kind="ReplicaSet",created_by_name="a-5d4f6b7c9"',
            'namespace="fn",pod="b-1",node="n1",created_by_kind="ReplicaSet",created_by_name="b-5d4f6b7c9"',
        ],
        "kube_pod_labels": ['namespace="fn",pod="a-1",label_faas_function="alpha"', 'namespace="fn",pod="b-1"'],
        "revision_request_count": ['configuration_name="kn",revision_name="kn-1",code="200"'],
        "revision_request_latencies_bucket": ['configuration_name="kn",revision_name="kn-1",le="500"'],
        "istio_requests_total": [
            'reporter="destination",destination_service_name="is",code="200"',
            'reporter="destination",destination_service_name="is",code="500"',
            'reporter="source",destination_service_name="is",code="200"',
        ],
        "istio_request_duration_milliseconds_sum": ['reporter="destination",destination_service_name="is"'],
    }
    text = "".join(
        f"# TYPE {name} unknown\n"
        + "".join(f"{name}{{{labels}}} {1 if 'kube' in name else 1000} {t}\n" for labels in series)
        for name, series in lines.items()
    )
    (tmp_path / "few.om").write_text(text + "# EOF\n")
    with serve_prometheus(tmp_path, tmp_path / "few.om") as address:
        config = settings(
            address, groups=("kube_state_metrics", "knative", "istio"), chunk_seconds=43_200, events=False
        )
        result = ingest(config, Range(DAY, DAY), tmp_path / "raw")
    found = rows((tmp_path / "raw", result), "select metric, pod, function, le, value from RAW order by all")
    assert found == [
        ("function_requests", None, "is", None, 2000.0),
        ("function_requests", None, "kn", None, 1000.0),
        ("function_response_seconds_bucket", None, "kn", 0.5, 1000.0),
        ("function_response_seconds_sum", None, "is", None, 1.0),
        ("pod_info", "fn/a-1", "fn/alpha", None, 1.0),
        ("pod_info", "fn/b-1", "fn/b", None, 1.0),
    ]


@pytest.mark.parametrize("cgroups", [True, False], ids=["pods' own counters", "containers' only"])
def test_who_ends_in_the_last_minute_of_a_day_has_nothing_on_the_next(serve_prometheus, tmp_path, monkeypatch, cgroups):
    """Where containers fill in for pods, a rate looks back further than to the last scrape."""
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    midnight = START + 86_400
    scrapes = range(midnight - 618, midnight - 17, 30)
    lines = ["# TYPE container_cpu_usage_seconds_total unknown\n"]
    for container in ("", "main") if cgroups else ("main",):
        who = f'container="{container}",namespace="fn",pod="a-1",node="n1"'
        lines += [f"container_cpu_usage_seconds_total{{{who}}} {at - START} {at}\n" for at in scrapes]
    (tmp_path / "few.om").write_text("".join(lines) + "# EOF\n")
    with serve_prometheus(tmp_path, tmp_path / "few.om") as address:
        config = PrometheusConfig([Server("prod", address)], groups=("cadvisor",), chunk_seconds=86_400, events=False)
        config = IngestConfig(source="prometheus", prometheus=config)
        ingest(config, Range(DAY, DAY + timedelta(days=1)), tmp_path / "raw")
    found = rows((tmp_path / "raw", None), "select metric, epoch(time)::bigint from RAW order by time")
    assert {metric for metric, _ in found} == {"pod_cpu_seconds" if cgroups else "pod_cpu_used_cores"}
    assert [at for _, at in found] == list(scrapes)[0 if cgroups else 1 :]
