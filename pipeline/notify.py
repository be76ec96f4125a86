"""Tells people: by mail, by webhook, or both; what is not set up is left out.

    python -m pipeline.notify --kind approval --subject "functions waits for an answer" --body "…" --link http://…

``LOADMASTER_NOTIFY_WEBHOOK`` takes a JSON object with ``text`` (what Slack, Mattermost and Teams show) and the parts.
``LOADMASTER_NOTIFY_SMTP`` is ``smtp://[user@]host[:port]`` or ``smtps://…``; then ``LOADMASTER_NOTIFY_TO`` (commas) and
``LOADMASTER_NOTIFY_FROM`` must be there, and with a user ``LOADMASTER_NOTIFY_PASSWORD_FILE``.
"""

from __future__ import annotations

import argparse
import json
import os
import smtplib
import sys
import urllib.request
from email.message import EmailMessage
from http.client import HTTPException
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from wire import environment
from wire.command import Verb
from wire.errors import ConfigError, LoadmasterError, run_cli

WEBHOOK_ENV = environment.variable("notify_webhook")
SMTP_ENV = environment.variable("notify_smtp")
TO_ENV, FROM_ENV = environment.variable("notify_to"), environment.variable("notify_from")
PASSWORD_ENV = environment.variable("notify_password_file")
TIMEOUT_S = 15.0
KINDS = ("approval", "promoted", "rejected", "failed", "late", "drift", "rollback")


class Message(msgspec.Struct, frozen=True):
    """What people are told."""

    kind: str
    subject: str
    body: str = ""
    link: str = ""

    def text(self) -> str:
        """All of it as plain text."""
        return "\n\n".join(part for part in (self.subject, self.body, self.link) if part)


class NotifyError(LoadmasterError):
    """Raised when nobody could be told over a way that is set up."""


def tell(message: Message) -> list[str]:
    """Send a message every way that is set up; all are tried. Returns what was reached."""
    reached, failed = [], []
    for variable, send in ((WEBHOOK_ENV, _webhook), (SMTP_ENV, _mail)):
        address = os.environ.get(variable)
        if not address:
            continue
        try:
            send(address, message)
        except (OSError, HTTPException, smtplib.SMTPException) as error:
            failed.append(f"{variable}: {error}")
        else:
            reached.append(variable)
    if failed:
        raise NotifyError("; ".join(failed), "a mail server or a webhook that takes it", "the rest was told")
    return reached


def _webhook(address: str, message: Message) -> None:
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"{WEBHOOK_ENV} is {address!r}", "http://... or https://...")
    content = {"text": message.text(), **msgspec.to_builtins(message)}
    request = urllib.request.Request(  # noqa: S310  (the scheme is checked above)
        address, data=json.dumps(content).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310
        pass


def _mail(address: str, message: Message) -> None:
    parts = urlsplit(address)
    people = [name.strip() for name in os.environ.get(TO_ENV, "").split(",") if name.strip()]
    if parts.scheme not in ("smtp", "smtps") or not parts.hostname:
        raise ConfigError(f"{SMTP_ENV} is {address!r}", "smtp://[user@]host[:port] or smtps://...")
    if not people or not os.environ.get(FROM_ENV):
        raise ConfigError(f"{SMTP_ENV} is set and {TO_ENV} or {FROM_ENV} is not", "who is told, and by whom")
    mail = EmailMessage()
    # A header that could carry a line break could carry further headers.
    mail["Subject"] = " ".join(f"[loadmaster] {message.subject}".split())
    mail["From"], mail["To"] = os.environ[FROM_ENV], ", ".join(people)
    mail.set_content(message.text())
    kind = smtplib.SMTP_SSL if parts.scheme == "smtps" else smtplib.SMTP
    with kind(parts.hostname, parts.port or 0, timeout=TIMEOUT_S) as server:
        if parts.scheme == "smtp" and parts.username:
            server.starttls()  # A password never goes over the wire in the clear.
        if parts.username:
            server.login(unquote(parts.username), Path(os.environ[PASSWORD_ENV]).read_text().strip())
        server.send_message(mail)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--subject", required=True)
    parser.add_argument("--body", default="")
    parser.add_argument("--link", default="")


def run(options: argparse.Namespace) -> int:
    """Tell, and say who was reached."""
    reached = tell(Message(options.kind, options.subject, options.body, options.link))
    sys.stdout.write(f"told over {', '.join(reached)}\n" if reached else f"nobody to tell: set {WEBHOOK_ENV}\n")
    return 0


main = Verb("python -m pipeline.notify", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
