"""Units and capacity: series in the wrong unit are scaled, impossible samples rejected, slight excess clamped.

Most series need none of it and are only looked at as windows. A series that is in another unit as a whole is scaled as
a whole; one with single samples that cannot be is summed up again, sample by sample, against its capacity.
"""

from __future__ import annotations

import ibis
import ibis.expr.types as ir

from pipeline.clean.config import CleanConfig
from pipeline.clean.expressions import ended, window_of
from pipeline.clean.plan import Planner, promised
from pipeline.clean.rules import MAX_NODE_CORES
from pipeline.clean.series import LONG

SMALLEST_MEM_BYTES = float(2**22)
"""No machine has less than 4 MiB (VMs of 8 MiB exist): a smaller capacity is in MiB or GiB. KiB show in the use."""
LIKELY_MEM_BYTES = float(2**28)
"""A capacity is read in the smallest unit that gives at least this."""
LARGEST_MEM_BYTES = float(2**46)
BINARY = (1024.0, 1024.0**2, 1024.0**3)
MUCH_LESS = 300.0
"""A node's memory in use does not fall by this factor within a day; by 1,024 it does when the unit changes."""
LEAST_USED = 1e-4
"""A machine uses more of its memory than this: kernel and kubelet alone do."""
LEAST_POD_BYTES = 65_536.0
"""No process lives in less, and nobody asks for less: a smaller number is in another unit."""
SLACK = 1.0 + 1e-9

RESOURCE = {
    "node_cpu_seconds": "cpu",
    "node_cpu_used_cores": "cpu",
    "node_mem_used_bytes": "mem",
    "node_gpu_used_cards": "gpu",
    "pod_cpu_seconds": "cpu",
    "pod_cpu_used_cores": "cpu",
    "pod_cpu_request_cores": "cpu",
    "pod_mem_used_bytes": "mem",
    "pod_mem_request_bytes": "mem",
    "card_mem_used_bytes": "card",
    "card_gpu_used_ratio": "ratio",
}
"""What bounds a metric. Network and disk are not bounded: what is called their capacity is often only a baseline."""
CAPACITY = {
    "node_cpu_capacity_cores": "cpu",
    "node_mem_capacity_bytes": "mem",
    "node_gpu_capacity_cards": "gpu",
    "card_mem_capacity_bytes": "card",
}


def doubts(plan: Planner, series: ibis.Schema, config: CleanConfig) -> None:
    """Add the queries that find series in another unit (``scales``) and those with impossible samples (``doubtful``).

    They are about ``measured``, the statistics as they were measured; the results say how many there are.
    """
    stats = plan.cache(summaries(promised("measured", LONG), promised("series", series)), "stats")
    found = {"scales": plan.cache(scales(stats, config), "scales")}
    found["doubtful"] = plan.cache(suspects(stats, found["scales"], config), "doubtful")
    for name, rows in found.items():
        plan.result(name, rows.agg(count=rows.count()))


def summaries(long: ir.Table, series: ir.Table) -> ir.Table:
    """One row a series of the day: its ``typical`` mean, what it usually has as a maximum (``told``), its extremes."""
    stats = long.group_by("sid").agg(
        typical=long.mean.median(), stated=long.peak.median(), peak=long.peak.max(), lowest=long.lowest.min()
    )
    names = [series[name] for name in ("metric", "entity", "cluster", "node", "card")]
    joined = stats.inner_join(series, "sid").select(*[stats[name] for name in stats.columns], *names)
    return ended(joined)


