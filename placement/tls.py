"""A second door for kube-scheduler: TLS, and nobody without a certificate of our own authority.

kube-scheduler sends its extenders no credentials; a client certificate is the only way for it to say who it is. The
plain port stays for probes, scrapes and pushes, which have their own ways (docs/kubernetes.md).
"""

from __future__ import annotations

import asyncio
import socket
import ssl

import uvicorn

from placement.server import Server
from placement.settings import Settings
from wire.errors import ConfigError


def context(settings: Settings) -> ssl.SSLContext:
    """Return what the door asks for; raises ConfigError when a file is not given or cannot be used."""
    given = {name: getattr(settings, name) for name in ("tls_cert_file", "tls_key_file", "tls_client_ca_file")}
    missing = [f"LOADMASTER_{name.upper()}" for name, path in given.items() if path is None]
    if missing:
        raise ConfigError(f"--tls-port without {', '.join(missing)}", "certificate, key, and the authority of clients")
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.verify_mode = ssl.CERT_REQUIRED
    try:
        made.load_cert_chain(given["tls_cert_file"], given["tls_key_file"])
        made.load_verify_locations(cafile=given["tls_client_ca_file"])
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS files: {error}", "PEM files of one key pair and one authority") from error
    return made


class TwoDoors(Server):
    """Serves the same application on a plain socket and on one with TLS.

    Args:
        config: As for one door.
        listener: The bound socket of the second one.
        asks: What the second one asks for.
        drain_s: As for one door.
    """

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, asks: ssl.SSLContext, drain_s: float = 0.0
    ) -> None:
        super().__init__(config, drain_s)
        self._listener, self._asks = listener, asks

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open both doors; they close together."""
        await super().startup(sockets)
        if not self.started:
            return
        config, state = self.config, self.lifespan.state

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=state
            )
            return made

        loop = asyncio.get_running_loop()
        self.servers.append(await loop.create_server(protocol, sock=self._listener, ssl=self._asks))
