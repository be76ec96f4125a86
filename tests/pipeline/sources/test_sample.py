import hashlib
from datetime import date
from pathlib import Path

import duckdb
import msgspec
import pytest

from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.sources.landing import read_manifest
from pipeline.sources.sample import SampleConfig, SampleSource
from wire.errors import ConfigError

DAY = date(2026, 1, 5)
ONE_DAY = Range(DAY, DAY)
FUNCTIONS_ALONE = {"vms_per_day": 0, "jobs_per_day": 0, "workflows_per_day": 0}


@pytest.fixture(autouse=True)
def _own_var(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path_factory.mktemp("var")))


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """One day, dirty and clean, with its truth."""
    folder = tmp_path_factory.mktemp("sample")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOADMASTER_VAR", str(folder / "var"))
        ingest(IngestConfig(), ONE_DAY, folder / "dirty")
        clean = SampleConfig(dirt=False)
        ingest(IngestConfig(sample=clean), ONE_DAY, folder / "clean")
    SampleSource(clean, [DAY]).write_truth(folder / "truth")
    return folder


def query(sql: str, folder: Path, which: str = "clean"):
    for table in ("samples", "requests", "events"):
        sql = sql.replace(f"OTHER_{table.upper()}", f"read_parquet('{folder}/{which}/{table}/*/*/*.parquet')")
        sql = sql.replace(table.upper(), f"read_parquet('{folder}/{which}/{table}/*/cluster=sample-1/*.parquet')")
    sql = sql.replace("TASKS", f"read_parquet('{folder}/{which}/tasks/*/*/*.parquet')")
    sql = sql.replace("TRUTH", f"'{folder}/truth")
    return duckdb.sql("set timezone='UTC'; " + sql).fetchall()


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()


def test_same_settings_give_the_same_bytes(sample, tmp_path):
    ingest(IngestConfig(), ONE_DAY, tmp_path / "again")
    assert digest(tmp_path / "again") == digest(sample / "dirty")


def test_another_first_day_gives_another_load(sample, tmp_path):
    later = date(2026, 1, 6)
    manifest = ingest(IngestConfig(), Range(later, later), tmp_path / "later")
    assert manifest.rows != read_manifest(sample / "dirty").rows


def test_node_counters_add_up_to_the_true_use(sample):
    [(worst,)] = query(
        """
        with seen as (
            select node, max(value) - min(value) as used, min(time) as a, max(time) as b
            from SAMPLES where metric = 'node_cpu_seconds' group by node),
        truth as (
            select s.node, s.used, sum(t.cpu_cores * greatest(0, epoch(least(s.b, t.time + interval 1 minute)) -
                   epoch(greatest(s.a, t.time)))) as real
            from seen s join TRUTH/nodes.parquet' t on t.node = s.node group by all)
        select max(abs(used - real) / real) from truth""",
        sample,
    )
    assert worst < 1e-6


def test_pod_counters_add_up_to_the_true_use(sample):
    [(used, real)] = query(
        """
        select (select sum(m) from (select max(value) as m from SAMPLES where metric = 'pod_cpu_seconds' group by pod)),
               (select sum(cpu_cores) * 60 from TRUTH/pods.parquet')""",
        sample,
    )
    assert used == pytest.approx(real, rel=0.03)  # the last part of a life is after the last scrape


def test_gateway_counts_the_requests_of_the_log(sample):
    rows = query(
        """
        with counted as (select function, max(value) n from SAMPLES where metric = 'function_requests' group by 1),
        logged as (select function, count(*) n from REQUESTS
                   where time + to_seconds(duration_s) <=
                         (select max(time) from SAMPLES where metric = 'function_requests') group by 1)
        select c.n, l.n from counted c join logged l using (function)""",
        sample,
    )
    assert len(rows) == 12
    assert all(counted == logged for counted, logged in rows)


def test_busy_nodes_answer_slower(sample):
    [(busy, calm)] = query(
        """
        with load as (select p.pod, p.time, n.cpu_cores / c.value as share
                      from TRUTH/pods.parquet' p join TRUTH/nodes.parquet' n using (node, time)
                      join (select distinct node, value from SAMPLES where metric = 'node_cpu_capacity_cores') c
                      using (node)),
        slow as (select r.duration_s / median(r.duration_s) over (partition by r.function) as ratio, load.share
                 from TRUTH/requests.parquet' r join load
                 on load.pod = r.pod and load.time = date_trunc('minute', r.time))
        select avg(ratio) filter (share > 0.8), avg(ratio) filter (share < 0.4) from slow""",
        sample,
    )
    assert busy > 1.15 * calm


