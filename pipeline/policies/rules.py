"""Which rule is the best: the one that a training builds on, and that it has to beat; chosen on validation alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipeline.policies.checkpoint import Row

REMEMBER = frozenset({"random_feasible", "gavel_lp"})
"""Rules that remember between decisions what no copy of a state has (``sched_env.planning``): none is a base."""


def best(
    rules: Iterable[str], validate: Callable[[str], Row], objective: Callable[[Row], float], *, base: bool = False
) -> tuple[str, float]:
    """Return the best rule on the validation episodes, the first of equals, and how good it is.

    Args:
        rules: Their names.
        validate: Scores a rule on the validation episodes.
        objective: How good such an answer is.
        base: Leave out those that a training cannot build on.
    """
    found = {rule: objective(validate(rule)) for rule in rules if not (base and rule in REMEMBER)}
    name = max(found, key=lambda rule: found[rule])
    return name, found[name]
