"""Many environments at once: the Gymnasium ``VectorEnv`` every problem's kernels stand behind.

A problem subclasses :class:`PlacementVectorEnv` with its compiled loops (``sched_env.stepping``), which work on all
B environments and write into the shared :class:`Buffers`; this module never loops over environments.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from sched_env import futures, occupancy, planning, problems, rewards, scenarios
from sched_env.announce import announce_compilation
from sched_env.jit import entry
from sched_env.observation import Observation
from sched_env.occupancy import NOTHING, Choice, Event, Layout, Present
from sched_env.stepping import NO_ROWS, PARK, RESTART, Dynamics
from wire.errors import ConfigError, InfeasibleActionError, legal

announce_compilation()

FULL, END_OF_TRACE, HORIZON = 0, 1, 2
ENDED = ("full", "end_of_trace", "horizon")
"""How an episode ended, by code: a request fitted nowhere; the trace ran out; the episode's length was reached."""

SHEET = ("return", "steps", "placed", "requests", "sla_violation_rate", "cost_usd", "wait_s")
"""The columns every problem's episode metrics start with, in this order; a problem's own follow."""

Arrays = dict[str, NDArray[Any]]
Outcome = tuple[Arrays, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]
"""What a step returns: observation, rewards, terminated, truncated, infos."""


class Buffers(NamedTuple):
    """Arrays that kernels write and callers read, allocated once. B environments, C candidates, F and R features."""

    candidates: NDArray[np.float32]
    """[B, C, F]"""
    request: NDArray[np.float32]
    """[B, R]"""
    mask: NDArray[np.bool_]
    """[B, C]; all off while an environment is parked."""
    feasible: NDArray[np.int32]
    """[B]: how many candidates the mask leaves."""
    final_candidates: NDArray[np.float32]
    """[B, C, F]: as ``candidates``, at the end of an environment's last episode."""
    final_request: NDArray[np.float32]
    final_mask: NDArray[np.bool_]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    metrics: NDArray[np.float64]
    """[B, M]: the last episode's metrics, columns as the class's ``METRICS``."""
    ended: NDArray[np.int8]
    """[B]: index into ``ENDED`` of the last episode."""
    final_start: NDArray[np.int64]
    """[B]: trace row at which the last episode started."""
    start: NDArray[np.int64]
    """[B]: trace row at which the present episode started."""
    episode: NDArray[np.int64]
    """[B]: episodes begun since the seed was set; the counter of the start point's draw."""
    active: NDArray[np.bool_]
    """[B]: off once a parked environment has finished; a kernel then skips it, whatever its action."""
    time_s: NDArray[np.float64]
    """[B]: time of the present decision."""
    wait_s: NDArray[np.float64]
    """[B]: how long the request placed by the last step had waited."""
    stream: NDArray[np.int64]
    """[B]: names the row's draws: its number; of a fork's row, that of the row it was copied from."""


