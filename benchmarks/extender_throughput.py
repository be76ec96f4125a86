"""Pods a second of a real kube-scheduler: by itself, with an extender that only answers, and with ours, in one run.

    KUBE_ASSETS=$(../shared/kube/unpack) python benchmarks/extender_throughput.py [--nodes 50 500] [--pods 600]

Needs etcd, kube-apiserver and kube-scheduler (KUBE_ASSETS or KUBEBUILDER_ASSETS). Pods are created first, then the
scheduler is started; what counts is the time from the first binding to the last, by the API server's own events as a
watch sees them. The three take turns, each round in another order, because the machine is never quiet. Nodes differ, so
that only exact ties share a score. Beside pods/s: for our extender the regret of the bound node in the policy's own
score, and the server-side time of a question (``--wide``: at 5,000 names too). The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib
import json
import multiprocessing
import os
import platform
import ssl
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from placement.settings import Settings  # noqa: E402
from sched_env import problems  # noqa: E402
from wire import sample_bundle  # noqa: E402

KIT: Any = importlib.import_module("tests.placement.conftest")
PLANE: Any = importlib.import_module("tests.placement.kube.control_plane")


WIDE = 5000
CPU = ("scheduler_cpu_ms", "extender_cpu_ms")
"""Of a pod: what noise from other processes changes least. The scheduler's start, about a second, is in it."""


def answering(port: int) -> None:
    """Serve an extender that decodes the question and answers 1 for every node: what any extender must do."""
    import orjson
    import uvicorn

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": message["type"] + ".complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
        names = orjson.loads(body)["NodeNames"] if body else []
        answer = orjson.dumps([{"Host": name, "Score": 1} for name in names])
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    uvicorn.run(app, port=port, log_level="warning", access_log=False)


def ours(settings: Settings, port: int) -> None:
    """Serve the placement service with its extender, as ``loadmaster serve`` does."""
    import gc

    import uvicorn

    from placement.server import config

    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    uvicorn.Server(config(settings, port=port)).run()


