"""What an approval links to, on Airflow's own web server, for those who may read the approval.

Airflow finds the plugin by its entry point (``pyproject.toml``). The report, replays of the worst episodes and what is
live now are read only; a page belongs to a commit, which the question names (:mod:`pipeline.registry.shown`).
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote, urlparse

from airflow.plugins_manager import AirflowPlugin

from pipeline.registry.shown import PREFIX

SERVICE_URL = os.environ.get("LOADMASTER_SERVICE_URL", "http://127.0.0.1:8100")
DAG = "nightly_retrain"

HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "private, no-cache"}
REPLAY_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""A replay is the one page with scripts, and a stage wrote it: in a sandbox its origin is its own, so that nothing
in it can read Airflow's pages or answer in somebody's name."""


class App:
    """The ASGI application, built at the first request: plugins are loaded by every process of Airflow."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if self._app is None:
            self._app = build()
        await self._app(scope, receive, send)


def build() -> Any:
    """Build the application; whoever may read the questions of the nightly DAG may read these pages."""
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
    from airflow.api_fastapi.core_api.security import requires_access_dag
    from fastapi import Depends, FastAPI, HTTPException, Request
    from fastapi.responses import HTMLResponse, RedirectResponse, Response

    from pipeline.paths import REPORT_HTML
    from pipeline.registry import shown, shown_page
    from wire.errors import LoadmasterError

    allowed = Depends(requires_access_dag("GET", DagAccessEntity.HITL_DETAIL, DAG))
    app = FastAPI(title="Loadmaster", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)

    def answer(content: str | bytes, *, policy: str = shown_page.POLICY, status: int = 200) -> Response:
        headers = {**HEADERS, "Content-Security-Policy": f"{policy}; frame-ancestors 'self'"}
        return HTMLResponse(content, status_code=status, headers=headers)

    # Plain functions: FastAPI runs them beside its event loop, where git and the service may take their time.
    @app.get("/live", dependencies=[allowed])
    def live() -> Response:
        return answer(shown_page.now(shown_page.ask(SERVICE_URL)))

    @app.get("/run/{run_id}/", dependencies=[allowed])
    def run(run_id: str) -> Response:
        return answer(shown_page.of_run(run_id, shown.of_run(run_id), shown_page.ask(SERVICE_URL)))

    @app.get("/{commit}/{problem}/", dependencies=[allowed])
    def around(commit: str, problem: str) -> Response:
        return answer(shown_page.of_commit(shown.of_commit(commit, problem), shown_page.ask(SERVICE_URL)))

    @app.get("/{commit}/{problem}/{name}", dependencies=[allowed])
    def page(commit: str, problem: str, name: str) -> Response:
        content = shown.page(commit, problem, name)
        return answer(content, policy=shown_page.POLICY if name == REPORT_HTML else REPLAY_POLICY)

    @app.exception_handler(HTTPException)
    def to_the_log_in(request: Request, error: HTTPException) -> Response:
        """Send a person without a session to Airflow's log-in, and from there back here."""
        if error.status_code != 401:
            return answer(shown_page.refused(LoadmasterError(str(error.detail))), status=error.status_code)
        return RedirectResponse(f"{below()}/api/v2/auth/login?next={quote(str(request.url), safe='')}", 303)

    @app.exception_handler(LoadmasterError)
    def refused(_request: Request, error: LoadmasterError) -> Response:
        return answer(shown_page.refused(error), status=404 if isinstance(error, shown.NotShownError) else 503)

    return app


def below() -> str:
    """Return the path that Airflow has on its host; mostly none."""
    from airflow.configuration import conf

    return urlparse(str(conf.get("api", "base_url", fallback=""))).path.rstrip("/")


class Pages(AirflowPlugin):
    """A tab of every run and task, and an entry of the menu."""

    name = "loadmaster"
    fastapi_apps = [{"app": App(), "url_prefix": PREFIX, "name": "Loadmaster"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {"name": "Policies", "href": f"{below()}{PREFIX}/live", "url_route": "loadmaster", "destination": "nav"},
        *(
            {
                "name": "Evaluation",
                "href": f"{below()}{PREFIX}/run/{{RUN_ID}}/",
                "url_route": f"evaluation{suffix}",
                "destination": destination,
            }
            for destination, suffix in (("dag_run", ""), ("task_instance", "-of-task"))
        ),
    ]