def test_requested_cpu_peaks_where_placement_matters(sample):
    [(peak, low)] = query(
        """
        with asked as (select date_trunc('minute', time) m, sum(value) a from SAMPLES
                       where metric = 'pod_cpu_request_cores' group by 1 order by m offset 5)
        select quantile_cont(a, 0.98), quantile_cont(a, 0.05) from asked""",
        sample,
    )
    [(capacity,)] = query(
        "select sum(value) from (select distinct node, value from SAMPLES where metric = 'node_cpu_capacity_cores')",
        sample,
    )
    assert 0.70 <= peak / capacity <= 0.92
    assert low / capacity < 0.55


def test_requested_never_exceeds_a_node(sample):
    [(worst,)] = query(
        """
        with steps as (select node, time, action, case action when 'create' then 1 else -1 end * cpu_cores as step
                       from EVENTS where node is not null),
        level as (select node, sum(step) over (partition by node order by time, action desc rows unbounded preceding) l
                  from steps)
        select max(l / c.value) from level
        join (select distinct node, value from SAMPLES where metric = 'node_cpu_capacity_cores') c using (node)""",
        sample,
    )
    assert worst <= 1.0


def test_every_kind_of_dirt_is_there(sample):
    def count(sql):
        return query(sql, sample, "dirty")[0][0]

    series = "metric, node, pod, function, card, le"
    assert count(
        f"select count(*) from (select {series}, time, value, count(*) n from SAMPLES group by all having n > 1)"
    )
    assert count(
        f"select count(*) from (select {series}, time, count(distinct value) n from SAMPLES group by all having n > 1)"
    )
    assert count("select count(*) from SAMPLES where isnan(value)")
    assert count("select count(*) from SAMPLES where value < 0")
    assert count("select count(*) from SAMPLES where metric = 'pod_info' and node is null")
    assert count("select count(*) from SAMPLES where metric = 'pod_cpu_request_cores' and value >= 100")
    assert count("select count(*) from SAMPLES where metric = 'node_mem_used_bytes' and value between 0 and 1e8")
    assert count("select count(*) from SAMPLES where metric = 'pod_mem_used_bytes' and value > 1e11")
    fell = "value < lag(value) over (partition by {0} order by time)"
    resets = f"select count(*) from (select {fell} fell from SAMPLES where metric = '{{1}}') where fell"
    assert count(resets.format("pod", "pod_cpu_seconds")) > 10
    assert count(resets.format("function", "function_requests")) >= 12
    gap = "epoch(time - lag(time) over (partition by node order by time))"
    assert count(f"select max(gap) from (select {gap} gap from SAMPLES where metric = 'node_ready')") > 1700
    before = f"max(epoch(time)) over (partition by {series} order by file_row_number rows unbounded preceding)"
    rows = f"read_parquet('{sample}/dirty/samples/*/cluster=sample-1/*.parquet', file_row_number=true)"
    assert count(f"select count(*) from (select epoch(time) - {before} back from {rows}) where back < 0") > 1000
    assert count("select count(*) from REQUESTS where duration_s < 0")
    assert count("select count(*) from EVENTS where node is null and action = 'create'")
    clean = read_manifest(sample / "clean")
    assert clean.rows["samples"] != read_manifest(sample / "dirty").rows["samples"]


def test_prices_lie_beside_the_tables(sample):
    types = query("select distinct detail from OTHER_SAMPLES where metric = 'node_info'", sample)
    assert len(types) == 9
    text = (sample / "dirty" / "prices.csv").read_text()
    assert all(kind in text for (kind,) in types)


def test_scrape_interval_need_not_divide_the_window(tmp_path):
    config = SampleConfig(dirt=False, scrape_seconds=57.0, nodes=2, functions=2, **FUNCTIONS_ALONE)
    manifest = ingest(IngestConfig(sample=config), ONE_DAY, tmp_path / "raw")
    assert manifest.metrics["node_ready"] == pytest.approx(2 * 86_400 / 57, abs=2)


