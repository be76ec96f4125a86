import numpy as np
import pytest

from pipeline.sources import Tally
from pipeline.sources.kube_names import Names
from pipeline.sources.pod_events import MARGIN_S, STEP_S, pod_events
from pipeline.sources.prometheus_http import Series
from pipeline.sources.prometheus_server import Server

START = 1_767_571_200
DAY_S = 86_400
POD = {"namespace": "fn", "pod": "db-0"}


class Clients:
    """Answers as a Prometheus that scrapes every 30 s and saw one pod: (created, first, last) of each of its lives."""

    def __init__(self, *lives, gap=(0, 0)):
        every = np.arange(START - DAY_S + 7, START + 2 * DAY_S, 30)
        self.scrapes = every[(every < gap[0]) | (every >= gap[1])]
        self.created = np.full(len(self.scrapes), np.nan)
        for created, first, last in lives:
            self.created[(self.scrapes >= first) & (self.scrapes <= last)] = created

    def range(self, query, start_s, end_s, step_s):
        if "kube_pod_created" not in query:
            return [], []
        times = np.arange(start_s, end_s + 1, step_s)
        low, high = (np.searchsorted(self.scrapes, at, side="right") for at in (times - step_s, times))
        if "timestamp(" in query:
            return [Series({}, times, self.scrapes[high - 1].astype(float))], []
        seen = np.concatenate([[0], np.cumsum(~np.isnan(self.created))])
        counts = seen[high] - seen[low]
        if "count_over_time(" in query:
            kept, value = (counts > 0) & (counts < high - low), counts.astype(float)
        else:
            known = [self.created[a:b][~np.isnan(self.created[a:b])] for a, b in zip(low, high, strict=True)]
            kept, value = counts > 0, np.array([one[-1] if len(one) else np.nan for one in known])
        return ([Series(POD, times[kept], value[kept])] if kept.any() else []), []

    def instant(self, _query, _time_s):
        return []


def events(*lives, gap=(0, 0)):
    day, server = (START, START + DAY_S), Server("prod", "http://localhost")
    table, tasks = pod_events(Clients(*lives, gap=gap), server, day, Names(), MARGIN_S, Tally())
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


@pytest.mark.parametrize("lived_s", [1, 20, 31, 44, 58, 61, 75, 90, 3000])
def test_a_deletion_is_known_to_half_a_scrape_interval(lived_s):
    for second in range(0, 60, 7):
        created = START + 1000 + second
        scrapes = np.arange(START + 7, START + 9000, 30)
        lived = events((created, created, created + lived_s))
        if not ((scrapes >= created) & (scrapes <= created + lived_s)).any():
            assert lived == []  # nobody saw it
            continue
        assert [action for action, _ in lived] == ["create", "delete"]
        assert abs(lived[1][1] - (created + lived_s - START)) <= 15


def test_nobody_is_seen_to_go_where_nothing_is_scraped():
    # The first that is not scraped any more has not gone while others still are, for less than a minute.
    created, down = START + 100, START + DAY_S - 400
    assert events((created, created, down - 30), gap=(down, START + 3 * DAY_S)) == [("create", 100)]
    assert events((created, created, down), gap=(down, START + 3 * DAY_S)) == [("create", 100)]


def test_who_is_not_there_after_a_gap_went_soon_after_it_was_last_seen():
    created, down = START + 100, START + 5000
    lived = events((created, created, down), gap=(down, down + 3600))
    assert [action for action, _ in lived] == ["create", "delete"]
    assert 5000 - 30 <= lived[1][1] <= 5000 + STEP_S
