"""Units and capacity: series in the wrong unit are scaled, impossible samples rejected, slight excess clamped.

Most series need none of it and are only looked at as windows. A series that is in another unit as a whole is scaled as
a whole; one with single samples that cannot be is summed up again, sample by sample, against its capacity.
"""

from __future__ import annotations

import ibis
import ibis.expr.types as ir

from pipeline.clean.config import CleanConfig
from pipeline.clean.expressions import ended
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
    found["doubtful"] = plan.cache(suspects(stats, found["scales"]), "doubtful")
    for name, rows in found.items():
        plan.result(name, rows.agg(count=rows.count()))


def summaries(long: ir.Table, series: ir.Table) -> ir.Table:
    """One row a series of the day: its ``typical`` mean, what it usually has as a maximum (``told``), its extremes."""
    stats = long.group_by("sid").agg(
        typical=long.mean.median(), told=long.peak.median(), peak=long.peak.max(), lowest=long.lowest.min()
    )
    names = [series[name] for name in ("metric", "entity", "cluster", "node", "card")]
    joined = stats.inner_join(series, "sid").select(*[stats[name] for name in stats.columns], *names)
    return ended(joined)


def scales(stats: ir.Table, config: CleanConfig) -> ir.Table:
    """Series that are in another unit as a whole: ``sid``, ``scale`` and the ``repair``."""
    told = _capacity_scales(stats)
    stats = _with_bounds(stats, told)
    cpu = stats.metric.isin(["node_cpu_used_cores", "pod_cpu_used_cores", "pod_cpu_request_cores"])
    most = stats.bound * config.over_capacity_ratio
    milli = cpu & (stats.typical > most) & (stats.typical <= 1000 * most)
    percent = (stats.metric == "card_gpu_used_ratio") & (stats.peak > SLACK)
    # Where a capacity was in KiB, so was the use that fitted it.
    same = (stats.metric.isin(["node_mem_used_bytes", "card_mem_used_bytes"])) & (stats.factor > 1)
    same &= stats.typical * stats.factor <= most
    scale = ibis.cases((milli, 0.001), (percent, 0.01), (same, stats.factor), else_=1.0)
    repair = ibis.cases((milli, "millicores"), (percent, "percent"), (same, "binary_unit"), else_=ibis.null("string"))
    used = stats.select("sid", scale=scale, repair=repair)
    name = ibis.ifelse(told.scale < 1, "millicores", "binary_unit")
    both = ibis.union(used, told.select("sid", "scale", repair=name))
    return both.filter(both.scale != 1.0)


def apply_scales(long: ir.Table, found: ir.Table) -> ir.Table:
    """Scale the statistics of whole series; all their samples count as repaired."""
    joined = long.left_join(found, "sid")
    scale = found.scale.fill_null(1.0)
    changed = {name: (long[name] * scale).name(name) for name in ("mean", "p95", "peak", "lowest", "increase")}
    changed["repaired"] = ibis.ifelse(found.scale.isnull(), long.repaired, long.samples).name("repaired")
    return joined.select(*[changed.get(name, long[name]) for name in long.columns])


def suspects(stats: ir.Table, found: ir.Table) -> ir.Table:
    """Series with single samples that cannot be: ``sid``, ``metric``, ``bound``, ``typical`` and ``scale``.

    ``stats`` are not scaled yet; ``found`` are the scales.
    """
    joined = stats.left_join(found, "sid")
    scale = found.scale.fill_null(1.0)
    changed = {name: (stats[name] * scale).name(name) for name in ("typical", "told", "peak", "lowest")}
    stats = joined.select(*[changed.get(name, stats[name]) for name in stats.columns])
    stats = ended(stats)
    stats = _with_bounds(stats, _capacity_scales(stats))
    over = stats.peak > stats.bound * SLACK
    fell = (stats.metric == "node_mem_used_bytes") & (stats.lowest > 0) & (stats.lowest < stats.typical / MUCH_LESS)
    picked = stats.filter(over | fell)
    joined = picked.left_join(found, "sid")
    return joined.select(
        picked.sid, picked.metric, picked.bound, picked.typical, scale=found.scale.fill_null(1.0), whole=found.repair
    )


