"""``vm`` from windows: creations and deletions of VMs, in order of time, and the servers that they were recorded on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline import windows
from pipeline.contracts.evaluation import Origin
from pipeline.datasets import lifetimes
from pipeline.datasets.copies import Copies, mean_over
from pipeline.datasets.dataset import Dataset, Rows, later
from pipeline.datasets.lives import lives
from pipeline.datasets.origins import Tally, read
from pipeline.errors import DataError
from sched_env import scenarios
from sched_env.scenarios import Scenario
from sched_env.vm.events import compile_events, creation_of
from sched_env.vm.scenario import VmScenario
from sched_env.vm.tables import VmTrace

ABOUT: dict[str, tuple[str, str]] = {
    "size": ("placed", "cpu and memory with the creation of VMs (events), or requests of pods"),
    "life": ("placed", "deletions of VMs (events)"),
    "recorded server": ("", "the node in the events of VMs"),
    "half of the server": ("", "the NUMA node of each VM, which no exporter tells: it is the emptier one"),
    "starting state": ("placed", "events from before the first day, with nodes"),
    "server size": ("placed", "capacities of the nodes that hold VMs (node-exporter)"),
    "price": ("", "ingest.prices: a CSV of instance_type and usd_per_hour"),
}
"""Feature -> what it decides and what would measure it."""


@dataclasses.dataclass(frozen=True)
class RecordedVms(VmTrace):
    """A trace with the servers that it was recorded on."""

    half_cpu: float = 0.0
    """Cores of half a server; 0: windows do not say."""
    half_mem: float = 0.0
    usd_per_hour: float = np.nan
    began_s: float = 0.0
    """Seconds of the day (UTC) at which its time is 0."""


def load(folder: Path, start: datetime, end: datetime) -> RecordedVms:
    """Load the creations and deletions of ``[start, end)``, deletions first within one moment.

    VMs that were there before are the first rows of their cluster, at second 0. Where no source tells of VMs, pods are
    what comes and goes. Clusters follow each other: an episode stays in one. Servers are the nodes of the commonest
    size, and what ran on others is left out. A life that goes on beyond ``end`` has no deletion: nothing of a later
    split is seen.
    """
    arrays = _arrays(folder, start, end)
    numbers = {name: float(arrays[name]) for name in ("half_cpu", "half_mem", "usd_per_hour", "began_s")}
    columns = {name: values for name, values in arrays.items() if name in RecordedVms.__dataclass_fields__}
    return RecordedVms(**columns | numbers)  # type: ignore[arg-type]


def origins(folder: Path, start: datetime, end: datetime) -> list[Origin]:
    """Say where the numbers of a span come from."""
    arrays = _arrays(folder, start, end)
    return read(arrays["origin_features"], arrays["origin_counts"], ABOUT)


def _arrays(folder: Path, start: datetime, end: datetime) -> windows.Arrays:
    files = [file for table in ("nodes", "pods") for file in windows.files_of(folder, table, start, end)]
    files += windows.files_of(folder, "events", min(windows.span(folder).start, start), end)
    return windows.mapped(__name__, files, [start, end], lambda: _build(folder, start, end))


def recorded(folder: Path, start: datetime, end: datetime) -> pd.DataFrame:
    """Return the lives that are placed: of VMs, or of pods where there is no VM at all."""
    first = min(windows.span(folder).start, start)
    kinds = windows.frame_of(folder, "events", first, end, ["kind"])["kind"]
    rows = lives(folder, start, end, "vm" if (kinds == "vm").any() else "pod")
    return rows[(rows["cpu"] > 0) & (rows["mem"] > 0)]


def servers(folder: Path, start: datetime, end: datetime, clusters: list[str]) -> pd.DataFrame:
    """Return the nodes of the commonest size: ``cluster, name, cpu, mem, price``, in order of cluster and name."""
    names = ["cluster", "name", "cpu", "mem", "price"]
    if (
        not windows.frame_of(folder, "nodes", start, end, ["cpu_capacity_cores"])
        .dropna()["cluster"]
        .isin(clusters)
        .any()
    ):
        return pd.DataFrame(columns=names)
    several = len(clusters) > 1
    table = windows.node_table(folder, start, end, clusters)
    told = windows.frame_of(folder, "nodes", start, end, ["node", "price_usd_per_hour"])
    told["name"] = windows.spelled(told, "node", several)
    rows = pd.DataFrame(
        {
            "cluster": np.array(clusters)[table.domain],
            "name": table.names,
            "cpu": table.cpu,
            "mem": table.mem,
            "price": told.groupby("name")["price_usd_per_hour"].last().reindex(list(table.names)).to_numpy(np.float64),
        }
    )
    sizes = rows.groupby(["cpu", "mem"])["name"].transform("size")
    same = rows[sizes == sizes.max()]
    first = same.iloc[0]
    alike: pd.DataFrame = same[(same["cpu"] == first["cpu"]) & (same["mem"] == first["mem"])].reset_index(drop=True)
    return alike


def _build(folder: Path, start: datetime, end: datetime) -> windows.Arrays:
    rows = recorded(folder, start, end)
    clusters = sorted(set(rows.loc[~rows["before"], "cluster"]))
    if not clusters:
        raise DataError(
            f"{folder} has no VM with a size created between {start} and {end}",
            "events of kind vm (or pod) with cpu and memory",
            "check the range, and that the source lands VMs (docs/sources.md)",
        )
    rows = rows[rows["cluster"].isin(clusters)]
    hosts = servers(folder, start, end, clusters)
    number = hosts.groupby("cluster").cumcount().set_axis(hosts["name"])
    names = windows.spelled(rows, "node", len(clusters) > 1)
    rows = rows.assign(server=names.map(number).fillna(-1).astype(int))
    # What ran on a machine of another size is no request to these.
    rows = rows[rows["node"].isna() | (rows["server"] >= 0) | hosts.empty]
    tally = _tally(rows, hosts)
    rows = rows[~rows["before"] | (rows["server"] >= 0)].reset_index(drop=True)
    created = rows.assign(time=rows["begin_s"], kind=0)
    deleted = rows[rows["ended"]].assign(time=rows["end_s"], kind=1, server=-1, lived_s=0.0)
    events = pd.concat([created, deleted]).reset_index(names="life")
    events = events.sort_values(["cluster", "time", "kind", "entity"], ascending=[True, True, False, True])
    numbers, _ = pd.factorize(events["life"])
    counts = hosts.groupby("cluster").size().reindex(clusters, fill_value=0).to_numpy(np.int64)
    half = hosts[["cpu", "mem"]].iloc[0] / 2.0 if len(hosts) else pd.Series({"cpu": 0.0, "mem": 0.0})
    return {
        "vmid": numbers.astype(np.int64),
        "cpu": events["cpu"].to_numpy(np.float64),
        "mem": events["mem"].to_numpy(np.float64),
        "time": events["time"].to_numpy(np.float64),
        "kind": events["kind"].to_numpy(np.int8),
        "node": events["server"].to_numpy(np.int64),
        "lived_s": events["lived_s"].to_numpy(np.float64),
        "stop": events.groupby("cluster").size().reindex(clusters).cumsum().to_numpy(np.int64),
        "servers": counts,
        "up": _up(folder, start, end, clusters, hosts, int(counts.max())),
        "half_cpu": np.asarray(half["cpu"], np.float64),
        "half_mem": np.asarray(half["mem"], np.float64),
        "began_s": np.asarray((start - start.replace(hour=0, minute=0, second=0, microsecond=0)).total_seconds()),
        "usd_per_hour": np.asarray(hosts["price"].mean() if len(hosts) else np.nan, np.float64),
        **tally.arrays(),
    }


def _up(
    folder: Path, start: datetime, end: datetime, clusters: list[str], hosts: pd.DataFrame, most: int
) -> NDArray[np.bool_]:
    """Return [clusters, windows, servers]: which were up."""
    if hosts.empty:
        return np.ones((len(clusters), 1, most), np.bool_)
    up = windows.up(folder, start, end, clusters, hosts["name"].tolist())
    result = np.ones((len(clusters), len(up), most), np.bool_)
    for index, cluster in enumerate(clusters):
        mine = np.flatnonzero(hosts["cluster"] == cluster)
        result[index, :, : mine.size] = up[:, mine]
    return result


def _tally(rows: pd.DataFrame, hosts: pd.DataFrame) -> Tally:
    """Count where the numbers of the requests, of what was there before, and of the servers come from."""
    tally, asked, there = Tally(), rows[~rows["before"]], rows[rows["before"]]
    known = (rows["server"] >= 0).to_numpy()
    tally.add("size", asked["asked"].to_numpy(), np.ones(len(asked), bool))
    tally.add("life", asked["ended"].to_numpy(), np.ones(len(asked), bool))
    tally.add("recorded server", (asked["server"] >= 0).to_numpy())
    tally.add("half of the server", np.zeros(len(rows), bool), known)
    tally.add("starting state", (there["server"] >= 0).to_numpy() if len(there) else np.array([len(hosts) > 0]))
    tally.add("server size", np.ones(len(hosts), bool) if len(hosts) else np.zeros(1, bool))
    tally.add("price", hosts["price"].notna().to_numpy() if len(hosts) else np.zeros(1, bool))
    return tally


def brings(trace: RecordedVms) -> Mapping[str, Any]:
    """The servers of the record, in place of the scenario's; episodes may begin at any row of it."""
    if trace.half_cpu <= 0.0:
        return {}
    keys = {"servers": int(trace.servers.max()), "half_cpu_cores": trace.half_cpu, "half_mem_gib": trace.half_mem}
    price = {} if np.isnan(trace.usd_per_hour) else {"server_price_usd_per_hour": trace.usd_per_hour}
    return {**keys, **price, "start_min": 0, "start_max": 0}


