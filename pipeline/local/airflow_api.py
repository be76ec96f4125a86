"""The few calls of Airflow's REST API that a person would click."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

import requests

from wire.errors import LoadmasterError

ENDED = ("success", "failed")
PATIENCE = 5
"""Minutes in which a question may go unanswered: a machine that trains and compiles at once is slow, not gone."""
TASK_ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")


class AirflowError(LoadmasterError):
    """Raised when Airflow's API refuses a call."""


class AirflowApi:
    """A logged-in user of one Airflow.

    Args:
        url: Base address.
        username: A user of the simple auth manager.
        password: Their password.
    """

    def __init__(self, url: str, username: str, password: str) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.trust_env = False  # loopback: no proxy from the environment
        answer = self._session.post(f"{url}/auth/token", json={"username": username, "password": password}, timeout=30)
        if answer.status_code not in (200, 201):
            raise AirflowError(f"Airflow refused the log-in of {username!r} ({answer.status_code})")
        self._session.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"

    def call(self, method: str, path: str, **kwargs: Any) -> Any:
        """Call the API below ``/api/v2``; anything but success is an error, a question may take its time."""
        for left in reversed(range(PATIENCE if method == "GET" else 1)):
            try:
                answer = self._session.request(method, f"{self._url}/api/v2{path}", timeout=60, **kwargs)
                break
            except requests.Timeout:
                if not left:
                    raise
        if not answer.ok:
            raise AirflowError(f"Airflow answered {answer.status_code} to {method} {path}: {answer.text[:500]}")
        return answer.json()

    def wait_for_dag(self, dag: str, timeout_s: float = 120) -> None:
        """Wait until the DAG processor has read the DAG; import errors are raised as they are."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if errors := self.call("GET", "/importErrors")["import_errors"]:
                raise AirflowError(f"{errors[0]['filename']} does not load: {errors[0]['stack_trace']}")
            if any(row["dag_id"] == dag for row in self.call("GET", "/dags")["dags"]):
                return
            time.sleep(1)
        raise AirflowError(f"Airflow has not found the DAG {dag!r} within {timeout_s:.0f} s")

    def start(self, dag: str, conf: dict[str, Any] | None = None) -> str:
        """Unpause and trigger a DAG; a run that is under way already is taken instead. Returns the run id."""
        self.call("PATCH", f"/dags/{dag}", json={"is_paused": False})
        for state in ("running", "queued"):
            if runs := self.call("GET", f"/dags/{dag}/dagRuns", params={"state": state})["dag_runs"]:
                return str(runs[0]["dag_run_id"])
        run = self.call("POST", f"/dags/{dag}/dagRuns", json={"logical_date": None, "conf": conf or {}})
        return str(run["dag_run_id"])

    def run_state(self, dag: str, run: str) -> str:
        """State of a run: queued, running, success or failed."""
        return str(self.call("GET", f"/dags/{dag}/dagRuns/{quote(run, safe='')}")["state"])

    def tasks(self, dag: str, run: str) -> list[dict[str, Any]]:
        """Task instances of a run, mapped ones each by itself."""
        path, found = f"/dags/{dag}/dagRuns/{quote(run, safe='')}/taskInstances", list[dict[str, Any]]()
        while True:  # Airflow gives 100 a page, whatever is asked for; a night of five problems has 85
            page = self.call("GET", path, params={"limit": 100, "offset": len(found), "order_by": "id"})
            found += page["task_instances"]
            if not page["task_instances"] or len(found) >= page["total_entries"]:
                return found

    def xcom(self, dag: str, run: str, task: str, map_index: int, key: str = "return_value") -> Any:
        """A value that a task left for others; None when there is none."""
        path = f"/dags/{dag}/dagRuns/{quote(run, safe='')}/taskInstances/{task}/xcomEntries/{key}"
        try:
            return self.call("GET", path, params={"map_index": map_index})["value"]
        except AirflowError:
            return None

    def log(self, dag: str, run: str, task: str, map_index: int, attempt: int) -> str:
        """The log of one attempt, as text."""
        path = f"/dags/{dag}/dagRuns/{quote(run, safe='')}/taskInstances/{task}/logs/{attempt}"
        lines = self.call("GET", path, params={"map_index": map_index, "full_content": True})["content"]
        return "\n".join(line.get("event", "") if isinstance(line, dict) else str(line) for line in lines)

    def answer(self, dag: str, run: str, task: str, map_index: int, option: str, comment: str) -> None:
        """Answer an approval as this user."""
        path = f"/dags/{dag}/dagRuns/{quote(run, safe='')}/taskInstances/{task}/{map_index}/hitlDetails"
        self.call("PATCH", path, json={"chosen_options": [option], "params_input": {"comment": comment}})
