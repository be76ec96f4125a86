"""``SchedEnv``: VMAgent's environment in Gymnasium's form, a thin view over the kernels of ``vm``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sched_env import heuristics, scenarios
from sched_env.single import Observation, PlacementEnv, Step
from sched_env.stepping import HOLD
from sched_env.vector import ENDED
from sched_env.vm.scenario import VmScenario
from sched_env.vm.tables import VmTrace
from sched_env.vm.vector import VmVectorEnv
from wire.errors import ConfigError, InfeasibleActionError, legal

BUILT_IN_RULES = {-1: "first_fit", -2: "vmagent_spread"}
"""Actions that upstream's users know: let the environment decide."""


class SchedEnv(PlacementEnv[VmVectorEnv]):
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
        keys: As :class:`~sched_env.single.PlacementEnv`.
    """

    CANDIDATE = "half"

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
        **keys: Any,
    ) -> None:
        given = {
            "servers": servers,
            "half_cpu_cores": cpu,
            "half_mem_gib": mem,
            "releases": allow_release,
            "double_threshold": double_thr,
        }
        keys.update({key: value for key, value in given.items() if value is not None})
        named = scenarios.load(scenario or VmScenario(problem="vm", name="vm"))
        if not isinstance(named, VmScenario):
            raise ConfigError(f"scenario {named.name!r} is of problem {named.problem}", "a vm scenario")
        super().__init__(named, trace, **keys)
        self._recorder = _recorder(Path(render_path), self.many) if render_path else None
        self._action = np.zeros(1, np.int64)
        self._rules = {code: heuristics.batch(name, self.many) for code, name in BUILT_IN_RULES.items()}
        self._episode, self._steps = -1, 0
        settings = self.many.scenario
        count = settings.most_servers
        capacity = np.array([settings.half_cpu_cores, settings.half_mem_gib], np.float32)
        largest = np.array([self.many.trace.cpu.max(), self.many.trace.mem.max()], np.float32)
        self.observation_space = spaces.Dict(
            {
                "obs": _amounts(capacity, count),
                "req": _amounts(largest, 2),
                "avail": spaces.MultiBinary(2 * count),
            }
        )

    @property
    def servers(self) -> int:
        """How many servers exist now."""
        return int(self.many.state.env.servers[0])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; ``options={"start": row}`` names the trace row, otherwise it is drawn from the seed."""
        self._steps = 0
        self._episode += 1
        return super().reset(seed=seed, options=options)

    def _place(self, candidate: int) -> tuple[float, bool, bool, dict[str, Any]]:
        """Place the request on a half; -1 places by first_fit, -2 by vmagent_spread."""
        buffers, chosen = self.many.buffers, self._action
        chosen[0] = self._rules[candidate]()[0] if candidate in BUILT_IN_RULES else candidate
        if self._recorder:
            self._record(int(chosen[0]))
        finished = self.many.advance(chosen, HOLD)
        if finished < 0:
            raise InfeasibleActionError(f"action {candidate} is infeasible", "an action whose avail is 1")
        self._steps += 1
        reward = float(buffers.reward[0])
        if self._recorder:
            self._recorder.reward(reward)
        info: dict[str, Any] = {}
        if finished:
            self._over = True
            info["episode_metrics"] = dict(zip(self.many.METRICS, buffers.metrics[0].tolist(), strict=True))
            info["ended"] = ENDED[buffers.ended[0]]
        return reward, bool(buffers.terminated[0]), bool(buffers.truncated[0]), info

    def _refuse(self, action: Any) -> Step:
        if self._recorder:
            self._recorder.forget()
        return super()._refuse(action)

    def _record(self, action: int) -> None:
        buffers, width = self.many.buffers, 2 * self.servers
        self._recorder.decision(  # type: ignore[union-attr]
            self._episode, self._steps, float(buffers.time_s[0]), buffers.candidates[0, :width], buffers.request[0],
            buffers.mask[0, :width], None, action,
        )  # fmt: skip

    def _observe(self) -> Observation:
        buffers = self.many.buffers
        return {
            "obs": buffers.candidates[0, :, :2].copy().reshape(-1, 2, 2),
            "req": self._request(),
            "avail": buffers.mask[0].astype(np.int8),
        }

    def _request(self) -> NDArray[np.float32]:
        """Return what would be taken from each half if half k were chosen."""
        request = np.zeros((2, 2, 2), np.float32)
        wanted = self.many.buffers.request[0]
        if wanted[2]:
            request[:] = wanted[3:5]
        else:
            request[0, 0] = request[1, 1] = wanted[:2]
        return request

    def get_attr(self, name: str) -> Any:
        """Return ``obs``, ``req``, ``avail`` or ``req_step`` (the trace row), as VMAgent's loop asks for them."""
        views = {**self._observe(), "req_step": int(self.many.state.env.row[0])}
        if name not in views:
            raise ConfigError(f"attribute {name!r} is unknown", legal(views))
        return views[name]

    def termination(self) -> bool:
        """Return whether nothing more can be placed in this episode."""
        return self._over or not self.many.buffers.mask[0].any()

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


def _recorder(path: Path, many: VmVectorEnv) -> Any:
    from sched_env.replay import Recorder

    return Recorder(path, scenario=many.scenario.name, policy="agent", seed=many.seed, spec=many.feature_spec)