def believed(trace: RecordedVms, models: Path, *_: object) -> RecordedVms:
    """Let placing go by what the lifetime model expects of each VM, where one was shipped."""
    model = lifetimes.opened(models / lifetimes.NAME)
    if model is None:
        return trace
    made = trace.kind == 0
    told = lifetimes.expectations(model, trace.cpu[made], trace.mem[made], trace.began_s + trace.born_s[made])
    expected = np.zeros((len(trace), told.shape[1]))
    expected[made] = told
    return dataclasses.replace(trace, expected=expected)


def starts(trace: VmTrace, scenario: Scenario) -> Rows:
    """Creations that the cluster, as it then is, can hold, with more from them on than an episode has decisions.

    Without a horizon an episode goes on to its first misfit, or to the end of the trace.
    """
    events = compile_events(trace, cast(VmScenario, scenario))
    requests = np.cumsum(trace.kind == 0)
    last = requests[trace.stop.repeat(np.diff(trace.stop, prepend=0)) - 1]
    begins = events.next_start[:-1] == np.arange(len(trace))
    rows = np.flatnonzero(begins & (last - requests + 1 > scenario.horizon))
    ordered: Rows = rows[np.argsort(trace.time[rows], kind="stable")]
    return ordered


def times_s(trace: VmTrace, rows: Rows) -> NDArray[np.float64]:
    """When VMs were asked for."""
    return trace.time[rows]


