"""What the pods of stages are: image, account, secrets, resources of each stage, from ``deploy/stages.yaml``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from wire.errors import ConfigError

FILE_ENV = "LOADMASTER_PODS"
"""Environment variable naming another file than the repository's own."""
FILE = Path("deploy/stages.yaml")


class Toleration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a taint, as Kubernetes writes it."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    tolerationSeconds: int | None = None  # noqa: N815  (Kubernetes' own name)

    def written(self) -> dict[str, Any]:
        """Write it as a pod's spec holds it."""
        return {name: value for name, value in msgspec.to_builtins(self).items() if value is not None}


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the pods of one stage ask for."""

    cpu: str = "1"
    """Cores, as Kubernetes writes them; asked for, without a limit: a stage may use what is idle."""
    memory: str = "4Gi"
    """Asked for and limit: a stage beyond it is ended, not its neighbours."""
    gpus: Annotated[int, msgspec.Meta(ge=0)] = 0
    gpu_resource: str = "nvidia.com/gpu"
    node_selector: dict[str, str] = {}
    tolerations: list[Toleration] = []
    timeout_minutes: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """A pod on a node that is lost may never end by itself."""

    def resources(self) -> dict[str, dict[str, str]]:
        """Write requests and limits as a container's spec holds them."""
        gpus = {self.gpu_resource: str(self.gpus)} if self.gpus else {}
        requests = {"cpu": self.cpu, "memory": self.memory, **gpus}
        return {"requests": requests, "limits": {"memory": self.memory, **gpus}}


class Pods(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    image: str
    namespace: str = "loadmaster"
    service_account: str = "loadmaster-stage"
    secrets: list[str] = []
    """Names of Secrets whose keys become variables of the pod: addresses and keys of git and of the DVC remote."""
    environment: dict[str, str] = {}
    """Variables that are no secrets."""
    priority_class: str | None = None
    startup_seconds: Annotated[int, msgspec.Meta(gt=0)] = 1800
    """How long a pod may wait for a node and for its image."""
    poll_seconds: Annotated[float, msgspec.Meta(gt=0)] = 2.0
    defaults: dict[str, Any] = {}
    stages: dict[str, dict[str, Any]] = {}

    def stage(self, name: str) -> Stage:
        """Return the settings of a stage: its own keys over the defaults."""
        try:
            return msgspec.convert({**self.defaults, **self.stages.get(name, {})}, Stage)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"pods of stage {name!r}: {error}", f"keys {', '.join(Stage.__struct_fields__)}"
            ) from error


def load(repository: Path) -> Pods:
    """Read the settings; a key that nobody knows is an error, for every stage, before anything starts."""
    path = Path(os.environ.get(FILE_ENV) or repository / FILE)
    try:
        pods = msgspec.convert(yaml.safe_load(path.read_text()), Pods)
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist", "the pods of stages", f"set {FILE_ENV}") from error
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}", f"keys {', '.join(Pods.__struct_fields__)}") from error
    for name in ("", *pods.stages):
        pods.stage(name)
    return pods
