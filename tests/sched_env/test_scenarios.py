"""Scenario files: what is right is loaded, what is wrong is named with file, key and legal values."""

from __future__ import annotations

import pytest

from sched_env import scenarios
from sched_env.vector import make_vec
from wire.errors import ConfigError, TraceError


def test_the_built_in_scenarios_load_by_name_and_by_short_name():
    assert {"vm/fading", "vm/recovering", "vm/expanding", "vm/recovering-l"} <= set(scenarios.names())
    for name in scenarios.names():
        assert scenarios.load(name).name == name
    assert scenarios.load("fading") == scenarios.load("vm/fading")


def test_upstreams_keys_are_aliases(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("problem: vm\nN: 7\ncpu: 20\nmem: 45\nallow_release: false\ndouble_thr: 32\ngrowing_nums: 0\n")
    loaded = scenarios.load(str(file))
    assert loaded.name == "mine"
    assert (loaded.servers, loaded.half_cpu_cores, loaded.releases, loaded.double_threshold) == (7, 20, False, 32)
    assert scenarios.load("vm/fading", {"N": 20}) == scenarios.load("vm/fading", {"servers": 20})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("problem: vm\nserverz: 5\n", r"mine.yaml: key 'serverz' is unknown; expected one of .*servers.*aliases N"),
        ("problem: vm\nservers: -5\n", r"mine.yaml: key 'servers' is -5: .*>= 1"),
        ("problem: vm\nservers: many\n", r"key 'servers' is 'many': Expected `int`"),
        ("problem: vm\nN: 3\nservers: 4\n", r"'servers' is given twice"),
        ("problem: vm\nending: explode\n", r"key 'ending' is 'explode'.*one of terminate, wait"),
        ("problem: vm\nreward: 2\n", r"key 'reward' is 2.*one of default, \+1, cpu, wait"),
        ("problem: vm\nallow_release: 'True'\n", r"key 'releases' is 'True': Expected `bool`"),
        ("problem: vm\nhalf_mem_gib: 0\n", r"key 'half_mem_gib' is 0"),
        ("problem: vm\nexpand_threshold: 1.5\n", r"'expand_threshold' is 1.5"),
        ("problem: vm\ngrowing_servers: 2\nservers: 9\nmax_servers: 8\n", r"max_servers is 8; expected at least"),
        ("problem: ships\n", r"key 'problem' is 'ships'; expected one of vm, pods, functions, workflow, jobs"),
        ("- a\n- b\n", r"holds list; expected a mapping"),
        ("a: [\n", r"is not YAML"),
    ],
)
def test_a_wrong_file_is_answered_with_file_key_and_legal_values(tmp_path, text, message):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        scenarios.load(str(file))


def test_overrides_are_checked_like_files():
    with pytest.raises(ConfigError, match=r"\(override\): key 'sservers' is unknown"):
        make_vec("vm/fading", 1, sservers=3)
    with pytest.raises(ConfigError, match="key 'servers' is 0"):
        make_vec("vm/fading", 1, servers=0)


def test_a_missing_scenario_or_trace_is_named():
    with pytest.raises(ConfigError, match=r"'vm/foding' does not exist; expected one of .*vm/fading"):
        scenarios.load("vm/foding")
    with pytest.raises(TraceError, match=r"trace nowhere.csv does not exist; expected the path of a trace file"):
        make_vec("vm/fading", 1, trace="nowhere.csv")
    with pytest.raises(TraceError, match=r"nowhere.csv does not exist"):
        make_vec(scenarios.load("vm/fading", {"trace": "nowhere.csv"}), 1)


def test_a_loaded_scenario_can_be_overridden_again():
    loaded = scenarios.load("vm/expanding")
    assert scenarios.load(loaded) is loaded
    assert scenarios.load(loaded, {"servers": 30}).servers == 30
    assert scenarios.load(loaded, {"servers": 30}).max_servers == 100
