import json
import os
from pathlib import Path

import duckdb
import pytest

from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.sources.traces import TracesConfig
from sched_env.vm import trace as vm
from wire.errors import LoadmasterError

SHARED = Path(os.environ.get("LOADMASTER_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
"""Beside the repository, where it exists."""


def land(tmp_path, format_, files, **more):
    folder = tmp_path / "in"
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    config = TracesConfig(format_, [str(folder / "*")], **more)
    return ingest(IngestConfig("traces", traces=config), Range(), tmp_path / "raw")


def rows(tmp_path, table, what):
    found = f"select {what} from read_parquet('{tmp_path}/raw/{table}/*/*/*.parquet') order by all"
    return duckdb.sql("set timezone='UTC'; " + found).fetchall()


def test_bitbrains_vms_are_nodes(tmp_path):
    names = ["Timestamp [ms]", "CPU cores", "CPU capacity provisioned [MHZ]", "CPU usage [MHZ]",
             "Memory capacity provisioned [KB]", "Memory usage [KB]", "Network received throughput [KB/s]",
             "Network transmitted throughput [KB/s]"]  # fmt: skip
    text = ";\t".join(names) + "\n1375308176;\t2;\t5200;\t7800;\t1024;\t512;\t1;\t2\n"
    manifest = land(tmp_path, "bitbrains", {"7.csv": text})
    assert manifest.rows["samples"] == 5
    found = dict(rows(tmp_path, "samples", "metric, value"))
    assert found["node_cpu_used_cores"] == 3.0  # over its two cores: clean's to judge
    assert found["node_mem_used_bytes"] == 512 * 1024
    assert rows(tmp_path, "samples", "distinct cluster, node") == [("bitbrains", "in/7")]


def test_genai_latencies_become_counters_and_pods_may_be_unknown(tmp_path):
    files = {
        "pod_memory_util_anon.csv": "value,timestamp_anon,container_ip\n0.5,57,a\n0.25,57,\n",
        "pipeline_inference_data_anon.csv": "timestamp_anon,value,container_ip\n57,2000,a\n57,1000,b\n114,500,a\n",
        "qps.csv": "timestamp_anon,value,container_ip,request_type\n57,2,a,API\n114,1,a,API\n57,4,b,API\n",
        "queue_size_raw_anon.csv": "value,container_ip,timestamp_anon\n3,,57\n",
        "lora_request_trace.csv": "gmt_create,predict_status,exec_time_seconds,checkpoint_model_version_id\n"
        "2024-11-15 16:57:50,SUCCEED,32,M\n2024-11-15 16:57:51,PENDING,,M\n",
    }
    manifest = land(tmp_path, "alibaba_genai", files, assume_pod_mem_gib=2.0)
    found = rows(tmp_path, "samples", "metric, function, pod, epoch(time), value")
    sums = [row[3:] for row in found if row[0] == "function_response_seconds_sum"]
    assert sums == [(57.0, 3.0), (114.0, 3.5)]
    assert [row[4] for row in found if row[:2] == ("function_requests", "pipeline_inference_data_anon")] == [2, 3]
    assert [row[2:] for row in found if row[:2] == ("function_requests", "requests")] == [
        ("a", 57.0, 114.0), ("a", 114.0, 171.0), ("b", 57.0, 228.0)]  # fmt: skip
    assert ("pod_mem_used_bytes", None, None, 57.0, 0.5 * 2**30) in found
    assert rows(tmp_path, "requests", "function, duration_s") == [("M", 32.0), ("M", None)]
    assert list(manifest.skipped.values()) == [1]


def test_pods_and_jobs_and_vms_become_events(tmp_path):
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n"
    land(tmp_path, "alibaba_gpu", {"openb_pod_list.csv": head + "p,500,1024,1,250,60,\nq,1000,1024,0,0,60,120\n"})
    assert rows(tmp_path, "events", "entity, kind, action, epoch(time) - 1577836800, cpu_cores, mem_bytes, gpus") == [
        ("p", "pod", "create", 60, 0.5, 2.0**30, 0.25),
        ("q", "pod", "create", 60, 1, 2.0**30, 0),
        ("q", "pod", "delete", 120, 1, 2.0**30, 0),
    ]


def test_inventories_are_capacities_at_the_origin(tmp_path):
    land(
        tmp_path,
        "alibaba_gpu",
        {"spot_gpu_node_info.csv": "gpu_model,gpu_capacity_num,cpu_num,node_name\nA10,4,192,0\n"},
    )
    assert rows(tmp_path, "samples", "metric, node, detail, value") == [
        ("node_cpu_capacity_cores", "spot-0", None, 192.0),
        ("node_gpu_capacity_cards", "spot-0", None, 4.0),
        ("node_info", "spot-0", "A10", 1.0),
    ]


def test_philly_helios_and_cpn(tmp_path):
    land(tmp_path, "philly", {"philly_jobs.csv": "timestamp,duration,num_gpus,cluster\n2017-09-04 10:00:00,60,8,vc\n"})
    assert rows(tmp_path, "events", "action, kind, node, gpus, runtime_s") == [
        ("create", "job", "vc", 8.0, None),
        ("delete", "job", "vc", 8.0, 60.0),
    ]
    (tmp_path / "in/philly_jobs.csv").unlink()
    names = "time,total_gpu_num,running_gpu_num,pending_gpu_num,running_job_num,pending_job_num"
    land(tmp_path, "helios", {"vcx.csv": f"{names}\n2020-05-01 00:00:00,64,14,2,5,1\n"})
    assert dict(rows(tmp_path, "samples", "metric, value")) == {
        "node_gpu_capacity_cards": 64,
        "node_gpu_used_cards": 14,
    }
    (tmp_path / "in/vcx.csv").unlink()
    job = {"name": "000", "model_name": "qwen", "data_size": "2.5", "epoch": "71"}
    land(tmp_path, "cpn", {"q.json": json.dumps([job])})
    assert rows(tmp_path, "events", "entity, function, action, data_gb, epochs") == [
        ("q-000", "qwen", "create", 2.5, 71.0)
    ]


def test_vms_of_two_files_keep_apart(tmp_path):
    text = "arrival_bin_s,batch_id,vcpu,memory_gb\n300,0,1,2\n"
    land(tmp_path, "azure_vm", {"a.csv": text, "b.csv": text})
    assert rows(tmp_path, "events", "entity, kind, epoch(time) - 1577836800") == [
        ("a-0", "vm", 300),
        ("b-0", "vm", 300),
    ]


def test_a_long_table_of_vms_is_read_piece_by_piece(tmp_path, monkeypatch):
    lines = [f"{300 * row},0,2,4,0,0,300,300" for row in range(10)]
    lines[4] = lines[5] = "300,0,-2,4,0,0,300,300"  # a whole piece of nothing usable
    head = "arrival_bin_s,batch_id,vcpu,memory_gb,censored,duration_bin,duration_lo_s,duration_hi_s"
    files = {"vms.csv": "\n".join([head, *lines])}
    monkeypatch.setattr(vm, "PIECE_ROWS", 2)
    with pytest.raises(LoadmasterError, match="line 6: vcpu is not positive"):
        land(tmp_path, "azure_vm", files)
    manifest = land(tmp_path, "azure_vm", files, skip_bad=True)
    assert manifest.skipped == {"trace rows that cannot be read": 2}
    found = rows(tmp_path, "events", "action, entity, epoch(time) - 1577836800")
    kept = (0, 1, 2, 3, 6, 7, 8, 9)
    assert found[:8] == [("create", f"vms-{row}", 300 * row) for row in kept]
    assert found[8:] == [("delete", f"vms-{row}", 300 * row + 300) for row in kept]
    with pytest.raises(LoadmasterError, match=r"vms\.csv has no usable rows \(0 bad\)"):
        land(tmp_path, "azure_vm", {"vms.csv": head})


def test_calls_a_minute_become_counters_and_containers(tmp_path):
    files = {
        "invocations.csv": "HashFunction,Trigger,1,2,3\nf,http,3,0,1\n",
        "durations.csv": "HashFunction,Average\nf,500\n",
        "memory.csv": "HashFunction,AverageAllocatedMb\nf,512\n",
    }
    land(tmp_path, "azure_functions", files)
    found = rows(tmp_path, "samples", "metric, function, epoch(time) - 1577836800, value")
    assert [row[2:] for row in found if row[0] == "function_requests"] == [(0, 0), (60, 3), (120, 3), (180, 4)]
    assert [row[3] for row in found if row[0] == "function_response_seconds_sum"] == [0, 1.5, 1.5, 2]
    assert rows(tmp_path, "events", "action, count(*) over (), function, mem_bytes")[0] == ("create", 4, "f", 2.0**29)


def test_a_workflow_becomes_tasks_with_parents_and_what_they_hand_over(tmp_path):
    tasks = [
        {"id": "a", "parents": [], "inputFiles": ["seed"], "outputFiles": ["x", "y"]},
        {"id": "b 1", "parents": ["a"], "inputFiles": ["x"]},
        {"id": "c", "parents": ["a", "b 1"], "inputFiles": ["x", "y"]},
    ]
    sizes = [{"id": name, "sizeInBytes": size} for name, size in (("seed", 5e6), ("x", 1e6), ("y", 5e5))]
    runs = [{"id": "a", "runtimeInSeconds": 5}, {"id": "b 1", "runtimeInSeconds": 1, "machines": ["m1"]}]
    runs.append({"id": "c", "runtimeInSeconds": 2, "memoryInBytes": 2**30, "avgCPU": 150})
    execution = {"makespanInSeconds": 9, "executedAt": "2020-05-01T00:00:00Z", "tasks": runs}
    document = {"workflow": {"specification": {"tasks": tasks, "files": sizes}, "execution": execution}}
    land(tmp_path, "wfinstances", {"flow.json": json.dumps(document)})
    columns = "workflow, task, epoch(time) - 1588291200, node, runtime_s, cpu_cores, mem_bytes"
    assert rows(tmp_path, "tasks", columns) == [
        ("flow", "a", 0, None, 5, None, None), ("flow", "b_1", 0, "m1", 1, None, None),
        ("flow", "c", 0, None, 2, 2.0, 2**30),
    ]  # fmt: skip
    assert rows(tmp_path, "tasks", "parents, parent_mb, input_mb") == [
        ("a", "1.0", 0), ("a b_1", "1.5 0.0", 0), (None, None, 5),
    ]  # fmt: skip


def test_a_bad_row_stops_or_is_counted(tmp_path):
    text = "timestamp,duration,num_gpus,cluster\n2017-09-04 10:00:00,60,8,vc\nsoon,60,8,vc\n"
    with pytest.raises(LoadmasterError, match=r"philly_jobs\.csv, line 3: timestamp is not a time"):
        land(tmp_path, "philly", {"philly_jobs.csv": text})
    manifest = land(tmp_path, "philly", {"philly_jobs.csv": text}, skip_bad=True)
    assert manifest.skipped == {"trace rows that cannot be read": 1}


def test_files_of_another_kind_are_refused(tmp_path):
    with pytest.raises(LoadmasterError, match="no known file of alibaba_gpu"):
        land(tmp_path, "alibaba_gpu", {"other.csv": "a,b\n1,2\n"})


@pytest.mark.shared
@pytest.mark.parametrize(
    ("format_", "pattern", "expected"),
    [
        ("bitbrains", "bitbrains-vm-5min/rnd-2013-7/*.csv.gz", {"samples": 5 * 106_547}),
        ("alibaba_genai", "alibaba-genai-pods/*.csv.gz", {"requests": 15_630}),
        ("alibaba_gpu", "alibaba-gpu-k8s/openb_node*.csv.gz", {"samples": 4 * 1_523}),
        ("philly", "gpu-jobs/philly_jobs.csv.gz", {"events": 2 * 61_685}),
        ("helios", "helios-vc-minutes/vchbv.csv.gz", {"samples": 2 * 44_640}),
        ("cpn", "cpn-job-queues/*.json", {"events": 140}),
        ("azure_functions", "azure-functions-2019/*.csv.gz", {"samples": 2 * 356 * 481}),
        ("wfinstances", "wfinstances/**/*.json.gz", {"tasks": 31_210}),
    ],
)
def test_public_traces_land_row_for_row(tmp_path, format_, pattern, expected):
    if not SHARED.is_dir():
        pytest.skip(f"no public traces in {SHARED}")
    config = TracesConfig(format_, [str(SHARED / pattern)])
    manifest = ingest(IngestConfig("traces", traces=config), Range(), tmp_path / "raw")
    assert {table: manifest.rows[table] for table in expected} == expected