def scales(stats: ir.Table, config: CleanConfig) -> ir.Table:
    """Series that are in another unit as a whole: ``sid``, ``scale`` and the ``repair``."""
    stated = _capacity_scales(stats)
    stats = _with_bounds(stats, stated)
    cpu = stats.metric.isin(["node_cpu_used_cores", "pod_cpu_used_cores", "pod_cpu_request_cores"])
    most = stats.bound * config.over_capacity_ratio
    milli = cpu & (stats.typical > most) & (stats.typical <= 1000 * most) & ~_percent(stats, config)
    percent = (stats.metric == "card_gpu_used_ratio") & (stats.peak > SLACK)
    # Where a capacity was in KiB, so was the use that fitted it.
    same = (stats.metric.isin(["node_mem_used_bytes", "card_mem_used_bytes"])) & (stats.factor > 1)
    same &= stats.typical * stats.factor <= most
    scale = ibis.cases((milli, 0.001), (percent, 0.01), (same, stats.factor), else_=1.0)
    repair = ibis.cases((milli, "millicores"), (percent, "percent"), (same, "binary_unit"), else_=ibis.null("string"))
    used = stats.select("sid", scale=scale, repair=repair)
    name = ibis.ifelse(stated.scale < 1, "millicores", "binary_unit")
    both = ibis.union(used, stated.select("sid", "scale", repair=name))
    return both.filter(both.scale != 1.0)


def apply_scales(long: ir.Table, found: ir.Table) -> ir.Table:
    """Scale the statistics of whole series; all their samples count as repaired."""
    joined = long.left_join(found, "sid")
    scale = found.scale.fill_null(1.0)
    changed = {name: (long[name] * scale).name(name) for name in ("mean", "p95", "peak", "lowest", "increase")}
    changed["repaired"] = ibis.ifelse(found.scale.isnull(), long.repaired, long.samples).name("repaired")
    return joined.select(*[changed.get(name, long[name]) for name in long.columns])


def _percent(stats: ir.Table, config: CleanConfig) -> ir.BooleanColumn:
    """Tell of use of cpu above capacity whether it may as well be percent, of the machine or of its cores."""
    used = stats.metric.isin(["node_cpu_used_cores", "pod_cpu_used_cores"]) & stats.known
    most = stats.bound * config.over_capacity_ratio
    return used & (stats.typical > most) & (stats.peak <= 100 * most)


def _doubt(stats: ir.Table, config: CleanConfig) -> ir.BooleanColumn:
    """Tell whether a series is in another unit all day without anything that tells in which."""
    tiny = (stats.metric == "node_mem_used_bytes") & stats.known & (stats.peak < stats.bound * LEAST_USED)
    pods = stats.metric.isin(["pod_mem_used_bytes", "pod_mem_request_bytes"]) & (stats.peak < LEAST_POD_BYTES)
    return _percent(stats, config) | ((tiny | pods) & (stats.typical > 0))


def suspects(stats: ir.Table, found: ir.Table, config: CleanConfig) -> ir.Table:
    """Series with single samples that cannot be: ``sid``, ``metric``, ``bound``, ``typical`` and ``scale``.

    ``stats`` are not scaled yet; ``found`` are the scales. ``doubt`` marks series of which no sample can be read, and
    ``cluster``, ``node`` and ``resource`` say what holds them (:func:`moments`).
    """
    joined = stats.left_join(found, "sid")
    scale = found.scale.fill_null(1.0)
    changed = {name: (stats[name] * scale).name(name) for name in ("typical", "stated", "peak", "lowest")}
    stats = joined.select(*[changed.get(name, stats[name]) for name in stats.columns])
    stats = ended(stats)
    stats = _with_bounds(stats, _capacity_scales(stats))
    # A machine that was larger for a part of the day is suspected by its smallest size, and judged by that of the time.
    over = stats.peak > stats.least * SLACK
    doubt = _doubt(stats, config)
    fell = (stats.metric == "node_mem_used_bytes") & (stats.lowest > 0) & (stats.lowest < stats.typical / MUCH_LESS)
    picked = stats.mutate(doubt=doubt).filter(over | fell | doubt)
    joined = picked.left_join(found, "sid")
    names = ("sid", "metric", "bound", "typical", "doubt", "cluster", "node", "resource", "entity")
    return joined.select(*[picked[name] for name in names], scale=found.scale.fill_null(1.0), whole=found.repair)


