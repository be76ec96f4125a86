"""Tasks that users bring to ``ServerlessSchedulingEnv.set_dataset``, turned into a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from sched_env.functions.synthetic import TUTORIAL_LIFE_S, TUTORIAL_SPACING_S
from sched_env.functions.tables import FunctionTrace
from wire.errors import TraceError, legal

REQUIRED = ("cpu_request", "mem_request", "io_network", "io_disk", "requests")
OPTIONAL = ("function", "arrival_s", "duration_s", "slo_s")
MOST_TASKS = 1_000_000
"""A data set is read at once, so that it can be replayed; one that never ends is refused."""


def read_tasks(tasks: Iterable[Any], functions: int) -> FunctionTrace:
    """Read tasks, mappings or objects with the five known fields (cores, GiB, MB/s, IOPS, count).

    Optional fields and their defaults: ``function`` (index or name; task i belongs to function i modulo the number of
    functions), ``arrival_s`` (a second after the task before), ``duration_s`` (5), ``slo_s`` (twice the uncontended
    time, which is duration / requests).
    """
    rows = list(islice(tasks, MOST_TASKS + 1))
    if not rows:
        raise TraceError("the data set has no task", "at least one")
    if len(rows) > MOST_TASKS:
        raise TraceError(f"the data set has more than {MOST_TASKS} tasks", "a finite data set", "cut it into parts")
    known = [_fields(index, task) for index, task in enumerate(rows)]
    names: dict[Any, int] = {}
    which, arrivals, latest = [], [], -TUTORIAL_SPACING_S
    for index, task in enumerate(known):
        function = task.get("function", index % functions)
        if isinstance(function, str):
            function = names.setdefault(function, len(names))
        if not 0 <= int(function) < functions:
            raise TraceError(f"task {index}: function {function} of {functions}", f"0 to {functions - 1}")
        which.append(int(function))
        latest = float(task.get("arrival_s", latest + TUTORIAL_SPACING_S))
        arrivals.append(latest)
    duration_s = np.array([float(task.get("duration_s", TUTORIAL_LIFE_S)) for task in known])
    requests = np.array([int(task["requests"]) for task in known], np.int32)
    uncontended_s = duration_s / np.maximum(requests, 1)
    return FunctionTrace(
        arrival_s=np.array(arrivals),
        function=np.array(which, np.int32),
        cpu=np.array([float(task["cpu_request"]) for task in known]),
        mem=np.array([float(task["mem_request"]) for task in known]),
        net=np.array([float(task["io_network"]) for task in known]),
        disk=np.array([float(task["io_disk"]) for task in known]),
        requests=requests,
        duration_s=duration_s,
        slo_s=np.array([float(task.get("slo_s", 2.0 * own)) for task, own in zip(known, uncontended_s, strict=True)]),
        response_s=uncontended_s,
        function_names=(*names, *(f"f{index}" for index in range(len(names), functions))),
    )


def _fields(index: int, task: Any) -> Mapping[str, Any]:
    """Return a task's fields by name; a field that is missing or unknown is an error that names it."""
    fields = (
        task if isinstance(task, Mapping) else {n: getattr(task, n) for n in REQUIRED + OPTIONAL if hasattr(task, n)}
    )
    missing = [name for name in REQUIRED if name not in fields]
    unknown = [str(name) for name in fields if name not in REQUIRED + OPTIONAL]
    if missing or unknown:
        found = f"lacks {', '.join(missing)}" if missing else f"has the unknown field {', '.join(unknown)}"
        raise TraceError(f"task {index} {found}", legal(REQUIRED) + f"; optional {', '.join(OPTIONAL)}")
    return fields
