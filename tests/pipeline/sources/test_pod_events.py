import numpy as np

from pipeline.sources import Tally
from pipeline.sources.kube_names import Names
from pipeline.sources.pod_events import MARGIN_S, STEP_S, pod_events
from pipeline.sources.prometheus_http import Series
from pipeline.sources.prometheus_server import Server

START = 1_767_571_200
DAY_S = 86_400
POD = {"namespace": "fn", "pod": "db-0"}


class Clients:
    """Answers as a Prometheus that saw one pod: (created, first seen, last seen) of each of its lives."""

    def __init__(self, *lives):
        self.lives = lives

    def range(self, query, start_s, end_s, step_s):
        if "kube_pod_created" not in query:
            return [], []
        times = np.arange(start_s, end_s + 1, step_s)
        value = np.full(len(times), np.nan)
        for created, first, last in self.lives:
            value[(times >= first) & (times <= last)] = created
        seen = ~np.isnan(value)
        return ([Series(POD, times[seen], value[seen])] if seen.any() else []), []

    def instant(self, _query, _time_s):
        return []


def events(*lives):
    day = (START, START + DAY_S)
    table, tasks = pod_events(Clients(*lives), Server("prod", "http://localhost"), day, Names(), MARGIN_S, Tally())
    assert tasks.num_rows == 0
    return [(row["action"], row["time"].timestamp() - START) for row in table.select(["action", "time"]).to_pylist()]


def test_a_pod_that_gets_its_name_again_has_two_lives():
    old, new = START - 5000, START + 70_000
    lived = events((old, START - DAY_S, new - 30), (new, new, START + 2 * DAY_S))
    assert [action for action, _ in lived] == ["delete", "create"]
    assert 70_000 - STEP_S <= lived[0][1] < lived[1][1] == 70_000


def test_lives_within_one_look_are_told_apart():
    first, second = START + 100, START + 1000
    lived = events((first, first, first + 300), (second, second, second + 600))
    assert [action for action, _ in lived] == ["create", "delete", "create", "delete"]
    assert [at for action, at in lived if action == "create"] == [100, 1000]


def test_a_pod_that_is_merely_not_scraped_lives_on():
    created = START + 100
    assert events((created, created, created + 300), (created, created + 3000, START + 2 * DAY_S)) == [("create", 100)]