class Served:
    """A server in a process of its own."""

    def __init__(self, target: Any, *arguments: Any) -> None:
        self.port = PLANE.free_port()
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=target, args=(*arguments, self.port), daemon=True)
        self.process.start()
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                client.request("GET", "/healthz")
                client.getresponse().read()
                return
            time.sleep(0.1)
        raise TimeoutError("the server did not start")

    def cpu_s(self) -> float:
        """Return the CPU time it has taken."""
        return float(sum(psutil.Process(self.process.pid).cpu_times()[:2]))

    def stop(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.join(30)


def bind_times(kube: Any, names: set[str], after: str) -> Any:
    """Follow pods from a version on; returns a function that waits for all and gives name -> (time, node)."""
    seen: dict[str, tuple[float, str]] = {}
    whole = threading.Event()

    def follow(version: str) -> str:
        path = f"{kube.url}/api/v1/namespaces/default/pods?watch=1&resourceVersion={version}"
        request = urllib.request.Request(path, headers={"Authorization": f"Bearer {PLANE.TOKEN}"})
        context = ssl.create_default_context(cafile=str(kube.ca))
        with urllib.request.urlopen(request, timeout=300, context=context) as answer:
            for line in answer:
                at = time.monotonic()
                event = json.loads(line)
                pod = event["object"]
                version = pod["metadata"]["resourceVersion"]
                name, node = pod["metadata"]["name"], pod.get("spec", {}).get("nodeName")
                if event["type"] == "MODIFIED" and node and name in names and name not in seen:
                    seen[name] = (at, node)
                    if len(seen) == len(names):
                        whole.set()
                        return version
        return version

    def follow_all() -> None:
        version = after
        while not whole.is_set():
            try:
                version = follow(version)
            except OSError as error:
                print(f"watch: {error}", flush=True)

    threading.Thread(target=follow_all, daemon=True).start()

    def wait(timeout_s: float) -> dict[str, tuple[float, str]]:
        if not whole.wait(timeout_s):
            raise TimeoutError(f"{len(seen)} of {len(names)} pods were bound in {timeout_s:g} s")
        return seen

    return wait


def one_run(kube: Any, count: int, arm: tuple[Served, str] | None, tag: str) -> dict[str, Any]:
    """Create pods, start the scheduler, wait until all are bound, clear up."""
    served = arm[0] if arm else None
    extender = _extender(served.port, arm[1]) if arm and served else None
    names = [f"{tag}-{index:04d}" for index in range(count)]
    kube.add_pods(names, cpu="20m", memory="32Mi")
    listed = kube.call("GET", "/api/v1/namespaces/default/pods?limit=1")
    wait = bind_times(kube, set(names), listed["metadata"]["resourceVersion"])
    time.sleep(0.5)
    before = served.cpu_s() if served else 0.0
    kube.start_scheduler(extender)
    scheduler = psutil.Process(kube._processes["kube-scheduler"].pid)
    bound = wait(240)
    spent = sum(scheduler.cpu_times()[:2])
    kube.kill("kube-scheduler")
    times = np.sort([at for at, _ in bound.values()])
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kube.pods()}
    kube.call("DELETE", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0")
    kube.until(lambda: not kube.pods(), "the pods to go")
    return {
        "pods_per_s": (count - 1) / float(times[-1] - times[0]),
        "scheduler_cpu_ms": spent / count * 1e3,
        "extender_cpu_ms": ((served.cpu_s() if served else 0.0) - before) / count * 1e3,
        "where": {uids[name]: node for name, (_, node) in bound.items()},
    }


def regrets(log_dir: Path, where: dict[str, str]) -> dict[str, float]:
    """Return how far the bound node is behind the best, in the policy's own score, from the decision log.

    The log keeps the best five scores: a node behind them counts as more than the fifth one's distance.
    """
    last: dict[str, dict[str, Any]] = {}
    for line in (log_dir / "decisions.jsonl").read_text().splitlines():
        entry = json.loads(line)
        last[entry["request"]] = entry
    found = []
    for uid, node in where.items():
        top = last[uid]["top"]
        scores = dict(top)
        found.append(top[0][1] - scores[node] if node in scores else top[0][1] - top[-1][1])
    values = np.array(found)
    return {
        "zero_share": float((values == 0.0).mean()),
        "largest": float(values.max()),
        "mean_of_the_rest": float(values[values > 0].mean()) if (values > 0).any() else 0.0,
    }


def questions(service: Served, names: list[str], count: int) -> dict[str, float]:
    """Ask our extender one question after another; the service tells its own time (``Server-Timing``)."""
    client = http.client.HTTPConnection("127.0.0.1", service.port)
    trips, spent = [], service.cpu_s()
    for index in range(count):
        pod = {
            "metadata": {"name": f"q{index}", "namespace": "default", "uid": f"q{len(names)}-{index}"},
            "spec": {"containers": [{"resources": {"requests": {"cpu": "1m", "memory": "1Mi"}}}]},
        }
        body = json.dumps({"Pod": pod, "NodeNames": names})
        began = time.perf_counter()
        client.request("POST", "/extender/prioritize", body, {"Content-Type": "application/json"})
        answer = client.getresponse()
        content = answer.read()
        took = (time.perf_counter() - began) * 1e3
        assert answer.status == 200, content
        trips.append((took, float(answer.headers["Server-Timing"].partition("dur=")[2])))
    whole, inside = np.array(trips).T
    return {
        "cpu_ms": (service.cpu_s() - spent) / count * 1e3,
        "http_p50_ms": float(np.percentile(whole, 50)),
        "http_p99_ms": float(np.percentile(whole, 99)),
        "server_p50_ms": float(np.percentile(inside, 50)),
        "server_p99_ms": float(np.percentile(inside, 99)),
    }


def serving(home: Path, kubeconfig: Path, nodes: int) -> Served:
    """Start our service with a policy, and wait until it has seen so many nodes."""
    file, workshop = home / "clusters.yaml", KIT.Workshop(home)
    file.write_text(f"clusters: {{lab: {{kubeconfig: {kubeconfig}}}}}\nextender: {{cluster: lab}}\n")
    service = Served(ours, msgspec.structs.replace(KIT.settings_in(home, workshop), clusters_file=file))
    # An untrained policy of the trained one's size.
    policy = sample_bundle.build(problems.spec("functions"), seed=1, hidden=64, gate=KIT.PASSED)
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=60) as client:
        answer = KIT.push(client, workshop.sign(policy), counter=1)
        assert answer.status_code == 200, answer.text
    PLANE.ControlPlane.until(lambda: _seen(service.port) == nodes, "the nodes to be watched")
    return service


