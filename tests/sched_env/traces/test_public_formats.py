import json

import numpy as np
import pytest

from sched_env.traces import alibaba_genai, alibaba_gpu, bitbrains, cpn, gpu_jobs, helios, wfinstances
from wire.errors import TraceError

BITBRAINS = """Timestamp [ms];\tCPU cores;\tCPU capacity provisioned [MHZ];\tCPU usage [MHZ];\tCPU usage [%];\t\
Memory capacity provisioned [KB];\tMemory usage [KB];\tDisk read throughput [KB/s];\tDisk write throughput [KB/s];\t\
Network received throughput [KB/s];\tNetwork transmitted throughput [KB/s]
1375308176;\t2;\t5200.0;\t1300.0;\t25;\t2097152.0;\t1048576.0;\t1;\t1;\t2.0;\t3.0
1375308476;\t0;\t0.0;\t2600.0;\t0;\t2097152.0;\t1048576.0;\t1;\t1;\t0;\t0
"""


def put(tmp_path, name, text):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_bitbrains_values_become_cores_and_bytes_and_dirt_stays(tmp_path):
    vm = bitbrains.read_vm(put(tmp_path, "rnd-2013-8/10.csv", BITBRAINS))
    assert vm.vm == "rnd-2013-8/10"
    np.testing.assert_array_equal(vm.time_s, [1375308176, 1375308476])
    np.testing.assert_allclose(vm.cpu_used, [0.5, 1.0])
    np.testing.assert_array_equal(vm.cpu_capacity, [2, 0])
    np.testing.assert_array_equal(vm.mem_capacity, [2 * 2**30] * 2)
    np.testing.assert_array_equal(vm.net_used, [5000, 0])


def test_genai_columns_are_found_in_any_order(tmp_path):
    samples = alibaba_genai.read_metric(
        put(tmp_path, "m.csv", "value,container_ip,timestamp_anon\n0.5,,57.0\n1,p,114\n")
    )
    assert (samples.metric, samples.pod.tolist(), samples.value.tolist()) == ("m", ["", "p"], [0.5, 1.0])


def test_genai_requests_that_never_ended_have_no_duration(tmp_path):
    head = "gmt_create,predict_type,predict_status,exec_time_seconds,checkpoint_model_version_id\n"
    rows = "2024-11-15 16:57:50,T,SUCCEED,32.0,M0\n2024-11-15 16:57:51,T,PENDING,,M1\n"
    requests = alibaba_genai.read_requests(put(tmp_path, "r.csv", head + rows))
    np.testing.assert_array_equal(requests.duration_s, [32, np.nan])
    with pytest.raises(TraceError, match="line 4: predict_status is unknown"):
        alibaba_genai.read_requests(put(tmp_path, "r.csv", head + rows + "2024-11-15 16:57:52,T,LOST,1,M1\n"))


def test_gpu_pods_share_cards_and_may_never_end(tmp_path):
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,extra\n"
    rows = "a,6000,2048,1,460,,LS,Running,5,9,5\nb,1000,1024,8,1000,,LS,Running,7,,\n"
    pods = alibaba_gpu.read_openb_pods(put(tmp_path, "p.csv", head + rows))
    assert (pods.cpu.tolist(), pods.mem.tolist(), pods.gpus.tolist()) == ([6, 1], [2, 1], [0.46, 8])
    np.testing.assert_array_equal(pods.deleted_s, [9, np.nan])
    with pytest.raises(TraceError, match="line 4: deleted before it was created"):
        alibaba_gpu.read_openb_pods(put(tmp_path, "p.csv", head + rows + "c,1,1,0,0,,LS,Running,9,8,\n"))


def test_gpu_inventories_name_their_cards(tmp_path):
    nodes = alibaba_gpu.read_openb_nodes(
        put(tmp_path, "n.csv", "sn,cpu_milli,memory_mib,gpu,model\nx,32000,262144,2,T4\n")
    )
    assert (nodes.cpu[0], nodes.mem[0], nodes.gpus[0], nodes.model[0]) == (32, 256, 2, "T4")
    spot = alibaba_gpu.read_spot_nodes(
        put(tmp_path, "s.csv", "gpu_model,gpu_capacity_num,cpu_num,node_name\nA10,4,192,0\n")
    )
    assert (spot.name[0], spot.gpus[0]) == ("0", 4)
    assert np.isnan(spot.mem[0])
    with pytest.raises(TraceError, match="cpu_milli is not positive"):
        alibaba_gpu.read_openb_nodes(put(tmp_path, "n.csv", "sn,cpu_milli,memory_mib,gpu,model\nx,0,1,2,T4\n"))


def test_dlrm_instances_from_before_the_trace_have_no_creation(tmp_path):
    head = "instance_sn,app_name,cpu_request,gpu_request,memory_request,creation_time,deletion_time\n"
    pods = alibaba_gpu.read_dlrm_instances(put(tmp_path, "d.csv", head + "i0,app,12,1,120.0,,\n"))
    assert (pods.app[0], pods.cpu[0], pods.mem[0]) == ("app", 12, 120)
    assert np.isnan(pods.created_s[0])