def scaled(trace: VmTrace, load: float) -> VmTrace:
    """Let VMs come ``load`` times as densely; they live as long as before, so rows change their order."""
    created_by = creation_of(trace)
    ends = np.flatnonzero(created_by >= 0)
    time = trace.time / load
    time[ends] = time[created_by[ends]] + trace.time[ends] - trace.time[created_by[ends]]
    cluster = np.repeat(np.arange(trace.stop.size), np.diff(trace.stop, prepend=0))
    order = np.lexsort((-trace.kind, time, cluster))
    columns = {name: getattr(trace, name) for name in ("vmid", "cpu", "mem", "kind", "node")} | {"time": time}
    columns |= _lives(trace)
    return dataclasses.replace(
        trace, **{name: values[order] for name, values in columns.items()}, up_s=trace.up_s / load
    )


def _lives(trace: VmTrace) -> dict[str, NDArray[np.float64]]:
    """Return the columns of lives that a trace has."""
    return {name: getattr(trace, name) for name in ("expected", "lived_s") if getattr(trace, name).size}


def resized(trace: VmTrace, scenario: Scenario, factor: float) -> tuple[VmTrace, Scenario]:
    """Let every cluster be ``factor`` times as large, under as many times the load."""
    rules, changes = cast(VmScenario, scenario), {}
    recorded = int(trace.servers.max())
    changes["servers"] = Copies.of(factor, np.zeros(rules.servers)).source.size
    if rules.growing_servers:
        changes["max_servers"] = Copies.of(factor, np.zeros(rules.max_servers)).source.size
    if rules.horizon and not (trace.node >= 0).any():  # begins with empty servers: a large cluster would never fill
        changes["horizon"] = max(round(rules.horizon * factor), 1)
    dense = scaled(trace, factor)
    if not recorded:
        return dense, scenarios.load(scenario, changes)
    created = creation_of(dense)
    there = dense.there_before
    made = np.where(created >= 0, created, np.arange(len(dense)))  # of a deletion, the row that created its VM
    chosen, homes, sizes, up = [], [], [], []
    for part, (begin, end) in enumerate(zip([0, *dense.stop[:-1]], dense.stop, strict=True)):
        copies = Copies.of(factor, np.zeros(int(dense.servers[part])))
        mine = made[begin:end]
        # A deletion goes with its VM, however often that was copied.
        place = np.where(dense.kind[begin:end] == 0, dense.node[begin:end], dense.node[mine])
        rows, home = copies.spread(place, there[mine])
        chosen.append(rows + begin)
        homes.append(np.where(dense.kind[rows + begin] == 0, home, -1))
        sizes.append(copies.source.size)
        up.append(dense.up[part][:, copies.source])
    rows, home = np.concatenate(chosen), np.concatenate(homes)
    again = np.arange(rows.size) - np.searchsorted(rows, rows)  # rows never fall: which copy of its row this is
    columns = {name: getattr(dense, name)[rows] for name in ("cpu", "mem", "time", "kind")}
    columns |= {name: values[rows] for name, values in _lives(dense).items()}
    most = max(sizes)
    wide = [np.pad(each, ((0, 0), (0, most - each.shape[1])), constant_values=True) for each in up]
    grown = dataclasses.replace(
        dense,
        **columns,
        vmid=dense.vmid[rows] * (int(again.max(initial=0)) + 1) + again,
        node=home,
        stop=np.cumsum([each.size for each in chosen]),
        servers=np.array(sizes),
        up=np.stack(wide),
    )
    return grown, scenarios.load(scenario, changes)


def asked(trace: VmTrace, scenario: Scenario, rows: Rows) -> NDArray[np.float64]:
    """Mean of the cores that the VMs of an episode ask for."""
    return mean_over(trace.cpu, trace.kind == 0, rows, scenario.horizon)


DATASET = Dataset(
    load,
    starts,
    times_s,
    scaled,
    origins=origins,
    fit=later("pipeline.calibrate.vm", "fit"),
    check=later("pipeline.calibrate.vm", "check"),
    believed=believed,
    brings=brings,
    resized=resized,
    asked=asked,
    asked_in="cores",
)
