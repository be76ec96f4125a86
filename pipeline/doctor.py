"""A first look at a Prometheus: what it tells of a cluster, what is missing, which problems could be trained on it.

``loadmaster doctor --prometheus URL`` takes the last hours, up to now, through the same ingest and cleaning as a night
and says in a minute what a night would find out by morning. It writes nothing but its report. Exit code 1: nothing
could be trained.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeline.clean.command import clean
from pipeline.clean.config import CleanConfig
from pipeline.contracts.windows import TABLES
from pipeline.errors import SourceError
from pipeline.sources.landing import Landing, Manifest
from pipeline.sources.metric_map import load_map
from pipeline.sources.prometheus import PrometheusConfig, PrometheusSource
from pipeline.sources.prometheus_http import Client
from pipeline.sources.prometheus_server import Server
from wire.command import Verb, json_option
from wire.contracts.window import WINDOW_SECONDS
from wire.errors import ConfigError, run_cli

if TYPE_CHECKING:
    import pandas as pd

Frames = dict[str, "pd.DataFrame"]

STEP_S = 60.0
"""Coarser than a night's: half a minute more or less changes no verdict here."""
HISTORY_DAYS = 14

HELP = {
    "node_cpu_seconds": "node-exporter (in kube-prometheus-stack by default)",
    "node_mem_used_bytes": "node-exporter (in kube-prometheus-stack by default)",
    "node_net_capacity_bytes_s": "the speed of network cards, which virtual machines often do not know",
    "node_cpu_capacity_cores": "kube-state-metrics, or node-exporter",
    "node_mem_capacity_bytes": "kube-state-metrics, or node-exporter",
    "node_cpu_allocatable_cores": "kube-state-metrics",
    "node_info": "kube-state-metrics with --metric-labels-allowlist=nodes=[node.kubernetes.io/instance-type]",
    "pod_info": "kube-state-metrics",
    "pod_cpu_request_cores": "kube-state-metrics; pods that ask for nothing have none",
    "pod_cpu_seconds": 'the kubelet\'s cAdvisor; keep series with container=""',
    "pod_mem_used_bytes": 'the kubelet\'s cAdvisor; keep series with container=""',
    "function_requests": "Knative, OpenFaaS, Istio or ingress-nginx; or a request log (source: [prometheus, requests])",
    "function_response_seconds_bucket": "the histogram of the same exporter; without it there is no p95",
    "card_gpu_used_ratio": "dcgm-exporter, where there are GPUs",
}
"""Canonical metric -> who would tell it; what is not listed is seldom missed."""


class Need(msgspec.Struct, frozen=True):
    """One thing that a problem needs of the windows."""

    what: str
    there: bool
    add: str = ""
    """What to add where it is not."""


class Report(msgspec.Struct, frozen=True):
    """What was found."""

    address: str
    first: str
    last: str
    took_s: float
    clock_skew_s: float
    history_days: int
    """For how many whole days back the server has nodes, up to fourteen; a night of more days has too little."""
    groups: list[str]
    metrics: dict[str, int]
    """Samples by canonical metric."""
    things: dict[str, int]
    """How many nodes, pods, workloads, functions with requests, cards."""
    unmapped: list[str]
    """What is there and was not understood, or is missing, and why."""
    problems: dict[str, list[Need]]
    invented: list[str]
    """What training would have to assume."""
    quarantined: dict[str, int]

    def trainable(self) -> list[str]:
        """Problems that have all they need."""
        return [name for name, needs in self.problems.items() if all(need.there for need in needs)]


def examine(server: Server, hours: float, *, metrics: Path | None = None) -> Report:
    """Look at the last hours of one server."""
    began = time.monotonic()
    config = PrometheusConfig([server], metrics=str(metrics) if metrics else None, step_seconds=STEP_S)
    client = Client(server, config.patience)
    now = client.now().timestamp()
    end_s = int(now) // 60 * 60
    start_s = (end_s - round(hours * 3600)) // WINDOW_SECONDS * WINDOW_SECONDS
    source = PrometheusSource.of_span(config, start_s, end_s)
    with tempfile.TemporaryDirectory(prefix="loadmaster-doctor-") as folder:
        manifest = _landed(source, Path(folder))
        account = clean(Path(folder) / "raw", Path(folder) / "windows", CleanConfig())
        frames = _frames(Path(folder) / "windows")
    entries = load_map(metrics).entries(source.groups(server))
    wanted = dict.fromkeys(entry.metric for _, entry in entries)
    return Report(
        address=server.url,
        first=_time(start_s),
        last=_time(end_s),
        took_s=round(time.monotonic() - began, 1),
        clock_skew_s=round(client.skew_s, 1),
        history_days=_history(client, server, end_s),
        groups=source.groups(server),
        metrics={name: manifest.metrics.get(name, 0) for name in wanted},
        things=_things(frames),
        unmapped=[*_missing(manifest, list(wanted)), *_strangers(frames), *_left_out(manifest)],
        problems=_problems(frames),
        invented=_invented(frames),
        quarantined=account.rows["samples"].quarantined,
    )


