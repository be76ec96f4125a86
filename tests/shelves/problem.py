"""A whole problem in one file, as somebody else would bring it: parcels arrive, and each goes on a shelf with room.

No other file knows it; ``tests/test_a_further_problem.py`` registers it and takes it from windows to the live service.
docs/how-to/add-a-problem.md walks through it.
"""

import numpy as np
import pandas as pd

from pipeline import windows
from pipeline.datasets.dataset import Dataset
from sched_env.observation import Observation, columns, scalars
from sched_env.problem import Problem, Simulation
from sched_env.scenarios import Positive, Scenario
from sched_env.vector import FULL, HORIZON, SHEET, PlacementVectorEnv
from wire.contracts.feature_spec import Feature, FeatureSpec

# Features and heuristics -----------------------------------------------------------------------------------------

STATE_FIELDS = {"room": ("litres", 0.0), "capacity": ("litres", 10.0)}
REQUEST_FIELDS = {"size": ("litres", 1.0)}
SPEC = FeatureSpec(
    problem="shelves",
    version=1,
    candidate=(
        Feature("room", "litres", 10.0, "state room", 0.0),
        Feature("left", "litres", 10.0, "derived: room after the parcel", 0.0),
    ),
    request=(Feature("size", "litres", 10.0, "request size", 1.0),),
)


def build(candidates, request):
    (room, _), (size,) = columns(STATE_FIELDS, candidates), scalars(REQUEST_FIELDS, request)
    rows = np.stack([room, room - size], axis=1).astype(np.float32)
    return Observation(rows, np.array([size], np.float32), room >= size)


def ruled_out(candidates, request):
    return {"too little room": int((~build(candidates, request).mask).sum())}


def gauges(candidates):
    room, capacity = columns(STATE_FIELDS, candidates)
    return {"room": 1.0 - room / capacity}


def score(name, candidates, _request, mask):
    (room, _) = columns(STATE_FIELDS, candidates)
    return -np.arange(mask.size, dtype=float) if name == "first_fit" else -room


# Simulation ------------------------------------------------------------------------------------------------------


class ShelfScenario(Scenario, frozen=True, kw_only=True, forbid_unknown_fields=True):
    shelves: Positive = 4


class ShelfVectorEnv(PlacementVectorEnv):
    """Plain numpy: what is asked of an environment is the interface, not the speed."""

    METRICS = (*SHEET, "used_litres")

    def __init__(self, scenario, num_envs, *, seed=0, trace=None, copy=False):
        super().__init__(scenario, num_envs, scenario.shelves, seed=seed, copy=copy)
        self.sizes = trace[0]
        self.room, self.row, self.taken = (
            np.zeros((num_envs, scenario.shelves)),
            np.zeros(num_envs, int),
            np.zeros(num_envs),
        )

    def raw_fields(self, b):
        return {"room": self.room[b].copy(), "capacity": np.full(self.width, 10.0)}, {
            "size": float(self.sizes[self.row[b]])
        }

    def _look(self, b):
        out, seen = self.buffers, self.rebuild(b)
        out.candidates[b], out.request[b], out.mask[b], out.feasible[b] = *seen, int(seen.mask.sum())

    def _begin(self, b, start):
        out = self.buffers
        last = max(len(self.sizes) - self.scenario.horizon, 1)
        out.start[b] = start if start >= 0 else np.random.default_rng([self.seed, b, out.episode[b]]).integers(last)
        out.episode[b] += 1
        self.room[b], self.row[b], self.taken[b] = 10.0, out.start[b], 0.0
        self._look(b)

    def _reset(self, starts):
        for b, start in enumerate(starts):
            self._begin(b, int(start))

    def _step(self, actions):
        out, finished = self.buffers, 0
        bad = [b for b in range(self.num_envs) if out.active[b] and not out.mask[b, actions[b]]]
        if bad:
            return -1 - bad[0]
        out.terminated[:], out.truncated[:] = False, False
        for b in np.flatnonzero(out.active):
            size = self.sizes[self.row[b]]
            self.room[b, actions[b]] -= size
            self.row[b], self.taken[b], out.reward[b] = self.row[b] + 1, self.taken[b] + size, 1.0
            steps, over = self.row[b] - out.start[b], self.row[b] >= len(self.sizes)
            out.truncated[b] = over or steps >= self.scenario.horizon
            if not out.truncated[b]:
                self._look(b)
                out.terminated[b] = out.feasible[b] == 0
            if out.terminated[b] or out.truncated[b]:
                finished += 1
                out.metrics[b] = (steps, steps, steps, steps, 0.0, 1.0, 0.0, self.taken[b])
                out.ended[b], out.final_start[b] = (FULL if out.terminated[b] else HORIZON), out.start[b]
                out.final_candidates[b], out.final_request[b], out.final_mask[b] = (
                    out.candidates[b], out.request[b], out.mask[b])  # fmt: skip
                if self.park:
                    out.active[b], out.mask[b] = False, False
                else:
                    self._begin(b, -1)
        return finished


def batch(name, env, _seed):
    def choose(scores=None):
        found = np.stack([np.where(m, score(name, env.raw_fields(b)[0], {}, m), -np.inf) if env.buffers.active[b]
                          else np.zeros(m.size) for b, m in enumerate(env.buffers.mask)])  # fmt: skip
        if scores is not None:
            scores[:] = found
        return found.argmax(axis=1)

    return choose


def bound(env, starts):
    capacity = 10.0 * env.scenario.shelves
    return [
        float(min(np.searchsorted(np.cumsum(env.sizes[s:]), capacity, "right"), env.scenario.horizon)) for s in starts
    ]


PROBLEM = Problem(
    name="shelves", spec=SPEC, state_fields=STATE_FIELDS, request_fields=REQUEST_FIELDS, build=build,
    ruled_out=ruled_out, gauges=gauges, heuristics=("random_feasible", "first_fit", "best_fit"), score=score,
    fallback="best_fit", scenario=ShelfScenario, primary=lambda _: "placed", metrics={"used_litres": 1},
    bound_metric=lambda _: "placed", simulation=lambda: Simulation(ShelfVectorEnv, batch, bound),
)  # fmt: skip


# From windows ----------------------------------------------------------------------------------------------------


def load(folder, start, end):
    events = windows.frame_of(folder, "events", start, end, ["time", "mem_gib"]).sort_values("time")
    return events["mem_gib"].to_numpy(float), (events["time"] - pd.Timestamp(start)).dt.total_seconds().to_numpy()


DATASET = Dataset(
    load=load,
    starts=lambda trace, scenario: np.arange(max(len(trace[0]) - scenario.horizon, 0)),
    times_s=lambda trace, rows: trace[1][rows],
    scaled=lambda trace, load_factor: (trace[0], trace[1] / load_factor),
)