def judged_gauges(rows: ir.Table, doubtful: ir.Table, config: CleanConfig) -> ir.Table:
    """Samples of doubtful gauges with ``value`` put right, ``repair`` named, and ``rejected`` where nothing helps."""
    joined = rows.inner_join(doubtful, "sid").select(
        rows.sid,
        rows.t,
        rows.renamed,
        raw=rows.value,
        **{name: doubtful[name] for name in doubtful.columns if name != "sid"},
    )
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
    rejected = (over & ~milli).fill_null(False)
    judged = joined.mutate(right=right, repair=repair, rejected=rejected, over=rejected)
    repaired = judged.repair.notnull() | judged.renamed
    return judged.select("sid", "t", "raw", "repair", "rejected", "over", value=judged.right, repaired=repaired)


def judged_intervals(steps: ir.Table, doubtful: ir.Table, config: CleanConfig) -> ir.Table:
    """Intervals of doubtful counters: impossible rates rejected, slight excess clamped."""
    joined = steps.inner_join(doubtful, "sid").select(*[steps[name] for name in steps.columns], doubtful.bound)
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
    told = stats.filter(stats.metric.isin(list(CAPACITY)))
    told = told.mutate(resource=told.metric.cases(*CAPACITY.items(), else_=ibis.null("string")))
    used = stats.filter(stats.metric == "node_mem_used_bytes").select("cluster", "node", used="typical")
    joined = told.left_join(used, ["cluster", "node"]).select(*[told[name] for name in told.columns], used.used)
    memory = joined.resource.isin(["mem", "card"])
    # A card's memory is not its node's.
    floor = ibis.ifelse(joined.resource == "mem", joined.used.fill_null(0.0), 0.0)
    small = memory & ((joined.told < SMALLEST_MEM_BYTES) | (floor > 100 * joined.told))
    least = ibis.greatest(floor, LIKELY_MEM_BYTES)
    units = [(small & (joined.told * unit >= least), unit) for unit in BINARY]
    milli = (joined.resource == "cpu") & (joined.told > MAX_NODE_CORES)
    return joined.mutate(scale=ibis.cases((milli, 0.001), *units, else_=1.0))


def _with_bounds(stats: ir.Table, told: ir.Table) -> ir.Table:
    """Add the bound of every series that has one, and by what its capacity's unit was wrong (``factor``).

    A node is bounded by its own capacity, a pod by the largest node of its cluster (it may have moved), a card by its
    own memory; where no capacity is known, by what the largest machines have.
    """
    stats = stats.filter(stats.metric.isin(list(RESOURCE)))
    stats = stats.mutate(resource=stats.metric.cases(*RESOURCE.items(), else_=ibis.null("string")))
    capacities = told.select("cluster", "node", "resource", capacity=told.told * told.scale, factor=told.scale)
    by_node = capacities.group_by("cluster", "node", "resource").agg(
        own=capacities.capacity.max(), own_factor=capacities.factor.max()
    )
    by_cluster = capacities.group_by("cluster", "resource").agg(largest=capacities.capacity.max())
    joined = stats.left_join(by_node, ["cluster", "node", "resource"]).left_join(by_cluster, ["cluster", "resource"])
    rows = joined.select(*[stats[name] for name in stats.columns], by_node.own, by_node.own_factor, by_cluster.largest)
    default = rows.resource.cases(("cpu", MAX_NODE_CORES), ("ratio", 1.0), ("gpu", 1024.0), else_=LARGEST_MEM_BYTES)
    bound = ibis.ifelse(rows.entity == "pod", rows.largest, rows.own)
    return rows.mutate(bound=ibis.coalesce(bound, default), factor=rows.own_factor.fill_null(1.0)).drop(
        "own", "own_factor", "largest"
    )
