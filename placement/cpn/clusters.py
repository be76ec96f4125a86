"""The clusters of the network as it is now: they join and leave, are asked for things, and are heard of or silent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from placement.cpn.events import Cleaned, Event, Fetched, Gone, Listed, PodSeen, Refused, Sent
from placement.cpn.link import Command, Kind, Link
from placement.cpn.records import Attempt
from placement.cpn.topology import Card, Cluster, Network, Source
from wire.errors import ConfigError

log = logging.getLogger(__name__)

ANSWERS: dict[type, tuple[Kind, ...]] = {
    Sent: ("send", "check"),
    Refused: ("send",),
    Gone: ("remove", "check"),
    Cleaned: ("clean",),
    Fetched: ("fetch",),
    PodSeen: ("check",),
}
"""What was told -> the commands it may be the answer to."""

MakeLink = Callable[[Cluster, Callable[[Event], None]], Link]


class Clusters:
    """Links to the clusters of a network that changes.

    Args:
        source: Where the description comes from.
        make_link: Connects a cluster.
        tell: Told what clusters say.
        silent_after_s: A cluster not heard of for so long gets no job.
        reload_s: How often the description is looked at again.
    """

    def __init__(
        self,
        source: Source,
        make_link: MakeLink,
        tell: Callable[[Event], None],
        *,
        silent_after_s: float,
        reload_s: float,
    ) -> None:
        self._source, self._make_link, self._tell = source, make_link, tell
        self._silent_after_s, self._reload_s = silent_after_s, reload_s
        network = source.changed()
        if network is None:
            raise ConfigError(f"topology {source.where} was read before", "a new source")
        self.network: Network = network
        self.error = ""
        """Why the newest description is not used."""
        self.links: dict[str, Link] = {}
        self.specs: dict[str, Cluster] = {}
        self.cards: dict[str, Card] = {}
        """All that were ever described: jobs may still be on cards that left."""
        self._asked: set[tuple[Kind, str, int]] = set()
        """Commands on their way; a restart forgets them, and asks again."""
        self._reloaded_at = time.monotonic()

    def stop(self) -> None:
        """Let go of all."""
        for link in self.links.values():
            link.stop()

    # Joining and leaving

    def reload(self, busy: Callable[[], Collection[str]]) -> bool:
        """Look for another description when it is time; return whether there is one."""
        if time.monotonic() - self._reloaded_at < self._reload_s:
            return False
        self._reloaded_at = time.monotonic()
        try:
            network = self._source.changed()
        except ConfigError as error:
            self.error = str(error)
            log.warning("the topology stays as it was: %s", error)
            return False
        if network is None:
            return False
        self.error = ""
        self.apply(network, busy())
        return True

    def apply(self, network: Network, busy: Collection[str]) -> None:
        """Take a network up: clusters join; those that left are followed until their jobs have ended."""
        self.network = network
        self.cards |= network.cards
        for name, cluster in network.clusters.items():
            if name in self.links and not _same_address(self.specs[name], cluster):
                self.links.pop(name).stop()
            self.specs[name] = cluster
            if name not in self.links:
                self.links[name] = link = self._make_link(cluster, self._tell)
                link.start()
        for name in [name for name in self.links if name not in network.clusters and name not in busy]:
            self.links.pop(name).stop()

    # Being heard of

    def heard_of(self, name: str) -> bool:
        """Whether a cluster answers, and has what we need."""
        link = self.links.get(name)
        return link is not None and link.silent_s <= self._silent_after_s and not link.wrong

    def up(self) -> dict[str, bool]:
        """Say which nodes take jobs: their cluster is heard of, and they are ready."""
        return {
            f"{name}/{node.name}": self.heard_of(name) and self.links[name].node_up(node.name)
            for name, cluster in self.network.clusters.items()
            for node in cluster.nodes
        }

    def down_s(self, attempt: Attempt) -> float:
        """For how long the node of an attempt has not been ready; 0 while its cluster is silent, which says nothing."""
        return self.links[attempt.cluster].down_s(attempt.node) if self.heard_of(attempt.cluster) else 0.0

    # Being asked

    def ask(self, kind: Kind, attempt: Attempt, manifest: dict[str, Any] | None = None) -> None:
        """Have something done for an attempt, unless it is on its way already."""
        self.ask_of(attempt.cluster, kind, attempt.job, attempt.number, manifest)

    def ask_of(
        self, cluster: str | None, kind: Kind, job: str, number: int, manifest: dict[str, Any] | None = None
    ) -> None:
        """Have something done in a cluster."""
        link = self.links.get(cluster or "")
        if link is not None and (kind, job, number) not in self._asked:
            self._asked.add((kind, job, number))
            link.ask(Command(kind, job, number, manifest))

    def is_asked(self, kind: Kind, attempt: Attempt) -> bool:
        """Whether a command is on its way."""
        return (kind, attempt.job, attempt.number) in self._asked

    def answered(self, event: Event) -> None:
        """Note that a command has been answered."""
        if not isinstance(event, Listed):
            for kind in ANSWERS[type(event)]:
                self._asked.discard((kind, event.job, event.attempt))

    def ended(self, attempt: Attempt) -> None:
        """Stop the transfer of an attempt that has ended before its data were there."""
        if self.is_asked("fetch", attempt):
            self._asked.discard(("fetch", attempt.job, attempt.number))
            self.links[attempt.cluster].ask(Command("unfetch", attempt.job, attempt.number))

    def ask_anew(self) -> None:
        """Forget what is on its way."""
        self._asked = set()


def _same_address(one: Cluster, other: Cluster) -> bool:
    return (one.kubeconfig, one.context, one.namespace) == (other.kubeconfig, other.context, other.namespace)
