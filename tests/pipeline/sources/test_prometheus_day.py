"""From a real Prometheus to windows, killed twice on the way: equal to what the exporters really measured."""

import csv
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, date, datetime

import duckdb
import numpy as np
import pytest
import yaml

pytestmark = pytest.mark.prometheus

DAY = date(2026, 1, 5)
START = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp())
WINDOW_S = 300
SOAK = [pytest.mark.soak, pytest.mark.timeout(3600)]


def write_log(day, path):
    """Write the requests that the gateway counts as a log: evenly spaced in their window, without their pods."""
    names = sorted({pod.split("-")[0] for pod in day.pods})
    with path.open("w", newline="") as file:
        log = csv.writer(file)
        log.writerow(["time", "function", "pod", "cpu_cores", "mem_bytes", "duration_s"])
        for name in names:
            f = next(day.pod_function[p] for p, pod in enumerate(day.pods) if pod.startswith(f"{name}-"))
            for window in range(day.windows):
                count = day.requests[f, window]
                for k in range(count):
                    at = START + window * WINDOW_S + (k + 0.5) * WINDOW_S / count
                    log.writerow([f"{at:.3f}", name, "", 0.25, 1e8, day.response_s[f, window]])


def run_killed_twice(command, folder, chunks):
    """Start the ingest, kill it after a third and two thirds of the chunks, and let a third run end."""
    kept = folder / "var" / "cache" / "ingest"
    for reached in (chunks // 3, chunks * 2 // 3):
        process = subprocess.Popen(command)
        while process.poll() is None and len(list(kept.glob("[!.]*"))) < reached:
            time.sleep(0.02)
        assert process.poll() is None, "the ingest ended before it could be killed"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (folder / "raw").exists()
    subprocess.run(command, check=True)


@pytest.mark.parametrize(
    ("nodes", "pods_per_node", "scrape_s", "with_log"),
    [
        pytest.param(4, 5, 60, True, id="small"),
        pytest.param(4, 5, 60, False, id="small-gateway", marks=SOAK),
        pytest.param(50, 10, 15, True, id="full-with-log", marks=SOAK),
        pytest.param(50, 10, 15, False, id="full-gateway", marks=SOAK),
    ],
)
def test_a_day_becomes_windows_that_equal_the_truth(
    tmp_path, monkeypatch, exporter_day, serve_prometheus, nodes, pods_per_node, scrape_s, with_log
):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    day = exporter_day(nodes=nodes, pods_per_node=pods_per_node, start_s=START, hours=24, scrape_s=scrape_s)
    samples = day.write(tmp_path / "day.om")
    write_log(day, tmp_path / "log.csv")
    sources = ["prometheus", "requests"] if with_log else ["prometheus"]
    with serve_prometheus(tmp_path, tmp_path / "day.om") as address:
        prometheus = {"clusters": [{"name": "prod", "url": address}], "step_seconds": scrape_s}
        requests = {"paths": [str(tmp_path / "log.csv")], "cluster": "prod", "time": "s"}
        ingest = {"source": sources, "prometheus": prometheus, "requests": requests}
        days = {"from": DAY.isoformat(), "to": DAY.isoformat()}
        params = tmp_path / "params.yaml"
        params.write_text(yaml.safe_dump({"data": days, "ingest": ingest, "clean": {}}))
        module = [sys.executable, "-m"]
        arguments = ["--params", str(params), "--out"]
        begun = time.monotonic()
        run_killed_twice([*module, "pipeline.ingest", *arguments, str(tmp_path / "raw")], tmp_path, 25)
        print(f"{samples:,} samples; ingest, killed twice: {time.monotonic() - begun:.1f} s")
    check_raw(day, tmp_path / "raw", scrape_s)
    begun = time.monotonic()
    command = [*module, "pipeline.clean", *arguments, str(tmp_path / "windows"), "--raw", str(tmp_path / "raw")]
    command += ["--metrics", str(tmp_path / "clean.json")]
    subprocess.run(command, check=True)
    print(f"clean: {time.monotonic() - begun:.1f} s")
    check_windows(day, tmp_path / "windows", with_log)


def check_raw(day, raw, scrape_s):
    """Every scrape of every pod, once, at its time, with its value."""
    found = duckdb.sql(
        f"""set timezone='UTC'; select pod, epoch(time)::bigint as t, value from '{raw}/samples/*/*/*.parquet'
        where metric = 'pod_cpu_seconds' order by pod, t"""
    ).fetchnumpy()
    names, begins = np.unique(found["pod"].astype(str), return_index=True)
    ends = dict(zip(names, zip(begins, [*begins[1:], len(found["pod"])], strict=True), strict=True))
    for p, pod in enumerate(day.pods):
        mine = slice(*ends[f"fn/{pod}"])
        t = day.scrapes(day.pod_node[p] % scrape_s)
        t = t[(t >= day.change_s) if p == day.born else (t < day.change_s) if p == day.gone else t > 0]
        np.testing.assert_array_equal(found["t"][mine], t)
        np.testing.assert_allclose(found["value"][mine], day.counter(day.pod_cpu[p], t), rtol=1e-9)


def check_windows(day, windows, with_log):
    def read(table, columns):
        key = {"nodes": "node", "pods": "pod", "functions": "function"}[table]
        found = duckdb.sql(
            f"set timezone='UTC'; select {key} as key, (epoch(window_start)::bigint - {START}) // {WINDOW_S} as w, "
            f"{', '.join(columns)} from '{windows}/{table}/*/*.parquet'"
        ).fetchnumpy()
        return {(k, int(w)): row for k, w, *row in zip(*(found[name] for name in ("key", "w", *columns)), strict=True)}

    def close(pairs, within):
        """The first and last window of a life are cut short by scrapes; between them all must agree."""
        error = np.array([abs(got / want - 1) for got, want in pairs])
        assert len(error)
        assert np.nanmax(error) < within, np.nanmax(error)

    inner = range(1, day.windows - 1)
    nodes = read("nodes", ["cpu_used_mean_cores", "mem_used_mean_gib", "cpu_capacity_cores"])
    names = {name: n for n, name in enumerate(day.names)}
    close([(nodes[name, w][0], day.node_cpu[n, w]) for name, n in names.items() for w in inner], 0.12)
    mean_error = np.mean([abs(nodes[name, w][0] / day.node_cpu[n, w] - 1) for name, n in names.items() for w in inner])
    assert mean_error < 0.01
    close([(nodes[name, w][1], 16 - day.node_mem_free[n, w] / 2**30) for name, n in names.items() for w in inner], 1e-6)
    assert {row[2] for row in nodes.values()} == {8.0}

    pods = read("pods", ["cpu_used_mean_cores", "mem_used_mean_gib", "cpu_request_cores", "node", "function"])
    lasting = {f"fn/{pod}": p for p, pod in enumerate(day.pods) if p not in {day.born, day.gone}}
    close([(pods[pod, w][1], day.pod_mem[p, w] / 2**30) for pod, p in lasting.items() for w in inner], 1e-6)
    error = [abs(pods[pod, w][0] / day.pod_cpu[p, w] - 1) for pod, p in lasting.items() for w in inner]
    assert np.mean(error) < 0.03
    assert all(pods[pod, 5][2:] == [0.5, day.names[day.pod_node[p]], pod.split("-")[0]] for pod, p in lasting.items())

    functions = read("functions", ["requests", "response_mean_s"])
    for name in {pod.split("-")[0] for pod in day.pods}:
        f = next(day.pod_function[p] for p, pod in enumerate(day.pods) if pod.startswith(f"{name}-"))
        workload = f"fn/{name}"  # a log that leaves the namespace out means the only one there is
        got = np.array([functions[workload, w][0] for w in inner])
        if with_log:
            np.testing.assert_array_equal(got, day.requests[f, 1:-1])
            close([(functions[workload, w][1], day.response_s[f, w]) for w in inner], 1e-5)
        else:
            assert np.abs(got - day.requests[f, 1:-1]).max() <= 2 + 0.15 * 400
            assert abs(got.sum() / day.requests[f, 1:-1].sum() - 1) < 0.01

    def count(table):
        return duckdb.sql(f"select count(*) from '{windows}/{table}/*/*.parquet'").fetchall()[0][0]

    assert count("cards") == day.nodes * day.windows
    assert count("demands") > 0.95 * day.requests[: len({*day.pod_function})].sum()
    events = duckdb.sql(f"select entity, action from '{windows}/events/*/*.parquet'").fetchall()
    assert (f"fn/{day.pods[day.born]}", "create") in events
    assert (f"fn/{day.pods[day.gone]}", "delete") in events
