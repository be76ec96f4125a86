import gzip
from datetime import date
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.contracts.raw import REQUESTS, TABLES
from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.sources.exporter_series import read_labels
from pipeline.sources.openmetrics import OpenMetricsConfig, cut
from pipeline.sources.parquet import ParquetConfig
from pipeline.sources.request_log import RequestLogConfig
from pipeline.sources.sample import SampleConfig
from wire.errors import LoadmasterError

DAY = date(2026, 1, 5)
ALL = Range()
HEAD = "time,function,pod,cpu_cores,mem_bytes,duration_s\n"
ROW = "2026-01-05T10:00:00Z,f,p,0.5,1000,0.2\n"
JSON = '{"time": "2026-01-05T10:00:00Z", "function": "f", "duration_s": 1}\n'
TIME = pa.array([1], pa.timestamp("us", tz="UTC"))


def rows(raw, table, what="*"):
    found = duckdb.sql(
        f"set timezone='UTC'; select {what} from read_parquet('{raw}/{table}/*/*/*.parquet') order by all"
    )
    return found.fetchall()


def log(tmp_path, text, name="log.csv", days=ALL, **config):
    path = tmp_path / name
    data = text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    config = RequestLogConfig([str(path)], **config)
    return ingest(IngestConfig("requests", requests=config), days, tmp_path / "raw")


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
def test_a_request_log_lands_with_nothing_where_nothing_was(tmp_path, name):
    manifest = log(tmp_path, HEAD + ROW + "2026-01-05T12:00:01.5+02:00,f,,,,\n", name, cluster="prod")
    assert manifest.rows["requests"] == 2
    assert rows(
        tmp_path / "raw", "requests", "epoch(time), cluster, function, pod, cpu_cores, mem_bytes, duration_s"
    ) == [
        (1767607200.0, "prod", "f", "p", 0.5, 1000.0, 0.2),
        (1767607201.5, "prod", "f", None, None, None, None),
    ]


def test_json_lines_own_names_and_units(tmp_path):
    text = '{"ts": 1767607200000, "fn": "f", "cpu": 500, "mem": 2, "took": 250}\n\n{"ts": 1767607201000}\n'
    columns = {"time": "ts", "function": "fn", "cpu_cores": "cpu", "mem_bytes": "mem", "duration_s": "took"}
    log(tmp_path, text, "log.jsonl", columns=columns, time="ms", cpu="millicores", mem="MiB", duration="ms")
    assert rows(tmp_path / "raw", "requests", "epoch(time), function, cpu_cores, mem_bytes, duration_s") == [
        (1767607200.0, "f", 0.5, 2.0 * 2**20, 0.25),
        (1767607201.0, None, None, None, None),
    ]


@pytest.mark.parametrize(
    ("text", "name", "config", "message"),
    [
        (HEAD + ROW + "noon,f,p,1,1,1\n", "l.csv", {}, r"line 3: time is 'noon'"),
        (HEAD + "2026-01-05T10:00:00,f,p,1,1,1\n", "l.csv", {}, r"line 2: time .*no time zone"),
        (HEAD + ",f,p,1,1,1\n", "l.csv", {}, r"line 2: time is ''"),
        (HEAD + ROW.replace("0.5", "half"), "l.csv", {}, r"line 2: cpu_cores is 'half'"),
        (HEAD + "2026-01-05T10:00:00Z,f\n", "l.csv", {}, r"line 2: 2 cells, the header has 6"),
        (HEAD + ROW.replace("2026-01-05T10:00:00Z", "nan"), "l.csv", {"time": "s"}, r"line 2: time is 'nan'"),
        (JSON + '{"time": \n', "l.jsonl", {}, r"line 2: .*one JSON object a line"),
        ('[1]\n', "l.jsonl", {}, r"line 1"),
        (HEAD + ROW.replace("0.5", "1_5"), "l.csv", {}, r"line 2: cpu_cores is '1_5': not a number"),
        (HEAD + ROW.replace(",f,", ",f\0,"), "l.csv", {}, r"line 2: function is .*not a name"),
        (JSON.replace("}", ', "cpu_cores": true}'), "l.jsonl", {}, r"cpu_cores is 'True': not a number"),
        (JSON.replace('"f"', '{"a": 1}'), "l.jsonl", {}, r"function is \{'a': 1\}: not a name"),
        (JSON.replace('"2026-01-05T10:00:00Z"', "5"), "l.jsonl", {}, r"line 1: time is '5'"),
        (JSON.replace("1}", "1" + "0" * 400 + "}"), "l.jsonl", {}, r"line 1: duration_s is '1000.*too large"),
        (HEAD + ROW.replace("2026-01-05T10:00:00Z", "0001-01-01T00:00+14:00"), "l.csv", {}, "line 2: time is '0001"),
    ],
)  # fmt: skip
def test_a_bad_request_is_named_or_counted(tmp_path, text, name, config, message):
    with pytest.raises(LoadmasterError, match=message):
        log(tmp_path, text, name, **config)
    good = JSON if "json" in name else ROW if not config else ROW.replace("2026-01-05T10:00:00Z", "5")
    manifest = log(tmp_path, text + good, name, skip_bad=True, **config)
    assert manifest.skipped == {"request rows that cannot be read": 1}
    assert manifest.rows["requests"] == text.count("\n") - ("csv" in name) - 1 + 1


