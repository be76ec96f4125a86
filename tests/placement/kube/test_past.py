"""The migrator expects of its pods what training expected of the same ones, bit for bit, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from placement.kube import plan as planning
from placement.kube.config import MigratorSettings, PrometheusSettings
from placement.kube.past import Past
from placement.kube.usage import Usage
from placement.migrate import foreseeing
from sched_env import problems
from sched_env.pods import features
from sched_env.pods.counting import grained
from sched_env.pods.forecast import DAY, KNOWN, NAME, RESOURCES, ROWS, SPEC, rows, rows_of
from sched_env.pods.foresight import AHEAD
from sched_env.pods.tables import PodTrace, offsets
from sched_env.tables import NodeTable
from sched_env.vector import make_vec
from tests.placement.kube.playing import PlayedPrometheus, playing
from tests.placement.kube.test_plan import Told, node, pod
from wire import sample_bundle

SPAN = 300.0
POSITIONS = 21
HALVES = ("last", "day_before", "later_day_before", "swing")


class Remembering(Told):
    """Use that changes over a window, and the means of the day before."""

    def __init__(self, series: dict[str, np.ndarray], day: dict[str, np.ndarray]) -> None:
        nodes: dict[str, tuple[float, float]] = {}
        super().__init__({}, nodes)
        self.series, self._day, self.asked = series, day, 0
        self.broken = False

    def get(self, name: str, key: str) -> Any:
        found = self.series.get(key) if name.startswith("pod") else None
        return None if found is None else found[int(name.endswith("mem"))]

    def day(self, name: str, windows: int) -> dict[str, Any]:
        self.asked += 1
        if self.broken:
            raise ValueError("it answered 503")
        return {key: each[-windows:, int(name.endswith("mem"))] for key, each in self._day.items()}


class Clock:
    now = 1.8e9

    def __call__(self) -> float:
        return self.now


def halfway(asked: np.ndarray) -> np.ndarray:
    """Expect the mean of the last window and of the one a day before, give or take how the pod swings."""
    known = asked.reshape(len(asked), len(RESOURCES), -1)
    last, then, later, swing = (known[:, :, KNOWN.index(name)] for name in HALVES)
    found = np.stack([0.5 * (last + then), 0.5 * (last + later), swing, swing], axis=2)
    return found.reshape(len(asked), -1)


def means(said: np.ndarray) -> list[float]:
    """Return what is expected of cores and GiB in the next window."""
    return [float(said[AHEAD.index(name)]) for name in ("cpu_next", "mem_next")]


def flat(*means: float) -> np.ndarray:
    return np.stack([np.full(POSITIONS, mean) for mean in means])


def test_windows_are_kept_and_what_was_before_is_asked_once() -> None:
    clock, asked = Clock(), list[np.ndarray]()

    def look(some: np.ndarray) -> np.ndarray:
        asked.append(some)
        return halfway(some)

    past = Past(look, clock)
    day = np.full((DAY, 2), 3.0)
    usage = Remembering({"shop/p": flat(1.0, 2.0)}, {"shop/p": day, "shop/gone": day})
    pods = [pod("p", "a"), pod("dark", "a")]
    assert past.expected(pods, usage).keys() == {"shop/p"}, "of the other nothing is known"
    for mean in (5.0, 7.0):
        clock.now += SPAN
        usage.series["shop/p"] = flat(mean, mean)
        said = past.expected(pods, usage)
    assert usage.asked == 2, "cores and memory, when it began"
    use = np.concatenate([day[2:], [[1.0, 2.0], [5.0, 5.0], [7.0, 7.0]]])[:, np.newaxis]
    np.testing.assert_array_equal(asked[-1], rows(use, len(use) - 1)[0])
    assert means(said["shop/p"]) == [5.0, 5.0], "of 7 and 3"


def test_windows_that_another_replica_decided_are_asked_for() -> None:
    clock, asked = Clock(), list[np.ndarray]()
    past = Past(lambda some: (asked.append(some), halfway(some))[1], clock)
    usage = Remembering({"shop/p": flat(1.0, 2.0)}, {"shop/p": np.full((DAY, 2), 3.0)})
    past.expected([pod("p", "a")], usage)
    clock.now += 4 * SPAN
    missed = np.array([[4.0, 4.0], [5.0, 5.0], [6.0, 6.0]])
    usage._day = {"shop/p": np.concatenate([np.full((DAY - 3, 2), 9.0), missed])}
    past.expected([pod("p", "a")], usage)
    assert usage.asked == 4
    use = np.concatenate([np.full((DAY - 4, 2), 3.0), [[1.0, 2.0]], missed, [[1.0, 2.0]]])[:, np.newaxis]
    np.testing.assert_array_equal(asked[-1], rows(use, len(use) - 1)[0], "what it had seen itself stays")


def test_the_day_of_a_pod_that_was_moved_goes_on_under_its_new_name() -> None:
    clock, asked = Clock(), list[np.ndarray]()
    past = Past(lambda some: (asked.append(some), halfway(some))[1], clock)
    day = {f"shop/{name}": np.full((DAY, 2), mean) for name, mean in (("a-1", 3.0), ("a-2", 4.0), ("b-1", 5.0))}
    usage = Remembering({key: flat(1.0, 1.0) for key in ("shop/a-1", "shop/a-2", "shop/b-1")}, day)
    past.expected([pod("a-1", "x", app="a"), pod("a-2", "x", app="a"), pod("b-1", "x", app="b")], usage)
    clock.now += SPAN
    new = ("a-3", "a-4", "b-1", "c-1")
    usage.series = {f"shop/{name}": flat(2.0, 2.0) for name in new}
    past.expected([pod("a-2", "x", app="a"), *(pod(name, "x", app=name[0]) for name in new)], usage)
    first = [[1.0, 1.0], [2.0, 2.0]]
    wanted = {
        "a-3": [[3.0, 3.0]] * (DAY - 1) + first,
        "a-4": [[2.0, 2.0]],  # one went and two came
        "b-1": [[5.0, 5.0]] * (DAY - 1) + first,
        "c-1": [[2.0, 2.0]],
    }
    for number, name in enumerate(new):  # a-2 is there still, but nothing was measured of it
        use = np.array(wanted[name])[:, np.newaxis]
        np.testing.assert_array_equal(asked[-1][number], rows(use, len(use) - 1)[0, 0], name)


def test_without_a_forecast_nothing_is_sent_and_prometheus_is_not_asked() -> None:
    past = Past(lambda _: None, Clock())
    usage = Remembering({"shop/p": flat(1.0, 2.0)}, {})
    assert (past.expected([pod("p", "a")], usage), usage.asked) == ({}, 0)
    assert past.expected([], usage) == {}


def test_a_prometheus_that_cannot_tell_is_asked_again_and_the_cycle_goes_on() -> None:
    clock = Clock()
    past = Past(halfway, clock)
    usage = Remembering({"shop/p": flat(1.0, 2.0)}, {"shop/p": np.full((DAY, 2), 3.0)})
    usage.broken = True
    assert means(past.expected([pod("p", "a")], usage)["shop/p"]) == [1.0, 2.0], "what it has seen itself"
    usage.broken, clock.now = False, clock.now + SPAN
    assert means(past.expected([pod("p", "a")], usage)["shop/p"]) == [2.0, 2.5]


def test_a_clock_that_jumps_begins_anew() -> None:
    clock = Clock()
    past = Past(halfway, clock)
    usage = Remembering({"shop/p": flat(1.0, 2.0)}, {"shop/p": np.full((DAY, 2), 3.0)})
    for jump in (0.0, -86_400.0 * 3, 86_400.0 * 30):
        clock.now += jump
        assert means(past.expected([pod("p", "a")], usage)["shop/p"]) == [2.0, 2.5]
    assert usage.asked == 6


@pytest.fixture
def played() -> Iterator[PlayedPrometheus]:
    with playing() as prometheus:
        yield prometheus


def test_a_migrator_that_starts_anew_knows_what_prometheus_can_tell(played: PlayedPrometheus) -> None:
    began = 1_800_000_000

    def cores(at: float) -> float:
        return float((at - began) // SPAN % 7)  # another mean in every window

    played.series = {
        "pod_cpu": {"shop/p": cores, "shop/late": lambda at: cores(at) if at > began - 3 * SPAN else float("nan")},
        "pod_mem": {"shop/p": lambda at: cores(at) * 2.0**30, "shop/late": cores},
    }
    settings = PrometheusSettings(played.url, queries=played.QUERIES)
    usage = Usage(settings, lambda: (8.0, 16.0), wall=lambda: began + SPAN - 1.0)
    day = usage.day("pod_cpu", DAY)
    # Each mean is of the five minutes that end where the window after begins.
    wanted = [cores(began - SPAN * back) for back in range(DAY, 0, -1)]
    np.testing.assert_allclose(day["shop/p"], wanted)
    assert np.isnan(day["shop/late"][:-3]).all()
    assert usage.day("pod_mem", DAY)["shop/p"].tolist() == pytest.approx(wanted)
    assert played.asked == 8, "six hours a question"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, workshop: Any, kit: Any) -> Iterator[tuple[str, Any]]:
    """A service whose live bundle of ``pods`` carries a forecast, and that forecast."""
    from tests.placement.kube.forecasting import halfway_model

    spec, graph, golden, model = halfway_model()
    folder = tmp_path_factory.mktemp("forecast")
    policy = sample_bundle.build(problems.spec("pods"), seed=1, hidden=8)["policy.onnx"]
    files = workshop.around(problems.spec("pods"), policy, models={NAME: (spec, graph, golden)})
    settings = kit.settings_in(folder, workshop)
    with kit.running(settings) as client:
        answer = kit.push(client, files, counter=1, problem="pods")
        assert answer.status_code == 200, answer.text
    with kit.listening(settings) as url:
        yield url, model


def test_the_service_is_asked_for_all_pods_and_one_without_a_forecast_leaves_the_default(
    live: tuple[str, Any], settings: Any, kit: Any
) -> None:
    url, model = live
    asked = np.random.default_rng(0).lognormal(0.0, 1.0, (700, len(SPEC.inputs[0].columns))).astype(np.float32)
    said = foreseeing(url)(asked)
    assert said is not None
    assert said.tobytes() == model({ROWS: asked}).astype(np.float64).tobytes()
    with kit.listening(settings) as other:
        assert foreseeing(other)(asked) is None, "404"
    assert foreseeing("http://127.0.0.1:9")(asked) is None, "nobody is there"


def test_a_live_cycle_sees_what_the_simulator_shows_bit_for_bit(live: tuple[str, Any]) -> None:
    """The same pods, day and window: once as a trace with its forecast, once as a cluster with its Prometheus."""
    url, model = live
    rng, names = np.random.default_rng(7), [f"p{number}" for number in range(9)]
    where = np.array([0, 0, 0, 0, 0, 1, 1, 2, 2])
    # Who asks for more peaks higher: live the former says who is offered first, in the simulator the latter.
    larger = np.arange(9)
    series = grained(0.4 + 0.15 * larger[:, None, None] + rng.uniform(0.0, 0.1, (9, 2, POSITIONS)))
    use = np.concatenate([grained(rng.uniform(0.2, 1.2, (DAY, 9, 2))), series.mean(axis=2)[np.newaxis]])
    use[:200, 3] = np.nan  # a newer pod
    said = model({ROWS: rows_of(use, np.full(9, DAY), np.arange(9))}).astype(np.float64)

    nodes = [node(name) for name in "abc"]
    pods = [
        pod(name, "abc"[number], cpu=f"{125 * (k + 1)}m")
        for k, (name, number) in enumerate(zip(names, where, strict=True))
    ]
    requests = series.transpose(0, 2, 1).reshape(-1, 2)
    twice: dict[str, Any] = {
        "pod": np.arange(9), "node": where, "cpu_request": 0.125 * (larger + 1.0), "mem_request": np.ones(9),
        "cpu_used": use[-1, :, 0], "mem_used": use[-1, :, 1], "forecast": said,
        "arrival_offset_s": np.tile(np.arange(POSITIONS) * 14.0, 9), "duration_s": np.full(9 * POSITIONS, 14.0),
        "cpu": requests[:, 0], "mem": requests[:, 1],
    }  # fmt: skip
    trace = PodTrace(
        window_s=np.array([0.0, SPAN, 2 * SPAN]),
        window_rows=np.arange(4) * 9,
        row_requests=offsets(np.full(27, POSITIONS)),
        pod_names=tuple(names),
        **{name: np.tile(values, (3, 1) if values.ndim > 1 else 3) for name, values in twice.items()},
    )
    size = np.ones(3)
    table = NodeTable(("a", "b", "c"), 4.0 * size, 16.0 * size, size, size, size)
    limits = {"migration_budget": 1.0, "pod_limit": 110, "price_per_move_usd": 0.01}
    env = make_vec("pods/deploy", 1, trace=(trace, table), foresight=True, **limits)
    env.reset(options={"starts": [0], "park": True})

    usage = Remembering(
        {f"shop/{name}": each for name, each in zip(names, series, strict=True)},
        {f"shop/{name}": use[:-1, number] for number, name in enumerate(names)},
    )
    foreseen = Past(foreseeing(url), Clock()).expected(pods, usage)
    seen = list[str]()

    def compare(_: list[str], columns: Any, request: Any) -> planning.Answer:
        candidates, offered = env.raw_fields(0)
        candidates.pop("penalty")
        assert request.id.removeprefix("shop/") == env.label(0, env.choice(0, 0).key)
        assert {name: values.tolist() for name, values in columns.items()} == {
            name: np.asarray(values).tolist() for name, values in candidates.items()
        }
        assert request.fields == offered
        live_view = features.build(columns, request.fields)
        assert live_view.candidates.tobytes() == env.buffers.candidates[0].tobytes()
        assert live_view.request.tobytes() == env.buffers.request[0].tobytes()
        target = len(seen) % 3
        seen.append(request.id)
        env.step([target])
        return planning.Answer("abc"[target], None, False, "")

    settings = MigratorSettings("lab", budget=1.0, least_saved=0)
    planning.make(nodes, pods, usage, settings, compare, lambda _: None, lambda _: 1.0, foreseen)
    assert len(seen) >= 3
    assert (said[:, AHEAD.index("cpu_next")] != use[-1, :, 0]).any()
