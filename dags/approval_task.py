"""The task that asks a person. Its question comes from the registry, its answer stays where Airflow keeps it."""

from __future__ import annotations

import json
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.execution_time.hitl import HITLUser

from dags.alerts import page_of, tell
from dags.stages import call
from pipeline import approval


class PolicyApproval(ApprovalOperator):
    """ApprovalOperator that asks the approvers about the commit that ``record`` pushed.

    Subject and body are made when the task runs, not from a template: an XCom can be written by others, and the person
    must see what will be promoted. ``promote`` reads the answer from Airflow and holds it against the same question.
    """

    def __init__(self, *, problem: str, **kwargs: Any) -> None:
        assigned = [HITLUser(id=name, name=name) for name in approval.approvers()]
        super().__init__(
            subject=f"Promote the new {problem} policy to production?",
            defaults=approval.REJECT,
            assigned_users=assigned or None,
            **kwargs,
        )
        self.problem = problem

    def execute(self, context: Any) -> Any:
        """Put the question; without a passed gate, or with nobody to ask, fail."""
        asked = json.loads(call("pipeline.approval", "--problem", self.problem, f"--run-id={context['run_id']}"))
        self.subject, self.body = asked["subject"], asked["body"]
        tell("approval", self.subject, link=f"{page_of(context)}/required_actions")
        return super().execute(context)
