"""The job controller against real API servers: public queues under every strategy, beside the simulator; and faults.

    python benchmarks/cpn_live.py --data ../shared/data --queues 40,100 --out docs/results
    python benchmarks/cpn_live.py --data ../shared/data --queues 40 --strategies min_completion_time_reserve --kills 20

Three kube-apiservers on one etcd, kwok's nodes, a real Prometheus a cluster and with ``kube_default`` a real
kube-scheduler; pods and their ends are played (``cpn_clusters``) by the measured co-location profiles. The controller
is the service itself, a process of its own, and jobs are submitted over HTTP. Its clock runs ``--scale`` times as fast
as the wall's. All jobs are there before the first decision; figures count from it. The simulator is given the time that
dispatch, start-up and hearing of the end were measured to take, of each job, on the same clock (``cpn_simulated``).
``policy`` is a trained one (``cpn_policy``), pushed to the service before the jobs come. ``--beside`` runs share the
API servers, each in a namespace of its own.

With ``--kills`` the service is killed that often (kill -9) at random times, an API server is restarted, another is lost
for a while, a Prometheus is silent for a while, 5 % of the attempts fail and every fifth job is submitted twice; then
only the counts are compared: every job ends exactly once.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from cpn_clusters import Api, Driver, Server, free_port, programs_folder, start_etcd
from cpn_metrics import Prometheus
from cpn_policy import Delivery, loaded, trained
from cpn_simulated import FIGURES, simulated

from placement.cpn import report
from placement.cpn.clock import Clock
from placement.cpn.store import read_only
from placement.cpn.topology import Network
from placement.cpn.topology import read as read_topology
from sched_env.draws import uniform
from sched_env.jobs import synthetic
from sched_env.jobs import trace as traces
from sched_env.jobs.heuristics import NAMES
from sched_env.jobs.tables import JobTrace
from sched_env.jobs.topology import TESTBED
from sched_env.jobs.workload import Workload
from wire.errors import run_cli

STARTUP_S = 5.0
FAILING = 0.05
CLUSTERS = 3
POLICY = "policy"


def description(
    servers: dict[str, Server] | None,
    cpu_used: float,
    namespace: str = "default",
    metrics: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Upstream's test bed, nodes dealt over three clusters; data lie in a store outside."""
    table = synthetic.topology(TESTBED, CLUSTERS)
    places: list[dict[str, Any]] = [{"name": "store"}]
    for c in range(CLUSTERS):
        nodes = []
        for n in np.flatnonzero(table.node_cluster == c):
            cards = np.flatnonzero(table.card_node == n)
            group = {
                "type": table.card_types[table.card_type[cards[0]]],
                "mem_gib": float(table.card_mem[cards[0]]),
                "usd_per_hour": float(table.card_usd_per_hour[cards[0]]),
                "count": len(cards),
            }
            nodes.append(
                {
                    "name": table.nodes[n], "cpu_cores": float(table.node_cpu[n]), "mem_gib": float(table.node_mem[n]),
                    "cpu_used": cpu_used, "cards": [group],
                }
            )  # fmt: skip
        cluster: dict[str, Any] = {"name": f"cluster-{c}", "nodes": nodes}
        if servers is not None:
            cluster |= {"kubeconfig": str(servers[f"cluster-{c}"].kubeconfig()), "namespace": namespace}
        if metrics is not None:
            cluster["prometheus_url"] = metrics[f"cluster-{c}"]
        places.append({"name": f"dc-{c}", "clusters": [cluster]})
    return {"datacenters": places}


def without_nodes(there: dict[str, Any]) -> dict[str, Any]:
    """Describe the same clusters with nodes that are not there yet: jobs wait."""
    made = copy.deepcopy(there)
    for place in made["datacenters"]:
        for cluster in place.get("clusters", ()):
            for node in cluster["nodes"]:
                node["name"] += "-to-come"
    return made


def workload(jobs: int, data: Path, network: Network) -> Workload:
    profiles = data / "cpn-gpu-profiles" / traces.COLOCATIONS
    folder = data / "cpn-job-queues"
    if jobs in (40, 100):
        found = traces.cpn_workload(folder / (traces.QUEUE_40 if jobs == 40 else traces.QUEUE_100), profiles)
    else:
        found = traces.generated_cpn_workload(jobs, folder / traces.QUEUE_100, profiles, seed=0)
    return found._replace(topology=network.table)


