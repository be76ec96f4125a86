"""Where a Prometheus is, how we show who we are, and how long to wait: checked before the first question."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from wire.errors import ConfigError


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files for TLS; a client certificate makes it mutual."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    """Null: the key is in ``cert_file``."""

    def __post_init__(self) -> None:
        """Refuse a key that belongs to nothing."""
        if self.key_file and not self.cert_file:
            raise ConfigError(f"tls.key_file is {self.key_file} and tls.cert_file is missing", "the certificate too")


class Basic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """User and the file or environment variable that holds the password."""

    user: str
    password_file: str | None = None
    password_env: str | None = None


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cluster's Prometheus. Secrets are named by file or environment variable, never written here."""

    name: str
    """Name of the cluster, as it appears in every table."""
    url: str
    matchers: str = ""
    """PromQL matchers that pick this cluster where one Prometheus holds several, e.g. ``cluster="prod-1"``."""
    bearer_file: str | None = None
    bearer_env: str | None = None
    basic: Basic | None = None
    tls: Tls | None = None
    headers: dict[str, str] = {}
    """Further headers, e.g. the tenant of Mimir (``X-Scope-OrgID``)."""
    proxy: str | None = None
    """HTTP proxy; those of the environment are not used."""

    def __post_init__(self) -> None:
        """Refuse addresses that lead nowhere, and secrets that are written here or contradict each other."""
        where = f"ingest.prometheus.clusters: {self.name!r}"
        address = urlsplit(self.url)
        if not self.name.strip():
            raise ConfigError(f"{where} is no name", "the cluster's name")
        if "@" in address.netloc:
            raise ConfigError(
                f"{where}: url holds a user or password", "no secret in a settings file", "use basic with password_file"
            )
        if address.scheme not in {"http", "https"} or not address.hostname or address.query or address.fragment:
            raise ConfigError(f"{where}: url is {self.url!r}", "http://host or https://host, with a path or without")
        told = [name for name in ("bearer_file", "bearer_env", "basic") if getattr(self, name) is not None]
        told += [f"headers.{name}" for name in self.headers if name.lower() == "authorization"]
        if len(told) > 1 or any("." in name for name in told):
            raise ConfigError(f"{where}: {' and '.join(told)}", "one of bearer_file, bearer_env, basic, or none")
        for name, value in self.headers.items():
            if not (name.isascii() and value.isascii() and (name + value).isprintable()):
                raise ConfigError(f"{where}: header {name!r} has a value that headers cannot hold", "plain ASCII")

    def credentials(self) -> dict[str, str]:
        """Return the header that shows who we are. Read anew for every question: tokens in files are replaced."""
        if self.bearer_file is not None or self.bearer_env is not None:
            token = _secret(self.bearer_file, self.bearer_env, f"bearer token of {self.name}")
            if not (token.isascii() and token.isprintable()) or " " in token:
                raise ConfigError(f"bearer token of {self.name}: not one word of plain ASCII", "the token alone")
            return {"Authorization": f"Bearer {token}"}
        if self.basic is not None:
            basic = self.basic
            password = _secret(basic.password_file, basic.password_env, f"password of {basic.user} of {self.name}")
            return {"Authorization": f"Basic {base64.b64encode(f'{basic.user}:{password}'.encode()).decode()}"}
        return {}

    def identity(self) -> list[str]:
        """Say which data this is. Headers and the user may choose a tenant, and be secret: they are hashed."""
        tenant = msgspec.json.encode([self.headers, self.basic.user if self.basic else None], order="sorted")
        return [self.url, self.matchers, hashlib.sha256(tenant).hexdigest()[:16]]


class Patience(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait, and how often to ask again."""

    connect_seconds: float = 10.0
    answer_seconds: float = 120.0
    """For a whole answer, however slowly it trickles."""
    attempts: int = 6
    backoff_seconds: float = 0.5
    """First pause; it doubles, with jitter, up to ``backoff_max_seconds``; a server's Retry-After counts if longer."""
    backoff_max_seconds: float = 30.0
    answer_mb: int = 512
    """Larger answers are refused, so that one query cannot fill the memory."""

    def __post_init__(self) -> None:
        """Refuse waiting for nothing."""
        for name in self.__struct_fields__:
            if not (getattr(self, name) > 0):
                raise ConfigError(f"ingest.prometheus.patience.{name} is {getattr(self, name)}", "more than 0")


def _secret(file: str | None, variable: str | None, what: str) -> str:
    """Read a secret; errors name the place, never the text."""
    if (file is None) == (variable is None):
        raise ConfigError(f"{what}: {'two places' if file else 'no place'}", "a file or an environment variable")
    if file is not None:
        try:
            text = Path(file).read_text()
        except OSError as error:
            raise ConfigError(f"{what}: {file}: {error.strerror}", "a readable file") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{what}: {file} is not text", "a file in UTF-8") from error
    else:
        text = os.environ.get(str(variable), "")
    if not text.strip():
        raise ConfigError(f"{what}: {file or f'environment variable {variable}'} is empty or not set", "the secret")
    return text.strip()