def _landed(source: PrometheusSource, folder: Path) -> Manifest:
    chunks = source.chunks()
    landing = Landing(folder / "landing")
    for chunk in chunks:
        landing.land(chunk)
    try:
        return landing.publish(folder / "raw", "prometheus", source.settings(), chunks)
    except SourceError as error:
        raise SourceError(
            "the server has none of the metrics that the map knows in the last hours",
            "kube-state-metrics, node-exporter or cAdvisor",
            "check the address and --hours; the map is pipeline/metrics.yaml, or yours with --metrics",
        ) from error


def _frames(windows: Path) -> Frames:
    import pandas as pd
    import pyarrow.parquet as pq

    return {
        table: pd.concat([pq.ParquetFile(file).read().to_pandas() for file in sorted((windows / table).glob("*/*"))])
        for table in TABLES
    }


def _history(client: Client, server: Server, end_s: int) -> int:
    """Count the days back in which the server had nodes."""
    inside = ",".join(part for part in ('__name__=~"kube_node_info|node_uname_info"', server.matchers) if part)
    for day in range(1, HISTORY_DAYS + 1):
        if not client.instant(f"count(last_over_time({{{inside}}}[1h]))", end_s - day * 86_400):
            return day - 1
    return HISTORY_DAYS


def _things(frames: Frames) -> dict[str, int]:
    pods, functions = frames["pods"], frames["functions"]
    return {
        "nodes": frames["nodes"]["node"].nunique(),
        "active nodes": frames["nodes"].loc[frames["nodes"]["active"], "node"].nunique(),
        "pods": pods["pod"].nunique(),
        "workloads": pods["function"].nunique(),
        "functions with requests": functions.loc[functions["requests"] > 0, "function"].nunique(),
        "requests": int(functions["requests"].sum()),
        "cards": len(frames["cards"][["node", "card"]].drop_duplicates()),
        "creations and deletions": len(frames["events"]),
    }


def _missing(manifest: Manifest, wanted: list[str]) -> list[str]:
    return [f"no {name}: {HELP[name]}" for name in (*wanted, *HELP) if name in HELP and not manifest.metrics.get(name)]


def _strangers(frames: Frames) -> list[str]:
    """Names that one exporter has and another has not."""
    nodes, pods, functions = frames["nodes"], frames["pods"], frames["functions"]
    found = []
    unjoined = nodes.groupby("node")["cpu_allocatable_cores"].max()
    if unjoined.notna().any() and unjoined.isna().any():
        names = ", ".join(unjoined.index[unjoined.isna()][:3])
        found.append(f"machines that Kubernetes does not know: {names}; their address is no kube_node_info.internal_ip")
    idle = nodes.groupby("node")["cpu_used_mean_cores"].max()
    if idle.isna().any() and idle.notna().any():
        found.append(f"nodes without a node-exporter: {', '.join(idle.index[idle.isna()][:3])}")
    asked = set(functions.loc[functions["requests"] > 0, "function"])
    lost = sorted(asked - set(pods["function"].dropna()))
    if lost:
        found.append(f"requests of {len(lost)} names that no workload has, e.g. {', '.join(lost[:3])}")
    return found


def _left_out(manifest: Manifest) -> list[str]:
    return [
        f"{reason}: {count:,}" for reason, count in manifest.skipped.items() if not reason.startswith("chunks without")
    ]


def _problems(frames: Frames) -> dict[str, list[Need]]:
    nodes, pods, events = frames["nodes"], frames["pods"], frames["events"]

    def some(frame: pd.DataFrame, column: str) -> bool:
        return bool(frame[column].notna().any())

    machines = Need("machines with capacity", some(nodes, "cpu_capacity_cores"), HELP["node_cpu_capacity_cores"])
    asked = Need("requests of workloads", bool((frames["functions"]["requests"] > 0).any()), HELP["function_requests"])
    placed = Need("pods on nodes", some(pods, "node") and some(pods, "function"), HELP["pod_info"])
    sized = Need("what pods ask for", some(pods, "cpu_request_cores"), HELP["pod_cpu_request_cores"])
    used = Need("what pods use", some(pods, "cpu_used_mean_cores"), HELP["pod_cpu_seconds"])
    come_and_go = Need("creations of pods", bool((events["action"] == "create").any()), "a longer look: --hours")
    cards = Need("GPU cards", len(frames["cards"]) > 0, HELP["card_gpu_used_ratio"])
    held = Need("pods that ask for GPUs", some(pods, "gpu_request_cards"), "GPU pods or Jobs in these hours")
    flows = Need(
        "workflows",
        len(frames["tasks"]) > 0,
        "pods of Argo Workflows that ended in these hours, or tasks of another engine (source: [prometheus, parquet])",
    )
    return {
        "functions": [machines, placed, asked],
        "pods": [machines, placed, used],
        "vm": [machines, sized, come_and_go],
        "jobs": [cards, held],
        "workflow": [flows],
    }


