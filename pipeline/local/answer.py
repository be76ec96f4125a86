"""Shows that what the registry calls live is what the service answers with."""

from __future__ import annotations

from collections.abc import Callable

import requests

from pipeline.local.servers import LocalSettings
from pipeline.registry.chain import Chain
from wire.errors import LoadmasterError

# Three nodes in different condition, in the fields of sched_env.observation: what a cluster watcher would send.
_SMALL = {"cpu_capacity": 16, "mem_capacity": 64, "price": 0.68}
NODES = {
    "busy": {**_SMALL, "cpu_deployed": 13, "mem_deployed": 40},
    "half-full": {**_SMALL, "cpu_deployed": 7, "mem_deployed": 24, "warm": 1},
    "idle": {"cpu_capacity": 32, "mem_capacity": 128, "price": 1.36, "billed_left_s": 0},
}
REQUEST = {"cpu": 2, "mem": 4, "net": 20, "disk": 200, "requests": 60, "duration_s": 120}


def show_live_policy(settings: LocalSettings, say: Callable[[str], None]) -> None:
    """Compare the service's digest with the registry's ``live`` record, and print one placement it answers."""
    session = requests.Session()
    session.trust_env = False
    policies = session.get(f"{settings.service_url}/v1/policies", timeout=10).json()["policies"]
    chain = Chain.open()
    for problem, policy in policies.items():
        if policy is None:
            continue
        record = chain.live(problem)
        if record is None or record.digest != policy["digest"]:
            raise LoadmasterError(
                f"the service answers with {policy['digest']} for {problem}",
                f"{record.digest if record else 'nothing'}, the registry's live record",
            )
        say(f"\nlive {problem} policy   {policy['digest']}")
        approved = chain.approved(problem, record.digest)
        people = f", approved by {approved.approver}: {approved.reason}" if approved else ""
        say(f"registry               live by record {record.sequence}{people}")
    body = {
        "problem": "functions",
        "candidates": [{"name": name, "state": state} for name, state in NODES.items()],
        "requests": [{"id": "resize-image", "fields": REQUEST}],
    }
    answer = session.post(f"{settings.service_url}/v1/place", json=body, timeout=10)
    answer.raise_for_status()
    placed = answer.json()["placements"][0]
    ranking = ", ".join(f"{one['name']} {one['score']:.2f}" for one in placed["ranked"])
    say(f"one placement          resize-image → {placed['ranked'][0]['name']}   ({ranking}; {placed['reason']})")
