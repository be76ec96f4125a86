"""``/v1/jobs`` over HTTP, and the report: submissions, refusals, lists, cancellations, logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.testclient import TestClient

from placement.api import jobs
from placement.app import refuse
from placement.cpn import report
from placement.cpn.collection import Collection
from placement.cpn.config import Quota
from placement.cpn.metrics import CpnMetrics
from placement.cpn.service import Cpn
from tests.placement.cpn.conftest import MODELS, manifest
from tests.placement.cpn.played import Rehearsal
from wire.errors import LoadmasterError

Rehearse = Callable[..., Rehearsal]


class Desk:
    """The routes over a rehearsal."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        controller = rehearsal.controller
        registry = CollectorRegistry()
        metrics = CpnMetrics(registry)
        metrics.show(controller)
        self.registry = registry
        memory = {name: model.gpu_mem * 1024 for name, model in MODELS.items()}
        app = Starlette(routes=[*jobs.group.routes], exception_handlers={LoadmasterError: refuse})
        collection = Collection(rehearsal.settings, controller.clock)
        app.state.cpn = Cpn(
            rehearsal.settings, rehearsal.store, controller, collection, metrics, controller.clock, memory, None
        )
        app.state.service = SimpleNamespace(metrics=None)
        self.client = TestClient(app)

    def post(self, body: Any, **headers: str) -> Any:
        return self.client.post("/v1/jobs", content=yaml.safe_dump(body), headers=headers)


@pytest.fixture
def desk(rehearse: Rehearse) -> Iterator[Desk]:
    rehearsal = rehearse({"P100": 2}, strategy="fifo", quotas={"small": Quota(active=1)})
    yield Desk(rehearsal)
    rehearsal.store.close()


def test_a_job_is_submitted_once_listed_run_and_read(desk: Desk) -> None:
    first, again = desk.post(manifest("one")), desk.post(manifest("one"))
    assert (first.status_code, first.json()["new"]) == (200, True)
    assert (again.status_code, again.json()["new"]) == (200, False)
    job = first.json()["job"]["id"]
    assert again.json()["job"]["id"] == job
    assert desk.client.get("/v1/jobs?state=waiting").json()["counts"] == {"waiting": 1}
    desk.rehearsal.run()
    found = desk.client.get(f"/v1/jobs/{job}").json()
    assert found["state"] == "finished"
    assert [one["outcome"] for one in found["attempts"]] == ["finished"]
    assert "log of lm-" in desk.client.get(f"/v1/jobs/{job}/logs").text
    shown = desk.client.get("/v1/network").json()
    assert set(shown["cards"]) == {"cluster-0/node-0000/gpu0", "cluster-0/node-0000/gpu1"}


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/v1/jobs/none", 404, "there is no job"),
        ("/v1/jobs/none/logs", 404, "there is no job"),
        ("/v1/jobs?state=asleep", 422, "one of waiting"),
        ("/v1/jobs?limit=x", 422, "a whole number"),
    ],
)
def test_what_is_not_there_or_not_legal_is_said(desk: Desk, path: str, status: int, said: str) -> None:
    answer = desk.client.get(path)
    assert answer.status_code == status
    assert said in answer.json()["error"]


def test_refusals_name_the_field_quotas_hold_and_names_are_unique(desk: Desk) -> None:
    refused = desk.post(manifest("one", "gpt"))
    assert refused.status_code == 422
    assert "model_name" in refused.json()["error"]
    assert "cnn-small" in refused.json()["error"]
    assert desk.client.post("/v1/jobs", content=b"a: [").status_code == 400
    assert desk.post(manifest("one"), **{"X-Tenant": "small"}).status_code == 200
    over = desk.post(manifest("two"), **{"X-Tenant": "small"})
    assert over.status_code == 429
    assert "quota" in over.json()["error"]
    assert desk.post(manifest("two")).status_code == 200
    other = desk.post(manifest("two", epochs=7))
    assert other.status_code == 409
    assert desk.post(manifest("two", epochs=7), **{"Idempotency-Key": "k"}).json()["new"]


def test_a_job_is_cancelled(desk: Desk) -> None:
    job = desk.post(manifest("one")).json()["job"]["id"]
    assert desk.client.delete(f"/v1/jobs/{job}").json()["cancelling"]
    desk.rehearsal.run()
    assert desk.client.get(f"/v1/jobs/{job}").json()["state"] == "cancelled"
    assert desk.client.delete("/v1/jobs/none").status_code == 404


def test_the_report_says_how_it_went(desk: Desk) -> None:
    for number in range(8):
        desk.post(manifest(f"job-{number}"))
    desk.rehearsal.run()
    jobs, attempts, _ = desk.rehearsal.store.everything()
    text = report.text(jobs, attempts)
    assert "8 jobs: 8 finished" in text
    assert "What kept jobs in line" in text
    assert report.figures(jobs, attempts)["oom"] == 0
