"""The registry of problems: one literal name, one module, imported when first asked for.

Nothing imports all problems, so what depends on one does not change when another does. A further problem is added
here, or registered by whoever brings it (docs/how-to/add-a-problem.md).
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from wire.errors import ConfigError, legal

if TYPE_CHECKING:
    from sched_env.problem import Problem
    from wire.contracts.feature_spec import FeatureSpec

MODULES: dict[str, str] = {
    "vm": "sched_env.vm.problem",
    "pods": "sched_env.pods.problem",
    "functions": "sched_env.functions.problem",
    "workflow": "sched_env.workflow.problem",
    "jobs": "sched_env.jobs.problem",
}
"""Name -> module that holds the value as ``PROBLEM``."""


def names() -> tuple[str, ...]:
    """Return the problems there are."""
    return tuple(MODULES)


def check(name: str) -> str:
    """Return the name if there is such a problem; otherwise raise an error that lists those there are."""
    if name not in MODULES:
        raise ConfigError(f"problem {name!r} is unknown", legal(MODULES))
    return name


def get(name: str) -> Problem:
    """Return a problem."""
    return _load(MODULES[check(name)])


@cache
def _load(module: str) -> Problem:
    """Import a problem once: a live decision asks for it several times."""
    value: Problem = importlib.import_module(module).PROBLEM
    return value


def spec(name: str) -> FeatureSpec:
    """Return what each number of a problem's observation means, as it is built here."""
    return get(name).spec


def spoken(name: str) -> tuple[FeatureSpec, ...]:
    """Return the feature specs that the service can fill in: the present one, and the one before where there is one."""
    return get(name).spoken


def folder(name: str) -> Path:
    """Return where a problem lives, without importing it."""
    module = MODULES[check(name)]
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise ConfigError(f"problem {name!r} has no module {module}", "one that can be imported")
    return Path(found.origin).parent


def register(name: str, module: str) -> None:
    """Add a problem of somebody else's: the module holds the value as ``PROBLEM``."""
    if MODULES.get(name, module) != module:
        raise ConfigError(f"problem {name!r} is {MODULES[name]} already", "a name of its own")
    MODULES[name] = module
