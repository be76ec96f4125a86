"""Which algorithms there are, and how a name or a file becomes one with its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stable_baselines3.common.base_class import BaseAlgorithm

from pipeline.policies import a2c, dqn, evolution, expert, maskable_ppo, ppo, qmix, sac
from pipeline.policies.checkpoint import Trained
from pipeline.policies.settings import WORDS, Common, Settings, merge, read
from wire.errors import ConfigError, legal


class Algorithm(NamedTuple):
    """How an algorithm of SB3's is made from its settings."""

    settings: type[Settings]
    make: Callable[..., BaseAlgorithm]
    """(environments, settings, seed, ...) -> SB3's model with a ``policy.scorer``."""


class Learner(NamedTuple):
    """One that is not SB3's, with a loop of its own."""

    settings: type[Common]
    train: Callable[..., Trained]
    """Takes what :func:`pipeline.policies.training.train` does."""


ALGORITHMS: dict[str, Algorithm | Learner] = {
    "expert": Learner(expert.ExpertSettings, expert.train),
    "evolution": Learner(evolution.EvolutionSettings, evolution.train),
    "maskable_ppo": Algorithm(ppo.PpoSettings, maskable_ppo.make),
    "ppo": Algorithm(ppo.PpoSettings, ppo.make),
    "a2c": Algorithm(a2c.A2cSettings, a2c.make),
    "dqn": Algorithm(dqn.DqnSettings, dqn.make),
    "sac": Algorithm(sac.SacSettings, sac.make),
    "qmix": Algorithm(qmix.QmixSettings, qmix.make),
}
"""Name -> algorithm; the values of its settings are in the YAML file of its name beside this module."""
FOLDER = Path(__file__).parent


def settings(algorithm: str, *changes: tuple[str, Mapping[str, Any]], **named: Any) -> Any:
    """Return an algorithm's settings: its file, then changes as (where they come from, values), then the named ones.

    Args:
        algorithm: Its name.
        changes: Layers to put over the file.
        named: Values to put on top.
    """
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"there is no algorithm {algorithm!r}", legal(ALGORITHMS))
    file = FOLDER / f"{algorithm}.yaml"
    return merge(ALGORITHMS[algorithm].settings, (file.name, read(file)), *changes, ("settings", named))


def named(given: str) -> tuple[str, dict[str, Any]]:
    """Find the algorithm that a name, or a YAML file as VMAgent's users write them, means; returns its values too."""
    if given in ALGORITHMS:
        return given, {}
    path = Path(given)
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"there is no algorithm {given!r}", f"{legal(ALGORITHMS)}, or a YAML file")
    values = read(path)
    words = {word: values.pop(word) for word in WORDS if word in values}
    for name in ALGORITHMS:
        ours = {word: value for word, value in read(FOLDER / f"{name}.yaml").items() if word in WORDS}
        if words.get("agent", "") == ours.get("agent") or (not words and path.stem == name):
            wrong = {word: value for word, value in words.items() if ours.get(word, value) != value}
            if wrong:
                raise ConfigError(f"{path}: {wrong} beside agent {words['agent']!r}", f"{ours}")
            return name, values
    agents = [read(FOLDER / f"{name}.yaml").get("agent") for name in ALGORITHMS]
    raise ConfigError(f"{path}: agent {words.get('agent')!r}", legal(filter(None, agents)))
