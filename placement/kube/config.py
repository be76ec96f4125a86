"""The clusters file: which clusters are watched, and which adapters answer for them.

.. code-block:: yaml

    clusters:
      lab: {kubeconfig: ~/.kube/config, context: lab, prices: {m5.large: 0.096}}
    extender: {cluster: lab}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import yaml

from sched_env import problems
from wire.contracts.feature_spec import ProblemName
from wire.contracts.place import Name
from wire.errors import ConfigError, legal


class ClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to reach one cluster."""

    kubeconfig: str | None = None
    """A file; without one and without a context, the service account of the pod that the service runs in."""
    context: str | None = None
    """Of the kubeconfig; its current one when not given."""
    prices: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = {}
    """Instance type -> USD/hour, for nodes without the label ``loadmaster.dev/price-usd-per-hour``."""


class ExtenderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom the extender answers."""

    cluster: Name
    problem: ProblemName = "functions"


class GatesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose gated pods are placed."""

    cluster: Name
    problem: ProblemName = "functions"
    namespace: str = "default"
    """Where the lease is that makes one replica the leader."""


class ClustersFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    clusters: dict[Name, ClusterSettings] = {}
    extender: ExtenderSettings | None = None
    gates: GatesSettings | None = None


def load(path: Path | None) -> ClustersFile:
    """Read the file; without one no cluster is watched."""
    if path is None:
        return ClustersFile()
    try:
        found = msgspec.convert(yaml.safe_load(path.read_text()) or {}, ClustersFile)
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        said = str(error).replace("\n", " ")
        raise ConfigError(f"{path}: {said}", "a clusters file as docs/kubernetes.md shows it") from error
    for name, asked in (("extender", found.extender), ("gates", found.gates)):
        if asked is not None and asked.cluster not in found.clusters:
            raise ConfigError(f"{path}: {name}.cluster is {asked.cluster!r}", legal(found.clusters))
        if asked is not None and asked.problem not in node_problems():
            expected = legal(node_problems())
            raise ConfigError(f"{path}: {name}.problem is {asked.problem!r}, whose candidates are no nodes", expected)
    return found


def node_problems() -> list[ProblemName]:
    """Return the problems whose candidates are the nodes of a cluster, as a watch sees them."""
    return [name for name in problems.names() if problems.get(name).state_fields.keys() >= NODE]


NODE = {"cpu_capacity", "mem_capacity", "cpu_deployed", "mem_deployed", "active"}
"""What a problem must know of a candidate for a node to be one."""