class PlacementVectorEnv(VectorEnv[Arrays, ArrayLike, NDArray[Any]], ABC):
    """B environments of one problem behind one step; episodes restart in the step that ends them.

    ``step`` returns the buffers themselves, which the next step overwrites, unless ``copy`` is set.

    Args:
        scenario: The loaded scenario.
        num_envs: B.
        candidates: C, the most candidates an environment can have.
        seed: Names the start points and every other draw, together with the environment's index.
        copy: Return fresh arrays from every call.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - Gymnasium declares it so
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "render_modes": [],
    }
    METRICS: ClassVar[tuple[str, ...]] = SHEET
    """Columns of ``Buffers.metrics``: ``SHEET`` and the problem's own."""
    COUNTS: ClassVar[frozenset[str]] = frozenset({"steps", "placed", "requests"})
    """Which of them are whole numbers."""
    DYNAMICS: ClassVar[Dynamics]
    """The problem's compiled loops."""
    DRAFTS: ClassVar[frozenset[str]] = frozenset()
    """Fields of ``state`` that belong to no environment."""
    state: Any
    """What changes, as kernels see it: arrays whose first axis is the environments."""
    scratch: Any = None
    """Room that kernels work in, if it is an argument of its own; nothing in it outlives a call."""

    def __init__(
        self,
        scenario: scenarios.Scenario,
        num_envs: int,
        candidates: int,
        *,
        seed: int = 0,
        copy: bool = False,
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}", "at least 1")
        self.problem = problems.get(scenario.problem).seen(scenario)
        self.feature_spec = spec = self.problem.spec
        self.scenario, self.num_envs, self.copy = scenario, num_envs, copy
        self.seed = int(seed)
        B, F, R = num_envs, len(spec.candidate), len(spec.request)

        def observation() -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
            return (
                np.zeros((B, candidates, F), np.float32),
                np.zeros((B, R), np.float32),
                np.zeros((B, candidates), np.bool_),
            )

        now, final = observation(), observation()
        self.buffers = Buffers(
            candidates=now[0],
            request=now[1],
            mask=now[2],
            feasible=np.zeros(B, np.int32),
            final_candidates=final[0],
            final_request=final[1],
            final_mask=final[2],
            reward=np.zeros(B),
            terminated=np.zeros(B, np.bool_),
            truncated=np.zeros(B, np.bool_),
            metrics=np.zeros((B, len(self.METRICS))),
            ended=np.zeros(B, np.int8),
            final_start=np.zeros(B, np.int64),
            start=np.zeros(B, np.int64),
            episode=np.zeros(B, np.int64),
            active=np.zeros(B, np.bool_),
            time_s=np.zeros(B),
            wait_s=np.zeros(B),
            stream=np.arange(B),
        )
        self.park = False
        self._kernel: Callable[..., int] | None = None
        self._world: str | None = None
        self.user_reward = rewards.resolve(scenario)
        self.single_action_space = spaces.Discrete(candidates)
        self.single_observation_space = spaces.Dict(
            {
                "candidates": spaces.Box(-np.inf, np.inf, (candidates, F), np.float32),
                "request": spaces.Box(-np.inf, np.inf, (R,), np.float32),
                "mask": spaces.MultiBinary(candidates),
            }
        )
        self._present(candidates)

    def _present(self, candidates: int) -> None:
        """Make what is seen from outside fit the buffers."""
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._expose(candidates)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what cannot be copied (machine code, the problem) and views, which a copy would cut off."""
        left_out = ("_kernel", "problem", "_observation", "_final")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of another environment, with views of its own."""
        self.__dict__.update(state)
        self.problem = problems.get(self.scenario.problem).seen(self.scenario)
        self._kernel = None
        self._expose(self.width)

    def _reset(self, starts: NDArray[np.int64]) -> None:
        """Begin an episode in every environment; a start of -1 is drawn from (seed, environment, ``episode``)."""
        self._advance(NO_ROWS, starts, RESTART)

    def _step(self, actions: NDArray[np.int64]) -> int:
        """Step the active environments and restart (or, with ``self.park``, deactivate) those whose episode ended.

        Returns:
            The number of episodes that ended; or ``-1 - b`` when the action of environment b is infeasible, and
            then nothing at all has changed.
        """
        return self.advance(actions, PARK if self.park else RESTART)

    def advance(self, actions: NDArray[np.int64], at_end: int) -> int:
        """Step with contiguous int64 actions; ``at_end`` is one of ``sched_env.stepping``'s."""
        if self.user_reward is None:
            return self.run(actions, at_end)
        return rewards.step(self, self.user_reward, actions, at_end)

    def run(self, actions: NDArray[np.int64], at_end: int) -> int:
        """Step by the built-in reward."""
        return self._advance(actions, NO_ROWS, at_end)

    @property
    def returns(self) -> NDArray[np.float64]:
        """What each episode has brought so far: [B], a view of the kernels' own numbers."""
        raise NotImplementedError(f"{type(self).__name__} takes no reward of the user's")

    def reward_inputs(self, actions: NDArray[np.int64]) -> Callable[[], Any]:
        """Note what is about to be placed; the result gives the user's reward its input once the step is made."""
        return rewards.placements(self, actions)

    def whole_reward(self, given: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the reward of a step from what the user's function gave."""
        return given

    def _advance(self, actions: NDArray[np.int64], starts: NDArray[np.int64], at_end: int, checked: bool = True) -> int:
        """Call the compiled loop; see ``sched_env.stepping``."""
        values = (self.arguments, self.buffers, actions, starts, self.seed, at_end, checked)
        if self._kernel is None:
            self._kernel = entry(self.DYNAMICS.advance, *values)
        return self._kernel(*values)

    def close_accounts(self) -> None:
        """Write the metrics of every episode, wherever it stands."""
        self.DYNAMICS.close_all(self.arguments, self.buffers)

    def _fix_columns(self, *columns: ArrayLike) -> None:
        """Write the first columns of every observation, which never change."""
        for block in (self.buffers.candidates, self.buffers.final_candidates):
            for number, values in enumerate(columns):
                block[:, :, number] = values

    def _check_starts(self, starts: NDArray[np.int64], count: int, rows: str = "rows") -> None:
        """Refuse starts beyond the trace."""
        if starts.max() >= count:
            raise ConfigError(f"start {starts.max()} is beyond the trace", f"{rows} 0 to {count - 1}")

    @abstractmethod
    def raw_fields(self, b: int) -> tuple[dict[str, NDArray[np.float64]], dict[str, float]]:
        """Return the raw state fields of environment b's candidates and of its request (``features``)."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What every kernel of the problem takes first."""
        raise NotImplementedError(f"{type(self).__name__} has no kernels that take arguments")

    def _check_first_decision(self, decided: NDArray[np.int64], present: str) -> None:
        """Refuse to change how episodes are run (at present as said) once one of them is under way."""
        if self.buffers.active.any() and decided.any():
            raise ConfigError(
                f"{present} and an episode is under way",
                "a change at the start of an episode",
                "reset the environment after binding the heuristic",
            )

    def _begin_anew(self) -> None:
        """Begin the same episodes once more, if any have begun."""
        if self.buffers.active.any():
            self.buffers.episode[:] -= 1
            self._reset(self.buffers.start.copy())

    def rebuild(self, b: int) -> Observation:
        """Build environment b's observation from scratch; the incremental one must equal it bit for bit."""
        return self.problem.build(*self.raw_fields(b))

    def _expose(self, width: int) -> None:
        """Show the first ``width`` candidates; a problem whose candidate set grows calls this again."""
        b = self.buffers
        self.width = width
        self._final: Arrays = {
            "candidates": b.final_candidates, "request": b.final_request, "mask": b.final_mask
        }  # fmt: skip
        self._observation: Arrays = {
            "candidates": b.candidates[:, :width],
            "request": b.request,
            "mask": b.mask[:, :width],
        }

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode in every environment.

        Args:
            seed: Sets the seed and forgets the episodes so far; without it the sequence of draws goes on.
            options: ``starts``: a trace row for each environment's first episode. ``park``: environments rest when
                their episode ends (mask off, actions ignored) instead of restarting.
        """
        options = options or {}
        unknown = [name for name in options if name not in ("starts", "park")]
        if unknown:
            raise ConfigError(f"reset option {unknown[0]!r} is unknown", legal(["starts", "park"]))
        starts = np.full(self.num_envs, -1, np.int64)
        if options.get("starts") is not None:
            given = np.asarray(options["starts"])
            if given.shape != (self.num_envs,):
                raise ConfigError(f"starts has shape {given.shape}", f"({self.num_envs},), one trace row each")
            if not np.issubdtype(given.dtype, np.integer) or (given < -1).any():
                raise ConfigError(f"reset option starts is {given}", "trace rows: whole numbers; -1: drawn")
            starts = np.ascontiguousarray(given, dtype=np.int64)
        if seed is not None:
            self.seed = int(seed)
            self.buffers.episode[:] = 0
            self.buffers.stream[:] = np.arange(self.num_envs)
        self.park = bool(options.get("park", False))
        self.buffers.active[:] = True
        self._reset(starts)
        return self.observe(), {}

    def step(self, actions: ArrayLike) -> Outcome:
        """Place each environment's request on the candidate chosen for it.

        Raises:
            InfeasibleActionError: When any action is off its mask; no environment has changed.
        """
        chosen = np.ascontiguousarray(actions, dtype=np.int64)
        if chosen.shape != (self.num_envs,):
            raise ConfigError(f"actions have shape {chosen.shape}", f"({self.num_envs},)")
        finished = self._step(chosen)
        if finished < 0:
            raise InfeasibleActionError(
                f"action {chosen[-1 - finished]} of environment {-1 - finished} is infeasible",
                "a candidate whose mask is on",
                "nothing was changed",
            )
        return self._outcome(finished)

    def _outcome(self, finished: int) -> Outcome:
        """Return what a step that ended so many episodes returns."""
        b = self.buffers
        infos = self._ending() if finished else {}
        if self.copy:
            return self.observe(), b.reward.copy(), b.terminated.copy(), b.truncated.copy(), infos
        return self._observation, b.reward, b.terminated, b.truncated, infos

    def observe(self) -> Arrays:
        """Return the present observation."""
        return {name: array.copy() for name, array in self._observation.items()} if self.copy else self._observation

    def get_state(self, rows: ArrayLike | None = None) -> planning.Snapshot:
        """Copy rows (all of them when left out) for :meth:`set_state`."""
        return planning.get_state(self, rows)

    def set_state(self, snapshot: planning.Snapshot, rows: ArrayLike | None = None) -> None:
        """Put copied rows back, or into the rows given; see ``sched_env.planning``."""
        planning.set_state(self, snapshot, rows)

    def fork(self, rows: ArrayLike, into: Self | None = None, future: futures.Future | None = None) -> Self:
        """Copy rows, any number of times each, into an environment of their own; see ``sched_env.planning``.

        With ``future`` they meet that one instead of the recorded one (``sched_env.futures``).
        """
        if future is None:
            return planning.fork(self, rows, into)  # type: ignore[return-value]
        if into is not None:
            raise ConfigError("a fork onto another future into an older fork", "one or the other")
        chosen = planning.rows_of(self, rows)
        seen = self.seen_until(chosen)
        if (seen > future.first).any():
            raise ConfigError(
                f"row {chosen[seen.argmax()]} has seen the trace up to row {seen.max()}",
                f"rows that have not seen row {future.first}, where the future begins",
            )
        return self._meeting(chosen, future)

    def record(self) -> futures.Record:
        """Return the arrivals that other futures are drawn from."""
        raise ConfigError(
            f"{self.problem.name} has no future but the recorded one", "functions, jobs, or vm that waits"
        )

    def seen_until(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first trace row of which each of these rows has seen nothing."""
        raise NotImplementedError(f"{type(self).__name__} has a record and does not say what has been seen of it")

    def _meeting(self, rows: NDArray[np.int64], future: futures.Future) -> Self:
        """Fork rows onto a future that agrees with all they have seen."""
        raise NotImplementedError(f"{type(self).__name__} has a record and no way to replace it")

    def twin(self, count: int) -> Self:
        """Return an environment of the same world with so many rows, none of which has begun."""
        twin = copy.copy(self)
        twin.num_envs = count
        twin.buffers = planning.resized(self.buffers, count, self.num_envs)
        twin.state = planning.resized(self.state, count, self.num_envs, self.DRAFTS)
        twin.scratch = copy.deepcopy(self.scratch)  # forks may run in threads of their own
        twin._present(self.buffers.mask.shape[1])
        return twin

    def rows_replaced(self) -> None:
        """Do what is due when rows have been replaced from outside."""

    def world(self) -> str:
        """Name what no decision changes; worked out once."""
        if self._world is None:
            self._world = planning.digest(self)
        return self._world

    def layout(self) -> Layout:
        """Name the places that things are put on."""
        return Layout("candidate", tuple(str(number) for number in range(self.buffers.mask.shape[1])))

    def usage(self, b: int) -> Mapping[str, NDArray[np.float64]]:
        """Return the share of each resource in use, place by place."""
        return self.problem.gauges(self.raw_fields(b)[0])

    def choice(self, b: int, action: int) -> Choice:
        """Say what an action of environment b would place, and where."""
        return Choice(int(self.buffers.start[b]), action)

    def choices(self, b: int, actions: Sequence[int]) -> list[Choice]:
        """Say it of several actions: all would place the same thing, unless a problem says otherwise."""
        first = self.choice(b, actions[0]).key if actions else 0
        return [Choice(first, action) for action in actions]

    def present(self, _b: int) -> Present:
        """Return what is placed in environment b."""
        return NOTHING

    def label(self, _b: int, key: int) -> str:
        """Name a thing."""
        return str(key)

    def ended_s(self, _b: int, _key: int, expected_s: float) -> float:
        """Say when something that is gone ended."""
        return expected_s

    def graph(self, _b: int) -> dict[str, Any] | None:
        """Return how the things of an episode hang together: ``name``, ``tasks`` (labels) and ``edges``."""
        return None

    def found(self, b: int) -> list[Event]:
        """Return what is there when an episode begins."""
        there = self.present(b)
        rows = zip(there.key.tolist(), there.place.tolist(), there.start_s.tolist(), strict=True)
        return [Event("there", self.label(b, key), -1, place, start_s) for key, place, start_s in rows]

    def happened(self, b: int, action: int) -> Callable[[], tuple[tuple[float, float], list[Event]]]:
        """Note what is there before environment b takes an action.

        The result, called once it has, gives start and expected end of what was placed, and what happened.
        """
        before, chosen, now = self.present(b), self.choice(b, action), float(self.buffers.time_s[b])

        def after() -> tuple[tuple[float, float], list[Event]]:
            there, later = self.present(b), float(self.buffers.time_s[b])
            events = occupancy.differences(
                before, there, chosen, (now, later), lambda key: self.label(b, key), lambda *of: self.ended_s(b, *of)
            )
            start_s, end_s = occupancy.span(there, chosen.key)
            return (now if chosen.place >= 0 and isnan(start_s) else start_s, end_s), events

        return after

    def _ending(self) -> dict[str, Any]:
        """Describe the episodes that ended in this step; rows are valid where ``_final_obs`` and ``_episode`` are.

        A final observation always has all C candidates: its episode may have had more than any that goes on.
        """
        b = self.buffers
        over = b.terminated | b.truncated
        episode: Arrays = {name: b.metrics[:, k] for k, name in enumerate(self.METRICS)}
        episode["ended"], episode["start"] = b.ended, b.final_start
        final = self._final
        if self.copy:
            episode = {name: array.copy() for name, array in episode.items()}
            final = {name: array.copy() for name, array in final.items()}
        return {"final_obs": final, "_final_obs": over, "episode": episode, "_episode": over}


def make_vec(
    scenario: str | scenarios.Scenario,
    num_envs: int = 1,
    seed: int = 0,
    trace: Any = None,
    *,
    copy: bool = False,
    **overrides: Any,
) -> PlacementVectorEnv:
    """Make B environments of a scenario.

    Args:
        scenario: Built-in name (``vm/recovering``), path of a YAML file, or a loaded scenario.
        num_envs: B.
        seed: Names every random draw, together with the environment's index; B does not matter.
        trace: A trace table or the path of a trace file; the scenario's own when left out.
        copy: Return fresh arrays from every call instead of buffers that the next step overwrites.
        overrides: Scenario keys to replace.
    """
    loaded = scenarios.load(scenario, overrides)
    return problems.get(loaded.problem).simulation().make(loaded, num_envs, seed=seed, trace=trace, copy=copy)
