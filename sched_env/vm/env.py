"""``SchedEnv``: VMAgent's environment in Gymnasium's form, a thin view over the kernels of ``vm``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sched_env import heuristics, scenarios
from sched_env.heap import TIME as LEAVES
from sched_env.problem import BatchRule
from sched_env.single import ROUNDING, Observation, PlacementEnv, Step
from sched_env.stepping import HOLD
from sched_env.vm.events import TIME
from sched_env.vm.scenario import VmScenario
from sched_env.vm.state import REWARD_WAIT
from sched_env.vm.tables import VmTrace
from sched_env.vm.vector import VmVectorEnv
from wire.errors import ConfigError, InfeasibleActionError, legal

BUILT_IN_RULES = {-1: "first_fit", -2: "vmagent_spread"}
"""Actions that upstream's users know: let the environment decide."""


class SchedEnv(PlacementEnv[VmVectorEnv]):
    """One cluster: observation ``obs`` (N, 2, 2) remaining, ``req`` (2, 2, 2), ``avail`` (2N); action 2·server + half.

    A cluster that grows is padded to ``max_servers`` with zeros, ``avail`` off. Code that was written for VMAgent
    (``reset(step)``, four values from ``step``, batches that shrink) runs on :class:`sched_env.compat.VMAgentEnv`.

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
        self._rules: dict[int, BatchRule] = {}
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
    def action_taken(self) -> int:
        """What the last step did: the action, or what the rule that it named chose."""
        return int(self._action[0])

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

    def _place(self, chosen: int) -> tuple[float, bool, bool, dict[str, Any]]:
        """Place the request on a half; -1 places by first_fit, -2 by vmagent_spread."""
        buffers, action = self.many.buffers, self._action
        action[0] = self._rule(chosen)()[0] if chosen in BUILT_IN_RULES else chosen
        if self._recorder:
            self._recorder.decision(self._episode, self._steps, int(action[0]), None)
        finished = self.many.advance(action, HOLD)
        if finished < 0:
            raise InfeasibleActionError(f"action {chosen} is infeasible", "an action whose avail is 1")
        self._steps += 1
        reward = float(buffers.reward[0])
        if self._recorder:
            self._recorder.outcome(reward)
        self._over = finished > 0
        return reward, bool(buffers.terminated[0]), bool(buffers.truncated[0]), {"invalid": False}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the rules, which are bound to this environment: a copy binds its own."""
        return {**self.__dict__, "_rules": {}}

    def _rule(self, code: int) -> BatchRule:
        """Return a built-in rule; compiled when first asked for."""
        if code not in self._rules:
            self._rules[code] = heuristics.batch(BUILT_IN_RULES[code], self.many)
        return self._rules[code]

    def _refuse(self, chosen: int) -> Step:
        if self._recorder:
            self._recorder.forget()
        return super()._refuse(chosen)

    def _worst_rest(self) -> float:
        """Placements are worth something or nothing; waiting costs, and somebody runs while anybody waits.

        So the queue is placed within the lives of all its VMs, end to end, after the last arrival.
        """
        many = self.many
        if many.params.reward != REWARD_WAIT or not many.params.waits:
            return 0.0
        env, events, now = many.state.env[0], many.events, float(many.buffers.time_s[0])
        rows = np.arange(env.row, env.queue_end)
        rows = rows[events.slot[rows] >= 0]
        arrivals = np.maximum(events.rows[rows, TIME], now)
        leaving = many.state.leaving[0, : env.leaving, LEAVES] - now
        busy_s = sum(seconds[np.isfinite(seconds)].sum() for seconds in (leaving, events.life_s[rows]))
        return -float((arrivals.max() + busy_s - arrivals).sum()) * ROUNDING

    def _most_decisions(self) -> int:
        """Return how many requests are left."""
        env, slot = self.many.state.env[0], self.many.events.slot
        return int((slot[env.row : env.queue_end if self.many.params.waits else env.stop] >= 0).sum())

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

    return Recorder(path, many, "agent")
