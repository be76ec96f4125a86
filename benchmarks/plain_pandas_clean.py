"""What ``clean`` does to samples, written in pandas as one would: vectorised, no loop over series; to measure against.

The same rules, merging, rates, jumps, gaps, units, labels and tables, for one day of samples without request log or
told events. ``clean_speed.py`` compares the rows with those of ``clean``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from pipeline.clean.rules import ALIASES, MAX_VALUE
from pipeline.clean.units import CAPACITY, LARGEST_MEM_BYTES, MUCH_LESS, RESOURCE, SLACK, SMALLEST_MEM_BYTES
from pipeline.contracts.raw import METRICS

KEY = ["cluster", "metric", "node", "pod", "function", "card", "le"]
WINDOW = pd.Timedelta(300, "s")
GIB = 2.0**30
FILL, MISSING = 2, 12


def clean(raw: Path, out: Path) -> None:
    """Clean all samples below ``raw`` into window tables, written to ``out``."""
    frame = pd.concat([pq.ParquetFile(file).read().to_pandas() for file in sorted(raw.glob("samples/*/*/*.parquet"))])
    rows_in = len(frame)
    frame["repaired"] = frame["metric"].isin(ALIASES)
    frame["metric"] = frame["metric"].replace(ALIASES)
    rule = _rules(frame)
    bad = rule.notna()
    aside = frame[bad].assign(rule=rule[bad])
    aside["raw"] = [row.to_json() for _, row in frame[bad].iterrows()]
    frame = frame[~bad]
    labels = frame[frame["metric"].isin(["pod_info", "node_info"])].copy()
    entity = frame["metric"].map({name: metric.entity for name, metric in METRICS.items()})
    frame["node"] = frame["node"].where(entity.isin(["node", "card"]))
    frame["pod"] = frame["pod"].where(entity.isin(["pod", "function"]))
    frame["function"] = frame["function"].where(entity == "function")
    frame = frame.sort_values([*KEY, "time", "value"])
    copies = frame.duplicated([*KEY, "time"], keep="last")
    merged = int(copies.sum())
    frame = frame[~copies]
    rising = frame["metric"].map({name: metric.kind == "counter" for name, metric in METRICS.items()}).astype(bool)
    level, count = frame[~rising].copy(), frame[rising].copy()
    level["window_start"], level["weight"], level["own"] = level["time"].dt.floor("300s"), 1.0, True
    count, jumped = _intervals(count)
    long = _statistics(pd.concat([level, count]))
    if rows_in != int(long["samples"].sum()) + merged + len(aside) + jumped:
        raise ValueError("rows were lost")
    _judge_units(long)
    long = _filled(long)
    expected = long[long["samples"] > 0].groupby(["cluster", "metric"])["samples"].median().rename("expected")
    long = long.join(expected, on=["cluster", "metric"])
    long["seen"] = long[["samples", "expected"]].min(axis=1)
    labels["window_start"] = labels["time"].dt.floor("300s")
    wide = {name: _wide(long, name) for name in ("node", "pod", "function")}
    pods = _with_labels(wide["pod"], labels[labels["metric"] == "pod_info"])
    nodes, pods = _shared(_with_types(wide["node"], labels[labels["metric"] == "node_info"]), pods)
    functions = _functions(wide["function"])
    tables = {
        "nodes": (nodes, ["window_start", "cluster", "node"]),
        "pods": (pods, ["window_start", "cluster", "pod"]),
        "functions": (functions, ["window_start", "cluster", "function"]),
        "demands": (_demands(functions, pods), ["window_start", "cluster", "pod", "position"]),
        "events": (_events(labels, pods), ["time", "cluster", "pod"]),
        "quarantine": (aside, ["rule", "time"]),
    }
    for name, (table, order) in tables.items():
        table.sort_values(order).to_parquet(out / f"{name}.parquet", index=False)


def _rules(frame: pd.DataFrame) -> pd.Series:
    """Name the first rule each row breaks."""
    entity = frame["metric"].map({name: metric.entity for name, metric in METRICS.items()})
    missing = pd.Series(False, index=frame.index)
    for name in ("node", "pod", "function", "card"):
        about = (entity == name) | ((entity == "card") & (name == "node"))
        missing |= about & (frame[name].isna() | (frame[name] == ""))
    value, day = frame["value"], frame["time"].dt.floor("1D")
    capacity = frame["metric"].str.contains("_capacity_") & (frame["metric"] != "node_gpu_capacity_cards")
    bucket = (frame["metric"] == "function_response_seconds_bucket") & frame["le"].isna()
    conditions = {
        "time_outside_day": day != day.min(),
        "unknown_metric": entity.isna(),
        "no_entity": missing,
        "no_bucket_bound": bucket,
        "no_value": value.isna(),
        "infinite_value": value.abs() > MAX_VALUE,
        "negative_value": value < 0,
        "zero_capacity": capacity & (value == 0),
        "implausible_value": (frame["metric"] == "card_gpu_used_ratio") & (value > 100),
    }
    found = pd.Series(None, index=frame.index, dtype=object)
    for name, condition in reversed(conditions.items()):
        found[condition.to_numpy()] = name
    return found


def _intervals(count: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Counters as weighted rates of the windows their intervals touch, and how many samples jumped."""
    series = count.groupby(KEY, dropna=False, sort=False)
    steps = {"before": ("value", 1), "since": ("time", 1), "earlier": ("value", 2), "earlier_t": ("time", 2)}
    steps |= {"after": ("value", -1), "later": ("value", -2)}
    for name, (column, step) in steps.items():
        count[name] = series[column].shift(step)
    jumped = _jumped(count["before"], count["value"], count["after"], count["later"])
    skip = _jumped(count["earlier"], count["before"], count["value"], count["after"])
    count["before"] = count["earlier"].where(skip, count["before"])
    count["since"] = count["earlier_t"].where(skip, count["since"])
    count = count[~jumped]
    increase = (count["value"] - count["before"]).where(count["value"] >= count["before"], count["value"])
    span = (count["time"] - count["since"]).dt.total_seconds()
    usable = span <= 900
    count = count.assign(value=(increase / span).where(usable), since=count["since"].where(usable, count["time"]))
    first, last = count["since"].dt.floor("300s"), count["time"].dt.floor("300s")
    crossing = first != last
    inside = count[~crossing].assign(window_start=last[~crossing], own=True)
    inside["weight"] = (inside["time"] - inside["since"]).dt.total_seconds()
    parts = [inside]
    for step in range(4):
        start = first[crossing] + step * WINDOW
        part = count[crossing].assign(window_start=start, own=start == last[crossing])
        begin, end = part["since"].where(part["since"] > start, start), start + WINDOW
        part["weight"] = (part["time"].where(part["time"] < end, end) - begin).dt.total_seconds()
        parts.append(part[start <= last[crossing]])
    return pd.concat(parts), int(jumped.sum())


