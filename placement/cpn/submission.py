"""A Kubernetes Job with annotations becomes a job of the queue, or a refusal that names the field and what is legal."""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from placement.cpn.records import Job
from placement.errors import PlaceRefusedError
from placement.kube.objects import GIB, quantity
from wire.errors import legal

NEEDED = ("model_name", "data_size", "epoch")
OPTIONAL = ("gpu_memory_mb", "deadline", "priority", "data_center", "tenant")
ANNOTATIONS = (*NEEDED, *OPTIONAL)
"""What we read; others are the user's and stay."""
DEFAULT_CORES, DEFAULT_MEM_GIB = 2.0, 4.0
"""Of a container that asks for nothing; as in the simulator."""
LONGEST_NAME, PRIORITIES = 253, 1000
MB_PER_GIB = 1024.0


class Known(msgspec.Struct, frozen=True):
    """What submissions are checked against."""

    gpu_memory_mb: Mapping[str, float]
    """Of models that are known."""
    datacenters: tuple[str, ...]
    largest_gpu_gib: float
    """What the largest card can give to one job."""
    largest_mem_gib: float
    max_attempts: int


def parse(text: str | bytes) -> dict[str, Any]:
    """Read a manifest (YAML or JSON)."""
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise PlaceRefusedError(
            400, f"the body is no YAML: {' '.join(str(error).split())[:300]}", "a Kubernetes Job"
        ) from error
    if not isinstance(found, dict):
        raise PlaceRefusedError(
            422, f"the body is a {type(found).__name__}", "a Kubernetes Job: a mapping with kind: Job"
        )
    return found


def read(manifest: dict[str, Any], known: Known, *, now: float, tenant: str | None, key: str | None) -> tuple[Job, str]:
    """Check a manifest.

    Returns:
        The job, and the manifest as it will be kept (JSON).

    Raises:
        PlaceRefusedError: 422, naming the field.
    """
    for field, expected in (("apiVersion", "batch/v1"), ("kind", "Job")):
        if manifest.get(field) != expected:
            raise refused(field, manifest.get(field), expected)
    metadata = _mapping(manifest, "metadata")
    name = metadata.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise refused("metadata.name", name, f"a name of 1 to {LONGEST_NAME} characters")
    spec = _mapping(manifest, "spec")
    template = _mapping(spec, "template", "spec.")
    pod = _mapping(template, "spec", "spec.template.")
    containers = pod.get("containers")
    if not isinstance(containers, list) or not containers or not all(isinstance(one, dict) for one in containers):
        raise refused("spec.template.spec.containers", containers, "a list of at least one container")
    for field in ("parallelism", "completions"):
        if spec.get(field, 1) != 1:
            raise refused(f"spec.{field}", spec[field], "1: a job has one card")
    notes = _annotations(metadata, template)
    model = notes.get("model_name", "")
    if not model:
        raise refused("metadata.annotations.model_name", None, legal(sorted(known.gpu_memory_mb)))
    gpu_mb = _number(notes, "gpu_memory_mb", low=0.0, default=known.gpu_memory_mb.get(model))
    if gpu_mb is None:
        raise refused(
            "metadata.annotations.model_name",
            model,
            legal(sorted(known.gpu_memory_mb)),
            "say gpu_memory_mb to run a model that is not known; it has a card to itself the first time",
        )
    data_gb = _number(notes, "data_size", low=None)
    epochs = _number(notes, "epoch", low=0.0)
    deadline = _number(notes, "deadline", low=0.0, default=math.inf)
    priority = _number(notes, "priority", low=None, default=0.0)
    if data_gb is None or data_gb < 0.0:
        raise refused("metadata.annotations.data_size", notes.get("data_size"), "GB, a number, at least 0")
    if priority is None or abs(priority) > PRIORITIES or priority != int(priority):
        raise refused("metadata.annotations.priority", priority, f"a whole number from {-PRIORITIES} to {PRIORITIES}")
    origin = notes.get("data_center", known.datacenters[0])
    if origin not in known.datacenters:
        raise refused("metadata.annotations.data_center", origin, legal(known.datacenters))
    cores, mem_gib = _asked(containers)
    gpu_gib = float(gpu_mb or 0.0) / MB_PER_GIB
    for field, wanted, largest in (
        ("metadata.annotations.gpu_memory_mb", gpu_gib, known.largest_gpu_gib),
        ("spec.template.spec.containers[].resources.requests.memory", mem_gib, known.largest_mem_gib),
    ):
        if wanted > largest:
            raise refused(field, f"{wanted:.1f} GiB", f"at most {largest:.1f} GiB, what an empty card or node can give")
    limit = spec.get("backoffLimit")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise refused("spec.backoffLimit", limit, "a whole number, at least 0")
    kept = {**manifest, "metadata": {**metadata, "annotations": {**_texts(metadata.get("annotations")), **notes}}}
    document = msgspec.json.encode(kept, order="deterministic").decode()
    return (
        Job(
            id=uuid.uuid4().hex[:20],
            seq=0,
            tenant=tenant or notes.get("tenant") or "default",
            key=key or name,
            name=name,
            digest=hashlib.sha256(document.encode()).hexdigest(),
            model=model,
            data_gb=data_gb,
            epochs=float(epochs or 0.0),
            gpu_mem_gib=gpu_gib,
            mem_gib=mem_gib,
            cpu_cores=cores,
            priority=int(priority),
            deadline_s=None if deadline is None or math.isinf(deadline) else deadline,
            origin=origin,
            max_attempts=known.max_attempts if limit is None else limit + 1,
            submitted_at=now,
            state="waiting",
            attempt=0,
            failures=0,
            card=None,
            promised_at=None,
            queued_at=now,
            not_before=0.0,
            cancel_at=None,
            ended_at=None,
            reason="",
        ),
        document,
    )