@pytest.mark.parametrize(
    ("text", "name", "config", "message"),
    [
        ("when,f\n1,2\n", "l.csv", {}, "line 1: no column 'time'"),
        ("", "l.csv", {}, "no column 'time'"),
        (HEAD, "l.csv", {}, "no row"),
        (HEAD.replace("cpu_cores", "duration_s") + ROW, "l.csv", {}, "line 1: the column 'duration_s' is there twice"),
        ("\ufeff" + HEAD.replace(",", ";") + ROW, "l.csv", {}, "line 1: no column 'time'"),
        (HEAD + ROW, "l.csv", {"columns": {"cpu_cores": "cpus"}}, "no column 'cpus'"),
        (HEAD + ROW, "l.csv", {"columns": {"memory": "m"}}, "columns: memory"),
        (JSON, "l.jsonl", {"columns": {"cpu_cores": "cpus"}}, "no column 'cpus', only time, function, duration_s"),
        ("time,func,took\n", "l.csv", {}, "no column 'duration_s', only time, func, took.*ingest.requests.columns"),
        ("time,duration_s\n", "l.csv", {}, "no column 'function'"),
        (JSON, "l.log", {}, "ends in '.log'; expected one of .csv, .jsonl, .ndjson"),
    ],
)
def test_a_log_of_the_wrong_shape_is_named(tmp_path, text, name, config, message):
    with pytest.raises(LoadmasterError, match=message):
        log(tmp_path, text, name, **config)


def test_blanks_around_names_are_no_part_of_them_and_nan_is_not_nothing(tmp_path):
    log(tmp_path, HEAD + ROW.replace(",f,p,0.5,", ", f, p,NaN,"))
    [(function, pod, cpu)] = rows(tmp_path / "raw", "requests", "function, pod, cpu_cores")
    assert (function, pod) == ("f", "p")
    assert np.isnan(cpu)


def test_no_path_at_all_is_named():
    with pytest.raises(LoadmasterError, match=r"ingest.requests.paths is empty"):
        ingest(IngestConfig("requests", requests=RequestLogConfig([])), ALL, Path("raw"))


def test_a_log_that_is_cut_off_or_no_text_is_an_error(tmp_path):
    whole = gzip.compress((HEAD + ROW * 1000).encode())
    (tmp_path / "cut.csv.gz").write_bytes(whole[:-20])
    (tmp_path / "bin.csv").write_bytes(b"\xff\xfe\x00\x01")
    for name in ("cut.csv.gz", "bin.csv"):
        config = RequestLogConfig([str(tmp_path / name)])
        with pytest.raises(LoadmasterError, match="cannot be read"):
            ingest(IngestConfig("requests", requests=config), ALL, tmp_path / "raw")
    with pytest.raises(LoadmasterError, match="no file matches"):
        ingest(IngestConfig("requests", requests=RequestLogConfig([str(tmp_path / "no*.csv")])), ALL, tmp_path / "raw")


def test_rows_of_other_days_are_counted_not_landed(tmp_path):
    text = HEAD + ROW + ROW.replace("01-05", "01-04") + ROW.replace("01-05", "01-06")
    manifest = log(tmp_path, text, days=Range(DAY, DAY))
    assert manifest.rows["requests"] == 1
    assert manifest.skipped == {"rows outside the days asked for": 2}


def test_a_log_beside_the_sample_lands_in_one_folder(tmp_path):
    (tmp_path / "log.csv").write_text(HEAD + ROW)
    config = IngestConfig(
        ["sample", "requests"],
        sample=SampleConfig(nodes=1, functions=1, vms_per_day=0, jobs_per_day=0, workflows_per_day=0),
        requests=RequestLogConfig([str(tmp_path / "log.csv")], cluster="other"),
    )
    manifest = ingest(config, Range(DAY, DAY), tmp_path / "raw")
    assert manifest.source == "sample+requests"
    assert manifest.clusters == ["other", "sample-1"]


