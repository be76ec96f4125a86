"""Observations between 0 and 1, or near it, for networks that do not scale their input: a Gymnasium wrapper.

Environments show quantities in their units, IOPS by the thousand beside shares below one. The scales are fixed, not
running ones, so a policy that was saved needs nothing saved beside it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

CLIP = 10.0
"""Features are cut at this multiple of their scale, as the policy graphs do."""


class NormalisedObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """``candidates`` and ``request`` over the scales of their feature spec; other boxes by their bounds.

    A quantity between ``low`` and ``high`` becomes log(1 + x - low) / log(1 + high - low): shares keep their
    proportions, and a bound that is wide for safety's sake does not flatten what lies far below it.

    Args:
        env: One of ours.
        mask: Show which actions are feasible too, as ``mask``: for agents that take no mask and have to learn it.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, mask: bool = False) -> None:
        super().__init__(env)
        spec = env.unwrapped.many.feature_spec  # type: ignore[attr-defined]
        self._scales = {
            name: np.array([feature.scale for feature in features], np.float32)
            for name, features in (("candidates", spec.candidate), ("request", spec.request))
        }
        boxes: dict[str, spaces.Space[Any]] = dict(env.observation_space.spaces)  # type: ignore[attr-defined]
        self._ranges = {name: _range(box) for name, box in boxes.items() if name not in self._scales and _bounded(box)}
        shown = {name: self._space(name, box) for name, box in boxes.items()}
        self._mask = mask and "mask" not in shown
        if self._mask:
            shown["mask"] = spaces.MultiBinary(int(env.action_space.n))  # type: ignore[attr-defined]
        self.observation_space = spaces.Dict(shown)

    def observation(self, observation: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Scale an observation."""
        scaled = {name: self._scaled(name, values) for name, values in observation.items()}
        if self._mask:
            scaled["mask"] = self.env.unwrapped.action_masks().astype(np.int8)  # type: ignore[attr-defined]
        return scaled

    def _space(self, name: str, box: spaces.Space[Any]) -> spaces.Space[Any]:
        if name in self._scales:
            return spaces.Box(-CLIP, CLIP, box.shape, np.float32)
        return spaces.Box(0.0, 1.0, box.shape, np.float32) if name in self._ranges else box

    def _scaled(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        if name in self._scales:
            return np.clip(values / self._scales[name], -CLIP, CLIP).astype(np.float32)
        if name not in self._ranges:
            return values
        low, share = self._ranges[name]
        return (np.log1p(values - low) * share).astype(np.float32)


def _range(box: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lower bound, and what its distance on the logarithmic scale is multiplied by; 0 where no room is."""
    low, width = box.low.astype(np.float64), np.log1p(box.high.astype(np.float64) - box.low)
    return low, np.divide(1.0, width, out=np.zeros_like(width), where=width > 0)


def _bounded(box: spaces.Space[Any]) -> bool:
    return isinstance(box, spaces.Box) and bool(box.is_bounded())
