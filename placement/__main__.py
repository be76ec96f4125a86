"""``python -m placement --host 127.0.0.1 --port 8100``: run the service."""

from __future__ import annotations

import argparse
import gc
import logging
import socket

from placement import tls
from placement.request_ids import JsonLines
from placement.server import Server, config
from placement.service import open_store
from placement.settings import load
from wire.command import Verb
from wire.errors import ConfigError, run_cli


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: loopback only)")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--tls-port", type=int, help="a second port, for clients that show a certificate")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-format", default="text", choices=("text", "json"), help="json: one object a line")


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop."""
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if options.log_format == "json":
        logging.getLogger().handlers[0].setFormatter(JsonLines())
    settings = load()
    # Both would only show as a traceback from inside the server: say them as what they are, before it starts.
    taken = bind(options.host, options.port)
    open_store(settings).close()
    # What is loaded by now stays: without it in every full collection, and with fewer of those, a body of 5,000
    # candidates is decoded in half the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    chosen = config(settings, log_level=options.log_level)
    server = Server(chosen, settings.drain_s)
    if options.tls_port is not None:
        server = tls.TwoDoors(chosen, bind(options.host, options.tls_port), tls.context(settings), settings.drain_s)
    server.run(sockets=[taken])
    return 0 if server.started else 1


main = Verb("python -m placement", __doc__, arguments, run)


def bind(host: str, port: int) -> socket.socket:
    """Take the port, or say clearly that it is taken."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error}", "a free port", "choose another with --port"
        ) from error
    return listener


if __name__ == "__main__":
    run_cli(main)
