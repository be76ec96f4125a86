"""Break-glass: leave problems to their heuristics, or give them back to their policies, without Airflow or registry.

    loadmaster mode heuristic --url http://127.0.0.1:8100 [--problem functions]
    loadmaster mode policy --url http://127.0.0.1:8100 [--problem functions]

Needs the push token with the role ``rollback`` and writes the service's audit log; ``loadmaster verify --reconcile``
records it when there is time for that.
"""

from __future__ import annotations

import argparse
import sys
import urllib.error
import urllib.request

import msgspec

from placement.errors import StoreError
from sched_env import problems
from wire import environment, secret_files
from wire.command import Verb
from wire.contracts.policies import Flipped, LivePolicy, Policies, Refusal
from wire.errors import run_cli

TIMEOUT_S = 30.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("mode", choices=("heuristic", "policy"), help="who shall answer")
    parser.add_argument(
        "--problem", choices=problems.names(), help="only this one (default: every one that has a policy)"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8100", help="address of the placement service")


def run(options: argparse.Namespace) -> int:
    """Change every problem that is not so already; all are tried, also after one that could not be changed."""
    url, there = ask(options.url)
    failed = 0
    for problem in [options.problem] if options.problem else problems.names():
        try:
            said = _change(url, problem, there.get(problem), options.mode)
        except StoreError as error:
            failed, said = failed + 1, f"not changed: {error}"
        if said or options.problem:
            sys.stdout.write(f"{problem}: {said or 'no policy was ever pushed'}\n")
    return 1 if failed else 0


def ask(url: str) -> tuple[str, dict[str, LivePolicy | None]]:
    """Return the address, and what is live there."""
    url = url.rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise StoreError(f"--url is {url!r}", "http://... or https://...")
    return url, msgspec.json.decode(call(url, "GET", "/v1/policies"), type=Policies).policies


def _change(url: str, problem: str, live: LivePolicy | None, mode: str) -> str:
    if live is None:
        return ""
    off = live.digest is None
    if off == (mode == "heuristic"):
        return f"{live.fallback if off else live.digest} answers already"
    method, path = ("DELETE", "") if mode == "heuristic" else ("POST", "/rollback")
    flipped = msgspec.json.decode(call(url, method, f"/v1/policies/{problem}{path}"), type=Flipped)
    return f"{flipped.digest or live.fallback} answers, counter {flipped.counter}"


def call(url: str, method: str, path: str) -> bytes:
    """Ask the service; what changes anything carries the token."""
    headers = {}
    if method != "GET":
        token = secret_files.push_token(environment.place("push_token_file"))
        headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url + path, headers=headers, method=method)  # noqa: S310  (run checks the scheme)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            content: bytes = answer.read()
    except urllib.error.HTTPError as error:
        try:
            reason = msgspec.json.decode(error.read(), type=Refusal).error
        except msgspec.DecodeError:
            reason = "an answer that is not the service's"
        raise StoreError(f"{method} {url}{path} answered {error.code}: {reason}") from error
    except OSError as error:
        raise StoreError(f"{url} does not answer: {error}", "a running service", "see --url") from error
    return content


main = Verb("loadmaster mode", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
