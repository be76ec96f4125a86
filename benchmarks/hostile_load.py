"""Latency of honest callers while hostile ones share the service: real server, real sockets, loopback.

    python benchmarks/hostile_load.py [--seconds 20] [--hostile 4]

One honest client asks for 50 candidates, a hundred times a second at most, first alone, then beside hostile clients
that each repeat one attack after another: bodies that are costly to read, calls at the limit of what is allowed,
headers and bodies that never end, answers nobody takes, pushes without a token. The hostile ones run at lower priority,
since in earnest they are other machines. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from place_latency import body, push, quantile, signed_push, wait_for

HONEST_CANDIDATES = 50
PAUSE_S = 0.01


def plain(candidates: list[dict[str, Any]], requests: list[dict[str, Any]], **more: Any) -> bytes:
    return json.dumps({"problem": "functions", "requests": requests, "candidates": candidates} | more).encode()


def names(count: int, **state: float) -> list[dict[str, Any]]:
    return [{"name": f"n{index}", "state": state} for index in range(count)]


def bodies() -> dict[str, bytes]:
    """Bodies that each cost, or once cost, more than they look."""
    one = [{"id": "r", "fields": {}}]
    functions = [{"id": f"r{index}", "fields": {}, "function": f"f{index}"} for index in range(1024)]
    return {
        "an unknown field each": plain([{"name": f"n{i}", "state": {f"u{i}": 1.0}} for i in range(12_000)], one),
        "functions x candidates": plain(names(20_000), functions),
        "as many pairs as allowed": plain(names(3_900), functions, top_k=1),
        "as many candidates as allowed": plain(names(20_000, cpu_capacity=4.0, mem_capacity=8.0), one),
        "many values": b'{"candidates":[{"name":"a","state":{' + b'"":1,' * 3_000_000,
        "values at the limit": plain([{"name": "a", "state": {f"{i:x}": 1 for i in range(900_000)}}], one),
        "a huge answer": plain(names(1_000), functions, top_k=1000),
        "deep": b"[" * 2_000_000,
        "long name": plain([{"name": "a", "state": {"x" * 10_000_000: 1}}], one),
    }


def attack(port: int, until: float, seed: int) -> None:
    """Repeat the attacks in random order."""
    os.nice(10)
    rng, payloads = np.random.default_rng(seed), bodies()
    attacks: list[Callable[[], None]] = [*(lambda data=data: post(port, data) for data in payloads.values())]
    attacks += [lambda: half(port), lambda: headers(port), lambda: not_taken(port), lambda: no_token(port)]
    while time.time() < until:
        with contextlib.suppress(OSError, http.client.HTTPException):
            attacks[int(rng.integers(len(attacks)))]()


def post(port: int, data: bytes, method: str = "POST", path: str = "/v1/place") -> None:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    client.request(method, path, data)
    client.getresponse().read()
    client.close()


def no_token(port: int) -> None:
    post(port, bytes(20_000_000), "PUT", "/v1/policies/functions")


def half(port: int) -> None:
    for text in (b"POST /v1/place HTTP/1.1\r\nContent-Length: 9000000\r\n\r\n", b"GET / HTTP/1.1\r\nA: "):
        connection = socket.create_connection(("127.0.0.1", port), timeout=5)
        connection.sendall(text)
        HELD.append(connection)
    while len(HELD) > 200:
        HELD.pop(0).close()


def headers(port: int) -> None:
    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
    connection.sendall(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 100_000)
    connection.close()


def not_taken(port: int) -> None:
    data = plain(names(1000, cpu_capacity=4.0), [{"id": f"r{i}", "fields": {}} for i in range(20)], top_k=1000)
    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
    connection.sendall(b"POST /v1/place HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    HELD.append(connection)


HELD: list[socket.socket] = []


def ask(port: int, seconds: float) -> dict[str, float]:
    """Ask as an honest client does; every call must be answered by the policy."""
    payload = body(HONEST_CANDIDATES, np.random.default_rng(0))
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    trips, failed = [], 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        try:
            client.request("POST", "/v1/place", payload)
            answer = client.getresponse()
            content = answer.read()
            failed += answer.status != 200 or json.loads(content)["placements"][0]["fallback"]
        except (OSError, http.client.HTTPException):
            client.close()
            failed += 1
        trips.append((time.perf_counter() - started) * 1e3)
        time.sleep(PAUSE_S)
    return {
        "calls": len(trips), "failed": failed,
        "p50_ms": quantile(trips, 50), "p99_ms": quantile(trips, 99), "worst_ms": quantile(trips, 100),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--hostile", type=int, default=4, help="hostile clients, a process each")
    parser.add_argument("--port", type=int, default=18198)
    parser.add_argument("--out", type=Path, help="also write hostile_load.json to this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        archive = signed_push(folder, hidden=64)
        environ = os.environ | {"LOADMASTER_VAR": str(folder), "OMP_NUM_THREADS": "1", "LOADMASTER_DEADLINE_MS": "2000"}
        command = [sys.executable, "-m", "placement", "--port", str(arguments.port), "--log-level", "warning"]
        with subprocess.Popen(command, env=environ) as service:
            try:
                wait_for(arguments.port)
                push(arguments.port, folder, archive)
                alone = ask(arguments.port, arguments.seconds / 2)
                until = time.time() + arguments.seconds + 5
                context = multiprocessing.get_context("spawn")
                clients = [
                    context.Process(target=attack, args=(arguments.port, until, seed))
                    for seed in range(arguments.hostile)
                ]
                for client in clients:
                    client.start()
                time.sleep(5)  # they build their bodies
                beside = ask(arguments.port, arguments.seconds)
                process = psutil.Process(service.pid)
                tree = [process, *process.children(recursive=True)]
                resident = sum(one.memory_info().rss for one in tree) / 2**20
                for client in clients:
                    client.join(timeout=60)
                    if client.is_alive():
                        client.kill()
                after = ask(arguments.port, 1.0)
            finally:
                service.terminate()
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)}
    report = {
        "benchmark": "hostile_load", "machine": machine, "hostile_clients": arguments.hostile,
        "alone": alone, "beside_hostile": beside, "after": after, "resident_mib": round(resident),
    }  # fmt: skip
    if arguments.out:
        (arguments.out / "hostile_load.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
