import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import duckdb
import pytest
import yaml

from pipeline.ingest import IngestConfig, Range, ingest, main
from pipeline.sources import landing
from pipeline.sources.landing import read_manifest
from pipeline.sources.prometheus import PrometheusConfig
from pipeline.sources.prometheus_server import Patience, Server
from pipeline.sources.sample import SampleConfig
from wire.errors import ConfigError, LoadmasterError

DAY = date(2026, 1, 5)
FUNCTIONS_ALONE = {"vms_per_day": 0, "jobs_per_day": 0, "workflows_per_day": 0}
MAP = {"groups": {"test": [{"metric": "node_ready", "from": ["ready"], "labels": {"node": ["{node}"]}}]}}


class Endless:
    """A Prometheus of one node whose every value is its own time; it can be slow, or fail from some question on."""

    def __init__(self, delay_s=0.0, fail_after=None, series=None):
        self.asked = Counter()
        self.at_once = self.most_at_once = 0
        self.fail_after = fail_after
        owner, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                with lock:
                    owner.at_once += 1
                    owner.most_at_once = max(owner.most_at_once, owner.at_once)
                    owner.asked[form["query"][0], form.get("start", [""])[0]] += 1
                time.sleep(delay_s)
                code = 500 if owner.fail_after is not None and owner.asked.total() > owner.fail_after else 200
                if self.path.endswith("query_range"):
                    start, end, step = (float(form[key][0]) for key in ("start", "end", "step"))
                    times = [start + i * step for i in range(int((end - start) // step) + 1)]
                    result = [{"metric": {"node": "n1"}, "values": [[t, str(t)] for t in times]}]
                    if series is not None:  # of the metric that is mapped; nobody tells who is who
                        named = [] if "kube_node_" in form["query"][0] else series
                        result = [{"metric": labels, "values": result[0]["values"]} for labels in named]
                    data = {"resultType": "matrix", "result": result}
                else:
                    data = {"resultType": "vector", "result": []}
                body = json.dumps({"status": "success", "data": data}).encode()
                with lock:
                    owner.at_once -= 1
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                try:
                    self.wfile.write(body)
                except OSError:
                    return  # the client was killed

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def parameters(folder: Path, url: str, **prometheus) -> Path:
    (folder / "map.yaml").write_text(yaml.safe_dump(MAP))
    section = {
        "clusters": [{"name": "prod", "url": url}],
        "groups": ["test"],
        "metrics": str(folder / "map.yaml"),
        "step_seconds": 60,
        "events": False,
        "workers": 2,
        "patience": {"attempts": 1},
        **prometheus,
    }
    path = folder / "params.yaml"
    days = {"from": DAY.isoformat(), "to": DAY.isoformat()}
    path.write_text(yaml.safe_dump({"data": days, "ingest": {"source": "prometheus", "prometheus": section}}))
    return path


def kept_chunks(var: Path) -> list[str]:
    folder = var / "cache" / "ingest"
    return [path.name for path in folder.glob("[!.]*")]


def digest(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_killed_twice_nothing_is_lost_doubled_or_fetched_again(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    with Endless(delay_s=0.05) as server:
        params = parameters(tmp_path, server.url)
        command = [sys.executable, "-m", "pipeline.ingest", "--params", str(params), "--out", str(tmp_path / "raw")]
        for reached in (5, 14):
            process = subprocess.Popen(command, env={**os.environ, "LOADMASTER_VAR": str(tmp_path / "var")})
            deadline = time.monotonic() + 60
            while (
                process.poll() is None and len(kept_chunks(tmp_path / "var")) < reached and time.monotonic() < deadline
            ):
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert not (tmp_path / "raw").exists()
        assert main(["--params", str(params), "--out", str(tmp_path / "raw")]) == 0
        killed = Counter(server.asked)
        server.asked.clear()
        monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "other"))
        assert main(["--params", str(params), "--out", str(tmp_path / "whole")]) == 0
        whole = Counter(server.asked)
    assert digest(tmp_path / "raw") == digest(tmp_path / "whole")
    # Who is who in a day is asked once by every process; samples are not.
    again = {question: n for question, n in (killed - whole).items() if "ready" in question[0]}
    assert sum(again.values()) <= 2 * 2  # only what was on its way when a kill came: two workers, two kills
    [(rows, distinct, wrong)] = duckdb.sql(
        f"""select count(*), count(distinct time), count(*) filter (value <> epoch(time))
        from '{tmp_path}/raw/samples/*/*/*.parquet'"""
    ).fetchall()
    assert (rows, distinct, wrong) == (1440, 1440, 0)


def test_a_server_that_dies_half_way_costs_only_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    with Endless(fail_after=10) as server:
        params = parameters(tmp_path, server.url, workers=1)
        with pytest.raises(LoadmasterError, match="what has been fetched is kept"):
            main(["--params", str(params), "--out", str(tmp_path / "raw")])
        server.fail_after = None
        # More patience is not other data: the chunks that are there are used.
        params = parameters(tmp_path, server.url, workers=1, patience={"attempts": 9})
        main(["--params", str(params), "--out", str(tmp_path / "raw")])
    assert sum(1 for question, n in server.asked.items() if n > 1 and "ready" in question[0]) == 1
    assert read_manifest(tmp_path / "raw").rows["samples"] == 1440


def test_a_night_asks_for_the_new_day_alone(tmp_path, monkeypatch):
    """And gets the same bytes as one that asks for all of them."""
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    later = ["--from", str(DAY + timedelta(days=1)), "--to", str(DAY + timedelta(days=3))]
    with Endless() as server:
        arguments = ["--params", str(parameters(tmp_path, server.url)), "--out", str(tmp_path / "raw")]
        assert main([*arguments, "--from", str(DAY), "--to", str(DAY + timedelta(days=2))]) == 0
        server.asked.clear()
        assert main([*arguments, *later]) == 0
        asked = [float(start) for (query, start), n in server.asked.items() if "ready" in query and start]
        monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "other"))
        assert main([*arguments[:3], str(tmp_path / "whole"), *later]) == 0
    new_day = time_of(DAY + timedelta(days=3))
    margin = {time_of(DAY + timedelta(days=1)) - 900.0}  # of the day that is the first one now
    assert {start for start in asked if start < new_day} == margin
    assert len(asked) == 24 + 2
    assert digest(tmp_path / "raw") == digest(tmp_path / "whole")


@pytest.mark.parametrize(("reopen", "flag", "days"), [(0, [], 0), (1, [], 1), (5, [], 2), (0, ["--again"], 3)])
def test_late_samples_are_seen_where_a_kept_day_is_opened_again(tmp_path, monkeypatch, reopen, flag, days):
    """By the rule: not at all, the days that reopen_days names, or all with --again; the last day is never late."""
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    series = [{"node": "n1"}]
    with Endless(series=series) as server:
        params = parameters(tmp_path, server.url, reopen_days=reopen)
        arguments = ["--params", str(params), "--out", str(tmp_path / "raw"), *flag]
        arguments += ["--from", str(DAY), "--to", str(DAY + timedelta(days=2))]
        assert main(arguments) == 0
        before = digest(tmp_path / "raw" / "samples")
        series.append({"node": "late"})
        assert main(arguments) == 0
    changed = {name for name, content in digest(tmp_path / "raw" / "samples").items() if before[name] != content}
    assert len({name.partition("/")[0] for name in changed}) == days


def time_of(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def test_an_interrupt_does_not_wait_for_the_rest_of_a_chunk(tmp_path):
    with Endless(delay_s=0.5) as server:
        params = parameters(tmp_path, server.url, events=True)
        document = yaml.safe_load((tmp_path / "map.yaml").read_text())
        document["groups"]["test"] *= 400  # a chunk takes 200 s and more
        (tmp_path / "map.yaml").write_text(yaml.safe_dump(document))
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.ingest", "--params", str(params), "--out", str(tmp_path / "raw")],
            env={**os.environ, "LOADMASTER_VAR": str(tmp_path / "var")},
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 120
        while server.asked.total() < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said


def test_a_bound_that_is_no_number_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    entry = {"metric": "function_response_seconds_bucket", "from": ["took_bucket"], "labels": {"function": ["{f}"]}}
    with Endless(series=[{"f": "a", "le": "slow"}]) as server:
        params = parameters(tmp_path, server.url)
        (tmp_path / "map.yaml").write_text(yaml.safe_dump({"groups": {"test": [entry]}}))
        with pytest.raises(LoadmasterError, match="took_bucket has le='slow'; expected a number"):
            main(["--params", str(params), "--out", str(tmp_path / "raw")])


def test_clusters_are_read_at_once_and_kept_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    (tmp_path / "map.yaml").write_text(yaml.safe_dump(MAP))
    with Endless(delay_s=0.02) as server:
        config = PrometheusConfig(
            clusters=[Server("east", server.url), Server("west", server.url, matchers='cluster="west"')],
            groups=("test",),
            metrics=str(tmp_path / "map.yaml"),
            step_seconds=60,
            events=False,
        )
        manifest = ingest(IngestConfig("prometheus", prometheus=config), Range(DAY, DAY), tmp_path / "raw")
    assert server.most_at_once >= 2
    assert manifest.clusters == ["east", "west"]
    assert {part.rows for part in manifest.partitions} == {1440}
    assert any('cluster="west"' in query for query, _ in server.asked)


def test_a_day_that_is_not_over_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    (tmp_path / "map.yaml").write_text(yaml.safe_dump(MAP))
    with Endless() as server:
        config = PrometheusConfig([Server("prod", server.url)], ("test",), str(tmp_path / "map.yaml"))
        today = date.fromtimestamp(time.time())
        with pytest.raises(LoadmasterError, match=rf"day {today} is not over"):
            ingest(IngestConfig("prometheus", prometheus=config), Range(DAY, today), tmp_path / "raw")
    assert not (tmp_path / "raw").exists()


def test_a_server_without_our_metrics_is_an_error_that_names_them(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    with (
        Endless(series=[]) as server,
        pytest.raises(LoadmasterError, match=r"no row \(chunks without test.node_ready: 24\)"),
    ):
        main(["--params", str(parameters(tmp_path, server.url)), "--out", str(tmp_path / "raw")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ingest: {source: sample}\n", "section 'data' is missing"),
        ("data: {}\ningest: {source: sampel}\n", "Invalid enum value 'sampel'"),
        ("data: {}\ningest: {source: prometheus}\n", "ingest.prometheus is missing"),
        ("data: {from: 2026-01-06, to: 2026-01-05}\ningest: {}\n", "data.from 2026-01-06 is after"),
        ("data: {from: 2026-01-06}\ningest: {}\n", "two days, or null for both"),
        ("data: {form: 2026-01-06}\ningest: {}\n", "unknown field `form`"),
        ("data: {}\ningest: {sample: {days: many}}\n", "days"),
        ("data: {}\ningest: {prices: nowhere.csv}\n", r"nowhere\.csv"),
        (
            "data: {}\ningest: {source: prometheus, prometheus: {clusters: [{name: a, url: http://x}]}}\n",
            "no range of days",
        ),
    ],
)
def test_wrong_settings_are_named(tmp_path, monkeypatch, text, message):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(LoadmasterError, match=message):
        main([])


@pytest.mark.parametrize(
    "bad",
    [
        {"chunk_seconds": 3500},
        {"chunk_seconds": 0},
        {"step_seconds": 1.2345},
        {"groups": ()},
        {"step_seconds": 0.5},
        {"step_seconds": 1, "chunk_seconds": 21_600},
        {"clusters": []},
        {"clusters": [Server("a", "http://x"), Server("a", "http://y")]},
        {"workers": 0},
    ],
)
def test_what_prometheus_would_refuse_is_refused_first(bad):
    with pytest.raises(ConfigError, match=r"prometheus|points"):
        PrometheusConfig(**{"clusters": [Server("a", "http://x")], **bad})


def test_a_disk_that_takes_no_more_keeps_what_it_has(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    config, days = (
        IngestConfig(sample=SampleConfig(nodes=1, functions=1, **FUNCTIONS_ALONE)),
        Range(DAY, DAY + timedelta(days=1)),
    )
    write = landing.pq.write_table

    def until_full(rows, path, **settings):
        if str(DAY + timedelta(days=1)) in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(rows, path, **settings)

    monkeypatch.setattr(landing.pq, "write_table", until_full)
    with pytest.raises(LoadmasterError, match=r"No space left.*LOADMASTER_VAR.*kept"):
        ingest(config, days, tmp_path / "raw")
    [kept] = kept_chunks(tmp_path / "var")
    assert str(DAY) in kept
    monkeypatch.setattr(landing.pq, "write_table", write)
    assert ingest(config, days, tmp_path / "raw").rows["samples"]
    (tmp_path / "file").write_text("")
    with pytest.raises(LoadmasterError, match="raw cannot be written: "):
        ingest(config, days, tmp_path / "file" / "raw")


def test_the_users_prices_win(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    (tmp_path / "p.csv").write_text("instance_type,usd_per_hour\nm5.xlarge,9\n")
    (tmp_path / "params.yaml").write_text(
        "data: {from: 2026-01-05, to: 2026-01-05}\n"
        f"ingest: {{prices: {tmp_path}/p.csv, sample: {{nodes: 1, functions: 1}}}}"
    )
    assert main(["--params", str(tmp_path / "params.yaml"), "--out", str(tmp_path / "raw")]) == 0
    assert (tmp_path / "raw/prices.csv").read_text() == "instance_type,usd_per_hour\nm5.xlarge,9.0\n"


def test_the_truth_of_the_sample_is_written_on_demand(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    (tmp_path / "params.yaml").write_text("data: {}\ningest: {sample: {nodes: 1, functions: 1, days: 1}}")
    arguments = ["--params", str(tmp_path / "params.yaml"), "--out", str(tmp_path / "raw")]
    assert main([*arguments, "--from", "2026-02-02", "--to", "2026-02-02", "--truth", str(tmp_path / "truth")]) == 0
    assert read_manifest(tmp_path / "raw").first.startswith("2026-02-02")
    truth = duckdb.sql(f"select count(*), sum(requests) from '{tmp_path}/truth/pods.parquet'").fetchall()
    assert truth[0][0] > 1000
    (tmp_path / "log.csv").write_text("time,function,duration_s\n2026-02-02T00:00:00Z,f,1\n")
    (tmp_path / "params.yaml").write_text(
        f"data: {{}}\ningest: {{source: requests, requests: {{paths: [{tmp_path}/log.csv]}}}}"
    )
    with pytest.raises(ConfigError, match="--truth with the source requests"):
        main([*arguments, "--truth", str(tmp_path / "truth")])


def test_patience_is_bounded_by_default():
    assert Patience().attempts > 1
    assert Patience().answer_seconds < 600
