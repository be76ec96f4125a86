"""Look at everything that is live, once: ``watch_live`` calls this every quarter of an hour.

    loadmaster watch                    looks, writes var/watch/index.html and says what it found
    loadmaster watch --json             the same for programs: what to ask a person, what to train

Nothing is changed here: going back is asked of a person by the DAG ``rollback``, drift starts ``nightly_retrain``.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from pipeline.files import write_atomic
from pipeline.registry import nights, places
from pipeline.registry.chain import Chain
from pipeline.settings import var
from pipeline.sources.prometheus_http import Client
from pipeline.sources.prometheus_server import Patience, Server
from pipeline.watch import config as settings
from pipeline.watch import page
from pipeline.watch.looking import Seen, State, look
from sched_env import problems
from wire import environment
from wire.command import Verb, json_option

LATE = timedelta(hours=28)
"""Nothing recorded for so long means that a night did not end by 06:00."""
DECISIONS = "decisions.jsonl"


class Found(msgspec.Struct, frozen=True):
    """What one round of looks found."""

    seen: list[Seen]
    late: str
    """Why people should be told that no night has ended; empty: one has."""


def watch(config: settings.WatchConfig, home: Path, now_s: float) -> Found:
    """Look at every problem that has a live policy; what is kept between looks lies below ``home``."""
    chain = Chain.open()
    client = Client(Server(name="watch", url=config.prometheus), Patience())
    seen = []
    for problem in problems.names():
        live, since = chain.live(problem), chain.live_since(problem)
        if live is None or since is None:
            continue
        path = home / f"{problem}.json"
        state = _kept(path)
        log = environment.place("log_dir") / DECISIONS
        seen.append(look(problem, live, since, state, client=client, config=config, now_s=now_s, decisions=log))
        write_atomic(path, msgspec.json.encode(state))
    page.write(home, seen)
    return Found(seen, _late(chain, now_s))


def _kept(path: Path) -> State:
    """Read what the look before kept; without it, or with one of another release, everything is learned anew."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except (FileNotFoundError, msgspec.DecodeError):
        return State()


def _late(chain: Chain, now_s: float) -> str:
    recorded = [outcome.at for outcome in nights.all_nights(chain)]
    if not recorded:
        return ""
    newest = max(datetime.fromisoformat(at) for at in recorded)
    silent = datetime.fromtimestamp(now_s, UTC) - newest
    return f"the last night was recorded at {newest.isoformat()}" if silent > LATE else ""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    json_option(parser, "what was found")


def run(options: argparse.Namespace) -> int:
    """Look, and say what was found."""
    places.require_registry()
    home = var() / "watch"
    found = watch(settings.load(), home, time.time())
    if options.json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        return 0
    for one in found.seen:
        for figure in one.figures:
            sys.stdout.write(f"{one.problem}: {figure.name} {figure.now:.4g} (limit {figure.limit:.4g})\n")
        for name, moved in one.drift.items():
            sys.stdout.write(f"{one.problem}: drift of {name} {moved.psi:.2f} (limit {moved.limit:.2f})\n")
        for name, change in one.loads.items():
            sys.stdout.write(f"{one.problem}: load of {name} {change.times:.2f} times that of an hour ago\n")
        for kind, reason in (("ROLLBACK", one.rollback), ("RETRAIN", one.retrain), ("note", "; ".join(one.notes))):
            if reason:
                sys.stdout.write(f"{one.problem}: {kind}: {reason}\n")
    sys.stdout.write(f"{len(found.seen)} live policies; page {home / page.PAGE}\n{found.late}\n")
    return 0


main = Verb("python -m pipeline.watch", __doc__, arguments, run)
