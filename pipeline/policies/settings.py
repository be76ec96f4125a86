"""Settings of the algorithms: one YAML file each beside its code, VMAgent's names understood.

The file holds every value; ``params.yaml`` (``train.<problem>.<algorithm>``), a file of the user's and the command line
replace some of them. What a setting means is said at its field.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml

from wire.errors import ConfigError, legal

Positive = Annotated[int, msgspec.Meta(ge=1)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1)]
Amount = Annotated[float, msgspec.Meta(ge=0)]

ALIASES = {
    "num_process": "envs",
    "learn_interval": "rollout_steps",
    "max_epoch": "segments",
    "train_n": "updates",
    "batch_size": "batch",
    "lr": "learning_rate",
    "capacity": "buffer",
    "eps_clip": "clip_range",
}
"""VMAgent's names -> ours; ``gamma``, ``tau``, ``epochs`` and ``target_update_interval`` are the same."""
WORDS = ("agent", "mac", "learner", "memory")
"""VMAgent's names of parts. ``agent`` says which algorithm a file is for; the others have one choice each here."""

T = TypeVar("T")


class Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every algorithm has."""

    envs: Positive
    """Environments stepped at once; with ``rollout_steps`` it makes one batch of experience."""
    segments: Positive
    """Checkpoints, validations and possible resume points of a training."""
    learning_rate: Amount
    """Falls linearly to a tenth over the training."""
    hidden: Positive
    """Width of the scorer's layers."""
    missing_rate: Rate
    """Share of decisions in which a droppable feature is hidden, as it happens live."""

    @property
    def looks(self) -> int:
        """Validations of a training that is not ended early: what its progress is counted in."""
        return self.segments


class Settings(Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every algorithm of SB3's has."""

    rollout_steps: Positive
    """Steps of every environment between two trainings of the network."""
    rollouts_per_segment: Positive
    gamma: Rate
    """An instance lives for about twenty decisions: 0.95; further ahead the value is noise. 1: episodes end at their
    horizon for good, and nothing beyond counts."""
    gamma_every_s: Annotated[float, msgspec.Meta(gt=0)] | None
    """``gamma`` is for so many seconds, not for a decision. Where decisions come in bunches, as the offers of a window
    in ``pods``, a discount by decisions would pay for putting off the bill."""
    reward_scale: float
    """Keeps values of order one, so that value and policy share one encoder in peace."""
    teacher: str | None
    """Heuristic that the network imitates first; null: the problem's fallback; empty: none."""
    teacher_steps: Positive
    teacher_epochs: Positive

    @property
    def total_steps(self) -> int:
        """Decisions of the whole training."""
        return self.envs * self.rollout_steps * self.rollouts_per_segment * self.segments


class OffPolicySettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What algorithms that learn from a replay buffer have."""

    batch: Positive
    updates: Positive
    """Gradient steps a training."""
    buffer: Positive
    """Decisions kept; a resumed training plays them again, so it costs no checkpoint."""
    learning_starts: int
    """Decisions before the first gradient step, taken at random."""
    n_steps: Positive
    """Decisions whose rewards go into a target before the network's own estimate: late rewards arrive sooner, at the
    price of learning from what exploration did in between."""
    tau: Rate
    """Share of the network that moves into its target at an update of the target."""


def read(path: Path) -> dict[str, Any]:
    """Read an algorithm's YAML file."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", "the YAML file of an algorithm") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} holds {document!r}", "keys and values, e.g. batch: 256")
    return document


def merge(kind: type[T], *layers: tuple[str, Mapping[str, Any]]) -> T:
    """Lay settings over each other, the last on top; an unknown or mistyped key is an error that names its source."""
    values: dict[str, Any] = {}
    fields = getattr(kind, "__struct_fields__", ())
    for source, layer in layers:
        for given, value in layer.items():
            if given in WORDS:
                continue
            key = ALIASES.get(given, given)
            if key not in fields:
                raise ConfigError(f"{source}: unknown key {given!r}", legal(fields))
            values[key] = value
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{', '.join(source for source, _ in layers)}: {error}") from error


class Falling(msgspec.Struct, frozen=True):
    """A value that falls linearly to a tenth as the training's progress goes from 1 to 0."""

    start: float

    def __call__(self, remaining: float) -> float:
        """Return the value with this much of the training left."""
        return self.start * (0.1 + 0.9 * remaining)