def _jumped(before: pd.Series, value: pd.Series, after: pd.Series, later: pd.Series) -> pd.Series:
    dip = (value < before) & (before <= after) & (after - value < value)
    return dip | ((value > after) & (after >= before) & (value - before < after) & (value > later.fillna(0)))


def _statistics(both: pd.DataFrame) -> pd.DataFrame:
    """One row a series and window."""
    timed = both["weight"] > 0
    both["amount"] = both["value"] * both["weight"]
    both["weight"] = both["weight"].where(both["value"].notna())
    both["timed"] = both["value"].where(timed)
    both["repaired"] &= both["own"]
    groups = both.groupby([*KEY, "window_start"], dropna=False)
    long = groups.agg(
        amount=("amount", "sum"),
        weight=("weight", "sum"),
        peak=("timed", "max"),
        lowest=("timed", "min"),
        samples=("own", "sum"),
        repaired=("repaired", "sum"),
    )
    long["p95"] = groups["timed"].quantile(0.95)
    long["mean"] = (long["amount"] / long["weight"]).clip(upper=long["peak"])
    return long.reset_index()


def _judge_units(long: pd.DataFrame) -> None:
    """Look for series in the wrong unit or above capacity; the benchmark's day has none, and none are repaired."""
    stats = long.groupby(KEY, dropna=False).agg(
        typical=("mean", "median"), told=("peak", "median"), peak=("peak", "max"), lowest=("lowest", "min")
    )
    stats = stats.reset_index()
    stats["resource"] = stats["metric"].map(RESOURCE)
    told = stats[stats["metric"].isin(CAPACITY)].assign(resource=stats["metric"].map(CAPACITY))
    own = told.groupby(["cluster", "node", "resource"])["told"].max().rename("own")
    largest = told.groupby(["cluster", "resource"])["told"].max().rename("largest")
    stats = stats.join(own, on=["cluster", "node", "resource"]).join(largest, on=["cluster", "resource"])
    bound = stats["own"].where(stats["node"].notna(), stats["largest"]).fillna(LARGEST_MEM_BYTES)
    fell = (stats["metric"] == "node_mem_used_bytes") & (stats["lowest"] < stats["typical"] / MUCH_LESS)
    small = (told["resource"] == "mem") & (told["told"] < SMALLEST_MEM_BYTES)
    over = stats["resource"].notna() & (stats["peak"] > bound * SLACK)
    if over.any() or fell.any() or small.any():
        raise ValueError("the benchmark's day holds a series in a wrong unit")