def refused(field: str, found: object, expected: str, fix: str = "") -> PlaceRefusedError:
    """Refuse a submission for one of its fields."""
    said = "is missing" if found is None else f"is {str(found)[:80]!r}"
    return PlaceRefusedError(422, f"{field} {said}", expected, fix)


def _mapping(parent: Mapping[str, Any], name: str, above: str = "") -> dict[str, Any]:
    found = parent.get(name)
    if not isinstance(found, dict):
        raise refused(f"{above}{name}", found, "a mapping")
    return found


def _texts(said: Any) -> dict[str, str]:
    """Turn annotations into the texts that Kubernetes wants: people write numbers."""
    if said is None:
        return {}
    if not isinstance(said, dict):
        raise refused("metadata.annotations", said, "a mapping")
    texts = {}
    for name, value in said.items():
        if isinstance(value, bool):
            texts[str(name)] = str(value).lower()
        elif isinstance(value, float) and value.is_integer():
            texts[str(name)] = str(int(value))
        elif isinstance(value, str | int | float):
            texts[str(name)] = str(value)
        else:
            raise refused(f"metadata.annotations.{name}", value, "a text or a number")
    return texts


def _annotations(metadata: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, str]:
    """Return ours: of the Job, or, where it has none, of its pod."""
    inner = template.get("metadata") or {}
    found = {
        **_texts(inner.get("annotations") if isinstance(inner, dict) else None),
        **_texts(metadata.get("annotations")),
    }
    return {name: found[name].strip() for name in ANNOTATIONS if name in found}


def _number(notes: Mapping[str, str], name: str, *, low: float | None, default: float | None = None) -> float | None:
    if name not in notes:
        if name in NEEDED:
            raise refused(f"metadata.annotations.{name}", None, "a number")
        return default
    try:
        value = float(notes[name])
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (low is not None and value <= low):
        expected = "a number" if low is None else f"a number above {low:g}"
        raise refused(f"metadata.annotations.{name}", notes[name], expected)
    return value


def _asked(containers: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the cores and the GiB that the pod takes of its node."""
    cores = mem = 0.0
    said_cores = said_mem = False
    for number, container in enumerate(containers):
        resources = container.get("resources") or {}
        where = f"spec.template.spec.containers[{number}].resources"
        if not isinstance(resources, dict):
            raise refused(where, resources, "a mapping")
        for kind in ("limits", "requests"):
            if not isinstance(resources.get(kind) or {}, dict):
                raise refused(f"{where}.{kind}", resources[kind], "a mapping")
        # A limit without a request is a request, as Kubernetes has it.
        wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name in ("cpu", "memory"):
            if name in wanted:
                try:
                    amount = quantity(wanted[name])
                except (ValueError, TypeError) as error:
                    raise refused(f"{where}.requests.{name}", wanted[name], "a quantity, as 500m or 2Gi") from error
                if name == "cpu":
                    cores, said_cores = cores + amount, True
                else:
                    mem, said_mem = mem + amount / GIB, True
    return (cores if said_cores else DEFAULT_CORES), (mem if said_mem else DEFAULT_MEM_GIB)
