"""``SchedEnv``: VMAgent's environment in Gymnasium's form, a thin view over the kernels of ``vm``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from sched_env import heuristics, scenarios
from sched_env.single import InvalidAction, Observation, known
from sched_env.vector import ENDED
from sched_env.vm import render
from sched_env.vm.scenario import VmScenario
from sched_env.vm.tables import VmTrace
from sched_env.vm.vector import make
from wire.errors import ConfigError, InfeasibleActionError, legal

BUILT_IN_RULES = {-1: "first_fit", -2: "vmagent_spread"}
"""Actions that upstream's users know: let the environment decide."""


class SchedEnv(gymnasium.Env[Any, Any]):
    """One cluster: observation ``obs`` (N, 2, 2) remaining, ``req`` (2, 2, 2), ``avail`` (2N); action 2·server + half.

    A cluster that grows is padded to ``max_servers`` with zeros, ``avail`` off.

    Args:
        servers: Servers (N).
        cpu: Cores of a NUMA half.
        mem: GiB of a NUMA half.
        trace: A trace table or file; ``synthetic`` or None for the scenario's own.
        render_path: Parquet replay file, written when the environment is closed.
        allow_release: Whether deletions free what their VM held.
        double_thr: Requests above it take half from each half of one server.
        scenario: Name, file or loaded scenario that the arguments above modify.
        invalid_action: What an infeasible action does, the state being unchanged in every case: ``terminate`` ends the
            episode with ``info["invalid"]``, ``penalise`` costs ``invalid_penalty``, ``raise`` raises.
        invalid_penalty: Reward taken by ``penalise``.
        seed: Names the start points until ``reset`` is given another.
        render_mode: ``ansi`` or ``rgb_array``.
        overrides: Other scenario keys.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012 - as Gymnasium

    def __init__(
        self,
        servers: int | None = None,
        cpu: float | None = None,
        mem: float | None = None,
        trace: VmTrace | str | Path | None = None,
        render_path: str | Path | None = None,
        allow_release: bool | None = None,
        double_thr: float | None = None,
        *,
        scenario: str | VmScenario | None = None,
        invalid_action: InvalidAction = "terminate",
        invalid_penalty: float = 10.0,
        seed: int = 0,
        render_mode: Literal["ansi", "rgb_array"] | None = None,
        **overrides: Any,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"render_mode is {render_mode!r}", legal(self.metadata["render_modes"]))
        given = {
            "servers": servers,
            "half_cpu_cores": cpu,
            "half_mem_gib": mem,
            "releases": allow_release,
            "double_threshold": double_thr,
        }
        overrides.update({key: value for key, value in given.items() if value is not None})
        loaded = scenarios.load(scenario or VmScenario(problem="vm", name="vm"), overrides)
        if not isinstance(loaded, VmScenario):
            raise ConfigError(f"scenario {loaded.name!r} is of problem {loaded.problem}", "a vm scenario")
        self._many = make(loaded, 1, seed=seed, trace=trace)
        self._invalid_action, self._invalid_penalty = known(invalid_action), invalid_penalty
        self.render_mode = render_mode
        self._recorder = _recorder(Path(render_path), self._many, seed) if render_path else None
        self._action = np.zeros(1, np.int64)
        self._rules = {code: heuristics.batch(name, self._many) for code, name in BUILT_IN_RULES.items()}
        self._over, self._episode, self._steps = True, -1, 0
        count = loaded.most_servers
        capacity = np.array([loaded.half_cpu_cores, loaded.half_mem_gib], np.float32)
        largest = np.array([self._many.trace.cpu.max(), self._many.trace.mem.max()], np.float32)
        self.action_space = spaces.Discrete(2 * count)
        self.observation_space = spaces.Dict(
            {
                "obs": _amounts(capacity, count),
                "req": _amounts(largest, 2),
                "avail": spaces.MultiBinary(2 * count),
            }
        )

    @property
    def scenario(self) -> VmScenario:
        """The settings in force."""
        return self._many.scenario  # type: ignore[return-value]

    @property
    def servers(self) -> int:
        """How many servers exist now."""
        return int(self._many.state.env.servers[0])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; ``options={"start": row}`` names the trace row, otherwise it is drawn from the seed."""
        super().reset(seed=seed)
        start = (options or {}).get("start", -1)
        self._many.reset(seed=seed, options={"starts": [start]})
        self._over, self._steps = False, 0
        self._episode += 1
        return self._observe(), {"start": int(self._many.buffers.start[0])}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Place the request on half ``action``; -1 places by first_fit, -2 by vmagent_spread."""
        if self._over:
            raise ResetNeeded("the episode is over; call reset()")
        many = self._many
        buffers, chosen = many.buffers, self._action
        chosen[0] = self._rules[int(action)]()[0] if action in BUILT_IN_RULES else action
        if self._recorder:
            self._record(int(chosen[0]))
        finished = many.advance(chosen, False, False)
        if finished < 0:
            return self._refuse(int(action))
        self._steps += 1
        reward = float(buffers.reward[0])
        if self._recorder:
            self._recorder.reward(reward)
        info: dict[str, Any] = {}
        if finished:
            self._over = True
            info["episode_metrics"] = dict(zip(many.METRICS, buffers.metrics[0].tolist(), strict=True))
            info["ended"] = ENDED[buffers.ended[0]]
        return self._observe(), reward, bool(buffers.terminated[0]), bool(buffers.truncated[0]), info

    def _refuse(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if self._recorder:
            self._recorder.forget()
        if self._invalid_action == "raise":
            raise InfeasibleActionError(
                f"action {action} is infeasible", "an action whose avail is 1", "nothing changed"
            )
        ends = self._invalid_action == "terminate"
        self._over = ends
        return self._observe(), 0.0 if ends else -self._invalid_penalty, ends, False, {"invalid": True}

    def _record(self, action: int) -> None:
        buffers, width = self._many.buffers, 2 * self.servers
        self._recorder.decision(  # type: ignore[union-attr]
            self._episode, self._steps, float(buffers.time_s[0]), buffers.candidates[0, :width], buffers.request[0],
            buffers.mask[0, :width], None, action,
        )  # fmt: skip

    def _observe(self) -> Observation:
        buffers = self._many.buffers
        return {
            "obs": buffers.candidates[0, :, :2].copy().reshape(-1, 2, 2),
            "req": self._request(),
            "avail": buffers.mask[0].astype(np.int8),
        }

    def _request(self) -> NDArray[np.float32]:
        """Return what would be taken from each half if half k were chosen."""
        request = np.zeros((2, 2, 2), np.float32)
        wanted = self._many.buffers.request[0]
        if wanted[2]:
            request[:] = wanted[3:5]
        else:
            request[0, 0] = request[1, 1] = wanted[:2]
        return request

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the feasible actions, as sb3-contrib's MaskablePPO asks for them."""
        mask: NDArray[np.bool_] = self._many.buffers.mask[0].copy()
        return mask

    def get_attr(self, name: str) -> Any:
        """Return ``obs``, ``req``, ``avail`` or ``req_step`` (the trace row), as VMAgent's loop asks for them."""
        views = {**self._observe(), "req_step": int(self._many.state.env.row[0])}
        if name not in views:
            raise ConfigError(f"attribute {name!r} is unknown", legal(views))
        return views[name]

    def termination(self) -> bool:
        """Return whether nothing more can be placed in this episode."""
        return self._over or not self._many.buffers.mask[0].any()

    def render(self) -> Any:
        """Draw the cluster: a text (``ansi``) or an image (``rgb_array``)."""
        state, width = self._many.state, 2 * self.servers
        used = 1.0 - np.stack(
            [state.cpu[0, :width] / self._many.params.half_cpu, state.mem[0, :width] / self._many.params.half_mem],
            axis=1,
        )
        if self.render_mode == "ansi":
            cpu, mem = self._many.buffers.request[0, :2]
            return render.text(used, f"request {cpu:g} cores {mem:g} GiB")
        if self.render_mode == "rgb_array":
            return render.image(used)
        return None

    def close(self) -> None:
        """Finish the replay file, if one is being written."""
        if self._recorder:
            self._recorder.close()
            self._recorder = None
        super().close()


def _amounts(most: NDArray[np.float32], count: int) -> spaces.Box:
    """Return the space of cores and GiB of ``count`` pairs of halves."""
    high = np.broadcast_to(most, (count, 2, 2)).copy()
    return spaces.Box(np.zeros_like(high), high, dtype=np.float32)


def _recorder(path: Path, many: Any, seed: int) -> Any:
    from sched_env.replay import Recorder

    return Recorder(path, scenario=many.scenario.name, policy="agent", seed=seed, spec=many.feature_spec)
