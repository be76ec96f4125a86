"""Tells people what a DAG has to say: by the ways that :mod:`pipeline.notify` knows. Nothing here can fail a task."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from dags.calls import call


def page_of(context: Any) -> str:
    """Address of a task's page in the UI."""
    from airflow.configuration import conf

    task = context["ti"]
    base = conf.get("api", "base_url", fallback="").rstrip("/")
    return f"{base}/dags/{task.dag_id}/runs/{quote(context['run_id'], safe='')}/tasks/{task.task_id}"


def tell(kind: str, subject: str, *, body: str = "", link: str = "") -> None:
    """Send a message; that it could not be sent is in the log, and stops nothing."""
    try:
        call("pipeline.notify", f"--kind={kind}", f"--subject={subject}", f"--body={body}", f"--link={link}")
    except RuntimeError as error:
        print(f"nobody was told: {error}")  # noqa: T201 - a task's log is its standard output


def failed(context: Any) -> None:
    """Tell that a run failed: the callback of a DAG."""
    run = context["dag_run"]
    tell("failed", f"{run.dag_id} failed: {run.run_id}", body=str(context.get("reason") or ""))


def late(context: Any = None, **_: Any) -> None:
    """Tell that a run has not ended by its deadline: the callback of a deadline."""
    run = (context or {}).get("dag_run") or {}
    name = run.get("dag_run_id") if isinstance(run, dict) else getattr(run, "run_id", "")
    tell("late", f"nightly_retrain has not ended by its deadline: {name or 'see Airflow'}")