def _invented(frames: Frames) -> list[str]:
    nodes, pods, functions, demands = (frames[name] for name in ("nodes", "pods", "functions", "demands"))

    def share(frame: pd.DataFrame, column: str) -> float:
        return float(frame[column].isna().mean()) if len(frame) else 0.0

    checks: list[tuple[float, str]] = [
        (share(nodes, "price_usd_per_hour"), "prices: 1 USD a node hour (set ingest.prices, a table by instance type)"),
        (share(nodes, "instance_type"), f"instance types ({HELP['node_info']})"),
        (share(nodes, "net_capacity_mb_s"), "network capacity of nodes"),
        (share(nodes, "disk_capacity_iops"), "disk capacity of nodes"),
        (share(pods, "cpu_request_cores"), "sizes of pods that ask for no cpu"),
        (share(functions[functions["requests"] > 0], "response_p95_s"), "p95 of responses (no histogram)"),
        (share(functions[functions["requests"] > 0], "response_mean_s"), "response times"),
        (
            float(demands["estimated"].mean()) if len(demands) else 0.0,
            "sizes and times of single requests: only counts are known",
        ),
    ]
    return [f"{part:.0%} of {what}" for part, what in checks if part > 0]


def _time(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M UTC")


def words(report: Report) -> str:
    """Write the report for people."""
    lines = [f"{report.address}, {report.first} to {report.last} ({report.took_s:g} s)"]
    if abs(report.clock_skew_s) > 60:
        lines.append(f"its clock differs from ours by {report.clock_skew_s:g} s")
    lines += ["", "found: " + ", ".join(f"{count:,} {name}" for name, count in report.things.items())]
    lines.append(f"asked for: {', '.join(report.groups)}")
    days = f"{report.history_days} whole days" if report.history_days < HISTORY_DAYS else f"{HISTORY_DAYS} days or more"
    lines.append(f"history: {days}")
    sections: list[tuple[str, list[str]]] = [
        ("missing or not understood", report.unmapped),
        ("put aside by cleaning", [f"{rule}: {count:,} samples" for rule, count in report.quarantined.items()]),
        ("would be assumed", report.invented),
    ]
    for title, found in sections:
        lines += ["", f"{title}:", *(f"  {line}" for line in found or ["nothing"])]
    lines += ["", "problems:"]
    for name, needs in report.problems.items():
        lacking = [f"{need.what} ({need.add})" for need in needs if not need.there]
        lines.append(f"  {name}: " + (f"needs {'; '.join(lacking)}" if lacking else "can be trained"))
    return "\n".join(lines) + "\n"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Say where to look."""
    parser.add_argument("--prometheus", required=True, metavar="URL", help="address of the server")
    parser.add_argument("--hours", type=float, default=3.0, help="how far to look back (default: %(default)s)")
    parser.add_argument("--matchers", default="", help="PromQL matchers that pick the cluster, where it holds several")
    parser.add_argument("--bearer-file", help="file with a bearer token")
    parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="e.g. X-Scope-OrgID=team")
    parser.add_argument("--metrics", type=Path, help="a metric map in place of pipeline/metrics.yaml")
    json_option(parser, "the report")


def run(options: argparse.Namespace) -> int:
    """Look and report."""
    if not 0.25 <= options.hours <= 24:
        raise ConfigError(f"--hours is {options.hours}", "a quarter of an hour to 24")
    if odd := [text for text in options.header if "=" not in text]:
        raise ConfigError(f"--header is {odd[0]!r}", "NAME=VALUE")
    headers = dict(text.split("=", 1) for text in options.header)
    server = Server("cluster", options.prometheus, options.matchers, bearer_file=options.bearer_file, headers=headers)
    report = examine(server, options.hours, metrics=options.metrics)
    write: Callable[[str], object] = sys.stdout.write
    if options.json:
        write(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n")
    else:
        write(words(report))
    return 0 if report.trainable() else 1


main = Verb("python -m pipeline.doctor", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
