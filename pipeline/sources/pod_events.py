"""Pod create and delete events of one day, from what kube-state-metrics shows.

Creation is exact (``kube_pod_created``). Deletion is the step after a pod was last seen, so it is known to a minute;
a pod that is merely not scraped for a while comes back and has not been deleted. One that comes back with another time
of creation (a StatefulSet gives its pods their names again) has been.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa

from pipeline.contracts.raw import EVENTS
from pipeline.sources import Tally
from pipeline.sources.columns import raw_table, times
from pipeline.sources.metric_map import Entry
from pipeline.sources.prometheus_http import Client
from pipeline.sources.prometheus_server import Server

STEP_S = 60
MARGIN_S = 900
"""How far beyond the day to look whether a pod is still there; longer gaps at midnight look like a deletion."""
DAY_S = 86_400
SPAN_S = 21_600

_LABELS = {
    "pod": ["{namespace}/{pod}"],
    "node": ["{node}"],
    "function": ["{label_faas_function}", "{label_serving_knative_dev_service}", "{created_by_name:owner}"],
}
_POD = Entry("pod_info", _LABELS, ["kube_pod_info"])
_SIZE = Entry("pod_cpu_request_cores", {"pod": _LABELS["pod"]}, ["kube_pod_container_resource_requests"])


def pod_events(client: Client, server: Server, start_s: int, tally: Tally) -> pa.Table:
    """Derive the events of the day that starts at ``start_s``."""
    lives = _lives(client, server, start_s, tally)
    end_s = start_s + DAY_S
    whole = f"{DAY_S + MARGIN_S}s"
    moment = end_s + MARGIN_S
    labels = {}
    for one in client.instant(f"last_over_time(kube_pod_info{{{server.matchers}}}[{whole}])", moment):
        if filled := _POD.canonical(one.labels):
            labels[filled["pod"]] = filled
    for one in client.instant(f"last_over_time(kube_pod_labels{{{server.matchers}}}[{whole}])", moment):
        # Labels of the pod name its function better than its owner does; they are often switched off.
        if (filled := _POD.canonical(one.labels)) and "function" in filled:
            labels.setdefault(filled["pod"], {})["function"] = filled["function"]
    size = {}
    for resource in ("cpu", "memory"):
        inside = ",".join(part for part in (f'resource="{resource}"', server.matchers) if part)
        query = f"sum by (namespace, pod) (last_over_time(kube_pod_container_resource_requests{{{inside}}}[{whole}]))"
        for one in client.instant(query, moment):
            if filled := _SIZE.canonical(one.labels):
                size[filled["pod"], resource] = float(one.value[0])

    rows = []
    for pod, seen in lives.items():
        # The next life ends the one before it; the end of the last is told by nobody, if it is over.
        after = [*sorted(seen)[1:], np.inf]
        for created, following in zip(sorted(seen), after, strict=True):
            ended = min(seen[created] + STEP_S, following - 1e-3)
            if following < np.inf or seen[created] < moment - STEP_S:
                rows.append((ended, "delete", pod))
            rows.append((created, "create", pod))
    rows = sorted(row for row in rows if start_s <= row[0] < end_s)
    columns = {
        "time": times(np.array([round(at * 1e3) * 1_000 for at, _, _ in rows], dtype=np.int64)),
        "cluster": [server.name] * len(rows),
        "entity": [pod for _, _, pod in rows],
        "kind": ["pod"] * len(rows),
        "action": [action for _, action, _ in rows],
        "node": [labels.get(pod, {}).get("node") for _, _, pod in rows],
        "function": [labels.get(pod, {}).get("function") for _, _, pod in rows],
        "cpu_cores": [size.get((pod, "cpu")) for _, _, pod in rows],
        "mem_bytes": [size.get((pod, "memory")) for _, _, pod in rows],
    }
    return raw_table(EVENTS, {name: pa.array(values, EVENTS.field(name).type) for name, values in columns.items()})


def _lives(client: Client, server: Server, start_s: int, tally: Tally) -> dict[str, dict[float, float]]:
    """By pod: when it was created -> when it was last seen so, looking a little beyond the day at both ends."""
    lives: dict[str, dict[float, float]] = defaultdict(dict)
    query = f"max by (namespace, pod) (last_over_time(kube_pod_created{{{server.matchers}}}[{STEP_S * 1000 - 1}ms]))"
    stop = start_s + DAY_S + MARGIN_S
    for begin in range(start_s - MARGIN_S, stop, SPAN_S):
        series, warnings = client.range(query, begin, min(begin + SPAN_S, stop) - STEP_S, STEP_S)
        for warning in warnings:
            tally.skipped[f"server warned: {warning}"] += 1
        for one in series:
            filled = _SIZE.canonical(one.labels)
            if filled is not None:
                lives[filled["pod"]].update(zip(one.value.tolist(), one.time_s.tolist(), strict=True))
    return lives
