"""Whether a node may take a pod at all, beside its room: selector, required affinity, taints.

kube-scheduler knows these rules and more, and what it offers has passed them. Adapters that choose a node before the
scheduler, or for a pod that is to move, ask here first.
"""

from __future__ import annotations

from typing import Any

from placement.kube.objects import Node, NodeSelector, Pod, Requirement, Taint, Term, Toleration

NAME_FIELD = "metadata.name"


def eligible(pod: Pod, node: Node) -> bool:
    """Say whether the pod's own demands and the node's taints let them together."""
    labels = node.metadata.labels or {}
    selected = all(labels.get(key) == value for key, value in (pod.spec.node_selector or {}).items())
    return selected and _required(pod.spec.required_affinity, node) and _tolerated(pod, node)


def pinned(selector: NodeSelector | None, names: list[str]) -> dict[str, Any]:
    """Return required node affinity that says the same as ``selector`` and, beside it, one of these nodes.

    Affinity of a gated pod may only be tightened: a requirement is added to every term that is there.
    """
    only = {"key": NAME_FIELD, "operator": "In", "values": names}
    terms = selector.node_selector_terms if selector else [Term()]
    return {
        "nodeSelectorTerms": [
            {
                "matchExpressions": [_plain(one) for one in term.match_expressions or ()],
                "matchFields": [*(_plain(one) for one in term.match_fields or ()), only],
            }
            for term in terms
        ]
    }


def _plain(requirement: Requirement) -> dict[str, Any]:
    said = {"key": requirement.key, "operator": requirement.operator}
    return said if requirement.values is None else {**said, "values": requirement.values}


def _required(selector: NodeSelector | None, node: Node) -> bool:
    """One of the terms must hold, and in it everything; a term that says nothing holds for no node."""
    if selector is None:
        return True
    labels, fields = node.metadata.labels or {}, {NAME_FIELD: node.metadata.name}
    return any(
        (term.match_expressions or term.match_fields)
        and all(holds(one, labels) for one in term.match_expressions or ())
        and all(holds(one, fields) for one in term.match_fields or ())
        for term in selector.node_selector_terms
    )


def holds(requirement: Requirement, values: dict[str, str]) -> bool:
    """Say whether labels or fields meet a demand."""
    value, wanted = values.get(requirement.key), requirement.values or []
    match requirement.operator:
        case "In":
            return value is not None and value in wanted
        case "NotIn":
            return value is None or value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            try:
                difference = int(value or "") - int(wanted[0])
            except (ValueError, IndexError):
                return False
            return difference > 0 if requirement.operator == "Gt" else difference < 0
    return False  # an operator of a later release: better not than against the owner's will


def _tolerated(pod: Pod, node: Node) -> bool:
    tolerations = pod.spec.tolerations or ()
    return all(
        taint.effect not in ("NoSchedule", "NoExecute") or any(_tolerates(one, taint) for one in tolerations)
        for taint in node.spec.taints or ()
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return not toleration.key or toleration.key == taint.key
    return toleration.key == taint.key and toleration.value == taint.value
