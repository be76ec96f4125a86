"""Whether pods that are on nodes let another one near: required (anti-)affinity and topology spread.

Asked before a pod is moved. Where a rule cannot be judged from what is watched (namespaces chosen by label) the answer
is the careful one: no.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from placement.kube.eligible import eligible, holds
from placement.kube.objects import LabelSelector, Node, Pod, PodTerm, Spread

AFFINITY, ANTI_AFFINITY = "podAffinity", "podAntiAffinity"


class Neighbours:
    """The pods of a cluster by node, with the moves decided so far.

    Args:
        nodes: All of them.
        pods: Those that hold something.
    """

    def __init__(self, nodes: Iterable[Node], pods: Iterable[Pod]) -> None:
        self._nodes = {node.metadata.name: node for node in nodes}
        self._where: dict[str, tuple[Pod, str]] = {pod.metadata.uid: (pod, pod.spec.node_name) for pod in pods}
        self._far = [pod for pod, _ in self._where.values() if pod.spec.required_near(ANTI_AFFINITY)]

    def move(self, pod: Pod, node: str) -> None:
        """Take a pod to be on another node from now on."""
        self._where[pod.metadata.uid] = (pod, node)

    def refused(self, pod: Pod) -> set[str]:
        """Return the nodes to which the pods that are there do not let it come."""
        found: set[str] = set()
        for term in pod.spec.required_near(ANTI_AFFINITY):
            found |= self._in_domains(term.topology_key, self._matching(term, pod))
        for other in self._far:
            where = self._where[other.metadata.uid][1]
            for term in other.spec.required_near(ANTI_AFFINITY):
                if other.metadata.uid != pod.metadata.uid and _meant(term, other, pod):
                    found |= self._in_domains(term.topology_key, [where])
        for term in pod.spec.required_near(AFFINITY):
            near = self._in_domains(term.topology_key, self._matching(term, pod))
            found |= self._nodes.keys() - (near if term.namespace_selector is None else set())
        for rule in pod.spec.topology_spread_constraints or ():
            if rule.when_unsatisfiable == "DoNotSchedule":
                found |= self._uneven(rule, pod)
        return found

    def _matching(self, term: PodTerm, pod: Pod) -> list[str]:
        return [
            where
            for uid, (other, where) in self._where.items()
            if uid != pod.metadata.uid and _meant(term, pod, other)
        ]  # fmt: skip

    def _in_domains(self, key: str, names: Iterable[str]) -> set[str]:
        """Return the nodes that share a label's value with one of these; nodes without the label are in no domain."""
        values = {self._label(name, key) for name in names} - {None}
        return {name for name in self._nodes if self._label(name, key) in values}

    def _label(self, name: str, key: str) -> str | None:
        node = self._nodes.get(name)
        return (node.metadata.labels or {}).get(key) if node else None

    def _uneven(self, rule: Spread, pod: Pod) -> set[str]:
        """Return the nodes where one more pod would make the difference to the emptiest domain too large."""
        counts: dict[str, int] = defaultdict(int)
        for node in self._nodes.values():
            domain = (node.metadata.labels or {}).get(rule.topology_key)
            if domain is not None and eligible(pod, node):
                counts[domain] += 0
        for uid, (other, where) in self._where.items():
            domain = self._label(where, rule.topology_key)
            same = other.metadata.namespace == pod.metadata.namespace and uid != pod.metadata.uid
            if domain in counts and same and _selected(rule.label_selector, other):
                counts[str(domain)] += 1
        least = min(counts.values(), default=0)
        return {
            name
            for name in self._nodes
            if (domain := self._label(name, rule.topology_key)) is None
            or counts.get(domain, 0) + 1 - least > rule.max_skew
        }


def _meant(term: PodTerm, whose: Pod, other: Pod) -> bool:
    """Say whether a pod's term speaks of another pod."""
    if term.namespace_selector is None and other.metadata.namespace not in (
        term.namespaces or [whose.metadata.namespace]
    ):
        return False
    return _selected(term.label_selector, other)


def _selected(selector: LabelSelector | None, pod: Pod) -> bool:
    if selector is None:
        return False
    labels = pod.metadata.labels or {}
    return all(labels.get(key) == value for key, value in (selector.match_labels or {}).items()) and all(
        holds(one, labels) for one in selector.match_expressions or ()
    )
