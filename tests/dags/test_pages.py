"""What Airflow's web server shows beside an approval: to whom, with which headers, and nothing else."""

import os

import pytest

from pipeline.registry import shown, shown_page

COMMIT = "c" * 40
ASKED_FOR = []


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    os.environ["AIRFLOW_HOME"] = str(tmp_path_factory.mktemp("airflow"))
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    from airflow.api_fastapi.app import create_auth_manager

    from dags import pages

    create_auth_manager()
    return pages


@pytest.fixture
def app(pages, monkeypatch):
    """The application, over a registry that only writes down what it is asked for."""

    def page(*asked):
        ASKED_FOR.append(asked)
        if asked[0] != COMMIT:
            raise shown.NotShownError(f"{asked[0]!r} is no commit that a run recorded")
        return b"<p>the page</p>"

    report = {"outcome": "pass", "reason": "better", "digest": "sha256:" + "d" * 64}
    there = shown.Shown("one", COMMIT, "functions", report, "e" * 64, ("report.html", "worst-1.html"))
    monkeypatch.setattr(shown, "page", page)
    monkeypatch.setattr(shown, "of_commit", lambda *_: there)
    monkeypatch.setattr(
        shown, "of_run", lambda run_id: [there] if run_id == "manual__2026-11-17T21:10:27+00:00" else []
    )
    monkeypatch.setattr(shown_page, "ask", lambda url: shown_page.State(url, {}, {}, {}))
    ASKED_FOR.clear()
    return pages.build()


@pytest.fixture
def somebody(app):
    """A client who may read the questions of the nightly DAG."""
    from starlette.testclient import TestClient

    for route in app.routes:
        for dependency in route.dependencies:
            app.dependency_overrides[dependency.dependency] = lambda: None
    return TestClient(app, follow_redirects=False)


def test_every_page_asks_who_is_there(app):
    from starlette.testclient import TestClient

    assert all(route.dependencies and route.methods == {"GET"} for route in app.routes)
    stranger = TestClient(app, follow_redirects=False)
    for path in ("/live", "/run/one/", f"/{COMMIT}/functions/", f"/{COMMIT}/functions/report.html"):
        answer = stranger.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/api/v2/auth/login?next=http%3A%2F%2Ftestserver%2F")
        assert stranger.get(path, headers={"Authorization": "Bearer forged"}).status_code in (401, 403)
        assert stranger.post(path).status_code == 405
    assert ASKED_FOR == []


def test_the_report_runs_nothing_and_a_replay_runs_in_a_box_of_its_own(somebody):
    report = somebody.get(f"/{COMMIT}/functions/report.html")
    replay = somebody.get(f"/{COMMIT}/functions/worst-1.html")
    assert report.content == replay.content == b"<p>the page</p>"
    assert "script-src" not in report.headers["content-security-policy"]
    policy = replay.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts;")
    assert "allow-same-origin" not in policy
    for answer in (report, replay, somebody.get("/live"), somebody.get(f"/{COMMIT}/functions/")):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "private" in answer.headers["cache-control"]


@pytest.mark.parametrize(
    "path",
    [
        f"/{COMMIT}/functions/../../../etc/passwd",
        f"/{COMMIT}/functions/..%2f..%2f..%2fetc%2fpasswd",
        f"/{COMMIT}/functions/%2e%2e/%2e%2e/params.yaml",
        f"/{COMMIT}/..%5c..%5cparams.yaml",
        f"/{COMMIT}/functions/a/b",
        "/../live/x",
        "//etc/passwd",
        "/docs",
        "/openapi.json",
        "/",
    ],
)
def test_a_path_that_leads_elsewhere_leads_nowhere(somebody, path):
    answer = somebody.get(path)
    assert answer.status_code == 404
    assert all("/" not in part for asked in ASKED_FOR for part in asked), "a name is one segment of a path"


def test_what_is_not_there_is_said_in_words_and_as_404(somebody):
    answer = somebody.get(f"/{'0' * 40}/functions/report.html")
    assert answer.status_code == 404
    assert "is no commit that a run recorded" in answer.text


def test_a_runs_page_takes_its_id_as_airflows_tab_sends_it(somebody):
    answer = somebody.get("/run/manual__2026-11-17T21%3A10%3A27%2B00%3A00/")
    assert f"../../{COMMIT}/functions/worst-1.html" in answer.text
    assert "recorded no report" in somebody.get("/run/other/").text


def test_airflow_finds_the_plugin_and_its_tabs(pages):
    from importlib.metadata import entry_points

    (found,) = entry_points(group="airflow.plugins", name="loadmaster")
    assert found.value == "dags.pages:Pages"
    assert {view["destination"] for view in pages.Pages.external_views} == {"nav", "dag_run", "task_instance"}
    assert len({view["url_route"] for view in pages.Pages.external_views}) == 3
    assert pages.Pages.fastapi_apps[0]["url_prefix"] == shown.PREFIX
