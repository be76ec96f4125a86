"""Benchmark Jobs measure fingerprints of cards, alone, once, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from placement.cpn import benchmark, topology
from placement.cpn.benchmark import BenchmarkError
from placement.cpn.topology import Card
from sched_env.jobs import fingerprints
from wire.errors import ConfigError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def network() -> topology.Network:
    return topology.read((ROOT / "benchmarks/cpn_lab.yaml").read_text(), "lab")


class Cluster:
    """A cluster whose benchmark Jobs end after so many looks."""

    def __init__(self, looks: int = 2, outcome: str = "Complete", seconds: float = 0.1) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.made: list[dict[str, Any]] = []
        self.removed: list[str] = []
        self._looks, self._outcome, self._seconds = looks, outcome, seconds
        self.silent = 0

    def create(self, manifest: dict[str, Any]) -> None:
        if manifest["metadata"]["name"] not in self.jobs:
            self.made.append(manifest)
            self.jobs[manifest["metadata"]["name"]] = {"looks": 0}

    def find(self, name: str) -> dict[str, Any] | None:
        if self.silent:
            self.silent -= 1
            raise ConnectionError("nobody answers")
        job = self.jobs.get(name)
        if job is None:
            return None
        job["looks"] += 1
        done = job["looks"] >= self._looks
        return {"status": {"conditions": [{"type": self._outcome, "status": "True"}] if done else None}}

    def remove(self, name: str) -> None:
        self.removed.append(name)
        self.jobs.pop(name, None)

    def log(self, _: str) -> str:
        lines = [
            {"benchmark": name, "device": "cuda", "card": "T4", "size": "full", "fits": True, "seconds": self._seconds}
            for name in ("resnet50", "yolov8m", "llama3")
        ]
        return "a driver's warning\n" + "\n".join(map(json.dumps, lines))

    def ping(self) -> dict[str, str]:
        return {}


def job_of(card: Card, name: str) -> dict[str, object]:
    template = fingerprints.template(ROOT / "deploy/benchmark-job.yaml")
    return fingerprints.benchmark_job(template, name=name, node=card.node, card=card.number, image="workload:1")


def measure(cards: list[Card], cluster: Cluster, came: Callable[[Card, float], bool] = lambda *_: False) -> Any:
    clock = iter(range(0, 10_000, 5))
    return benchmark.measure(
        cards,
        {card.cluster: cluster for card in cards},
        job_of,
        came=came,
        patience_s=100.0,
        report=lambda _: None,
        sleep=lambda _: None,
        now=lambda: float(next(clock)),
    )


def free(*busy: str) -> Any:
    return SimpleNamespace(open_attempts=lambda: [SimpleNamespace(card=name) for name in busy])


def test_one_free_card_of_each_type_without_a_fingerprint_is_chosen(network: topology.Network) -> None:
    types = {card.type for card in network.cards.values()}
    first = next(iter(network.cards.values()))
    chosen = benchmark.choose(network, free(first.name), [], {})
    assert {card.type for card in chosen} <= types
    assert len({card.type for card in chosen}) == len(chosen)
    assert first not in chosen
    assert benchmark.choose(network, None, [], dict.fromkeys(types)) == []


def test_a_card_that_is_named_must_be_there_and_free(network: topology.Network) -> None:
    name = next(iter(network.cards))
    assert [card.name for card in benchmark.choose(network, free(), [name], {})] == [name]
    with pytest.raises(ConfigError, match="has a job"):
        benchmark.choose(network, free(name), [name], {})
    with pytest.raises(ConfigError, match="no card"):
        benchmark.choose(network, None, ["nowhere/gpu9"], {})


def test_the_job_is_pinned_to_its_card_and_its_log_is_the_fingerprint(network: topology.Network) -> None:
    card, cluster = next(iter(network.cards.values())), Cluster()
    found = measure([card], cluster)
    assert found == {card.type: ("T4", {"resnet50": 0.1, "yolov8m": 0.1, "llama3": 0.1})}
    [made] = cluster.made
    pod = made["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": card.node}
    assert {"name": "CUDA_VISIBLE_DEVICES", "value": str(card.number)} in pod["containers"][0]["env"]
    assert cluster.removed == [made["metadata"]["name"]]


def test_a_cluster_that_is_silent_for_a_while_is_asked_again(network: topology.Network) -> None:
    cluster = Cluster()
    cluster.silent = 5
    assert measure([next(iter(network.cards.values()))], cluster)


@pytest.mark.parametrize(
    ("cluster", "came", "said"),
    [
        (Cluster(outcome="Failed"), False, "failed"),
        (Cluster(), True, "a job came"),
        (Cluster(looks=10_000), False, "not measured after 100 s"),
    ],
    ids=["the Job fails", "company", "it never ends"],
)
def test_what_is_no_measurement_is_refused(network: topology.Network, cluster: Cluster, came: bool, said: str) -> None:
    with pytest.raises(BenchmarkError, match=said):
        measure([next(iter(network.cards.values()))], cluster, lambda *_: came)


def test_names_of_jobs_are_legal_and_differ_from_card_to_card_whatever_the_node_is_called() -> None:
    node = "ip-10-0-101-202.eu-central-1.compute.internal" + "y" * 40
    names = {benchmark.name_of(Card(f"c/{node}/gpu{number}", "c", node, number, "T4")) for number in range(8)}
    assert len(names) == 8
    assert all(fingerprints.NAME.fullmatch(name) for name in names)
