"""The tasks that ask a person. Their questions come from the registry, their answers stay where Airflow keeps them."""

from __future__ import annotations

import json
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.execution_time.hitl import HITLUser

from dags.airflow_reader import url
from dags.alerts import page_of, tell
from dags.calls import call
from pipeline import approval
from pipeline.registry.shown import URL_ENV


class AskedFromRegistry(ApprovalOperator):
    """ApprovalOperator that asks the approvers a question made from the registry when the task runs.

    Not from a template: an XCom can be written by others, and the person must see what will be done. Whoever acts on
    the answer reads it from Airflow and holds it against the same question.
    """

    def __init__(self, *, subject: str, **kwargs: Any) -> None:
        assigned = [HITLUser(id=name, name=name) for name in approval.approvers()]
        super().__init__(subject=subject, defaults=approval.REJECT, assigned_users=assigned or None, **kwargs)

    def question(self, context: Any) -> str:
        """Make the question, as JSON."""
        raise NotImplementedError

    def execute(self, context: Any) -> Any:
        """Put the question; without one, or with nobody to ask, fail."""
        asked = json.loads(self.question(context))
        self.subject, self.body = asked["subject"], asked["body"]
        tell("approval", self.subject, link=f"{page_of(context)}/required_actions")
        return super().execute(context)


class PolicyApproval(AskedFromRegistry):
    """Asks about the commit that ``record`` pushed; only after a passed gate."""

    def __init__(self, *, problem: str, **kwargs: Any) -> None:
        super().__init__(subject=f"Promote the new {problem} policy to production?", **kwargs)
        self.problem = problem

    def question(self, context: Any) -> str:
        """Ask about the run's own bundle."""
        arguments = ("--problem", self.problem, f"--run-id={context['run_id']}")
        return call("pipeline.approval", *arguments, env={URL_ENV: url()})


class RollbackApproval(AskedFromRegistry):
    """Asks whether to go back to the version that was chosen in the form."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(subject="Roll back?", **kwargs)

    def question(self, context: Any) -> str:
        """Ask about that version, as the registry knows it now."""
        return call("pipeline.rollback", "question", *chosen(context))


def chosen(context: Any) -> tuple[str, ...]:
    """Return what was chosen in the form of ``rollback``, as arguments."""
    params = context["params"]
    words = {"problem": params["problem"], "to": params.get("to") or "", "reason": params.get("reason") or ""}
    return (*(f"--{name}={value}" for name, value in words.items()), f"--run-id={context['run_id']}")