def metrics(tmp_path, text, **config):
    (tmp_path / "m.om").write_text(text)
    config = OpenMetricsConfig([str(tmp_path / "m.om")], **config)
    return ingest(IngestConfig("openmetrics", openmetrics=config), ALL, tmp_path / "raw")


def test_canonical_names_land_as_they_are_duplicates_included(tmp_path):
    line = 'node_mem_used_bytes{node="a b}\\"c",cluster="east"} 5 1767607200.25\n'
    manifest = metrics(
        tmp_path, f'# TYPE x gauge\n{line}{line}pod_info{{pod="p",function="f"}} NaN 1767607200\n# EOF\n'
    )
    assert manifest.clusters == ["default", "east"]
    found = rows(tmp_path / "raw", "samples", "metric, node, pod, function, epoch(time), value")
    assert found[:2] == [("node_mem_used_bytes", 'a b}"c', None, None, 1767607200.25, 5.0)] * 2
    assert found[2][:5] == ("pod_info", None, "p", "f", 1767607200.0)
    assert np.isnan(found[2][5])


def test_exporter_names_go_through_the_map(tmp_path):
    text = """# HELP node_cpu_seconds_total busy
node_cpu_seconds_total{instance="n1:9100",cpu="0",mode="user"} 5 100
node_cpu_seconds_total{instance="n1:9100",cpu="0",mode="user"} 7 115
node_cpu_seconds_total{instance="n1:9100",cpu="1",mode="system"} 1 100
node_cpu_seconds_total{instance="n1:9100",cpu="1",mode="system"} 1 100
node_cpu_seconds_total{instance="n1:9100",cpu="1",mode="idle"} 90 100
node_memory_MemTotal_bytes{instance="n1:9100"} 16 100
node_memory_MemTotal_bytes{instance="n1:9100"} 16 115
node_memory_MemAvailable_bytes{instance="n1:9100"} 6 100
gateway_functions_seconds_bucket{function_name="f",code="200",le="+Inf"} 3 100 # {id="x"} 1 100
gateway_functions_seconds_bucket{function_name="f",code="500",le="+Inf"} 2 100
go_goroutines 5 100
# EOF
"""
    manifest = metrics(tmp_path, text)
    assert rows(tmp_path / "raw", "samples", "metric, node, function, le, epoch(time), value") == [
        ("function_response_seconds_bucket", None, "openfaas-fn/f", float("inf"), 100.0, 5.0),
        ("node_cpu_capacity_cores", "n1", None, None, 100.0, 1.0),
        ("node_cpu_seconds", "n1", None, None, 100.0, 6.0),
        ("node_cpu_seconds", "n1", None, None, 115.0, 7.0),
        ("node_mem_capacity_bytes", "n1", None, None, 100.0, 16.0),
        ("node_mem_capacity_bytes", "n1", None, None, 115.0, 16.0),
        ("node_mem_used_bytes", "n1", None, None, 100.0, 10.0),
    ]
    assert manifest.skipped["lines of go_goroutines that no entry of the map takes"] == 1
    assert list(manifest.skipped.values()) == [1], "of idle seconds there is still a count of cores"


