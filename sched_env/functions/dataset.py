"""Tasks that users bring to ``ServerlessSchedulingEnv.set_dataset``, turned into a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import islice
from typing import Any

import numpy as np

from sched_env.functions.synthetic import TUTORIAL_LIFE_S, TUTORIAL_SPACING_S
from sched_env.functions.tables import FunctionTrace
from wire.errors import ConfigError, TraceError, legal

REQUIRED = ("cpu_request", "mem_request", "io_network", "io_disk", "requests")
OPTIONAL = ("function", "arrival_s", "duration_s", "slo_s")
MOST_KEPT = 1_000_000
"""So many tasks of a data set that is read as it goes are kept, to be replayed should it end."""


class Dataset:
    """Tasks, episode by episode.

    What has a length is read at once, and all of it is every episode. Anything else is read as it goes, so it need not
    end: an episode is the next ``length`` tasks. Should it end, it begins again.

    Args:
        tasks: Mappings or objects with the known fields.
        functions: Different functions.
        length: Tasks of an episode, where the data set itself has no length.
    """

    def __init__(self, tasks: Iterable[Any], functions: int, length: int) -> None:
        self.whole = isinstance(tasks, Sized)
        """Whether every episode is all of it."""
        if not self.whole and length == 0:
            raise ConfigError(
                "the data set has no length and the scenario no horizon", "one of them: where does an episode end?"
            )
        self._functions, self._length = functions, length
        self._names: dict[str, int] = {}
        self._kept: list[FunctionTrace] | None = []
        self._read = self._replayed = 0
        self._ended = self.whole
        self._ahead: list[Any] = []
        """The task after the last episode's, which its end shows already."""
        self._tasks = iter(tasks)
        if self.whole:
            self._kept = [read_tasks(list(self._tasks), functions)]

    def episode(self) -> FunctionTrace:
        """Return the tasks of the next episode and, where there is one, the task after them."""
        if self._ended:
            if self._kept is None:
                raise TraceError(
                    f"the data set ended after {self._read} tasks, too many to be kept for a replay",
                    f"at most {MOST_KEPT}, or one that does not end",
                    "give it as a list, or read it anew and call set_dataset again",
                )
            piece = self._kept[self._replayed % len(self._kept)]
            self._replayed += 1
            return piece
        tasks = [*self._ahead, *islice(self._tasks, self._length + 1 - len(self._ahead))]
        piece = read_tasks(tasks, self._functions, self._read, self._names)
        self._ended = len(tasks) <= self._length
        self._ahead = tasks[self._length :]
        self._read += len(tasks) - len(self._ahead)
        if self._kept is not None:
            self._kept = [*self._kept, piece] if self._read <= MOST_KEPT else None
        return piece


def read_tasks(
    rows: Sequence[Any], functions: int, before: int = 0, names: dict[str, int] | None = None
) -> FunctionTrace:
    """Read tasks, mappings or objects with the five known fields (cores, GiB, MB/s, IOPS, count).

    Optional fields and their defaults: ``function`` (index or name; task i belongs to function i modulo the number of
    functions), ``arrival_s`` (a second after the task before), ``duration_s`` (5), ``slo_s`` (twice the uncontended
    time, which is duration / requests).

    Args:
        rows: The tasks.
        functions: Different functions.
        before: How many tasks of the data set came before these.
        names: The functions that those named, and their indices; added to.
    """
    if not rows:
        raise TraceError("the data set has no task", "at least one")
    names = {} if names is None else names
    known = [_fields(index, task) for index, task in enumerate(rows, before)]
    which, arrivals, latest = [], [], -TUTORIAL_SPACING_S
    for index, task in enumerate(known, before):
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
