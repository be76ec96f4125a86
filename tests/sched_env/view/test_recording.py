"""What a replay says beyond the observation: names, use, who came, moved and left."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from sched_env import rollout
from sched_env.replay import frames, head
from sched_env.vector import make_vec


def rows(path):
    return [frame.row for frame in frames(path)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("best", "half"), ("pods", "node"), ("functions", "node"), ("workflow", "node"), ("jobs", "card")],
)
def test_places_have_names_and_their_use_is_what_the_environment_says(recorded, name, kind):
    path = recorded(name)
    said = head(path)
    assert said.layout["kind"] == kind
    found = rows(path)
    names = said.layout["names"]
    assert len(set(names)) == len(names) >= max(row["places"] for row in found)
    assert all(-1 <= row["place"] < row["places"] for row in found)
    assert [episode["start"] for episode in said.episodes] == [episode["metrics"]["start"] for episode in said.episodes]
    use = None
    for row in found:
        if row["step"] == 0:
            use = np.zeros((len(names), len(said.resources)), np.float32)
            use[: len(said.use)] = said.use
        use[row["used_of"]] = np.reshape(row["used"], (-1, len(said.resources)))
        assert (use >= -1e-6).all()
    assert use.max() > 0.0


def test_use_is_rebuilt_to_the_bit(recorded):
    path, said = recorded("functions"), head(recorded("functions"))
    env = make_vec("functions/serverless", 1, num_nodes=5, horizon=150)
    env.reset(options={"starts": [5], "park": True})
    use = said.use.copy()
    for row in rows(path):
        if row["episode"] > 0:
            break
        use[row["used_of"]] = np.reshape(row["used"], (-1, len(said.resources)))
        np.testing.assert_array_equal(use, np.stack(list(env.usage(0).values()), axis=1).astype(np.float32))
        env.step([row["action"]])


@pytest.mark.parametrize("name", ["best", "functions", "jobs"])
def test_who_leaves_was_there_and_leaves_once_from_where_it_was(recorded, name):
    there: dict[str, int] = {}
    left = 0
    for row in rows(recorded(name)):
        if row["step"] == 0:
            there = {}
        found = list(
            zip(row["event"], row["event_who"], row["event_from"], row["event_to"], row["event_s"], strict=True)
        )
        for kind, who, _, to, _ in found:
            if kind == "there":
                there[who] = to
        if row["place"] >= 0:
            assert row["who"] not in there
            there[row["who"]] = row["place"]
        for kind, who, source, _, time_s in found:
            if kind == "end":
                assert there.pop(who) == source
                assert time_s >= row["time_s"] or np.isclose(time_s, row["time_s"])
                left += 1
    assert left > 5


def test_jobs_end_when_the_books_say_so(recorded):
    """The end of the last job is the makespan."""
    said, found = head(recorded("jobs")), rows(recorded("jobs"))
    for number, episode in enumerate(said.episodes):
        mine = [row for row in found if row["episode"] == number]
        ends = [at for row in mine for kind, at in zip(row["event"], row["event_s"], strict=True) if kind == "end"]
        assert max(ends) - mine[0]["time_s"] == pytest.approx(episode["metrics"]["makespan_s"])


def test_pods_move_and_the_moves_are_counted(recorded):
    said, found = head(recorded("pods")), rows(recorded("pods"))
    for number, episode in enumerate(said.episodes):
        mine = [row for row in found if row["episode"] == number]
        assert sum(row["event"].count("there") for row in mine) > 50
        decided = sum(
            1 for row in mine for kind, who in zip(row["event"], row["event_who"], strict=True)
            if kind == "move" and who == row["who"]
        )  # fmt: skip
        assert decided == episode["metrics"]["migrations"]


def test_a_workflow_carries_its_graph_and_tasks_start_after_their_parents(recorded):
    said, found = head(recorded("workflow")), rows(recorded("workflow"))
    for number, episode in enumerate(said.episodes):
        span = {row["who"]: (row["start_s"], row["end_s"]) for row in found if row["episode"] == number}
        graph = episode["graph"]
        assert set(span) == set(graph["tasks"])
        for parent, child in graph["edges"]:
            assert span[graph["tasks"][child]][0] >= span[graph["tasks"][parent]][1] - 1e-6


def test_pairs_say_which_job_each_score_is_of(tmp_path):
    path = tmp_path / "pairs.parquet"
    rollout.run_episodes("jobs/cpn", "random_feasible", [5], record=path, episode_jobs=12, choice="pair", shown_jobs=3)
    found = rows(path)
    assert {row["place"] for row in found if not row["who"]} <= {-1}
    assert any(len(set(row["top_who"])) > 1 for row in found)
    for row in found:
        at = row["top_candidates"].index(row["action"])
        if row["top_who"]:
            assert row["top_who"][at] == row["who"]
        assert row["top_places"][at] == row["place"]


def test_a_file_of_before_still_opens(recorded, older, tmp_path):
    path = older(recorded("best"), tmp_path / "old.parquet", 1)
    said = head(path)
    assert (said.version, said.layout, said.episodes) == (1, None, [])
    for old, new in zip(rows(path), rows(recorded("best")), strict=True):
        assert (old["place"], old["places"], old["event"]) == (new["place"], new["places"], [])


def test_metadata_is_json(recorded):
    found = pq.read_metadata(recorded("best")).metadata
    for key in (b"layout", b"use", b"episodes", b"feature_spec"):
        json.loads(found[key])