def test_a_file_of_exporters_knows_who_is_who_wherever_it_says_so(tmp_path):
    text = """node_cpu_seconds_total{instance="10.0.0.7:9100",cpu="0",mode="user"} 5 100
node_network_speed_bytes{instance="10.0.0.7:9100",device="eth0"} -125000 100
kube_pod_info{namespace="b",pod="r-1",node="w1",created_by_kind="Job",created_by_name="r-29451870"} 1 100
kube_pod_info{namespace="b",pod="r-1",node="w1",created_by_kind="Job",created_by_name="r-29451870"} 1 160
kube_pod_status_phase{namespace="b",pod="r-1",phase="Succeeded"} 0 100
kube_pod_status_phase{namespace="b",pod="r-1",phase="Succeeded"} 1 160
kube_pod_container_resource_requests{namespace="b",pod="r-1",node="w1",container="a",resource="cpu",instance="k1"} 2 100
kube_pod_container_resource_requests{namespace="b",pod="r-1",node="w1",container="a",resource="cpu",instance="k2"} 2 100
kube_pod_container_resource_requests{namespace="b",pod="r-1",node="w1",container="b",resource="cpu",instance="k1"} 1 100
kube_pod_container_resource_requests{namespace="b",pod="r-1",node="w1",container="a",resource="cpu",instance="k1"} 2 160
kube_job_owner{namespace="b",job_name="r-29451870",owner_kind="CronJob",owner_name="r"} 1 100
kube_node_info{node="w1",internal_ip="10.0.0.7"} 1 100
# EOF
"""
    metrics(tmp_path, text)
    assert rows(tmp_path / "raw", "samples", "metric, node, pod, function, detail, epoch(time), value") == [
        ("node_cpu_seconds", "w1", None, None, None, 100.0, 5.0),
        ("pod_cpu_request_cores", "w1", "b/r-1", None, None, 100.0, 3.0),
        ("pod_info", "w1", "b/r-1", "b/r", "CronJob", 100.0, 1.0),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node_ready 1 100\n", "without # EOF"),
        ("node_ready 1 100\n# EOF\nnode_ready 1 100\n", "line 3: text after # EOF"),
        ('node_ready{node="a"} 1\n# EOF\n', "line 1: .*no time"),
        ('node_ready{node="a"} one 100\n# EOF\n', "line 1: .*could not convert"),
        ('node_ready{node="a"} 1 inf\n# EOF\n', "line 1"),
        ("node_ready{node=a} 1 100\n# EOF\n", "cannot be read|not a sample"),
        ('node_ready{node="a"} 1 1767607200000\n# EOF\n', "is the unit right"),
        ("{}\n# EOF\n", "line 1: .*not a sample"),
        ('node_ready{node="a"} 1_0 100\n# EOF\n', "line 1: .*not a number"),
        ('node_ready{node="a\0"} 1 100\n# EOF\n', "line 1: .*NUL byte"),
        ('node_ready{node="a",node="b"} 1 100\n# EOF\n', "'node' twice"),
        ('function_response_seconds_bucket{function="f",le="x"} 1 100\n# EOF\n', "a number as le"),
        ("# EOF\n", "no row"),
        ("node_ready 1 100 200\n# EOF\n", "line 1: 'node_ready 1' is no name"),
        ("\n9node 1 100\n# EOF\n", "line 2: '9node' is no name"),
    ],
)
def test_wrong_openmetrics_are_named(tmp_path, text, message):
    with pytest.raises(LoadmasterError, match=message):
        metrics(tmp_path, text)


def test_the_order_of_labels_makes_no_other_series(tmp_path):
    name = "node_cpu_seconds_total"
    text = f'{name}{{instance="n",mode="user"}} 5 100\n{name}{{mode="user",instance="n",cluster=""}} 5 100\n# EOF\n'
    metrics(tmp_path, text.replace(',cluster=""', ""))
    assert rows(tmp_path / "raw", "samples", "node, value") == [("n", 5.0)]
    assert metrics(tmp_path, text).clusters == ["default"]


def test_the_older_text_format_writes_milliseconds_and_no_end(tmp_path):
    metrics(tmp_path, 'node_ready{node="a"} 1 100500\n', need_eof=False, time_unit_s=0.001)
    assert rows(tmp_path / "raw", "samples", "epoch(time)") == [(100.5,)]


def test_what_one_ingest_wrote_another_reads_back(tmp_path):
    sample = IngestConfig(sample=SampleConfig(nodes=2, functions=2, vms_per_day=20, jobs_per_day=20))
    first = ingest(sample, Range(DAY, DAY), tmp_path / "first")
    paths = {table: [f"{tmp_path}/first/{table}/**/*.parquet"] for table in TABLES}
    second = ingest(IngestConfig("parquet", parquet=ParquetConfig(paths)), ALL, tmp_path / "second")
    assert (second.rows, second.metrics, second.first, second.last) == (
        first.rows,
        first.metrics,
        first.first,
        first.last,
    )
    for table in paths:
        left, right = (
            f"select * from read_parquet('{tmp_path}/{name}/{table}/*/*/*.parquet')" for name in ("first", "second")
        )
        assert duckdb.sql(f"select count(*) from ({left} except all {right})").fetchall() == [(0,)]


def parquet(tmp_path, table, columns):
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    config = ParquetConfig({table: [str(tmp_path / "x.parquet")]}, cluster="c")
    return ingest(IngestConfig("parquet", parquet=config), ALL, tmp_path / "raw")


