"""A wire between the service and whatever it talks to, that a test can cut."""

from __future__ import annotations

import contextlib
import socket
import threading


class Wire:
    """Passes bytes on from a port of its own to another one.

    ``cut`` ends every connection there is; while ``up`` is False, new ones end at once.
    """

    def __init__(self, port: int) -> None:
        self._to, self.up = port, True
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for one in self._open:
            with_no_error(one)
        self._open.clear()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self.up:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._to), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self._open += [client, server]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    with_no_error(source)
    with_no_error(target)


def with_no_error(one: socket.socket) -> None:
    """Shut a socket down, whichever side was first."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
