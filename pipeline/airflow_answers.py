"""Asks Airflow's REST API what a person answered: the HITL detail, which no XCom and no task state can replace.

The reader's token comes from the task that starts us (``LOADMASTER_AIRFLOW_TOKEN``), or from a log-in of our own
(``LOADMASTER_AIRFLOW_LOGIN_FILE``, JSON with ``username`` and ``password``): a viewer's rights are enough.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline import approval
from pipeline.approval import Question, Response
from pipeline.errors import RegistryError
from pipeline.registry.shown import URL_ENV
from wire import environment
from wire.errors import ConfigError

TOKEN_ENV = environment.variable("airflow_token")
LOGIN_ENV = environment.variable("airflow_login_file")
TIMEOUT_S = 60.0


class NotThereError(RegistryError):
    """Raised when Airflow knows no such thing."""


def response(asked: Question, dag: str, task: str) -> Response | None:
    """Read the answer to a question that a task of the run has put; None while there is none.

    Args:
        asked: The question as it must have been put.
        dag: The DAG.
        task: The task that asked.
    """
    mine = token()
    run = f"/api/v2/dags/{quote(dag, safe='')}/dagRuns/{quote(asked.run_id, safe='')}"
    try:
        detail = call(f"{run}/taskInstances/{quote(task, safe='')}/-1/hitlDetails", mine)
    except NotThereError:
        return None  # The task has never put its question.
    starter = call(run, mine).get("triggering_user_name") if approval.two_persons() else None
    where = "/".join(quote(part, safe="") for part in (dag, asked.run_id, task))
    return approval.read(detail, asked, where=where, allowed=approval.approvers(), not_by=starter)


def token() -> str:
    """Return a token to ask Airflow with."""
    if given := os.environ.get(TOKEN_ENV):
        return given
    path = os.environ.get(LOGIN_ENV)
    if not path:
        raise ConfigError(f"neither {TOKEN_ENV} nor {LOGIN_ENV} is set", "the means to ask Airflow for the answer")
    try:
        login = json.loads(Path(path).read_bytes())
        body = json.dumps({"username": login["username"], "password": login["password"]}).encode()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} ({LOGIN_ENV}): {error!r}", "JSON with username and password") from error
    return str(call("/auth/token", None, body).get("access_token"))


def call(path: str, bearer: str | None, body: bytes | None = None, method: str | None = None) -> dict[str, Any]:
    """Ask Airflow's API server; anything but an object in answer is an error."""
    base = os.environ.get(URL_ENV, "")
    if not base.startswith(("http://", "https://")):
        raise ConfigError(f"{URL_ENV} is {base!r}", "the address of Airflow's API server, http://... or https://...")
    headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    request = urllib.request.Request(  # noqa: S310  (the scheme is checked above)
        base.rstrip("/") + path, data=body, headers={"Content-Type": "application/json", **headers}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            document = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")[:300]
        kind = NotThereError if error.code == HTTPStatus.NOT_FOUND else RegistryError
        raise kind(f"Airflow answered {error.code} to {path}: {said}", "the answer of a person") from error
    except (OSError, HTTPException, ValueError) as error:
        raise RegistryError(
            f"Airflow at {base} cannot be asked: {error}", fix="nothing was recorded; run it again"
        ) from error
    if not isinstance(document, dict):
        raise RegistryError(f"Airflow answered {document!r:.80} to {path}", "an object")
    return document
