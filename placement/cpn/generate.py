"""Random queues for tests and demos: the models of a table, with data sizes, lengths and priorities drawn by a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np


class Kind(NamedTuple):
    """A model that generated jobs name."""

    model: str
    epochs: float
    """Typical number."""
    gpu_memory_mb: float | None = None
    weight: float = 1.0


def manifest(name: str, model: str, *, epochs: float, data_gb: float, image: str, **notes: Any) -> dict[str, Any]:
    """Return a Kubernetes Job as users write it; extra annotations as given."""
    said = {"model_name": model, "data_size": round(data_gb, 3), "epoch": epochs, **notes}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": said},
        "spec": {
            "backoffLimit": 2,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [
                        {"name": "main", "image": image, "resources": {"requests": {"cpu": 2, "memory": "4Gi"}}}
                    ],
                }
            },
        },
    }


def queue(
    count: int,
    kinds: Sequence[Kind],
    *,
    seed: int,
    data_gb: float = 10.0,
    urgent: float = 0.0,
    image: str = "loadmaster/workload",
    prefix: str = "random",
) -> Iterator[dict[str, Any]]:
    """Draw jobs.

    Args:
        count: How many.
        kinds: The models to draw from.
        seed: Names the queue.
        data_gb: Mean data size; log-normal. 0: nothing to move.
        urgent: Share of the jobs with priority 1.
        image: What they run.
        prefix: Names are ``<prefix>-<seed>-<number>``.
    """
    rng = np.random.default_rng(seed)
    weights = np.array([kind.weight for kind in kinds])
    drawn = rng.choice(len(kinds), count, p=weights / weights.sum())
    sizes = rng.lognormal(np.log(data_gb) - 0.32, 0.8, count) if data_gb else np.zeros(count)
    lengths, first = rng.lognormal(-0.08, 0.4, count), rng.random(count) < urgent
    for number, kind in enumerate(kinds[at] for at in drawn):
        notes: dict[str, Any] = {"gpu_memory_mb": kind.gpu_memory_mb} if kind.gpu_memory_mb is not None else {}
        if first[number]:
            notes["priority"] = 1
        yield manifest(
            f"{prefix}-{seed}-{number:05d}",
            kind.model,
            epochs=max(1.0, float(np.round(kind.epochs * lengths[number]))),
            data_gb=float(sizes[number]),
            image=image,
            **notes,
        )
