"""The ``demands`` table: every request of a window, dealt to the pods round-robin where the log does not name one."""

from __future__ import annotations

import ibis
import ibis.expr.types as ir

from pipeline.clean.config import CleanConfig
from pipeline.clean.expressions import SECOND_US, ended, exact_mean, window_of
from pipeline.clean.nodes import GIB
from wire.contracts.window import WINDOW_SECONDS

TIES = ["t", "duration_s", "cpu_cores", "mem_bytes"]
"""Requests are dealt in order of arrival; equal times are ordered by size, so that every run deals alike."""


FINE_US = 1_000
"""Only a clock finer than this tells two requests apart: in one millisecond many may be alike."""


def unique_requests(requests: ir.Table) -> ir.Table:
    """Merge rows that are alike in every column and provably one request; ``rows`` says how many each stands for.

    An id proves it, or a time to the microsecond. Other rows that are alike are as many requests, and are kept:
    ``alike`` marks all but the first of them.
    """
    rows = requests.group_by(["cluster", "function", "pod", "id", *TIES]).agg(rows=requests.count())
    proven = (rows.id.nullif("").notnull()) | (rows.t % FINE_US != 0)
    rows = rows.mutate(copy=ibis.range(0, ibis.ifelse(proven, 1, rows.rows)).unnest(), proven=proven)
    rows = rows.mutate(rows=ibis.ifelse(rows.proven, rows.rows, 1), alike=rows["copy"] > 0)
    return rows.drop("id", "proven", "copy")


def with_function(requests: ir.Table, pods: ir.Table) -> ir.Table:
    """Fill in the function of requests that name only a pod, and the namespace of one that a log leaves out."""
    owned = pods.filter(pods.function.notnull())
    owners = owned.group_by("cluster", "pod").agg(owner=owned.function.max())
    joined = requests.left_join(owners, ["cluster", "pod"])
    names = [name for name in requests.columns if name != "function"]
    rows = ended(
        joined.select(
            *[requests[name] for name in names], named=ibis.coalesce(requests.function.nullif(""), owners.owner)
        )
    )
    # A log says ``api``, Kubernetes ``shop/api``: the same where no other namespace has one.
    spaced = owned.filter(owned.function.contains("/"))
    spaced = spaced.mutate(named=spaced.function.re_replace("^[^/]*/", ""))
    only = spaced.group_by("cluster", "named").agg(first=spaced.function.min(), last=spaced.function.max())
    only = only.filter(only["first"] == only["last"])
    joined = rows.left_join(only, ["cluster", "named"])
    return joined.select(*[rows[name] for name in names], function=ibis.coalesce(only["first"], rows.named))


def deal(requests: ir.Table, pods: ir.Table) -> ir.Table:
    """Give every request a pod: the one it names, else the pods of its function in that window, one after another."""
    requests = requests.mutate(window=window_of(requests.t), pod=requests.pod.nullif(""))
    named = requests.filter(requests.pod.notnull())
    order = ibis.window(group_by=["cluster", "function", "window"], order_by="pod")
    everyone = ibis.window(group_by=["cluster", "function", "window"])
    servers = pods.filter(pods.function.notnull() & (pods.samples > 0)).select("cluster", "function", "window", "pod")
    servers = servers.mutate(place=ibis.row_number().over(order), servers=servers.count().over(everyone))
    counts = servers.group_by("cluster", "function", "window").agg(servers=servers.servers.max())
    nameless = requests.filter(requests.pod.isnull())
    turn = ibis.row_number().over(ibis.window(group_by=["cluster", "function", "window"], order_by=TIES))
    nameless = nameless.mutate(turn=turn)
    joined = nameless.inner_join(counts, ["cluster", "function", "window"])
    columns = ["cluster", "function", "window", *TIES]
    dealt = joined.select(*[nameless[name] for name in columns], nameless.turn, counts.servers)
    dealt = dealt.mutate(place=dealt.turn % dealt.servers)
    dealt = dealt.inner_join(servers, ["cluster", "function", "window", "place"])
    dealt = dealt.select([*columns, "pod"])
    return ibis.union(named.select(dealt.columns), dealt)


