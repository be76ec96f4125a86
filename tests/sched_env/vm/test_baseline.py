"""Every episode of the public baseline, number by number."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from sched_env import rollout
from sched_env.traces.reader import read_text

RULES = {
    "firstfit": "first_fit",
    "tightfit": "best_fit",
    "vmagent_bestfit": "vmagent_spread",
    "random": "random_feasible",
}
SMALL = ["fading_N5", "recovering_N5", "recovering_N5_no_release", "fading_N20", "recovering_N20"]
SMALL += ["recovering_N20_no_release", "fading_N50", "recovering_N50_no_release"]
LARGE = ["recovering_N50", "recovering_L_N100", "recovering_L_N100_no_release", "expanding_N100"]
LARGE += ["expanding_N100_no_release"]
RANDOM_SEED = 1234

pytestmark = pytest.mark.shared


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.soak) for name in LARGE)])
def test_episodes_equal_the_baseline(name, huawei):
    baseline = json.loads((huawei / "baseline.json").read_text())
    config = baseline["scenarios"][name]["config"]
    base = "vm/expanding" if name.startswith("expanding") else "vm/recovering"
    keys = {"N": config["servers"], "double_thr": config["double_thr"], "allow_release": config["releases"]}
    if base == "vm/expanding":
        keys["growing_nums"] = 0
    for theirs, ours in RULES.items():
        expected = baseline["scenarios"][name]["policies"][theirs]
        episodes = rollout.run_episodes(
            base, ours, baseline["start_points"], trace=huawei / "events.csv.gz", seed=RANDOM_SEED, **keys
        )
        ended = ["rejected" if episode["ended"] == "full" else episode["ended"] for episode in episodes]
        assert ended == [term.replace("end_of_log", "end_of_trace") for term in expected["term"]]
        for ours_column, column in (("placed", "length"), ("end_row", "end_row"), ("placed_cpu", "placed_cpu")):
            assert [episode[ours_column] for episode in episodes] == expected[column]
        for column in ("cpu_rate", "mem_rate"):
            np.testing.assert_allclose([episode[column] for episode in episodes], expected[column], atol=5.1e-7)


def test_both_public_tables_give_the_same_events(huawei):
    from sched_env.vm.trace import read

    events, vms = read(huawei / "events.csv.gz")[0], read(huawei / "vms.csv.gz")[0]
    for column in ("vmid", "cpu", "mem", "time", "kind"):
        np.testing.assert_array_equal(getattr(events, column), getattr(vms, column))
    text = read_text(huawei / "events.csv.gz")
    stated = json.loads((huawei / "baseline.json").read_text())["data"]
    assert hashlib.sha256(text.encode()).hexdigest() == stated["sha256_uncompressed"]
    assert len(events) == stated["rows"]


def test_numa_balance_waits_less_than_first_fit_on_the_later_trace(huawei):
    starts = np.random.RandomState(1).randint(140_000, 220_000, 200)
    waits = {
        rule: np.mean(
            [
                episode["wait_s"]
                for episode in rollout.run_episodes(
                    "vm/recovering", rule, starts, trace=huawei / "events.csv.gz", ending="wait"
                )
            ]
        )
        for rule in ("first_fit", "numa_balance", "numa_first_fit")
    }
    assert waits["numa_balance"] < 0.95 * waits["first_fit"]
    assert waits["numa_first_fit"] < 0.95 * waits["first_fit"]
