"""Fingerprints of cards, measured where the cards are: a benchmark Job on one card of each type.

The Job is that of ``deploy/benchmark-job.yaml``; it is made once, whoever asks again finds it. A card is chosen that
has no job of the controller's, and a measurement during which one came is thrown away: it is that of a shared card.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from placement.cpn.gateway import UNREACHABLE, Gateway, said
from placement.cpn.store import JobStore
from placement.cpn.topology import Card, Network
from sched_env.jobs import fingerprints
from sched_env.jobs.fingerprints import Fingerprint
from wire.errors import ConfigError, LoadmasterError, legal

log = logging.getLogger(__name__)

LOOK_S = 5.0
PREFIX = "loadmaster-benchmark"
MODELS = 3
START_S = 600.0
"""Beside the benchmarks themselves: for the image to be pulled, and networks to be built."""


class BenchmarkError(LoadmasterError):
    """Raised when a card could not be measured."""


def choose(network: Network, store: JobStore | None, named: Sequence[str], known: Mapping[str, object]) -> list[Card]:
    """Return the cards to measure: those named, or a free one of each type without a fingerprint."""
    busy = {attempt.card for attempt in store.open_attempts()} if store is not None else set()
    if named:
        for name in named:
            if name not in network.cards:
                raise ConfigError(f"there is no card {name!r}", legal(network.cards))
            if name in busy:
                raise ConfigError(f"card {name} has a job", "a free card", "wait, or name another")
        return [network.cards[name] for name in named]
    chosen: dict[str, Card] = {}
    for card in network.cards.values():
        if card.type not in known and card.name not in busy:
            chosen.setdefault(card.type, card)
    return list(chosen.values())


def measure(
    cards: Sequence[Card],
    gateways: Mapping[str, Gateway],
    job_of: Callable[[Card, str], dict[str, object]],
    *,
    came: Callable[[Card, float], bool],
    patience_s: float,
    report: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.time,
) -> dict[str, Fingerprint]:
    """Run the benchmarks side by side, each on its own card; returns type of card -> fingerprint.

    Args:
        cards: At most one of a type.
        gateways: Cluster -> what is asked of it.
        job_of: The Job of a card, under a name.
        came: Whether a job of the controller's was on a card since a time.
        patience_s: How long a Job may take.
        report: Told in words what happens.
        sleep: Waits.
        now: The time.
    """
    began = now()
    for card in cards:
        gateways[card.cluster].create(job_of(card, name_of(card)))
        report(f"{card.name} ({card.type}): the benchmark is on its way")
    found: dict[str, Fingerprint] = {}
    waiting = list(cards)
    while waiting:
        if now() - began > patience_s:
            raise BenchmarkError(
                f"{waiting[0].name} is not measured after {patience_s:.0f} s", "a Job that ends", "look at its pod"
            )
        sleep(LOOK_S)
        for card in list(waiting):
            ended = _ended(gateways[card.cluster], card)
            if ended is None:
                continue
            waiting.remove(card)
            logged = gateways[card.cluster].log(name_of(card))
            gateways[card.cluster].remove(name_of(card))
            if not ended:
                last = " ".join(logged.split()[-30:])
                raise BenchmarkError(f"the benchmark of {card.name} failed: {last}", "a Job that completes")
            if came(card, began):
                raise BenchmarkError(
                    f"a job came to {card.name} while it was measured", "a card that is alone", "measure it again"
                )
            found[card.type] = fingerprints.parse(logged)
            report(f"{card.name} ({card.type}): {found[card.type].seconds}")
    return found


def name_of(card: Card) -> str:
    """Name the Job of a card, so that it is made once; names of nodes may be longer than those of Jobs."""
    return f"{PREFIX}-{hashlib.sha256(card.name.encode()).hexdigest()[:16]}"


def _ended(gateway: Gateway, card: Card) -> bool | None:
    """Return whether a Job succeeded; None while it runs, or nobody answers."""
    try:
        job = gateway.find(name_of(card))
    except UNREACHABLE as error:
        log.warning("%s does not answer: %s", card.cluster, said(error))
        return None
    if job is None:
        raise BenchmarkError(f"the benchmark of {card.name} is gone", "the Job that was made", "measure it again")
    for condition in job.get("status", {}).get("conditions") or []:
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            return bool(condition["type"] == "Complete")
    return None
