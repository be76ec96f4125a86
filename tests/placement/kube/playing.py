"""A Prometheus that a test plays: it answers ``query_range`` from functions of time, or as wrongly as it is told."""

from __future__ import annotations

import http.server
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.parse import parse_qs

Series = dict[str, Callable[[float], float]]
"""Node, or namespace/pod, -> what it uses at a time (cores, bytes, MB/s, IOPS)."""


class PlayedPrometheus:
    """Answers the question whose PromQL is the name of a series set: give the settings ``queries`` by :attr:`QUERIES`.

    Of a series set it also tells averages over time, as a subquery asks for them.

    ``mood`` changes how: ``well``, ``dead`` (connection cut), ``slow``, ``drops`` (byte by byte), ``garbage``,
    ``error`` (its own way to say no), ``huge``.
    """

    QUERIES: ClassVar = {name: name for name in ("pod_cpu", "pod_mem", "node_cpu", "node_mem", "node_net", "node_disk")}

    def __init__(self) -> None:
        self.series: dict[str, Series | Callable[[], Series]] = {}
        self.raw: dict[str, list[dict[str, Any]]] = {}
        """Name -> series as they are to be sent, in place of the above."""
        self.mood, self.asked = "well", 0
        self.time: Callable[[float], float] = lambda at: at
        """From the time that is asked for to the time that is played."""
        played = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                played.asked += 1
                match played.mood:
                    case "dead":
                        self.connection.close()
                    case "garbage":
                        self._send(b'{"status":"success","data":{"result":[{"metric":')
                    case "error":
                        self._send(b'{"status":"error","errorType":"execution","error":"as told"}', 422)
                    case "slow":
                        time.sleep(3)
                    case "huge":
                        self._send(b" " * (65 * 2**20))
                    case "drops":
                        self.send_response(200)
                        self.end_headers()
                        for _ in range(30):
                            self.wfile.write(b" ")
                            self.wfile.flush()
                            time.sleep(0.1)
                    case _:
                        self._send(json.dumps(played.answer(asked)).encode())

            def _send(self, data: bytes, code: int = 200) -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                pass

            def handle(self) -> None:
                try:
                    super().handle()
                except (OSError, ValueError):  # whoever asked did not wait for it
                    self.close_connection = True

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, asked: dict[str, list[str]]) -> dict[str, Any]:
        name, start, end, step = (asked[key][0] for key in ("query", "start", "end", "step"))
        averaged = re.fullmatch(r"avg_over_time\(\((.+)\)\[(\d+)s:(\d+)s\]\)", name)
        name, over, apart = averaged.groups() if averaged else (name, "1", "1")
        back = [float(apart) * k for k in range(int(over) // int(apart))]
        if name in self.raw:
            return {"status": "success", "data": {"resultType": "matrix", "result": self.raw[name]}}
        series = self.series.get(name, {})
        result = []
        for key, use in (series() if callable(series) else series).items():
            namespace, _, pod = key.partition("/")
            times = [float(start) + k * float(step) for k in range(int((float(end) - float(start)) / float(step)) + 1)]
            labels = {"node": key} if name.startswith("node") else {"namespace": namespace, "pod": pod}
            means = [sum(use(self.time(at - ago)) for ago in back) / len(back) for at in times]
            told = [[at, repr(mean)] for at, mean in zip(times, means, strict=True)]
            result.append({"metric": labels, "values": told})
        return {"status": "success", "data": {"resultType": "matrix", "result": result}}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def playing() -> Iterator[PlayedPrometheus]:
    prometheus = PlayedPrometheus()
    try:
        yield prometheus
    finally:
        prometheus.close()
