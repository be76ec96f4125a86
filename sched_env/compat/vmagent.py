"""VMAgent's ``SchedEnv`` and its batch of environments as its scripts call them: its loops run unchanged.

``reset(step)`` returns the state; ``step`` returns (action taken, state, reward, done); ``get_attr`` and
``termination`` as upstream. What upstream gets wrong stays mended: an infeasible action raises and changes nothing, the
end of the data ends the episode, ``render_path`` is a Parquet replay. New code uses
:class:`~sched_env.vm.env.SchedEnv`, which is Gymnasium's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.single import whole_number
from sched_env.vm.env import SchedEnv
from wire.errors import ConfigError

Step = tuple[int, NDArray[Any], float, bool]


class VMAgentEnv:
    """One cluster, as ``schedgym.sched_env.SchedEnv``.

    Args:
        arguments: As :class:`~sched_env.vm.env.SchedEnv` takes them: servers, cpu, mem, data, render_path,
            allow_release, double_thr.
        flat: Return the state of the documents, [cluster, request] with N·2·2 + 2 numbers, instead of (N, 2, 2).
        keys: The same by name, and scenario keys.
    """

    def __init__(self, *arguments: Any, flat: bool = False, **keys: Any) -> None:
        self.env = SchedEnv(*arguments, invalid_action="raise", **keys)
        self.flat = flat
        self.action_space = self.env.action_space
        self.observation_space = self.env.observation_space

    def reset(self, step: int | None = None) -> NDArray[Any]:
        """Begin at a row of the data, or at a drawn one, and return the state."""
        self.env.reset(options=None if step is None else {"start": whole_number(step)})
        return self._state()

    def step(self, action: Any) -> Step:
        """Place the present request; -1: by first fit, -2: by upstream's "BestFit"."""
        chosen = whole_number(action)
        _, reward, terminated, truncated, _ = self.env.step(chosen)
        return self.env.action_taken, self._state(), reward, terminated or truncated

    def get_attr(self, name: str) -> Any:
        """Return ``obs``, ``req``, ``avail`` or ``req_step``."""
        return self.env.get_attr(name)

    def termination(self) -> bool:
        """Return whether nothing more can be placed in this episode."""
        return self.env.termination()

    def render(self) -> Any:
        """Return what the environment draws (``render_mode``)."""
        return self.env.render()

    def close(self) -> None:
        """Finish the replay file, if one is being written."""
        self.env.close()

    def _state(self) -> NDArray[Any]:
        state: NDArray[Any] = self.env.get_attr("obs")
        if not self.flat:
            return state
        wanted = self.env.many.buffers.request[0, :2]
        return np.concatenate([state.ravel(), wanted])


class VMAgentVecEnv:
    """A batch of clusters, as upstream's ``SubprocVecEnv``: those whose episode is over fall out of it.

    Args:
        envs: The clusters.
    """

    def __init__(self, envs: Sequence[VMAgentEnv]) -> None:
        if not envs:
            raise ConfigError("there are no environments", "at least one")
        self.envs = list(envs)
        self.alive = list(range(len(self.envs)))
        """Numbers of the environments that go on; arrays have a row for each of them, in this order."""

    @classmethod
    def of(cls, count: int, *arguments: Any, **keys: Any) -> VMAgentVecEnv:
        """Make so many clusters alike; arguments as :class:`VMAgentEnv`."""
        path = keys.pop("render_path", None)
        names = [Path(path).with_stem(f"{Path(path).stem}-{k}") if path else None for k in range(count)]
        return cls([VMAgentEnv(*arguments, render_path=name, **keys) for name in names])

    def reset(self, steps: Sequence[int]) -> NDArray[Any]:
        """Begin each environment at its row of the data, and return the states."""
        if len(steps) != len(self.envs):
            raise ConfigError(f"there are {len(steps)} steps", f"{len(self.envs)}, one for each environment")
        self.alive = list(range(len(self.envs)))
        return np.stack([env.reset(step) for env, step in zip(self.envs, steps, strict=True)])

    def step(self, actions: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
        """Step the environments that go on; (actions taken, states, rewards, dones), a row for each of them."""
        if len(actions) != len(self.alive):
            raise ConfigError(f"there are {len(actions)} actions", f"{len(self.alive)}, one for each that goes on")
        taken = [self.envs[k].step(action) for k, action in zip(self.alive, actions, strict=True)]
        chosen, states, rewards, dones = zip(*taken, strict=True)
        self.alive = [k for k, done in zip(self.alive, dones, strict=True) if not done]
        return np.array(chosen), np.stack(states), np.array(rewards), np.array(dones, np.bool_)

    def get_attr(self, name: str) -> NDArray[Any]:
        """Return ``obs``, ``req``, ``avail`` or ``req_step``, a row for each environment that goes on."""
        return np.array([self.envs[k].get_attr(name) for k in self.alive])

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()