def _filled(long: pd.DataFrame) -> pd.DataFrame:
    """Short gaps of each series filled with the window before."""
    long = long.sort_values([*KEY, "window_start"])
    known = long[long["mean"].notna()]
    following = known.groupby(KEY, dropna=False)["window_start"].shift(-1)
    lacking = (following - known["window_start"]) / WINDOW - 1
    copies = [
        known[lacking.between(step, FILL)].assign(
            window_start=lambda rows, step=step: rows["window_start"] + step * WINDOW
        )
        for step in range(1, FILL + 1)
    ]
    return pd.concat([long, *[rows.assign(samples=0, repaired=0, amount=np.nan) for rows in copies]])


def _wide(long: pd.DataFrame, entity: str) -> pd.DataFrame:
    """One row a thing and window, with its quality; things with a gap of up to an hour get empty rows."""
    mine = long[long["metric"].str.startswith(entity + "_")]
    mine = mine.assign(filled=(mine["samples"] == 0) & mine["mean"].notna())
    thing = ["cluster", entity]
    index = ["window_start", *thing]
    values = ["mean", "p95", "peak", "amount"]
    wide = mine.pivot_table(index=index, columns="metric", values=values, dropna=False, observed=True)
    wide.columns = ["_".join(names) for names in wide.columns]
    wide = wide.dropna(how="all")
    quality = mine.groupby(index).agg(
        samples=("samples", "sum"),
        seen=("seen", "sum"),
        filled=("filled", "any"),
        repaired=("repaired", "sum"),
        often=("expected", "max"),
    )
    due = mine.drop_duplicates([*thing, "metric"]).groupby(thing)["expected"].sum().rename("due")
    wide = wide.join(quality).reset_index().join(due, on=thing).sort_values([*thing, "window_start"])
    wide["completeness"] = (wide["seen"] / wide["due"]).clip(upper=1.0)
    following = wide.groupby(thing)["window_start"].shift(-1)
    lacking = (following - wide["window_start"]) / WINDOW - 1
    empty = [
        wide.loc[lacking.between(step, MISSING), index].assign(
            window_start=lambda rows, step=step: rows["window_start"] + step * WINDOW,
            samples=0,
            completeness=0.0,
            filled=False,
            repaired=0,
        )
        for step in range(1, MISSING + 1)
    ]
    return pd.concat([wide, *empty]).sort_values([*thing, "window_start"])


def _with_labels(pods: pd.DataFrame, labels: pd.DataFrame) -> pd.DataFrame:
    """Where each pod was and whose it is, carried on; how much of each window it was there."""
    key = ["window_start", "cluster", "pod"]
    ordered = labels.sort_values("time").groupby(key)
    pods = pods.join(ordered[["node", "function"]].last(), on=key).join(
        ordered["node"].nunique().rename("places"), on=key
    )
    life = pods.groupby(["cluster", "pod"])
    pods["node"] = life["node"].ffill()
    pods["node"] = life["node"].bfill()
    pods["function"] = life["function"].transform("max")
    before = life["node"].shift()
    pods["moved"] = (pods["places"] > 1) | (before.notna() & (before != pods["node"]))
    outer = life["window_start"].shift().isna() | life["window_start"].shift(-1).isna()
    pods["present_ratio"] = pods["completeness"].where(outer, 1.0)
    due = np.maximum(np.floor(pods["present_ratio"] * pods["often"]), 1.0) / pods["often"]
    pods["completeness"] = (pods["completeness"] / due).clip(upper=1.0).fillna(0.0)
    return pods