def from_log(dealt: ir.Table, pods: ir.Table) -> ir.Table:
    """Rows of ``demands`` from dealt requests; a missing size is the function's mean, else what the pod asks for."""
    typical = dealt.group_by("cluster", "function").agg(
        cpu=exact_mean(dealt.cpu_cores), mem=exact_mean(dealt.mem_bytes)
    )
    sizes = pods.select("cluster", "pod", "window", "cpu_request_cores", "mem_request_gib")
    rows = dealt.left_join(typical, ["cluster", "function"]).left_join(sizes, ["cluster", "pod", "window"])
    rows = rows.select(
        *[dealt[name] for name in ("cluster", "pod", "window", "t", "duration_s")],
        cpu_cores=ibis.coalesce(dealt.cpu_cores, typical.cpu, sizes.cpu_request_cores),
        mem_gib=ibis.coalesce(dealt.mem_bytes * GIB, typical.mem * GIB, sizes.mem_request_gib),
        estimated=dealt.cpu_cores.isnull() | dealt.mem_bytes.isnull(),
    )
    rows = rows.filter(rows.cpu_cores.notnull() & rows.mem_gib.notnull())
    order = ibis.window(group_by=["cluster", "pod", "window"], order_by=["t", "duration_s", "cpu_cores", "mem_gib"])
    return rows.mutate(
        position=ibis.row_number().over(order), arrival_offset_s=(rows.t - rows.window * SECOND_US) / SECOND_US
    ).drop("t")


def from_counts(functions: ir.Table, pods: ir.Table, config: CleanConfig) -> ir.Table:
    """Rows of ``demands`` where only counts are known: a function's requests dealt to its pods, evenly spaced.

    Each takes the mean response time; the cpu and memory its pod used are shared by the requests that ran at once.
    """
    key = ["cluster", "function", "window"]
    servers = pods.filter(pods.function.notnull() & (pods.samples > 0))
    order = ibis.window(group_by=key, order_by="thing")
    everyone = ibis.window(group_by=key)
    servers = servers.mutate(place=ibis.row_number().over(order), servers=servers.count().over(everyone))
    counted = functions.filter((functions.requests > 0) & functions.response_mean_s.notnull())
    joined = servers.inner_join(counted, key)
    # The first (requests mod servers) pods get one more, as dealing one after another would.
    share = ((counted.requests - servers.place - 1) / servers.servers).floor().cast("int64") + 1
    rows = joined.select(
        *[servers[name] for name in ("thing", "cluster", "pod", "window")],
        count=ibis.least(share, config.estimated_demands_per_pod),
        share=share,
        duration_s=counted.response_mean_s,
        cpu=ibis.coalesce(servers.cpu_used_mean_cores, servers.cpu_request_cores),
        mem=ibis.coalesce(servers.mem_used_mean_gib, servers.mem_request_gib),
    )
    rows = rows.filter((rows["count"] > 0) & rows.cpu.notnull() & rows.mem.notnull())
    at_once = rows.share * rows.duration_s / WINDOW_SECONDS
    rows = rows.mutate(
        cpu_cores=rows.cpu / at_once.nullif(0.0),
        mem_gib=rows.mem / ibis.greatest(at_once, 1.0),
        position=ibis.range(0, rows["count"]).unnest(),
    )
    rows = rows.filter(rows.cpu_cores.notnull())
    return rows.select(
        "thing",
        "cluster",
        "pod",
        "window",
        "duration_s",
        "cpu_cores",
        "mem_gib",
        "position",
        arrival_offset_s=(rows.position + 0.5) * WINDOW_SECONDS / rows["count"],
        estimated=ibis.literal(True),
    )


def handled(dealt: ir.Table, by_pod: ir.Table) -> ir.Table:
    """How many requests each pod answered in each window: from the log, else from counters by pod."""
    key = ["cluster", "pod", "window"]
    logged = dealt.group_by(key).agg(logged=dealt.count())
    both = logged.outer_join(by_pod, key)
    names = [ibis.coalesce(logged[name], by_pod[name]).name(name) for name in key]
    return both.select(*names, requests_handled=ibis.coalesce(logged.logged, by_pod.requests_handled))
