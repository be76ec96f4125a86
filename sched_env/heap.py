"""A heap of timed items inside kernels: what leaves, or is due, first is on top."""

from __future__ import annotations

from sched_env.jit import part
from sched_env.tables import Floats

TIME, ITEM = 0, 1
"""Columns of a heap [most items, 2]. Four children an entry: fewer cache lines on the way than two."""


@part
def push(heap: Floats, size: int, time: float, item: float) -> None:
    """Add an item to a heap of so many; the caller counts."""
    child = size
    while child > 0:
        parent = (child - 1) >> 2
        if heap[parent, TIME] <= time:
            break
        heap[child, TIME], heap[child, ITEM] = heap[parent, TIME], heap[parent, ITEM]
        child = parent
    heap[child, TIME], heap[child, ITEM] = time, item


@part
def drop_first(heap: Floats, size: int) -> None:
    """Take the earliest item off a heap of so many; the caller counts."""
    left = size - 1
    time, item = heap[left, TIME], heap[left, ITEM]
    parent = 0
    while True:
        child = 4 * parent + 1
        if child >= left:
            break
        for other in range(child + 1, min(child + 4, left)):
            if heap[other, TIME] < heap[child, TIME]:
                child = other
        if heap[child, TIME] >= time:
            break
        heap[parent, TIME], heap[parent, ITEM] = heap[child, TIME], heap[child, ITEM]
        parent = child
    heap[parent, TIME], heap[parent, ITEM] = time, item
