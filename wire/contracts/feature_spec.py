"""FeatureSpec: what each number of an observation means, and where a live service finds it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

ProblemName = Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_]{0,31}$")]
"""Name of a placement problem; which there are is said by the registry (``sched_env.problems``)."""


class Feature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column of ``candidates`` or one entry of ``request``."""

    name: str
    unit: str
    """cores, GiB, MB/s, IOPS, seconds, USD/hour, count, ratio or flag."""
    scale: float
    """The policy graph divides by this; observations themselves carry the unit above."""
    live_source: str
    """Where the service reads it: a field of the window tables, a Kubernetes field, or the request itself."""
    default: float
    """Used, and counted, when the live source has no value."""
    droppable: bool = False
    """May be missing live: dropped to ``default`` in training at the rate seen live."""


class FeatureSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The observation of one problem: ``candidates [C, F]``, ``request [R]`` and ``mask [C]``."""

    problem: ProblemName
    version: int
    """The service speaks the current version and the one before, and refuses others."""
    candidate: tuple[Feature, ...]
    request: tuple[Feature, ...]
    schema: Literal[1] = 1
