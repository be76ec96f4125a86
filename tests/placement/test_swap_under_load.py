"""Pushes and rollbacks while others ask: no error, and each answer is of a policy that was live while it was made."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

AUTHORISED = {"Authorization": "Bearer a-token-for-tests-of-32-characters"}
CLIENTS = 4


def swap_under_load(settings: Any, workshop: Any, kit: Any, requests: int, flips: int) -> None:
    seeds = (1, 2, 3)
    digests = {seed: kit.digest_of(workshop.sample(seed)) for seed in seeds}
    answers: list[tuple[float, float, str]] = []
    failures: list[str] = []
    changes: list[tuple[float, float, str]] = []
    """Before and after each change, and what was live from then on."""
    done = threading.Event()

    def ask(url: str, share: int) -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            number = 0
            # Until the last flip at least: on a fast machine the share may be answered before the first one.
            while number < share or not done.is_set():
                number += 1
                sent = kit.body(20)
                sent["requests"][0]["id"] = f"pod-{number}"
                started = time.monotonic()
                try:
                    answer = client.post("/v1/place", json=sent)
                    said = answer.json()
                    if answer.status_code != 200 or not said["placements"][0]["ranked"]:
                        failures.append(answer.text)
                    answers.append((started, time.monotonic(), said["digest"]))
                except Exception as error:
                    failures.append(repr(error))

    with kit.listening(settings) as url, httpx.Client(base_url=url, timeout=120) as client:

        def change(answer: httpx.Response, started: float) -> None:
            assert answer.status_code == 200, answer.text
            changes.append((started, time.monotonic(), answer.json()["digest"]))

        started = time.monotonic()
        change(kit.push(client, workshop.sample(1), counter=1), started)
        asking = [threading.Thread(target=ask, args=(url, requests // CLIENTS)) for _ in range(CLIENTS)]
        for thread in asking:
            thread.start()
        live, counter = digests[1], 1
        try:
            for number in range(flips):
                started = time.monotonic()
                if number % 3 == 2:
                    change(client.post("/v1/policies/functions/rollback", headers=AUTHORISED), started)
                else:
                    seed = next(seed for seed in seeds if (digests[seed] != live and (seed + number) % 2) or seed == 3)
                    if digests[seed] == live:
                        seed = next(other for other in seeds if digests[other] != live)
                    counter += 10
                    change(kit.push(client, workshop.sample(seed), counter=counter, live=live), started)
                live = changes[-1][2]
                counter = client.get("/v1/policies").json()["policies"]["functions"]["counter"]
        finally:
            done.set()
            for thread in asking:
                thread.join()
    assert failures == []
    assert len(answers) >= requests // CLIENTS * CLIENTS
    ends = [after for _, after, _ in changes[1:]] + [float("inf")]
    spans = [(before, end, digest) for (before, _, digest), end in zip(changes, ends, strict=True)]
    for started, ended, digest in answers:
        assert any(digest == one and start <= ended and started <= end for start, end, one in spans), digest
    assert len({digest for *_, digest in answers}) > 1


def test_every_answer_comes_from_a_policy_that_was_live(settings: Any, workshop: Any, kit: Any) -> None:
    swap_under_load(settings, workshop, kit, requests=800, flips=4)


@pytest.mark.soak
def test_ten_thousand_requests_during_twenty_pushes_and_rollbacks(settings: Any, workshop: Any, kit: Any) -> None:
    swap_under_load(settings, workshop, kit, requests=10_000, flips=20)
