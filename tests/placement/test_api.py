"""What the service says about itself: health, metrics, OpenAPI, the page for people."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from sched_env import problems
from wire import sample_bundle
from wire.contracts.bundle import Manifest, Verdict
from wire.contracts.decision import DecisionLine
from wire.contracts.place import PlaceRequest, PlaceResponse
from wire.contracts.policies import Flipped, Policies, Refusal

HOSTILE = "<img src=x onerror=\"document.title='taken'\">"


def test_health_and_readiness(shared_live: Any, workshop: Any, kit: Any) -> None:
    assert shared_live.get("/healthz").json() == {"ok": True}
    said = shared_live.get("/readyz").json()
    assert said["ready"]
    assert said["degraded"] == {}
    assert said["answering"]["functions"] == kit.digest_of(workshop.sample(1))
    assert said["answering"]["vm"] == "fallback"


def test_metrics_name_the_live_policy_once(live_client: Any, workshop: Any, kit: Any) -> None:
    kit.push(live_client, workshop.sample(2), counter=2, live=kit.digest_of(workshop.sample(1)))
    answer = live_client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = [line for line in answer.text.splitlines() if line.startswith("loadmaster_policy_counter{")]
    digest = kit.digest_of(workshop.sample(2))
    assert lines == [f'loadmaster_policy_counter{{digest="{digest}",problem="functions"}} 2.0']
    assert 'loadmaster_flips_total{kind="push",problem="functions"} 2.0' in answer.text


def test_decision_seconds_are_observed(shared_live: Any, kit: Any) -> None:
    kit.place(shared_live)
    count = re.search(
        r'loadmaster_decision_seconds_count\{problem="functions"\} (\S+)', shared_live.get("/metrics").text
    )
    assert count is not None
    assert float(count[1]) >= 1


def test_openapi_describes_every_route_and_contract(shared_live: Any) -> None:
    document = shared_live.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    contracts = (PlaceRequest, PlaceResponse, Policies, Flipped, Refusal, Manifest, DecisionLine)
    _, expected = msgspec.json.schema_components(
        contracts, ref_template="#/components/schemas/{name}", schema_hook=lambda _: {"description": "any JSON value"}
    )
    for name, schema in json.loads(msgspec.json.encode(expected)).items():
        assert schemas[name] == schema
    body = document["paths"]["/v1/place"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/PlaceRequest"}
    references = set(re.findall(r"#/components/schemas/(\w+)", msgspec.json.encode(document).decode()))
    assert references <= schemas.keys()
    api = {route.path for route in shared_live.app.routes} - {"/", "/docs", "/web/{name}", "/openapi.json"}
    assert document["paths"].keys() == api
    for operations in document["paths"].values():
        for operation in operations.values():
            names = [parameter["name"] for parameter in operation["parameters"]]
            assert len(names) == len(set(names))
            assert operation["summary"]
            assert operation["description"]
    push = document["paths"]["/v1/policies/{problem}"]["put"]
    assert [entry["name"] for entry in push["parameters"] if entry["required"]] == ["problem"]
    assert push["security"] == [{"pushToken": []}]
    assert list(push["requestBody"]["content"]) == ["application/x-tar"]


def test_a_path_or_method_that_does_not_exist_is_refused_in_the_same_shape(shared_live: Any) -> None:
    for answer, status in ((shared_live.get("/v2/place"), 404), (shared_live.delete("/v1/place"), 405)):
        assert answer.status_code == status
        assert "/docs" in msgspec.json.decode(answer.content, type=Refusal).error
    assert "POST" in answer.headers["allow"]


def test_the_manifest_of_the_live_policy_is_shown_and_404_without(shared_live: Any) -> None:
    assert shared_live.get("/v1/policies/functions").json()["problem"] == "functions"
    assert shared_live.get("/v1/policies/vm").status_code == 404
    assert shared_live.get("/v1/policies/ships").status_code == 404


def test_last_decisions_are_listed_newest_first(live_client: Any, kit: Any) -> None:
    for name in ("first", "second"):
        sent = kit.body(3)
        sent["requests"][0]["id"] = name
        kit.place(live_client, sent)
    said = live_client.get("/v1/decisions").json()
    assert [entry["request"] for entry in said["decisions"]] == ["second", "first"]
    assert (said["totals"], said["fallbacks"]) == ({"functions": 2}, {})


def test_what_nobody_foresaw_is_answered_without_its_traceback(
    settings: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("sched_env.heuristics.score", broken)
    with kit.listening(settings) as address:
        answer = httpx.post(f"{address}/v1/place", json=kit.body())
    assert answer.status_code == 500
    assert "internal error (RuntimeError)" in answer.json()["error"]
    assert "secret" not in answer.text


@pytest.mark.parametrize("path", ["/", "/docs", "/web/page.js", "/web/docs.js", "/web/style.css"])
def test_pages_load_nothing_from_elsewhere_and_run_nothing_inline(shared_live: Any, path: str) -> None:
    answer = shared_live.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"(https?:)?//[a-z]", re.sub(r"^\s*//.*$", "", answer.text, flags=re.MULTILINE))
    assert "innerHTML" not in answer.text
    assert not re.search(r"<script>|<style>|\son\w+=|style=", answer.text)


def test_only_the_pages_own_files_are_served(shared_live: Any) -> None:
    for name in ("page.html", "..%2fsettings.py", "settings.py"):
        assert shared_live.get(f"/web/{name}").status_code == 404


def chromium() -> Path | None:
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    return Path(found) if found else None


@pytest.mark.browser
@pytest.mark.skipif(chromium() is None, reason="no chromium on this machine")
def test_people_see_what_is_live_and_can_try_a_placement(settings: Any, workshop: Any, kit: Any) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    spec = problems.spec("functions")
    policy = sample_bundle.graph(spec, seed=1, hidden=8).SerializeToString()
    files = workshop.around(spec, policy, metrics={"cost_usd": 41.5}, gate=Verdict("pass", HOSTILE))
    flags = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    with kit.listening(settings) as address, sync_api.sync_playwright() as playwright:
        with httpx.Client(base_url=address, timeout=60) as client:
            assert kit.push(client, files, counter=7).status_code == 200
            sent = kit.body(3)
            sent["requests"][0]["id"] = HOSTILE
            assert kit.place(client, sent).status_code == 200
        browser = playwright.chromium.launch(
            executable_path=str(chromium()),
            args=[*flags.split(), "--disable-component-update", "--disable-sync"],
        )
        page = browser.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address + "/")
        card = page.locator(".card.live")
        card.wait_for()
        shown = card.inner_text()
        assert kit.digest_of(files) in shown
        assert HOSTILE in shown  # as text
        assert HOSTILE in page.locator("#decisions").inner_text()
        assert page.title() == "Loadmaster placement"
        page.click("#send")
        answer = page.locator("#answer", has_text="ranked")
        answer.wait_for()
        assert kit.digest_of(files) in answer.inner_text()
        page.locator("#decisions td", has_text="try-1").first.wait_for()
        page.goto(address + "/docs")
        page.locator("#schema-PlaceRequest").wait_for()
        browser.close()
    assert complaints == []
