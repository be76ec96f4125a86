"""Requests a second of ``POST /v1/place``, 100 candidates in the body, by ``wrk`` on the same machine; and its memory.

    python benchmarks/place_rate.py [--candidates 100] [--seconds 20] [--connections 8] [--out docs/results]
    python benchmarks/place_rate.py --requests 1000000        memory over a million requests

Starts its own service with its own keys and a policy of the shipped size. CPU a call is the server's, all threads:
other work on the machine changes that least. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from place_latency import body, push, signed_push, wait_for

TARGET = 2000


def wrk(port: int, script: Path, seconds: int, connections: int) -> dict[str, Any]:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(script)]
    done = subprocess.run([*command, f"http://127.0.0.1:{port}/v1/place"], capture_output=True, text=True, check=True)
    said = done.stdout
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    errors = re.search(r"Socket errors: (.*)", said)
    rate, count = re.search(r"Requests/sec:\s+([\d.]+)", said), re.search(r"(\d+) requests in", said)
    if rate is None or count is None:
        raise SystemExit(f"wrk said:\n{said}")
    found: dict[str, Any] = {"requests_a_second": float(rate[1]), "requests": int(count[1])}
    for share, text in re.findall(r"^\s+(\d+)%\s+([\d.]+\w+)$", said, re.MULTILINE):
        found[f"p{share}"] = text
    return found | {"not_200": int(bad[1]) if bad else 0, "socket_errors": errors[1] if errors else "none"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=20, help="of one round")
    parser.add_argument("--requests", type=int, default=0, help="rounds until so many were answered")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that serves (default: this one)")
    parser.add_argument("--port", type=int, default=18197)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed (scripts/install-test-tools.sh)")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        archive = signed_push(folder, options.hidden)
        script = folder / "place.lua"
        payload = body(options.candidates, np.random.default_rng(0)).decode()
        script.write_text(
            f'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\nwrk.body = {json.dumps(payload)}\n'
        )
        environ = os.environ | {"LOADMASTER_VAR": str(folder), "OMP_NUM_THREADS": "1"}
        command = [options.python, "-m", "placement", "--port", str(options.port), "--log-level", "warning"]
        with subprocess.Popen(command, env=environ) as service:
            try:
                wait_for(options.port)
                push(options.port, folder, archive)
                process = psutil.Process(service.pid)
                wrk(options.port, script, 3, options.connections)
                rounds: list[dict[str, Any]] = []
                answered = 0
                while not rounds or answered < options.requests:
                    cpu_s, started = sum(process.cpu_times()[:2]), time.monotonic()
                    one = wrk(options.port, script, options.seconds, options.connections)
                    cpu_s, wall_s = sum(process.cpu_times()[:2]) - cpu_s, time.monotonic() - started
                    one["server_cpu_us"] = round(cpu_s / one["requests"] * 1e6)
                    one["server_cores"] = round(cpu_s / wall_s, 2)
                    one["resident_mib"] = round(process.memory_info().rss / 2**20, 1)
                    answered += one["requests"]
                    rounds.append(one)
                    print(answered, one, flush=True)
            finally:
                service.terminate()
    best = max(one["requests_a_second"] for one in rounds)
    report = {
        "benchmark": "place_rate",
        "candidates": options.candidates,
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)},
        "target": f"at least {TARGET} requests/s at 100 candidates",
        "met": best >= TARGET,
        "answered": answered,
        "rounds": rounds[:3] + rounds[-3:] if len(rounds) > 6 else rounds,
    }
    if options.out:
        (options.out / "place_rate.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