def wide_questions(nodes: int, folder: Path) -> dict[str, float]:
    """Ask for so many names; the API server is a scripted one, because etcd would take minutes to hold them."""
    scripted = importlib.import_module("tests.placement.kube.conftest").ScriptedServer()
    names = [f"node-{index:04d}" for index in range(nodes)]
    scripted.items["nodes"] = [
        {
            "metadata": {"name": name, "uid": name},
            "status": {"allocatable": {"cpu": "32", "memory": f"{64 * 1024 + index}Mi"}},
        }
        for index, name in enumerate(names)
    ]
    home = folder / "wide"
    home.mkdir()
    service = serving(home, scripted.kubeconfig(home), nodes)
    try:
        return {name: round(ms, 3) for name, ms in questions(service, names, 300).items()}
    finally:
        service.stop()
        scripted.close()


def measure(nodes: int, pods: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Run all three on a cluster of this size."""
    kube = PLANE.ControlPlane(folder / f"kube-{nodes}")
    served: list[Served] = []
    try:
        kube.start()
        with ThreadPoolExecutor(8) as pool:  # all of them different
            list(pool.map(partial(_add_node, kube), range(nodes)))
        plain = Served(answering)
        served.append(plain)
        home = folder / f"service-{nodes}"
        home.mkdir()
        service = serving(home, kube.kubeconfig, nodes)
        served.append(service)
        arms: dict[str, tuple[Served, str] | None] = {
            "default": None,
            "answers_only": (plain, ""),
            "ours": (service, "/extender"),
        }
        rates: dict[str, list[float]] = {name: [] for name in arms}
        spent: dict[str, dict[str, list[float]]] = {name: {key: [] for key in CPU} for name in arms}
        where: dict[str, str] = {}
        for turn in range(rounds):
            order = list(arms)
            order = order[turn % 3 :] + order[: turn % 3]
            for name in order:
                found = one_run(kube, pods, arms[name], f"{name.replace('_', '-')}-{turn}")
                rates[name].append(found["pods_per_s"])
                for key in CPU:
                    spent[name][key].append(found[key])
                if name == "ours":
                    where |= found["where"]
                print(f"{nodes} nodes, {name}: {found['pods_per_s']:.0f} pods/s", flush=True)
        time.sleep(1)  # the decision log is written beside
        regret = regrets(home / "log", where)
        asked = {str(nodes): questions(service, [f"node-{index:04d}" for index in range(nodes)], 500)}
    finally:
        for one in served:
            one.stop()
        kube.stop()
    best = {name: float(np.median(values)) for name, values in rates.items()}
    return {
        "nodes": nodes,
        "pods": pods,
        "pods_per_s": {name: round(value, 1) for name, value in best.items()},
        "each_round": {name: [round(value, 1) for value in values] for name, values in rates.items()},
        "ours_to_answers_only": round(best["ours"] / best["answers_only"], 3),
        "ours_to_default": round(best["ours"] / best["default"], 3),
        "answers_only_to_default": round(best["answers_only"] / best["default"], 3),
        "cpu_ms_a_pod": {
            name: {key: round(float(np.mean(values)), 2) for key, values in each.items()}
            for name, each in spent.items()
        },
        "regret": regret,
        "questions": {key: {name: round(ms, 3) for name, ms in value.items()} for key, value in asked.items()},
    }


def _add_node(kube: Any, index: int) -> None:
    kube.add_nodes([f"node-{index:04d}"], memory=f"{64 * 1024 + index}Mi", cpu="32")


def _seen(port: int) -> int:
    client = http.client.HTTPConnection("127.0.0.1", port)
    client.request("GET", "/metrics")
    for line in client.getresponse().read().decode().splitlines():
        if line.startswith('loadmaster_cluster_objects{cluster="lab",kind="nodes"}'):
            return int(float(line.rsplit(" ", 1)[1]))
    return 0


def _extender(port: int, path: str) -> dict[str, Any]:
    return {
        "urlPrefix": f"http://127.0.0.1:{port}{path}", "prioritizeVerb": "prioritize", "weight": 100,
        "enableHTTPS": False, "httpTimeout": "5s", "nodeCacheCapable": True, "ignorable": True,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[50, 500])
    parser.add_argument("--pods", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--wide", action="store_true", help="ask for 5,000 names too")
    parser.add_argument("--out", type=Path, help="folder for extender_throughput.json")
    options = parser.parse_args()
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(nodes, options.pods, options.rounds, Path(folder)) for nodes in options.nodes]
        wide = wide_questions(WIDE, Path(folder)) if options.wide else None
    found = {
        "benchmark": "extender_throughput",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_average": {"before": load_before[0], "after": os.getloadavg()[0]},
        "results": results,
        "questions_of_5000_names": wide,
    }
    if options.out:
        path = options.out / "extender_throughput.json"
        path.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