def test_two_clusters_have_partitions_of_their_own(tmp_path):
    config = SampleConfig(clusters=2, nodes=2, functions=2, **FUNCTIONS_ALONE)
    manifest = ingest(IngestConfig(sample=config), ONE_DAY, tmp_path / "raw")
    assert manifest.clusters == ["sample-1", "sample-2"]
    assert (tmp_path / "raw/samples/date=2026-01-05/cluster=sample-2").is_dir()


def test_the_functions_cluster_does_not_depend_on_the_others(sample, tmp_path):
    ingest(IngestConfig(sample=SampleConfig(**FUNCTIONS_ALONE)), ONE_DAY, tmp_path / "alone")
    for table in ("samples", "requests", "events"):
        part = f"{table}/date={DAY}/cluster=sample-1"
        assert digest(tmp_path / "alone" / part) == digest(sample / "dirty" / part)


def test_vms_fit_their_hosts_and_most_are_short_lived(sample):
    [(worst, refused, vms)] = query(
        """
        with vm as (select * from OTHER_EVENTS where kind = 'vm'),
        steps as (select node, sum(case action when 'create' then 1 else -1 end * cpu_cores)
                  over (partition by node order by time, action desc rows unbounded preceding) as level from vm)
        select max(level), (select count(*) from vm where node is null), (select count(distinct entity) from vm)
        from steps where node is not null""",
        sample,
    )
    assert 40 < worst <= 80
    assert 1200 < vms < 1800
    assert refused < 0.1 * vms
    [(hour,)] = query(
        """select count(*) from OTHER_EVENTS c join OTHER_EVENTS d using (cluster, entity)
           where c.kind = 'vm' and c.action = 'create' and d.action = 'delete' and d.time < c.time + interval 1 hour""",
        sample,
    )
    assert hour > 0.5 * vms


def test_jobs_wait_run_alone_on_a_card_and_say_how_long(sample):
    [(jobs, negative, waited, models)] = query(
        """
        select count(*), count(*) filter (wait < -0.002), count(*) filter (wait > 60), count(distinct function)
        from (select c.function, epoch(d.time - c.time) - d.runtime_s as wait
              from OTHER_EVENTS c join OTHER_EVENTS d using (cluster, entity)
              where c.kind = 'job' and c.action = 'create' and d.action = 'delete' and c.epochs > 0 and c.data_gb > 0
                and c.gpu_mem_bytes > 0 and c.node is null and d.node is not null)""",
        sample,
    )
    assert 400 < jobs < 700
    assert negative == 0
    assert waited > 20
    assert models == 8
    [(cards, kinds, most)] = query(
        """select count(distinct (cluster, node, card)), count(distinct detail), (
                select max(value) from OTHER_SAMPLES where metric = 'card_gpu_used_ratio')
           from OTHER_SAMPLES where metric = 'card_info' and cluster like 'sample-gpu%'""",
        sample,
    )
    assert (cards, kinds) == (13, 4)
    assert most <= 1.0


def test_workflows_are_of_five_to_sixty_tasks_and_run_where_there_are_nodes(sample):
    [(flows, fewest, most, strangers)] = query(
        """
        with flows as (select workflow, count(*) as n from TASKS group by 1),
        nodes as (select distinct node from OTHER_SAMPLES where cluster = 'sample-flow')
        select (select count(*) from flows), (select min(n) from flows), (select max(n) from flows),
               (select count(*) from TASKS where node not in (from nodes))""",
        sample,
    )
    assert 60 < flows <= 100
    assert 5 <= fewest < 12
    assert 45 < most <= 60
    assert strangers == 0
    [(bad,)] = query("select count(*) from TASKS where runtime_s < 0", sample, "dirty")
    assert bad == 1


@pytest.mark.parametrize(
    "bad", [{"days": 0}, {"jobs_per_day": -1}, {"nodes": -1}, {"scrape_seconds": 0}, {"scrape_seconds": 900}]
)
def test_senseless_sizes_are_refused(bad):
    with pytest.raises((ConfigError, msgspec.ValidationError), match=next(iter(bad))):
        msgspec.convert(bad, SampleConfig)