def test_philly_jobs_and_speeds(tmp_path):
    text = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-09-04 10:30:41,60.0,8,480.0,vc\n"
    jobs = gpu_jobs.read_philly(put(tmp_path, "j.csv", text))
    assert (jobs.submitted_s[0], jobs.gpus[0], jobs.cluster[0]) == (1504521041, 8, "vc")
    with pytest.raises(TraceError, match="line 3: duration is negative"):
        gpu_jobs.read_philly(put(tmp_path, "j.csv", text + "2017-09-04 10:30:41,-1,8,1,vc\n"))
    speeds = gpu_jobs.read_speeds(
        put(tmp_path, "g.csv", "gpu,model,batch_size,num_gpus,co_model,co_batch_size,co_num_gpus,steps_per_s,"
                               "co_steps_per_s\nk80,A3C,,1,,,,3.4,\n"), gpu_jobs.GAVEL)  # fmt: skip
    assert speeds.numbers["steps_per_s"][0] == 3.4


def test_helios_minutes(tmp_path):
    names = "time,total_gpu_num,running_gpu_num,pending_gpu_num,running_job_num,pending_job_num"
    vc = helios.read_vc(put(tmp_path, "vcx.csv", f"{names}\n2020-05-01 00:00:00,64,14,2,5,1\n"))
    assert (vc.vc, vc.gpus[0], vc.gpus_running[0], vc.gpus_pending[0], vc.jobs_pending[0]) == ("vcx", 64, 14, 2, 1)


def test_cpn_queue_numbers_are_texts(tmp_path):
    job = {"name": "000", "model_name": "qwen2.5", "data_size": "0.5", "epoch": "71"}
    queue = cpn.read_queue(put(tmp_path, "q.json", json.dumps([job])))
    assert (queue.model, queue.data_gb[0], queue.iterations[0]) == (("qwen2.5",), 0.5, 71)
    bad = [job, {**job, "epoch": "-1"}, {"name": "x"}]
    with pytest.raises(TraceError, match=r"job 1: data_size 0\.5, epoch -1"):
        cpn.read_queue(put(tmp_path, "q.json", json.dumps(bad)))
    assert cpn.read_queue(put(tmp_path, "q.json", json.dumps(bad)), skip_bad=True).skipped == 2
    for text, message in (("{", "not JSON"), ("{}", "a list of jobs"), ("[]", "no usable jobs")):
        with pytest.raises(TraceError, match=message):
            cpn.read_queue(put(tmp_path, "q.json", text))


def test_cpn_profiles_know_empty_slots(tmp_path):
    head = ("gpu,timestamp,cpu_usage,mem_total,mem_available,gpu_util,gpu_mem_free,gpu_mem_used,model1,averagetime1,"
            "model2,averagetime2,model3,averagetime3,Total_Flops,Flops1,Flops2,Flops3\n")  # fmt: skip
    row = "4090,2025/1/2 16:18,0.5,100,70,50,1024,2048,yolo,0.1, nan,0.0,,,1,2,0.0,\n"
    profiles = cpn.read_colocations(put(tmp_path, "c.csv", head + row))
    assert profiles.model.tolist() == [["yolo", "", ""]]
    np.testing.assert_array_equal(profiles.seconds, [[0.1, np.nan, np.nan]])
    assert (profiles.gpu_used[0], profiles.gpu_mem_used[0]) == (0.5, 2)
    baseline = cpn.read_baseline(put(tmp_path, "b.csv", "model_name,GPUMemoryReq,BasicRuntime\nalexnet,2048,0.02\n"))
    assert (baseline.gpu_mem[0], baseline.seconds[0]) == (2, 0.02)


def instance(**change):
    tasks = [
        {"id": "c", "parents": ["a", "b"], "inputFiles": ["x", "y"], "outputFiles": []},
        {"id": "a", "parents": [], "inputFiles": ["in"], "outputFiles": ["x"]},
        {"id": "b", "parents": ["a"], "inputFiles": [], "outputFiles": ["y"]},
    ]
    files = [{"id": "in", "sizeInBytes": 4e6}, {"id": "x", "sizeInBytes": 1e6}, {"id": "y", "sizeInBytes": 2e6}]
    runs = [
        {"id": name, "runtimeInSeconds": s, "avgCPU": 150.0, "memoryInBytes": 2**30}
        for name, s in zip("abc", (3, 4, 5), strict=True)
    ]
    execution = {"makespanInSeconds": 20, "executedAt": "03-23-21T06:28:09Z", "tasks": runs}
    document = {"workflow": {"specification": {"tasks": tasks, "files": files}, "execution": execution}}
    for path, value in change.items():
        if path == "parents_of_a":
            tasks[1]["parents"] = value
        elif path == "runs":
            execution["tasks"] = value
        else:
            execution[path] = value
    return document


def test_workflows_are_sorted_with_their_data(tmp_path):
    flow = wfinstances.read_workflow(put(tmp_path, "w.json", json.dumps(instance())))
    assert flow.task == ("a", "b", "c")
    assert {tuple(edge): mb for edge, mb in zip(flow.edges.tolist(), flow.edge_mb, strict=True)} == {
        (0, 1): 0.0, (0, 2): 1.0, (1, 2): 2.0}  # fmt: skip
    np.testing.assert_array_equal(flow.input_mb, [4, 0, 0])
    np.testing.assert_array_equal(flow.earliest_start_s(), [0, 3, 7])
    np.testing.assert_array_equal(flow.cpu, [1.5] * 3)
    assert flow.executed_s == 1616480889


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parents_of_a": ["c"]}, "cycle"),
        ({"parents_of_a": ["z"]}, "parent 'z'"),
        ({"runs": []}, "task 'a' has the run time nan"),
        ({"executedAt": "once"}, "not a WfFormat document"),
        ({"makespanInSeconds": None}, "not a WfFormat document"),
    ],
)
def test_wrong_workflows_are_named(tmp_path, change, message):
    with pytest.raises(TraceError, match=message):
        wfinstances.read_workflow(put(tmp_path, "w.json", json.dumps(instance(**change))))
