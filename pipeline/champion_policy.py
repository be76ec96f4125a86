"""The champion as a policy to play; :mod:`pipeline.champions`, which DAGs and the gate read, runs nothing."""

from __future__ import annotations

from pipeline import champions, paths
from sched_env import problems
from sched_env.scenarios import Scenario
from wire.contracts.feature_spec import ProblemName
from wire.policy import GraphPolicy, load


def champion_policy(problem: ProblemName, scenario: Scenario) -> GraphPolicy | None:
    """Load what is live, of the present version of the feature spec or the one before; None when nothing is."""
    bundle = champions.bundle_of(paths.CHAMPIONS / problem)
    if bundle is None:
        return None
    specs = tuple(spec for spec, _ in problems.get(problem).played(scenario).values())
    return load(bundle, lambda _: specs)