def _with_types(nodes: pd.DataFrame, labels: pd.DataFrame) -> pd.DataFrame:
    kinds = labels.sort_values("time").groupby(["cluster", "node"])["detail"].last().rename("instance_type")
    nodes = nodes.join(kinds, on=["cluster", "node"])
    return nodes.assign(active=(nodes["samples"] > 0) | nodes["filled"].astype(bool))


def _shared(nodes: pd.DataFrame, pods: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What a node's pods ask for, and its cpu shared among them."""
    place = ["window_start", "cluster", "node"]
    pods["cpu"] = pods["peak_pod_cpu_request_cores"] * pods["present_ratio"]
    pods["mem"] = pods["peak_pod_mem_request_bytes"] / GIB * pods["present_ratio"]
    asked = pods.groupby(place)[["cpu", "mem"]].sum()
    nodes = nodes.join(asked.rename(columns={"cpu": "cpu_requested_cores", "mem": "mem_requested_gib"}), on=place)
    pods = pods.merge(nodes[[*place, "peak_node_cpu_capacity_cores"]], on=place, how="left")
    total = pods.groupby(place)["cpu"].transform("sum")
    share = pods["peak_node_cpu_capacity_cores"] * pods["peak_pod_cpu_request_cores"] / total
    return nodes, pods.assign(cpu_assigned_cores=share, mem_assigned_gib=pods["peak_pod_mem_request_bytes"] / GIB)


def _functions(functions: pd.DataFrame) -> pd.DataFrame:
    """Whole requests that add up over the day, and response times."""
    count = functions["amount_function_requests"].fillna(0.0)
    total = count.groupby([functions["cluster"], functions["function"]]).cumsum().round()
    before = total.groupby([functions["cluster"], functions["function"]]).shift().fillna(0.0)
    mean = functions["amount_function_response_seconds_sum"] / count.where(count > 0)
    functions = functions.assign(requests=(total - before).astype(int), response_mean_s=mean)
    fastest = functions.groupby(["cluster", "function"])["response_mean_s"].quantile(0.1).rename("standard_response_s")
    return functions.join(fastest, on=["cluster", "function"])


def _demands(functions: pd.DataFrame, pods: pd.DataFrame) -> pd.DataFrame:
    """Requests dealt round-robin to the pods of their function, evenly spaced."""
    of = ["window_start", "cluster", "function"]
    servers = pods[pods["samples"] > 0].sort_values([*of, "pod"])
    servers = servers.assign(place=servers.groupby(of).cumcount(), servers=servers.groupby(of)["pod"].transform("size"))
    dealt = servers.merge(functions[[*of, "requests", "response_mean_s"]], on=of)
    dealt = dealt[(dealt["requests"] > 0) & dealt["response_mean_s"].notna()]
    share = (dealt["requests"] - dealt["place"] - 1) // dealt["servers"] + 1
    cpu = dealt["mean_pod_cpu_seconds"].fillna(dealt["peak_pod_cpu_request_cores"])
    at_once = share * dealt["response_mean_s"] / 300
    dealt = dealt.assign(
        count=share.clip(upper=200),
        duration_s=dealt["response_mean_s"],
        cpu_cores=cpu / at_once,
        mem_gib=dealt["mean_pod_mem_used_bytes"] / GIB / at_once.clip(lower=1.0),
        estimated=True,
    )
    columns = ["window_start", "cluster", "pod", "count", "duration_s", "cpu_cores", "mem_gib", "estimated"]
    rows = dealt.loc[dealt.index.repeat(dealt["count"]), columns]
    rows["position"] = rows.groupby(["window_start", "cluster", "pod"]).cumcount()
    rows["arrival_offset_s"] = (rows["position"] + 0.5) * 300 / rows["count"]
    return rows.drop(columns="count")


def _events(labels: pd.DataFrame, pods: pd.DataFrame) -> pd.DataFrame:
    """Creations and deletions of pods, from when they were first and last seen."""
    mine = labels[labels["metric"] == "pod_info"].groupby(["cluster", "pod"])["time"].agg(["min", "max"])
    size = pods.groupby(["cluster", "pod"]).agg(
        node=("node", "last"), function=("function", "max"), cpu_cores=("peak_pod_cpu_request_cores", "max")
    )
    both = mine.join(size).reset_index()
    end = both["max"].max().ceil("1D")
    created = both.assign(time=both["min"], action="create")
    gone = both[both["max"] < end - 2 * WINDOW]
    gone = gone.assign(time=gone["max"], action="delete")
    return pd.concat([created, gone])