def manifests(jobs: JobTrace) -> list[dict[str, Any]]:
    made = []
    for row in range(len(jobs)):
        notes = {
            "model_name": jobs.model_names[jobs.model[row]], "data_size": float(jobs.data_gb[row]),
            "epoch": float(jobs.epochs[row]), "gpu_memory_mb": float(jobs.gpu_mem[row]) * 1024.0,
            "title": f"job-{row}", "data_center": "store",
        }  # fmt: skip
        requests = {"cpu": f"{int(jobs.cpu[row] * 1000)}m", "memory": f"{int(jobs.mem[row] * 1024)}Mi"}
        container = {"name": "main", "image": "work", "resources": {"requests": requests}}
        made.append(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": f"job-{row}", "annotations": notes},
                "spec": {
                    "backoffLimit": 9,
                    "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
                },
            }
        )
    return made


class Service:
    """The service, as a process."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder, self.port, self.var = folder, free_port(), folder / "var"
        self._file = folder / "cpn.yaml"
        self._file.write_text(yaml.safe_dump(settings))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it."""
        environment = {
            **os.environ, "LOADMASTER_VAR": str(self.var), "LOADMASTER_CPN_FILE": str(self._file),
            "LOADMASTER_DECISION_LOG": "false",
        }  # fmt: skip
        with (self.folder / "service.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "placement", "--port", str(self.port)], env=environment, stdout=log, stderr=log
            )

    def until_ready(self, timeout_s: float = 300.0) -> None:
        """Wait until it answers."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            try:
                said = urllib.request.urlopen(f"{self.url}/metrics", timeout=5).read()
                if b"loadmaster_cpn_ready 1.0" in said:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise TimeoutError(f"the service does not come up, see {self.folder}/service.log")

    def post(self, body: object) -> bool:
        """Submit a job; return whether it is new."""
        while True:
            request = urllib.request.Request(f"{self.url}/v1/jobs", json.dumps(body).encode(), method="POST")
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return bool(json.loads(answer.read())["new"])
            except urllib.error.HTTPError as error:
                raise RuntimeError(error.read().decode()) from error
            except OSError:
                time.sleep(0.2)  # it is being killed and started: the same submission again is the same job

    def decisions(self) -> dict[str, float]:
        """Return how many questions ``jobs`` was asked since the start, and how many the policy did not answer."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        found = dict.fromkeys(("decisions", "fallback_decisions", "vetoes", "infeasible_requests"), 0.0)
        for line in lines:
            name = line.partition("{")[0].removeprefix("loadmaster_").removesuffix("_total")
            if name in found and 'problem="jobs"' in line:
                found[name] += float(line.rpartition(" ")[2])
        return found

    def kill(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(30)
            self.process = None


def until_measured(service: Service, metrics: dict[str, Prometheus], window_s: float) -> None:
    """Wait until every Prometheus has a whole window of scrapes, and the controller has asked it since.

    A rate over a window that scrapes fill only in part says that nodes are busier than they are. The controller keeps
    what it found while jobs come and go, which on its fast clock is nearly always.
    """
    until = time.monotonic() + 120.0
    whole_at: float | None = None
    while time.monotonic() < until:
        time.sleep(0.5)
        if whole_at is None and all(one.nodes_seen(window_s + 1.0) for one in metrics.values()):
            whole_at = time.monotonic()
        if whole_at is not None:
            with urllib.request.urlopen(f"{service.url}/v1/network", timeout=60) as answer:
                clusters = json.loads(answer.read())["clusters"]
            ages = [(one["prometheus"] or {}).get("age_s") for one in clusters.values()]
            # What has just been answered may have been asked some seconds ago.
            if all(age is not None and time.monotonic() - age > whole_at + 3.0 for age in ages):
                return
    raise TimeoutError(f"the load of the nodes was not measured, see {service.folder}")


def run(
    servers: dict[str, Server], load: Workload, network: Network, data: Path, strategy: str,
    options: argparse.Namespace,
    *, cpu_threshold: float = 0.7,
) -> dict[str, Any]:  # fmt: skip
    """Run a queue to its end; return what happened, and what the simulator says."""
    folder = Path(tempfile.mkdtemp(prefix="cpn-"))
    clock, faults = Clock(options.scale), options.kills > 0
    namespace = f"{strategy.replace('_', '-')}-{len(load.jobs)}-{int(100 * cpu_threshold)}-{int(time.time())}"
    for server in servers.values():
        Api(server).insist("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    store = f"sqlite:///{folder}/jobs.db"
    settings = {
        "topology": "topology.yaml", "store": store, "strategy": strategy, "time_scale": options.scale, "caution": 1.0,
        "collect_s": 1.0, "settle_s": 10.0, "stale_s": 15.0,
        "profiles": str((data / "cpn-gpu-profiles" / traces.COLOCATIONS).resolve()), "patience_s": 1e9,
        "name": namespace, "cpu_threshold": cpu_threshold, "topology_reload_s": 1.0,
    }  # fmt: skip
    seed = 7

    def fails(title: str, attempt: int) -> float | None:
        row = int(title.rpartition("-")[2] or 0)
        if not faults or uniform(seed, row, 2 * attempt) >= FAILING:
            return None
        return 0.1 + 0.8 * float(uniform(seed, row, 2 * attempt + 1))

    table = load.runtime
    types = {card.name: card.type for card in network.cards.values()}
    driver = Driver(servers, table, types, clock, STARTUP_S, options.scale, fails, namespace)  # type: ignore[arg-type]
    driver.start()
    metrics = {name: Prometheus(name, network, driver.taken, folder) for name in servers}
    urls = {name: one.url for name, one in metrics.items()}
    # What others use is not described but measured, so that Prometheus is what thresholds bind by.
    there = description(servers, 0.0, namespace, urls)
    (folder / "topology.yaml").write_text(yaml.safe_dump(there if faults else without_nodes(there)))
    service = Service(folder, settings)
    delivery = Delivery(trained(data), service.var) if strategy == POLICY else None
    service.start()
    service.until_ready()
    if delivery is not None:
        delivery.push(service.port)
    until_measured(service, metrics, settings["settle_s"])
    began = time.monotonic()
    enough, chaos = threading.Event(), {"kills": 0, "restarts": 0, "outages": 0, "silences": 0}
    worker = threading.Thread(target=trouble, args=(service, servers, metrics, options, enough, chaos), daemon=True)
    if faults:
        worker.start()
    answers = []
    for number, body in enumerate(manifests(load.jobs)):
        answers.append(service.post(body))
        if faults and number % 5 == 0:
            answers.append(service.post(body))
    if not faults:
        # All at once, as the queues are: with one job after another it depends on milliseconds which of the first ones
        # find the fast cards, and everything after them on that.
        complete = folder / "complete.yaml"
        complete.write_text(yaml.safe_dump(there))
        complete.replace(folder / "topology.yaml")
    highest_load = 0.0  # jobs end by the hundred in the first minute; what the load was at the end says little of it
    try:
        while time.monotonic() - began < options.timeout_s:
            time.sleep(0.5)
            highest_load = max(highest_load, os.getloadavg()[0])
            with read_only(store) as found:
                counts = found.counts()
            ended = sum(counts.get(state, 0) for state in ("finished", "failed", "cancelled"))
            if ended == len(load.jobs) and (not faults or chaos["kills"] >= options.kills):
                break
        # Kills set the counters back.
        asked = service.decisions() if strategy == POLICY and not faults else {}
    finally:
        enough.set()
        if faults:
            worker.join(120)
        service.kill()
        driver.stopped.set()
        for one in metrics.values():
            one.stop()
    with read_only(store) as found:
        jobs, attempts, _ = found.everything()
    if not faults:
        at_once = min(one.decided_at for one in attempts)
        for job in jobs:
            job.submitted_at = at_once
    prices = dict(zip(network.table.cards, network.table.card_usd_per_hour.tolist(), strict=True))
    live = report.figures(jobs, attempts, prices)
    twice = {name: count for name, count in driver.made.items() if count > 1}
    row: dict[str, Any] = {
        "strategy": strategy, "jobs": len(load.jobs), "cpu_threshold": cpu_threshold, "scale": options.scale,
        "wall_s": round(time.monotonic() - began, 1), "load_average": os.getloadavg()[0],
        "load_average_max": highest_load, "live": live,
        "submitted": len(answers), "accepted": answers.count(True), "made_twice": twice,
        "ran_together": driver.together,
        "finished_more_than_once": {job: count for job, count in driver.finished.items() if count > 1},
        "finished_in_clusters": len(driver.finished), **({"chaos": chaos} if faults else {}),
        **({"asked": asked} if asked else {}),
    }  # fmt: skip
    if not faults:
        # From the decision until the job runs, and from its end until that is known: a card is taken that long besides,
        # but not while the cluster's own scheduler has none for it.
        spent = {
            one.job: (one.ended_at or 0.0)
            - one.arrives_at
            - driver.ran_s[one.job, one.number]
            - driver.unbound_s.get((one.job, one.number), 0.0)
            for one in attempts
            if (one.job, one.number) in driver.ran_s
        }
        each = np.array([spent[job.id] for job in sorted(jobs, key=lambda job: job.seq)])
        row["overhead_s"], row["overhead_p90_s"] = float(each.mean()), float(np.quantile(each, 0.9))
        row["overheads_s"], row["unbound_s"] = each.round(2).tolist(), sum(driver.unbound_s.values())
        policy, shown = loaded(trained(data)) if strategy == POLICY else (strategy, {})
        row["simulated"] = simulated(load, network, policy, each, cpu_threshold, shown)
        for figure in FIGURES:
            row[f"{figure}_off"] = live[figure] / row["simulated"][figure] - 1.0
    if not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return row


def trouble(
    service: Service,
    servers: dict[str, Server],
    metrics: dict[str, Prometheus],
    options: argparse.Namespace,
    enough: threading.Event,
    chaos: dict[str, int],
) -> None:
    """Kill the service and API servers at random times."""
    rng = random.Random(1)
    for number in range(options.kills):
        if enough.wait(rng.uniform(0.3, options.between_kills_s)):
            return
        service.kill()
        chaos["kills"] += 1
        service.start()
        if number % 7 == 3:
            server = servers["cluster-1"]
            server.kill()
            server.start()
            chaos["restarts"] += 1
        if number % 7 == 5:
            server = servers["cluster-2"]
            server.kill()
            enough.wait(options.between_kills_s)
            server.start()
            chaos["outages"] += 1
        if number % 7 == 1:
            metrics["cluster-0"].kill()
            enough.wait(options.between_kills_s)
            metrics["cluster-0"].start()
            chaos["silences"] += 1
        if rng.random() < 0.5:  # and now and then while it is still starting
            service.until_ready()


def table_of(rows: list[dict[str, Any]], command: str) -> str:
    lines = [
        "# The job controller, live, beside the simulator",
        "",
        f"Made by `{command}`.",
        "",
        "| jobs | strategy | cpu threshold | makespan, min | off | simulated, min | mean completion, s | off "
        "| mean wait, s, live / simulated | OOM | USD, live / simulated | overhead, s, mean / p90 | scale | load |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        live, said = row["live"], row.get("simulated")
        if said is None:
            continue
        low, high = (value / 60 for value in said["makespan_s_range"])
        lines.append(
            f"| {row['jobs']} | {row['strategy']} | {row['cpu_threshold']} | {live['makespan_s'] / 60:.1f} "
            f"| {100 * row['makespan_s_off']:+.1f} % | {low:.1f} to {high:.1f} | {live['mean_completion_s']:.0f} "
            f"| {100 * row['mean_completion_s_off']:+.1f} % | {live['mean_wait_s']:.0f} / {said['mean_wait_s']:.0f} "
            f"| {live['oom']} | {live['card_usd']:.2f} / {said['cost_usd']:.2f} "
            f"| {row['overhead_s']:.0f} / {row['overhead_p90_s']:.0f} | {row['scale']:g} "
            f"| {row['load_average_max']:.0f} |"
        )
    faulty = [row for row in rows if "chaos" in row]
    if faulty:
        lines += ["", "With faults:", ""]
        lines += [
            f"- {row['jobs']} jobs, {row['strategy']}: {row['chaos']}, {row['submitted']} submissions of which "
            f"{row['accepted']} new; states {row['live']['states']}; Jobs made twice {len(row['made_twice'])}, "
            f"attempts of one job at once {len(row['ran_together'])}, jobs finished more than once "
            f"{len(row['finished_more_than_once'])}, retries {row['live']['retries']}."
            for row in faulty
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--queues", default="40,100,500")
    parser.add_argument("--strategies", default=",".join(NAMES))
    parser.add_argument("--thresholds", default="", help="e.g. 0.7,0.8,0.9: min_completion_time_reserve on busy nodes")
    parser.add_argument("--scale", type=float, default=20.0)
    parser.add_argument("--beside", type=int, default=1, help="runs beside each other; kube_default always runs alone")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--between-kills-s", type=float, default=8.0)
    parser.add_argument("--timeout-s", type=float, default=1800.0)
    parser.add_argument("--keep", action="store_true", help="keep stores and logs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--name", default="cpn_live")
    options = parser.parse_args()
    programs, folder = programs_folder(), Path(tempfile.mkdtemp(prefix="cpn-clusters-"))
    etcd, address = start_etcd(programs, folder)
    servers = {f"cluster-{c}": Server(f"cluster-{c}", programs, folder, address) for c in range(CLUSTERS)}
    rows: list[dict[str, Any]] = []
    helpers: list[subprocess.Popen[bytes]] = []
    try:
        for server in servers.values():
            server.start()
        network = read_topology(yaml.safe_dump(description(None, 0.05)), "test bed")
        add_nodes(servers, network)
        helpers += [server.start_kwok() for server in servers.values()]
        busy = read_topology(yaml.safe_dump(description(None, 0.6)), "busy test bed")
        thresholds = [float(one) for one in filter(None, options.thresholds.split(","))]
        for count in map(int, options.queues.split(",")):
            load = workload(count, options.data, network)
            other = load._replace(topology=busy.table)
            asked = [(load, network, one, 0.7) for one in filter(None, options.strategies.split(","))]
            asked += [(other, busy, "min_completion_time_reserve", threshold) for threshold in thresholds]
            own = [one for one in asked if one[2] == "kube_default"]
            if own and len(helpers) == CLUSTERS:
                helpers += [server.start_scheduler() for server in servers.values()]
            with ThreadPoolExecutor(options.beside) as pool:
                for row in pool.map(
                    partial(run_one, servers, options), [one for one in asked if one[2] != "kube_default"]
                ):
                    rows.append(row)
                    write(rows, options)
            for one in own:
                rows.append(run_one(servers, options, one))
                write(rows, options)
    finally:
        for server in servers.values():
            server.kill()
        for process in (*helpers, etcd):
            process.kill()
            process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)
    worst = max(
        (abs(row[f"{f}_off"]) for row in rows for f in ("makespan_s", "mean_completion_s") if f"{f}_off" in row),
        default=None,
    )
    print(json.dumps({"runs": len(rows), "worst_off": worst}))
    return 0


def run_one(
    servers: dict[str, Server], options: argparse.Namespace, asked: tuple[Workload, Network, str, float]
) -> dict[str, Any]:
    load, network, strategy, threshold = asked
    row = run(servers, load, network, options.data, strategy, options, cpu_threshold=threshold)
    print(json.dumps({k: v for k, v in row.items() if k not in ("live", "simulated")}), flush=True)
    return row


def write(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Write what there is so far: the whole takes hours."""
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        command = "python cpn_live.py " + " ".join(sys.argv[1:])
        (options.out / f"{options.name}.json").write_text(json.dumps(rows, indent=1) + "\n")
        (options.out / f"{options.name}.md").write_text(table_of(rows, command))


def add_nodes(servers: dict[str, Server], network: Network) -> None:
    for name, cluster in network.clusters.items():
        api = Api(servers[name])
        for node in cluster.nodes:
            amounts = {"cpu": str(int(node.cpu_cores)), "memory": f"{int(node.mem_gib)}Gi", "pods": "500"}
            amounts["nvidia.com/gpu"] = str(sum(group.count for group in node.cards))
            status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
            labels = {"kubernetes.io/hostname": node.name}
            api.insist("POST", "/api/v1/nodes", {"metadata": {"name": node.name, "labels": labels}, "status": status})


if __name__ == "__main__":
    run_cli(main)
