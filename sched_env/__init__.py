"""Placement problems as environments: state, features, heuristics, bounds, traces and replay.

Importing the package registers the Gymnasium ids below; classes and kernels are imported when one is made. Where
Gymnasium is not installed, features and heuristics work all the same.
"""

from __future__ import annotations

import contextlib

GYMNASIUM_IDS = {
    "sched_env/Fading-v0": ("sched_env.vm.env:SchedEnv", "vm/fading"),
    "sched_env/Recovering-v0": ("sched_env.vm.env:SchedEnv", "vm/recovering"),
    "sched_env/Expanding-v0": ("sched_env.vm.env:SchedEnv", "vm/expanding"),
    "sched_env/RecoveringL-v0": ("sched_env.vm.env:SchedEnv", "vm/recovering-l"),
    "sched_env/Serverless-v0": ("sched_env.functions.env:ServerlessSchedulingEnv", "functions/serverless"),
    "sched_env/Workflow-v0": ("sched_env.workflow.env:WorkflowEnv", "functions/workflow"),
    "sched_env/WorkflowPlan-v0": ("sched_env.workflow.env:WorkflowPlanEnv", "functions/workflow"),
    "sched_env/Deploy-v0": ("sched_env.pods.env:DeployEnv", "pods/deploy"),
    "sched_env/Cpn-v0": ("sched_env.jobs.env:CpnEnv", "jobs/cpn"),
}
"""Gymnasium id -> (class, scenario given to it as ``scenario=``)."""

with contextlib.suppress(ImportError):
    from gymnasium.envs.registration import register

    for _id, (_entry_point, _scenario) in GYMNASIUM_IDS.items():
        register(_id, entry_point=_entry_point, kwargs={"scenario": _scenario})
