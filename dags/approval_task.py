"""An approval whose answer is kept whatever it was."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator

ANSWER_KEY = "answer"


class RecordedApproval(ApprovalOperator):
    """ApprovalOperator that leaves the answer as XCom ``answer`` before it acts on it.

    On Reject the original ends by skipping what follows and returns nothing, so nobody downstream could tell who
    rejected, and why; the registry keeps a record of rejections too.
    """

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        """Keep the answer, then go on as the original does."""
        user = event.get("responded_by_user")
        answer = {
            "chosen_options": list(event.get("chosen_options") or []),
            "params_input": dict(event.get("params_input") or {}),
            "responded_by_user": dict(user) if user else None,
        }
        context["ti"].xcom_push(key=ANSWER_KEY, value=answer)
        return super().execute_complete(context, event)
