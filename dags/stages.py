"""Builds Airflow tasks out of pipeline commands: one task a DVC stage, run in the clone of the run."""

from __future__ import annotations

import os
import sys
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator

PYTHON = os.environ.get("LOADMASTER_PYTHON", sys.executable)
"""The interpreter of the pipeline's environment; a thin Airflow environment can point it at a fat one."""

WORKSPACE = "{{ ti.xcom_pull(task_ids='workspace')['path'] }}"

REPRO = f'"{PYTHON}" -m dvc repro --single-item "$STAGE"'


def stage(name: str, **kwargs: Any) -> BashOperator:
    """Make the task that reproduces one DVC stage; task id and stage name are the same.

    Args:
        name: The stage in ``dvc.yaml``.
        **kwargs: More arguments of the operator.
    """
    return BashOperator(task_id=name, bash_command=REPRO, env={"STAGE": name}, append_env=True, cwd=WORKSPACE, **kwargs)


def problem_stage(name: str, problem: Any) -> BashOperator:
    """Make the task of a stage that exists once a problem (``export@functions``), inside a mapped task group."""
    return BashOperator(
        task_id=name,
        bash_command=f'STAGE="{name}@$PROBLEM"; {REPRO}',
        env={"PROBLEM": problem},
        append_env=True,
        cwd=WORKSPACE,
        map_index_template="{{ task.env['PROBLEM'] }}",
    )


def mapped_stage(name: str, instances: Any, **kwargs: Any) -> Any:
    """Make the mapped task of a stage with many instances (``train@functions-maskable_ppo-0``)."""
    return BashOperator.partial(
        task_id=name,
        bash_command=REPRO,
        append_env=True,
        cwd=WORKSPACE,
        map_index_template="{{ task.env['STAGE'] }}",
        **kwargs,
    ).expand(env=instances.map(lambda instance: {"STAGE": instance}))
