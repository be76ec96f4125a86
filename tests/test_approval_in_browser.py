"""The approval as a person meets it: a real Airflow, a real service, a real Chromium.

Stages are stand-ins (``tests/standing_night.py``); the pages, the registry behind them and the way to production are
real. ``LOADMASTER_SCREENSHOTS=<folder>`` keeps pictures of every step, to be looked at.
"""

import os
import re
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest
import requests

from pipeline.local import servers
from pipeline.local.__main__ import DAG
from tests import standing_night
from tests.standing_night import APPROVER

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.soak, pytest.mark.timeout(1800)]

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
PATIENCE_MS = 180_000
"""Airflow's UI is large, and the machine may have other things to do."""


@pytest.fixture(scope="module")
def context():
    """A browser without a session."""
    chromium = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if chromium is None:
        pytest.skip("no chromium on this machine")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        opened = browser.new_context(viewport={"width": 1440, "height": 1000})
        opened.set_default_timeout(PATIENCE_MS)
        yield opened
        browser.close()


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    """A run whose question has been put."""
    more = {"LOADMASTER_APPROVERS": APPROVER}
    with standing_night.standing(tmp_path_factory.mktemp("browser"), more) as (settings, people):
        yield settings, people, standing_night.asked(people["adam"])


def keep(tab, name):
    if folder := os.environ.get("LOADMASTER_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        tab.screenshot(path=Path(folder) / f"{name}.png")


def log_in(tab, settings, user):
    tab.locator("input[name=username]").fill(user)
    tab.locator("input[name=password]").fill(servers.credentials(settings)[user])
    tab.locator("button[type=submit]").click()


def test_a_person_reads_looks_approves_and_sees_it_live(context, night):
    settings, people, run = night
    tab = context.new_page()
    tab.goto(f"{settings.airflow_url}/dags/{DAG}/runs/{quote(run, safe='')}/tasks/approve/required_actions")
    log_in(tab, settings, APPROVER)

    # The question, with what it is about and where to look.
    look = tab.get_by_role("link", name="Look before you answer")
    look.wait_for()
    shown = tab.locator("body").inner_text()
    digest, commit = re.search(r"bundle\s+(sha256:\w{64})", shown)[1], re.search(r"commit\s+(\w{40})", shown)[1]
    keep(tab, "approval")
    with context.expect_page() as opened:
        look.click()
    page = opened.value
    page.get_by_role("heading", name="Look at").wait_for()
    assert f"/loadmaster/{commit}/functions/" in page.url
    around = page.locator("body").inner_text()
    assert digest in around
    assert "the rule: no policy was pushed" in around
    assert "The placement service answers" in around
    keep(page, "look")

    # From there to the report and to the replay, with nothing loaded from elsewhere.
    loaded, complaints = [], []
    page.on("request", lambda request: loaded.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.get_by_role("link", name="The evaluation").click()
    page.get_by_role("link", name="replay of both").wait_for()
    assert digest in page.locator("body").inner_text()
    keep(page, "report")
    page.get_by_role("link", name="replay of both").click()
    page.locator("body[data-ready=yes]").wait_for()
    page.keyboard.press("ArrowRight")
    assert page.locator("#where").inner_text() == "2 / 9"
    keep(page, "replay")
    assert page.evaluate("origin") == "null", "a replay has no part in Airflow's origin"
    assert all(url.startswith(f"{settings.airflow_url}/loadmaster/{commit}/") for url in loaded), loaded
    assert complaints == []
    page.close()

    # The same as a tab beside the question.
    tab.get_by_role("tab", name="Evaluation").or_(tab.get_by_role("link", name="Evaluation")).first.click()
    frame = tab.frame_locator("iframe")
    frame.get_by_role("heading", name="Look at").wait_for()
    assert digest in frame.locator("body").inner_text()
    keep(tab, "tab")
    frame.get_by_role("link", name="Replay of worst episode 1").click()
    frame.locator("body[data-ready=yes]").wait_for()

    # Approve, with a word for the record.
    tab.goto(f"{settings.airflow_url}/dags/{DAG}/runs/{quote(run, safe='')}/tasks/approve/required_actions")
    tab.get_by_role("link", name="Look before you answer").wait_for()
    tab.locator("[name=element_comment]").fill("seen in the browser")
    tab.get_by_role("button", name="Approve").click()
    tasks = standing_night.ended(people["adam"], run)
    assert tasks["verify"] == "success", tasks
    assert standing_night.live(settings) == digest

    # What is live, as the menu shows it.
    tab.goto(f"{settings.airflow_url}/loadmaster/live")
    tab.get_by_role("heading", name="What is live").wait_for()
    assert digest in tab.locator("body").inner_text()
    keep(tab, "live")
    tab.close()


def test_the_pages_are_for_those_who_may_read_the_question(night):
    settings, people, run = night
    commit = re.search(r"/loadmaster/(\w{40})/", people["adam"].call("GET", detail_of(run))["body"])[1]
    page = f"{settings.airflow_url}/loadmaster/{commit}/functions/report.html"
    answer = requests.get(page, timeout=60, allow_redirects=False)
    assert answer.status_code == 303
    assert "/auth/login" in answer.headers["location"]
    viewer = people["vera"]._session
    assert viewer.get(page, timeout=60).status_code == 200
    assert requests.get(page, timeout=60, headers={"Authorization": "Bearer forged"}).status_code in (401, 403)
    for hostile in (
        f"/loadmaster/{commit}/functions/..%2f..%2f..%2f..%2fetc%2fpasswd",
        f"/loadmaster/{commit}/functions/%2e%2e%2freport.json",
        f"/loadmaster/{commit}/functions/report.json",
        f"/loadmaster/{commit}/..%2f..%2fvar/passwords.json",
        f"/loadmaster/{'0' * 40}/functions/report.html",
        "/loadmaster/HEAD/functions/report.html",
    ):
        prepared = requests.Request("GET", settings.airflow_url).prepare()
        prepared.url, prepared.headers = f"{settings.airflow_url}{hostile}", viewer.headers
        answer = viewer.send(prepared, timeout=60)
        assert answer.status_code == 404, hostile
        assert "root:" not in answer.text
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert viewer.request(method, page, timeout=60).status_code == 405


def detail_of(run):
    return f"{standing_night.path_of(run)}/-1/hitlDetails"


def test_the_pages_are_for_small_screens_the_dark_and_the_keyboard(context, night):
    settings, _people, run = night
    browser = context.browser
    dark = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
    dark.set_default_timeout(PATIENCE_MS)
    tab = dark.new_page()
    tab.goto(f"{settings.airflow_url}/loadmaster/run/{quote(run, safe='')}/")
    log_in(tab, settings, "vera")  # sent to the log-in, and back
    tab.get_by_role("heading", name="Look at").wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    keep(tab, "phone")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 22, 29)"
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent").startswith("The evaluation")
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.keyboard.press("Enter")
    tab.get_by_role("link", name="replay of both").wait_for()
    dark.close()
