"""What the registry asks of the placement service: which policies are live, and to take a new one."""

from __future__ import annotations

import argparse
import io
import tarfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from pipeline.errors import PushError, RegistryError
from pipeline.registry import records
from pipeline.registry.chain import Chain
from wire import environment, secret_files
from wire.contracts.policies import (
    COUNTER_HEADER,
    RECORD_FILE,
    RECORD_SIGNATURE_FILE,
    SHARE_HEADER,
    LivePolicy,
    Policies,
    Refusal,
)
from wire.contracts.record import PromotionRecord

T = TypeVar("T")

Stage = Literal["shadow", "canary"]
"""How a bundle is tried beside what is live."""

TIMEOUT_S = 180.0
"""The service first loads a pushed policy in a process of its own, which takes seconds on a busy machine."""

FINAL = {400, 409, 412, 413, 415, 422}
"""Answers that the same push would get again: the promotion has failed. Others (token, 5xx) can be put right."""


class Refused(PushError):  # noqa: N818  (a refusal is an answer, told apart from not being able to ask)
    """Raised when the service looked at a push and refused it for good."""


def url_option(parser: argparse.ArgumentParser) -> None:
    """``--url``, for every command that asks the service."""
    parser.add_argument("--url", required=True, help="address of the placement service")


def live_policy(url: str, problem: str) -> LivePolicy | None:
    """Ask what is live for a problem; None when no policy is."""
    entry = policy_state(url, problem)
    return entry if entry is not None and entry.digest is not None else None


def policy_state(url: str, problem: str) -> LivePolicy | None:
    """Ask what the service says of a problem, also while its heuristic answers; None before the first push."""
    return policies(url).get(problem)


def policies(url: str, *, timeout_s: float = TIMEOUT_S) -> Mapping[str, LivePolicy | None]:
    """Ask what the service says of every problem."""
    return ask(url, "/v1/policies", Policies, timeout_s=timeout_s).policies


def ask(url: str, path: str, kind: type[T], *, timeout_s: float = TIMEOUT_S) -> T:
    """Ask the service for a document of a kind."""
    body = _call(urllib.request.Request(_address(url, path)), timeout_s)  # noqa: S310  (_address checks the scheme)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise PushError(f"{url}{path} answered something else: {error}", f"a document as {kind.__name__}") from error


def push_bundle(
    url: str, record: PromotionRecord, directory: Path, *, stage: Stage | None = None, share: float = 0.0
) -> None:
    """Hand a signed bundle to the service, with the signed record that promotes it: that, not the token, is the proof.

    It must follow the policy that the record names as live before it. With a ``stage`` it is tried beside that one.
    """
    headers = {"Authorization": f"Bearer {push_token()}", "Content-Type": "application/x-tar"}
    if stage == "canary":
        headers[SHARE_HEADER] = f"{share:g}"
    if record.previous_digest is None:
        headers["If-None-Match"] = "*"
    else:
        headers["If-Match"] = f'"{record.previous_digest}"'
    address = _address(url, f"/v1/policies/{record.problem}" + (f"/{stage}" if stage else ""))
    files = {path.name: path.read_bytes() for path in directory.iterdir()} | _proof(record)
    _call(urllib.request.Request(address, data=pack(files), headers=headers, method="PUT"))  # noqa: S310


def _proof(record: PromotionRecord) -> dict[str, bytes]:
    """Read a record and its signature, as the registry has them."""
    chain = Chain.open()
    kept = chain.mirror.files(chain.commit, records.RECORDS) if chain.commit else {}
    paths = {
        RECORD_FILE: records.path_of(record.sequence),
        RECORD_SIGNATURE_FILE: records.signature_path_of(record.sequence),
    }
    missing = [path for path in paths.values() if path not in kept]
    if missing:
        raise RegistryError(f"{missing[0]} is missing on branch promotions", f"record {record.sequence}, signed")
    return {name: kept[path] for name, path in paths.items()}


def roll_back(url: str, problem: str, *, live_digest: str, counter: int) -> None:
    """Have the service flip to the policy it ran before; ``live_digest`` is the one the caller believes is live."""
    headers = {
        "Authorization": f"Bearer {push_token()}",
        "If-Match": f'"{live_digest}"',
        COUNTER_HEADER: str(counter),
    }
    address = _address(url, f"/v1/policies/{problem}/rollback")
    _call(urllib.request.Request(address, data=b"", headers=headers, method="POST"))  # noqa: S310


def advance_canary(url: str, record: PromotionRecord) -> None:
    """Make the canary live; it must be this record's, and what is live must be what the record took over from."""
    said = policy_state(url, record.problem)
    if said is None or said.canary is None or said.canary.digest != record.digest:
        raise PushError(f"{url} tries {said.canary.digest if said and said.canary else 'nothing'}", record.digest)
    headers = {"Authorization": f"Bearer {push_token()}", "If-Match": f'"{record.previous_digest}"'}
    address = _address(url, f"/v1/policies/{record.problem}/canary/advance")
    _call(urllib.request.Request(address, data=b"", headers=headers, method="POST"))  # noqa: S310


def end_canary(url: str, problem: str) -> None:
    """Let the live policy answer every call again."""
    headers = {"Authorization": f"Bearer {push_token()}"}
    _call(urllib.request.Request(_address(url, f"/v1/policies/{problem}/canary"), headers=headers, method="DELETE"))  # noqa: S310


def pack(files: Mapping[str, bytes]) -> bytes:
    """Pack files into an uncompressed tar: plain names, no owner, no times; equal files give equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _address(url: str, path: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise PushError(f"service address {url!r}", "http://... or https://...")
    return url.rstrip("/") + path


def _call(request: urllib.request.Request, timeout_s: float = TIMEOUT_S) -> bytes:
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310  (_address checks the scheme)
            content: bytes = response.read()
    except urllib.error.HTTPError as error:
        reason = _reason(error.read())
        kind = Refused if error.code in FINAL else PushError
        raise kind(f"{request.full_url} answered {error.code}: {reason}") from error
    except (OSError, HTTPException) as error:
        raise PushError(
            f"{request.full_url} does not answer: {error}", fix="see that the placement service runs, then run it again"
        ) from error
    return content


def push_token() -> str:
    """Read the push token, made on first use."""
    path = environment.place("push_token_file")
    secret_files.make_push_token(path)
    return secret_files.push_token(path)


def _reason(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=Refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError):  # not our service: a proxy, or another program on the port
        return body.decode(errors="replace")[:500] or "no reason given"
