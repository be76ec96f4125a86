"""Lives end to end: what a caller works out from the service's answers is what the simulator saw, bit for bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest

from pipeline.datasets import lifetimes
from pipeline.datasets.vm import RecordedVms, believed
from pipeline.lifetime_model import model, store
from pipeline.lifetime_model.seen import Lives
from sched_env import heuristics, problems
from sched_env.vector import make_vec
from sched_env.vm import lives
from sched_env.vm.events import creation_of
from sched_env.vm.synthetic import generate
from wire import sample_bundle
from wire.contracts.bundle import POLICY_FILE, model_file, model_golden_file
from wire.contracts.models import ModelResponse

VMS, BEGAN_S = 3000, 7_000.0


@pytest.fixture
def folder(tmp_path: Any) -> Any:
    """A model of the synthetic trace's own lives, as the stage writes it."""
    trace = generate(VMS)
    origin = creation_of(trace)
    gone = np.flatnonzero(origin >= 0)
    born = origin[gone]
    begin, life = trace.time[born], trace.time[gone] - trace.time[born]
    seen = Lives(trace.cpu[born], trace.mem[born], begin, life, np.ones(len(gone), bool), np.full(len(gone), 1e9))
    store.write(tmp_path / lifetimes.NAME, seen, model.fit(seen), {})
    return tmp_path


class Caller:
    """Who places VMs live: it asks the service once for each, and remembers when they came and where they are."""

    def __init__(self, client: Any) -> None:
        self.client, self.there = client, {}

    def life(self, cpu: float, mem: float, created_s: float) -> np.ndarray:
        rows = lives.asked(np.array([cpu]), np.array([mem]), np.array([created_s]))
        answer = self.client.post("/v1/models/vm/lifetime", json={"inputs": {lives.ROWS: rows.tolist()}})
        assert answer.status_code == 200, answer.text
        told = msgspec.json.decode(answer.content, type=ModelResponse)
        return lives.expected(np.array(told.output, np.float32))[0]

    def ends(self, now: float, servers: int) -> np.ndarray:
        found = []
        for server in range(servers):
            mine = [(now - born, told) for born, at, told in self.there.values() if at == server]
            ages, told = np.array([age for age, _ in mine]), np.array([told for _, told in mine])
            found.append(lives.ends_s(ages, told))
        return np.array(found)


def test_a_caller_knows_what_the_simulator_knew(client: Any, workshop: Any, kit: Any, folder: Any) -> None:
    files = tuple((folder / lifetimes.NAME / name("lifetime")).read_bytes() for name in (model_file, model_golden_file))
    spec = problems.spec("vm")
    policy = sample_bundle.build(spec, hidden=8)[POLICY_FILE]
    pushed = workshop.around(spec, policy, models={"lifetime": (lives.SPEC, *files)})
    assert kit.push(client, pushed, counter=1, problem="vm").status_code == 200

    plain = generate(VMS)
    names = [field.name for field in dataclasses.fields(plain)]
    trace = RecordedVms(**{name: getattr(plain, name) for name in names}, began_s=BEGAN_S)
    env: Any = make_vec("vm/recovering", 1, trace=believed(trace, folder), servers=6)
    env.reset(options={"starts": [1000], "park": True})
    rule, caller, row = heuristics.batch("least_extension", env), Caller(client), 1000
    some_end = 0
    for _ in range(80):
        now_row = int(env.state.env.row[0])
        for earlier in range(row, now_row):
            if plain.kind[earlier] == 1:
                caller.there.pop(int(plain.vmid[earlier]), None)
        row, now = now_row, float(env.buffers.time_s[0])
        told = caller.life(plain.cpu[row], plain.mem[row], BEGAN_S + plain.time[row])
        state, request = env.raw_fields(0)
        assert request["life_s"] == told[0]
        np.testing.assert_array_equal(state["ends_s"], caller.ends(now, 6).repeat(2), strict=True)
        fields = {name: column for name, column in state.items() if name != "ends_s"}
        seen = problems.get("vm").build(
            {**fields, "ends_s": caller.ends(now, 6).repeat(2)}, {**request, "life_s": float(told[0])}
        )
        assert seen.candidates.tobytes() == env.buffers.candidates[0].tobytes()
        assert seen.request.tobytes() == env.buffers.request[0].tobytes()
        some_end += int((state["ends_s"] > 0).sum())
        action = int(rule()[0])
        caller.there[int(plain.vmid[row])] = (now, action // 2, told)
        env.step([action])
    assert some_end > 100
