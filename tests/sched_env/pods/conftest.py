"""Small traces, written by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sched_env.pods.tables import PodTrace, offsets
from sched_env.tables import NodeTable


@pytest.fixture
def cluster():
    """Make nodes of (cpu, mem)."""

    def make(*capacities):
        size = len(capacities)
        cpu, mem = (np.array([float(each[k]) for each in capacities]) for k in range(2))
        return NodeTable(tuple(f"n{n}" for n in range(size)), cpu, mem, np.ones(size), np.ones(size), np.ones(size))

    return make


@pytest.fixture
def trace_of():
    """Make a trace; a window is a list of pods (name, node, cpu request, mem request, requests).

    A request is (cpu, mem) for one that lasts all the window, or (cpu, mem, arrival, duration).
    """

    def make(*windows):
        pods = [pod for window in windows for pod in window]
        names = sorted({pod[0] for pod in pods})
        requests = [(*request, 0.0, 300.0) if len(request) == 2 else request for pod in pods for request in pod[4]]
        cpu, mem, arrival, duration = (np.array([float(request[k]) for request in requests]) for k in range(4))
        return PodTrace(
            window_s=np.arange(len(windows)) * 300.0,
            window_rows=offsets([len(window) for window in windows]),
            pod=[names.index(pod[0]) for pod in pods],
            node=[pod[1] for pod in pods],
            cpu_request=[pod[2] for pod in pods],
            mem_request=[pod[3] for pod in pods],
            cpu_used=np.zeros(len(pods)),
            mem_used=np.zeros(len(pods)),
            row_requests=offsets([len(pod[4]) for pod in pods]),
            arrival_offset_s=arrival,
            duration_s=duration,
            cpu=cpu,
            mem=mem,
            pod_names=tuple(names),
        )

    return make
