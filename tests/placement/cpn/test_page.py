"""The page for people, with everything on: two policies tried beside a live one, a watched cluster, jobs on cards."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from placement import app as application
from placement.cpn.collection import Collection
from placement.cpn.metrics import CpnMetrics
from placement.cpn.service import Cpn
from placement.kube.cluster import Cluster
from placement.kube.objects import Node, Pod
from placement.over_time import quantile
from tests.placement.cpn.conftest import MODELS
from tests.placement.cpn.played import Rehearsal

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


def watched(nodes: int) -> Any:
    """A cluster as a watch would fill it."""
    cluster = Cluster("east")
    for number in range(nodes):
        capacity = {"metadata": {"name": f"node-{number}"}, "status": {"allocatable": {"cpu": "8", "memory": "32Gi"}}}
        cluster.put_node(msgspec.convert(capacity, Node))
        container = {"resources": {"requests": {"cpu": str(number % 8), "memory": f"{number % 30}Gi"}}}
        spec = {"nodeName": f"node-{number}", "containers": [container]}
        pod = {"metadata": {"name": f"p{number}", "uid": f"p{number}"}, "spec": spec, "status": {"phase": "Running"}}
        cluster.put_pod(msgspec.convert(pod, Pod))
    return SimpleNamespace(cluster=cluster, silent_s=lambda: 0.4, whole=lambda: True, usage=None, stop=lambda: None)


@pytest.fixture
def everything(
    settings: Any,
    workshop: Any,
    kit: Any,
    rehearse: Callable[..., Rehearsal],
    submit: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """Address of a service that has all of it."""
    rehearsal = rehearse({"P100": 2, "A100": 1}, strategy="fifo")
    for number in range(16):
        submit(rehearsal, f"train-{number}", epochs=200 + 300 * number, tenant="vision" if number % 3 else "speech")
    rehearsal.world.failing[("train-2", 1)] = (0.5, "oom")
    rehearsal.run(until_s=rehearsal.world.now + 30.0)
    controller = rehearsal.controller
    memory = {name: model.gpu_mem * 1024 for name, model in MODELS.items()}
    metrics = CpnMetrics(CollectorRegistry())
    collection = Collection(rehearsal.settings, controller.clock)
    cpn = Cpn(rehearsal.settings, rehearsal.store, controller, collection, metrics, controller.clock, memory, None)
    quiet = SimpleNamespace(**{name: getattr(cpn, name) for name in Cpn.__dataclass_fields__}, close=lambda: None)

    def job_controller(_: Any, running: Any) -> Any:
        running.clusters._watched["east"] = watched(60)
        return quiet

    monkeypatch.setattr(application, "_job_controller", job_controller)
    first = workshop.sample(1)
    live = kit.digest_of(first)
    with kit.listening(settings) as address, httpx.Client(base_url=address, timeout=60) as client:
        assert kit.push(client, first, counter=1).status_code == 200
        token = {"Authorization": f"Bearer {kit.TOKEN}", "If-Match": f'"{live}"'}
        for seed, where, more in ((2, "canary", {"X-Loadmaster-Share": "0.2"}), (3, "shadow", {})):
            body = kit.tar(workshop.promoted(workshop.sample(seed), counter=2, live=live))
            answer = client.put(f"/v1/policies/functions/{where}", content=body, headers=token | more)
            assert answer.status_code == 200, answer.text
        for number in range(40):
            sent = kit.body(6)
            sent["requests"][0]["id"] = f"pod-{number}"
            kit.place(client, sent)
        vm = {"problem": "vm", "requests": [{"id": "vm-1", "fields": {"cpu": 1, "mem": 1}}]}
        half = {"cpu_capacity": 20, "mem_capacity": 64, "cpu_free": 4, "mem_free": 9}
        assert kit.place(client, vm | {"candidates": [{"name": "s0/0", "state": half}]}).status_code == 200
        yield address
    rehearsal.store.close()


def test_what_the_page_reads_is_answered(everything: str) -> None:
    with httpx.Client(base_url=everything) as client:
        flips = client.get("/v1/policies/functions/flips").json()["flips"]
        assert [flip["counter"] for flip in flips] == [1]
        overview = client.get("/v1/overview").json()
        assert (overview["clusters"], overview["jobs"], overview["frozen_until"]) == (["east"], True, None)
        last = overview["timeline"]["functions"][-1]
        assert sum(one["decisions"] for one in overview["timeline"]["functions"]) == 40
        assert all(one["fallbacks"] == 0 for one in overview["timeline"]["functions"])
        assert last["p50_ms"] is None or 0 < last["p50_ms"] <= last["p99_ms"]
        again = client.get("/v1/overview").json()["timeline"]["functions"]
        assert len(again) == len(overview["timeline"]["functions"])  # asking adds nothing to the ring
        nodes = client.get("/v1/clusters/east/nodes").json()
        assert (nodes["names"][9], nodes["cpu_deployed"][9], nodes["mem_deployed"][9]) == ("node-9", 1.0, 9.0)
        assert client.get("/v1/clusters/west/nodes").status_code == 404
        plan = client.get("/v1/network/attempts").json()
        assert {one["attempt"]["card"] for one in plan["attempts"]} <= set(plan["cards"])
        assert any(one["attempt"]["outcome"] == "finished" for one in plan["attempts"])


def test_a_quantile_is_read_from_buckets() -> None:
    assert quantile([0] * 12, 0.5) is None
    assert quantile([0, 0, 0, 0, 0, 100] + [100] * 6, 0.5) == 7.5  # halfway from 5 to 10 ms
    assert quantile([0] * 11 + [3], 0.99) == 1000.0


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_people_see_all_of_it_with_keyboard_in_the_dark_and_on_a_phone(everything: str, tmp_path: Any) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        complaints: list[str] = []
        asked: list[tuple[str, str]] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append((request.method, request.url)))
        page.goto(everything + "/")
        card = page.locator(".card.live")
        card.wait_for()
        shown = card.inner_text()
        assert "answers 20 % of the calls" in shown
        assert "scores beside it, decides nothing" in shown
        card.locator("summary", has_text="flips").click()
        assert "#1" in card.locator(".flips").inner_text()
        page.locator("#gantt svg rect.bar.finished").first.wait_for()
        assert page.locator("#gantt svg rect.bar.running").count() > 0
        assert "train-15" in page.locator("#line").inner_text()
        assert page.locator("#gantt svg rect.bar.failed").count() == 1
        assert "off by" in page.locator("#predicted").inner_text()
        page.locator("#nodes canvas").wait_for()
        heat = page.locator("#nodes .drawing")
        heat.focus()
        page.keyboard.press("End")
        assert "node-59" in page.locator("#nodes .readout").inner_text()
        chart = page.locator("#hour .drawing").first
        chart.focus()
        page.keyboard.press("End")
        assert "decisions " in page.locator("#hour .readout").first.inner_text()
        page.locator("#decisions button", has_text="pod-39").focus()
        page.keyboard.press("Enter")
        assert "loadmaster registry lineage sha256:" in page.locator("tr.below:visible").inner_text()
        page.fill("#with", "pod-3")
        assert page.locator("#decisions button").count() == 11
        page.screenshot(path=tmp_path / "wide.png", full_page=True)
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 22, 29)"
        page.screenshot(path=tmp_path / "phone.png", full_page=True)
        source = page.content() + "".join(
            page.request.get(f"{everything}/web/{name}.js").text() for name in ("page", "charts")
        )
        browser.close()
    assert complaints == []
    assert {method for method, _ in asked} == {"GET"}
    assert all(url.startswith((everything, "data:")) for _, url in asked), "something is loaded from elsewhere"
    assert "a-token-for-tests" not in source
