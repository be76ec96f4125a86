"""Record the episodes in which the challenger did worst, beside the policy it is compared with.

They are what an approver should look at first; the gate turns them into pages (``pipeline.gate.replays``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pipeline.datasets import Workload
from pipeline.gate.charts import Worst
from pipeline.gate.replays import FOLDER, INDEX
from sched_env.rollout import Policy, run_episodes


def record(
    folder: Path,
    found: list[Worst],
    data: Workload,
    loads: Mapping[str, float],
    policies: Mapping[str, Policy],
) -> None:
    """Write a replay of each policy on each of the episodes, and an index of them."""
    target = folder / FOLDER
    index = []
    for number, each in enumerate(found, start=1):
        at = data.scaled(loads[each.scenario])
        files = []
        for name, policy in policies.items():
            files.append(f"{number}-{name}.parquet")
            run_episodes(at.scenario, policy, [int(each.trace)], trace=at.trace, record=target / files[-1])
        index.append({"scenario": each.scenario, "trace": each.trace, "files": files, "policies": list(policies)})
    if index:
        (target / INDEX).write_text(json.dumps(index, indent=1) + "\n")