def test_missing_columns_of_a_parquet_file_are_null(tmp_path):
    time = pa.array([1767607200000], pa.timestamp("ms", tz="UTC"))
    parquet(tmp_path, "requests", {"duration_s": [1], "time": time, "color": ["red"]})
    assert rows(tmp_path / "raw", "requests", "cluster, function, duration_s") == [("c", None, 1.0)]
    [file] = (tmp_path / "raw/requests").rglob("*.parquet")
    assert pq.read_schema(file).equals(REQUESTS)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"duration_s": [1.0]}, "no column 'time'"),
        ({"time": pa.array([1], pa.timestamp("us"))}, "no time zone"),
        ({"time": [5]}, "time is int64"),
        ({"time": TIME, "duration_s": ["x"]}, "duration_s is string"),
        ({"time": pa.array([2**60], TIME.type), "duration_s": [1.0]}, "not between 1970 and 2200"),
        ({"time": pa.array([None], TIME.type), "duration_s": [1.0]}, "have no time"),
        ({"time": TIME, "duration_s": [True]}, "duration_s is bool"),
        ({"time": TIME, "duration_s": [1.0], "cluster": [" "]}, "the cluster's name is ' '"),
        ({"time": TIME, "duration_s": [1.0], "cluster": ["c" * 300]}, "a name of 1 to 192 letters"),
        ({"time": TIME, "duration_s": [1.0], "function": [1.5]}, "function is double; expected strings"),
        ({"time": TIME, "function": ["f"]}, "no column 'duration_s'"),
    ],
)
def test_parquet_files_that_break_the_contract_are_named(tmp_path, columns, message):
    with pytest.raises(LoadmasterError, match=message):
        parquet(tmp_path, "requests", columns)


def test_a_counter_larger_than_floats_count_exactly_lands(tmp_path):
    parquet(tmp_path, "samples", {"time": TIME, "metric": ["node_net_bytes"], "node": ["n"], "value": [2**53 + 1]})
    assert rows(tmp_path / "raw", "samples", "value") == [(2.0**53,)]


def test_a_file_is_of_one_table(tmp_path):
    pq.write_table(pa.table({"time": TIME, "duration_s": [1.0]}), tmp_path / "x.parquet")
    config = ParquetConfig({table: [str(tmp_path / "x.parquet")] for table in ("requests", "events")})
    with pytest.raises(LoadmasterError, match=r"x\.parquet is named for requests and for events"):
        ingest(IngestConfig("parquet", parquet=config), ALL, tmp_path / "raw")


def test_a_column_that_is_there_twice_is_named(tmp_path):
    pq.write_table(pa.table([TIME, [1.0], [2.0]], names=["time", "duration_s", "duration_s"]), tmp_path / "x.parquet")
    config = ParquetConfig({"requests": [str(tmp_path / "x.parquet")]})
    with pytest.raises(LoadmasterError, match="'duration_s' is there twice"):
        ingest(IngestConfig("parquet", parquet=config), ALL, tmp_path / "raw")


@pytest.mark.parametrize("cluster", ["../../elsewhere", "/tmp/x", "arn:aws:eks:eu-1:1:cluster/prod", ".."])
def test_a_clusters_name_never_leads_out_of_its_partition(tmp_path, cluster):
    time = pa.array([1767607200000000123], pa.timestamp("ns", tz="UTC"))
    manifest = parquet(tmp_path, "requests", {"time": time, "cluster": [cluster], "duration_s": [1.0]})
    assert manifest.clusters == [cluster]
    [file] = (tmp_path / "raw" / "requests" / "date=2026-01-05").glob("cluster=*/part-*.parquet")
    assert pq.read_table(file, partitioning=None)["cluster"].to_pylist() == [cluster]


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    config = ParquetConfig({"samples": [str(tmp_path / "x.parquet")]})
    with pytest.raises(LoadmasterError, match=r"x\.parquet cannot be read"):
        ingest(IngestConfig("parquet", parquet=config), ALL, tmp_path / "raw")
    with pytest.raises(LoadmasterError, match="smaples"):
        ParquetConfig({"smaples": []})


@given(st.dictionaries(st.sampled_from(["node", "pod", "function", "detail"]), st.text(min_size=1), min_size=1))
def test_any_label_survives_openmetrics(labels):
    labels = {name: "".join(text.splitlines()) + "x" for name, text in labels.items()}
    escaped = {name: text.replace("\\", "\\\\").replace('"', '\\"') for name, text in labels.items()}
    line = "node_ready{" + ",".join(f'{name}="{text}"' for name, text in escaped.items()) + "} 1 100\n"
    head, value, time = cut(line)
    assert (value, time) == ("1", "100")
    assert read_labels(head.partition("{")[2][:-1], "x") == labels
