"""Recorded GPU jobs, how they ended, and the queues made of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sched_env.jobs.trace import profiles, recorded_workload
from sched_env.traces import gpu_jobs
from sched_env.vector import make_vec
from wire.errors import TraceError

HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
PROFILES = (
    "timestamp,gpu,cpu_usage,mem_total,mem_available,gpu_util,gpu_mem_free,gpu_mem_used,"
    "model1,model2,model3,averagetime1,averagetime2,averagetime3,Flops1,Flops2,Flops3\n"
    + "".join(f"2025/01/01 00:00,{gpu},10,1e9,1e9,50,8000,2000,resnet,,,{t},,,1,,\n"
              for gpu, t in (("P100", 0.2), ("4090", 0.1), ("A100", 0.1)))
)  # fmt: skip


def put(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def philly_job(status, start, end, gpus=1):
    attempt = {"start_time": start, "end_time": end, "detail": [{"ip": "m1", "gpus": [f"gpu{k}" for k in range(gpus)]}]}
    return {"status": status, "vc": "v", "jobid": "a", "submitted_time": "2017-10-07 01:00:00", "attempts": [attempt]}


def test_the_philly_log_says_who_was_killed_and_when(tmp_path):
    jobs = [
        philly_job("Pass", "2017-10-07 01:01:00", "2017-10-07 02:01:00"),
        philly_job("Killed", "2017-10-07 01:01:00", "2017-10-07 01:31:00", gpus=8),
    ]
    read = gpu_jobs.read_philly_log(put(tmp_path, "cluster_job_log", json.dumps(jobs)))
    assert read.duration_s.tolist() == [3600.0, 1800.0]
    assert read.cancel_s.tolist() == [np.inf, 1860.0]
    assert read.gpus.tolist() == [1.0, 8.0]
    assert read.submitted_s[0] == 1507338000.0
    never = [*jobs, {**jobs[0], "attempts": []}, philly_job("Failed", "2017-10-07 01:01:00", None)]
    with pytest.raises(TraceError, match="job 2: IndexError"):
        gpu_jobs.read_philly_log(put(tmp_path, "cluster_job_log", json.dumps(never)))
    assert gpu_jobs.read_philly_log(tmp_path / "cluster_job_log", skip_bad=True).skipped == 2
    for text, message in (("{", "not JSON"), ("{}", "a list of jobs"), ("[]", "no usable jobs")):
        with pytest.raises(TraceError, match=message):
            gpu_jobs.read_philly_log(put(tmp_path, "cluster_job_log", text))


def helios_row(state, submit, duration, queue, gpus=1):
    return f"1,u,vc,{gpus},4,1,{state},{submit},{submit},{submit},{duration},{queue}\n"


def test_the_helios_log_says_who_was_cancelled_and_when(tmp_path):
    text = HELIOS + helios_row("COMPLETED", "2020-04-01 00:00:00", 100, 0)
    text += helios_row("CANCELLED", "2020-04-01 00:01:00", 90, 30)
    read = gpu_jobs.read_helios_log(put(tmp_path, "cluster_log.csv", text))
    assert read.cancel_s.tolist() == [np.inf, 120.0]
    assert read.duration_s.tolist() == [100.0, 90.0]
    with pytest.raises(TraceError, match="line 4: queue is negative"):
        gpu_jobs.read_helios_log(
            put(tmp_path, "cluster_log.csv", text + helios_row("FAILED", "2020-04-01 00:02:00", 1, -1))
        )


def test_recorded_withdrawals_happen_only_when_asked_for(tmp_path):
    text = HELIOS + "".join(
        helios_row("CANCELLED" if k % 2 else "COMPLETED", f"2020-04-01 00:00:{k:02d}", 100 + k, 0) for k in range(30)
    )
    jobs = gpu_jobs.read_helios_log(put(tmp_path, "cluster_log.csv", text))
    measured = put(tmp_path, "colocation_profiles.csv", PROFILES)
    cancelled = {}
    for asked in (False, True):
        load = recorded_workload(jobs, measured, rows=30, seed=0, cancellations=asked)
        env = make_vec("jobs/testbed", 1, trace=load, episode_jobs=30)
        env.reset(options={"starts": [0], "park": True})
        while env.buffers.active[0]:
            *_, infos = env.step(env.buffers.mask.argmax(axis=1))
        cancelled[asked] = infos["episode"]["cancelled"][0]
    assert cancelled == {False: 0, True: 15}  # data have to be moved first: none of the fifteen is done in time


def test_the_memory_of_a_model_hangs_on_no_other_that_was_never_measured_alone(tmp_path):
    """It was taken from what others had been found to need, in the order of a set: other figures in other processes."""

    def row(used_mib, *models):
        names = ",".join((*models, "", "")[:3])
        times = ",".join((*["0.1"] * len(models), "", "")[:3])
        return f"2025/01/01 00:00,4090,10,1e9,1e9,50,8000,{used_mib},{names},{times},1,,\n"

    text = PROFILES.splitlines()[0] + "\n" + row(2048, "known") + row(5120, "known", "b")
    text += row(9216, "b", "c") + row(4096, "known", "d")
    _, memory = profiles(put(tmp_path, "colocation_profiles.csv", text))
    assert memory == pytest.approx({"known": 2.0, "b": 3.0, "c": 2.0, "d": 2.0})
