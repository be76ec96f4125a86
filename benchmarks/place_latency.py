"""Latency of ``POST /v1/place``: real server, real sockets, an untrained policy of the trained one's size.

    python benchmarks/place_latency.py [--candidates 50 500 5000] [--seconds 5] [--hidden 64]

Starts its own service in a temporary folder with its own keys. For each candidate count it reports the whole HTTP
round trip of one client (keep-alive), the server's own time (``decision_us``: decode to ranked answer), its CPU time a
call (all threads, which noise from other processes changes least), and the rate that four clients reach together. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sched_env import problems
from wire import sample_bundle, signatures
from wire.contracts import encode
from wire.contracts.bundle import Verdict
from wire.contracts.policies import RECORD_FILE, RECORD_SIGNATURE_FILE
from wire.records import RecordSignature


def body(count: int, rng: np.random.Generator) -> bytes:
    """Build a request whose candidates carry every field, as an adapter would send them."""
    nodes = []
    for index in range(count):
        state = {name: round(default * float(rng.uniform(0.5, 2.0)), 4) for name, (_, default) in FIELDS.items()}
        state |= {"cpu_deployed": float(rng.uniform(0, 6)), "mem_deployed": float(rng.uniform(0, 16)), "active": 1.0}
        nodes.append({"name": f"node-{index:05d}", "state": state})
    asked = {name: default for name, (_, default) in problems.get("functions").request_fields.items()}
    return json.dumps(
        {"problem": "functions", "requests": [{"id": "pod-1", "fields": asked}], "candidates": nodes}
    ).encode()


FIELDS = problems.get("functions").state_fields


def call(client: http.client.HTTPConnection, payload: bytes) -> dict[str, Any]:
    client.request("POST", "/v1/place", payload, {"Content-Type": "application/json"})
    answer = client.getresponse()
    content = answer.read()
    assert answer.status == 200, content
    decoded: dict[str, Any] = json.loads(content)
    return decoded


def measure(port: int, payload: bytes, seconds: float, service: psutil.Process) -> dict[str, float]:
    client = http.client.HTTPConnection("127.0.0.1", port)
    for _ in range(20):
        call(client, payload)
    trips, inside, fallbacks = [], [], 0
    cpu_s = sum(service.cpu_times()[:2])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        answer = call(client, payload)
        trips.append((time.perf_counter() - start) * 1e3)
        inside.append(answer["decision_us"] / 1e3)
        fallbacks += answer["placements"][0]["fallback"]
    cpu_s = sum(service.cpu_times()[:2]) - cpu_s
    return {
        "calls": len(trips),
        "cpu_ms": round(cpu_s / len(trips) * 1e3, 3),
        "http_p50_ms": quantile(trips, 50),
        "http_p99_ms": quantile(trips, 99),
        "server_p50_ms": quantile(inside, 50),
        "server_p99_ms": quantile(inside, 99),
        "fallback_share": fallbacks / len(trips),
        "four_clients_per_s": throughput(port, payload, seconds),
    }


def throughput(port: int, payload: bytes, seconds: float, clients: int = 4) -> float:
    counts = [0] * clients
    end = time.perf_counter() + seconds

    def run(index: int) -> None:
        client = http.client.HTTPConnection("127.0.0.1", port)
        while time.perf_counter() < end:
            call(client, payload)
            counts[index] += 1

    threads = [threading.Thread(target=run, args=(index,)) for index in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return round(sum(counts) / seconds, 1)


def quantile(values: list[float], percent: float) -> float:
    return round(float(np.percentile(values, percent)), 3)


def signed_push(folder: Path, hidden: int) -> bytes:
    """Return the push of an untrained policy of ``functions``."""
    spec, verdict = problems.spec("functions"), Verdict("pass", "for a benchmark")
    return signed(folder, sample_bundle.build(spec, hidden=hidden, gate=verdict))


def signed(folder: Path, bundle_files: Mapping[str, bytes]) -> bytes:
    """Make a key that the service in ``folder`` trusts; return the push of a bundle that it signed and promoted."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    trusted = folder / "keys" / "trusted"
    trusted.mkdir(parents=True)
    private = folder / "keys" / "signing.pem"
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (trusted / "benchmark.pub").write_bytes(public)
    bundle = folder / "bundle"
    bundle.mkdir()
    for name, data in bundle_files.items():
        (bundle / name).write_bytes(data)
    signatures.sign(bundle, private)
    files = {path.name: path.read_bytes() for path in bundle.iterdir()}
    record = encode(sample_bundle.record(files, counter=1, previous_digest=None))
    signature = key.sign(record, ec.ECDSA(hashes.SHA256()))
    (bundle / RECORD_FILE).write_bytes(record)
    key_id = signatures.key_id(trusted / "benchmark.pub")
    (trusted / signatures.LISTED).write_text(json.dumps([key_id]))
    (bundle / RECORD_SIGNATURE_FILE).write_bytes(encode(RecordSignature.of(key_id, signature)))
    return subprocess.run(["tar", "-C", str(bundle), "-cf", "-", "."], check=True, capture_output=True).stdout


def push(port: int, folder: Path, archive: bytes, problem: str = "functions") -> None:
    """Make a bundle live, as the first of its problem."""
    headers = {
        "Authorization": "Bearer " + (folder / "keys" / "push-token").read_text().strip(),
        "If-None-Match": "*",
    }
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    client.request("PUT", f"/v1/policies/{problem}", archive, headers)
    answer = client.getresponse()
    assert answer.status == 200, answer.read()
    answer.read()


def wait_for(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError):
            client = http.client.HTTPConnection("127.0.0.1", port)
            client.request("GET", "/healthz")
            client.getresponse().read()
            return
        time.sleep(0.1)
    raise SystemExit("the service did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, nargs="+", default=[50, 500, 5000])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--hidden", type=int, default=64, help="width of the two layers; 64 is the trained policy's")
    parser.add_argument("--port", type=int, default=18199)
    parser.add_argument("--out", type=Path, help="also write place_latency.json to this folder")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        archive = signed_push(folder, arguments.hidden)
        environ = os.environ | {"LOADMASTER_VAR": str(folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "placement", "--port", str(arguments.port), "--log-level", "warning"]
        with subprocess.Popen(command, env=environ) as service:
            try:
                wait_for(arguments.port)
                push(arguments.port, folder, archive)
                results = {}
                for count in arguments.candidates:
                    results[str(count)] = measure(
                        arguments.port, body(count, rng), arguments.seconds, psutil.Process(service.pid)
                    )
                    print(f"{count:>6} candidates: {results[str(count)]}")
            finally:
                service.terminate()
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)}
    report = {"benchmark": "place_latency", "hidden": arguments.hidden, "machine": machine, "results": results}
    if arguments.out:
        (arguments.out / "place_latency.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
