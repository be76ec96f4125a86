"""Pods that cannot be moved are not offered, nodes that are down or of another cluster take nobody, and the record."""

import dataclasses

import numpy as np
import pytest

from sched_env import scenarios
from sched_env.pods.state import FOLLOWING, HOT, OVER, PODS, ROW, WINDOW
from sched_env.pods.trace import load
from sched_env.recorded import AsRecorded
from sched_env.tables import NodeTable
from sched_env.vector import make_vec

SMALL = {"nodes": 4, "pods_per_node": 4, "trace_windows": 12, "episode_windows": 4, "load": 0.75, "requests_per_pod": 3}


@pytest.fixture(scope="module")
def generated():
    return load(None, scenarios.load("pods/deploy", SMALL))


def decisions(env, choose=None):
    """Play an episode from every start and yield each decision's (window, pod row of the trace)."""
    for start in range(6):
        env.reset(options={"starts": [start], "park": True})
        while env.buffers.active[0]:
            cursor = env.state.cursor[0]
            yield int(cursor[WINDOW]), int(env.trace.window_rows[cursor[WINDOW]] + cursor[ROW])
            np.testing.assert_array_equal(env.rebuild(0).mask, env.observe()["mask"][0])
            env.step(choose(None) if choose else env.buffers.mask.argmax(axis=1))


def test_pods_that_are_held_fixed_are_never_offered(generated):
    pods, nodes = generated
    held = pods.pod % 2 == 0
    env = make_vec("pods/deploy", 1, trace=(dataclasses.replace(pods, held=held), nodes), **SMALL)
    offered = [row for _, row in decisions(env)]
    assert offered
    assert not env.trace.held[offered].any()


def test_a_node_that_is_down_keeps_its_pods_and_takes_no_others(generated):
    pods, nodes = generated
    up = np.ones((len(pods), len(nodes)), bool)
    up[:, 1] = False
    env = make_vec("pods/deploy", 1, trace=(dataclasses.replace(pods, up=up), nodes), **SMALL)
    for _ in decisions(env):
        hot = int(env.state.cursor[0, HOT])
        assert env.buffers.mask[0, hot], "a pod may stay"
        assert hot == 1 or not env.buffers.mask[0, 1]
    assert env.state.nodes[0, 1, PODS] >= 0


def test_clusters_are_separate_domains(generated):
    pods, nodes = generated
    domain = np.array([0, 0, 1, 1], np.int32)
    columns = {name: getattr(nodes, name) for name in NodeTable.__dataclass_fields__}
    table = NodeTable(**{**columns, "domain": domain})
    of_pod = np.zeros(len(pods.pod_names), np.int32)  # a pod is of the cluster in which it was first
    of_pod[pods.pod[::-1]] = domain[pods.node[::-1]]
    same = of_pod[pods.pod]
    env = make_vec("pods/deploy", 1, trace=(dataclasses.replace(pods, domain=same), table), **SMALL)
    for _, row in decisions(env):
        away = np.arange(4) != env.state.cursor[0, HOT]
        assert not (env.buffers.mask[0] & away & (domain != env.trace.domain[row])).any()


def test_what_was_recorded_is_played(generated):
    env = make_vec("pods/deploy", 1, trace=generated, **SMALL)
    policy = AsRecorded("no_migration")
    for _, row in decisions(env, policy.bind(env)):
        following = env.cluster.pods[row, FOLLOWING]
        assert env.recorded()[0] == (following if following >= 0 else env.state.cursor[0, HOT])
    assert policy.followed > 0.9 * policy.decided
    nodes, books = env.as_recorded()
    counts = np.zeros((len(env.trace), 4))
    window = np.repeat(np.arange(len(env.trace)), np.diff(env.trace.window_rows))
    np.add.at(counts, (window, env.trace.node), 1.0)
    np.testing.assert_array_equal(nodes[:, :, PODS], counts)
    assert books[:, :, OVER].sum() > 0
