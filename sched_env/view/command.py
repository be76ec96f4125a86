"""Look at recorded runs in a browser: one, or two side by side.

loadmaster rollout --scenario vm/recovering --policy best_fit --set servers=20 --episodes 1 --record best.parquet
loadmaster view best.parquet
loadmaster view best.parquet other.parquet --html comparison.html

A decision log of the live service (var/log/decisions/decisions.jsonl) and a snapshot of a watched cluster
(curl -s SERVICE/v1/clusters/NAME/snapshot > NAME.json) open in the same page. Keys: space plays,
arrows step, Home and End go to the ends, D finds the next decision that differs, ? lists the rest.
"""

from __future__ import annotations

import argparse
import http.server
import os
import sys
import webbrowser
from pathlib import Path

from sched_env.view import live, pack, page, snapshot
from wire.command import Verb
from wire.errors import ConfigError

MOST_RUNS = 2


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="replay file, decision log (.jsonl) or snapshot (.json)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page instead of opening it")
    parser.add_argument("--port", type=int, default=0, help="of the page on 127.0.0.1; default: any that is free")
    parser.add_argument("--no-browser", action="store_true", help="say the address and open nothing")


def run(options: argparse.Namespace) -> int:
    """Build the page; write it, or serve it until interrupted."""
    if len(options.runs) > MOST_RUNS:
        raise ConfigError(f"{len(options.runs)} runs", "one, or two to compare")
    for path in options.runs:
        if not path.is_file():
            raise ConfigError(
                f"there is no file {path}", "a replay file", "write one with loadmaster rollout --record RUN.parquet"
            )
    runs = [opened(path) for path in options.runs]
    title = " and ".join(f"{each.head['policy']} on {each.head['scenario']}" for each in runs)
    text = page.html(runs, f"{title} · Loadmaster replay").encode()
    if options.html:
        _write(options.html, text)
        sys.stdout.write(
            f"{options.html}  {len(text) / 1e6:.1f} MB, {sum(each.head['frames'] for each in runs)} decisions\n"
        )
        return 0
    with _server(text, options.port) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        sys.stdout.write(f"{address}  (Ctrl-C ends it)\n")
        sys.stdout.flush()
        if not options.no_browser:
            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


def opened(path: Path) -> pack.Packed:
    """Read a file by what it is: a replay, a decision log or a snapshot."""
    readers = {".jsonl": live.of_log, ".json": snapshot.of_snapshot}
    return readers.get(path.suffix, pack.of_replay)(path)


def _write(path: Path, text: bytes) -> None:
    """Write the page whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    unfinished.write_bytes(text)
    unfinished.replace(path)


def _server(text: bytes, port: int) -> http.server.ThreadingHTTPServer:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path in ("/", "/index.html")
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(text) if found else 0))
            self.end_headers()
            if found:
                self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing: the page is asked for once."""

    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ConfigError(f"port {port}: {error.strerror}", "a free port", "leave --port out") from error


main = Verb("python -m sched_env.view", __doc__, arguments, run)