def moments(long: ir.Table, series: ir.Table, doubtful: ir.Table) -> ir.Table:
    """What bounds doubtful series in each window in which a capacity is told: ``sid``, ``window``, ``now``.

    ``long`` is scaled.
    """
    stated = series.filter(series.metric.isin(list(CAPACITY)))
    stated = stated.mutate(resource=stated.metric.cases(*CAPACITY.items(), else_=ibis.null("string")))
    joined = long.inner_join(stated, "sid")
    sizes = ended(joined.select(stated.cluster, stated.node, stated.resource, long.window, long.peak))
    by_node = sizes.group_by("cluster", "node", "resource", "window").agg(now=sizes.peak.max())
    by_cluster = sizes.group_by("cluster", "resource", "window").agg(now=sizes.peak.max())
    own, pods = doubtful.filter(doubtful.entity != "pod"), doubtful.filter(doubtful.entity == "pod")
    of_nodes = own.inner_join(by_node, ["cluster", "node", "resource"]).select("sid", "window", "now")
    of_pods = pods.inner_join(by_cluster, ["cluster", "resource"]).select("sid", "window", "now")
    return ibis.union(ended(of_nodes), ended(of_pods))


def judged_gauges(rows: ir.Table, doubtful: ir.Table, at: ir.Table, config: CleanConfig) -> ir.Table:
    """Samples of doubtful gauges with ``value`` put right, ``repair`` named, and ``rejected`` where nothing helps.

    ``at`` are the bounds of the moment (:func:`moments`).
    """
    joined = rows.inner_join(doubtful, "sid").select(
        rows.sid,
        rows.t,
        rows.renamed,
        raw=rows.value,
        **{name: doubtful[name] for name in ("metric", "bound", "typical", "doubt", "scale", "whole")},
    )
    joined = _of_the_moment(ended(joined), at)
    joined = joined.mutate(value=joined.raw * joined.scale)
    value, typical, bound = joined.value, joined.typical, joined.bound
    over = value > bound * config.over_capacity_ratio
    milli = over & joined.metric.contains("_cpu_") & (value / 1000).between(typical / 10, typical * 10)
    fell = (joined.metric == "node_mem_used_bytes") & (value > 0) & (value < typical / MUCH_LESS)
    units = [(fell & (value * unit).between(typical / 8, typical * 8), value * unit) for unit in BINARY]
    right = ibis.cases((milli, value / 1000), *units, ((value > bound) & ~over, bound), else_=value)
    repair = ibis.cases(
        (milli, "millicores"),
        *[(condition, "binary_unit") for condition, _ in units],
        ((value > bound * SLACK) & ~over, "clamped"),
        else_=joined.whole,
    )
    over = (over & ~milli).fill_null(False) & ~joined.doubt
    judged = joined.mutate(right=right, repair=repair, rejected=over | joined.doubt, over=over)
    repaired = judged.repair.notnull() | judged.renamed
    names = ("sid", "t", "raw", "repair", "rejected", "over", "doubt")
    return judged.select(*names, value=judged.right, repaired=repaired)


def _of_the_moment(rows: ir.Table, at: ir.Table) -> ir.Table:
    """Put the bound that held at the time of each row in the place of the day's."""
    rows = rows.mutate(window=window_of(rows.t))
    joined = rows.left_join(at, ["sid", "window"])
    kept = [rows[name] for name in rows.columns if name not in ("bound", "window")]
    return ended(joined.select(*kept, bound=ibis.coalesce(at.now, rows.bound)))


def judged_intervals(steps: ir.Table, doubtful: ir.Table, at: ir.Table, config: CleanConfig) -> ir.Table:
    """Intervals of doubtful counters: impossible rates rejected, slight excess clamped; ``at``: see :func:`moments`."""
    joined = steps.inner_join(doubtful, "sid").select(*[steps[name] for name in steps.columns], doubtful.bound)
    joined = _of_the_moment(ended(joined), at)
    over = (joined.rate > joined.bound * config.over_capacity_ratio).fill_null(False)
    excess = (joined.rate > joined.bound * SLACK).fill_null(False)
    judged = joined.mutate(
        rate=ibis.cases((over, ibis.null("float64")), (excess, joined.bound), else_=joined.rate),
        start_t=ibis.ifelse(over, joined.t, joined.start_t),
        rejected=joined.rejected | over,
        clamped=excess & ~over & ~joined.rejected,
        over=over,
    )
    clamped = ibis.ifelse(judged.clamped, "clamped", ibis.null("string"))
    return judged.mutate(repair=clamped, repaired=judged.repaired | judged.clamped).drop("bound", "clamped")


def _capacity_scales(stats: ir.Table) -> ir.Table:
    """What each capacity series says (``told``), and by what its unit is wrong (``scale``)."""
    stated = stats.filter(stats.metric.isin(list(CAPACITY)))
    stated = stated.mutate(resource=stated.metric.cases(*CAPACITY.items(), else_=ibis.null("string")))
    used = stats.filter(stats.metric == "node_mem_used_bytes").select("cluster", "node", used="typical")
    joined = stated.left_join(used, ["cluster", "node"]).select(*[stated[name] for name in stated.columns], used.used)
    memory = joined.resource.isin(["mem", "card"])
    # A card's memory is not its node's.
    floor = ibis.ifelse(joined.resource == "mem", joined.used.fill_null(0.0), 0.0)
    small = memory & ((joined.stated < SMALLEST_MEM_BYTES) | (floor > 100 * joined.stated))
    least = ibis.greatest(floor, LIKELY_MEM_BYTES)
    units = [(small & (joined.stated * unit >= least), unit) for unit in BINARY]
    milli = (joined.resource == "cpu") & (joined.stated > MAX_NODE_CORES)
    return joined.mutate(scale=ibis.cases((milli, 0.001), *units, else_=1.0))


def _with_bounds(stats: ir.Table, stated: ir.Table) -> ir.Table:
    """Add the bound of every series that has one, and by what its capacity's unit was wrong (``factor``).

    A node is bounded by its own capacity, a pod by the largest node of its cluster (it may have moved), a card by its
    own memory; where no capacity is known, by what the largest machines have.
    """
    stats = stats.filter(stats.metric.isin(list(RESOURCE)))
    stats = stats.mutate(resource=stats.metric.cases(*RESOURCE.items(), else_=ibis.null("string")))
    capacities = stated.select(
        "cluster",
        "node",
        "resource",
        capacity=stated.stated * stated.scale,
        lowest=stated.lowest * stated.scale,
        factor=stated.scale,
    )
    by_node = capacities.group_by("cluster", "node", "resource").agg(
        own=capacities.capacity.max(), own_least=capacities.lowest.min(), own_factor=capacities.factor.max()
    )
    by_cluster = capacities.group_by("cluster", "resource").agg(
        largest=capacities.capacity.max(), largest_least=capacities.lowest.max()
    )
    joined = stats.left_join(by_node, ["cluster", "node", "resource"]).left_join(by_cluster, ["cluster", "resource"])
    of_node = [by_node[name] for name in ("own", "own_least", "own_factor")]
    of_cluster = [by_cluster[name] for name in ("largest", "largest_least")]
    rows = joined.select(*[stats[name] for name in stats.columns], *of_node, *of_cluster)
    default = rows.resource.cases(("cpu", MAX_NODE_CORES), ("ratio", 1.0), ("gpu", 1024.0), else_=LARGEST_MEM_BYTES)
    bound = ibis.ifelse(rows.entity == "pod", rows.largest, rows.own)
    least = ibis.ifelse(rows.entity == "pod", rows.largest_least, rows.own_least)
    return rows.mutate(
        bound=ibis.coalesce(bound, default),
        least=ibis.coalesce(least, default),
        known=bound.notnull(),
        factor=rows.own_factor.fill_null(1.0),
    ).drop("own", "own_least", "own_factor", "largest", "largest_least")
