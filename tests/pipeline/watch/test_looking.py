"""Looks at a real Prometheus: a calm day, a day with twice the load, a service level below the promise, fallbacks."""

import json
from datetime import UTC, datetime

import numpy as np
import pytest

from pipeline.sources.prometheus_http import Client
from pipeline.sources.prometheus_server import Patience, Server
from pipeline.watch import config, drift, page
from pipeline.watch.config import ProblemWatch, WatchConfig
from pipeline.watch.looking import State, count, look
from tests.pipeline.sources.conftest import running_prometheus
from wire.contracts.record import PromotionRecord
from wire.errors import ConfigError

pytestmark = [pytest.mark.prometheus]
LIVE_S = datetime(2026, 3, 9, tzinfo=UTC).timestamp()
"""Seven reference days before, two days after; on the second the load doubles at noon."""
SHIFT_S = LIVE_S + 1.5 * drift.DAY_S
BOUNDS = {"estimate": 0.0, "lower": None, "upper": None}
GATE = {
    "reference": "champion", "best_heuristic": "best_fit",
    "comparisons": [
        {"metric": "sla_violation_rate", "unit": "absolute", "challenger_mean": 0.01, "reference_mean": 0.012,
         "reference": "champion", "scenario": None, "traces": 9, "better_by": BOUNDS},
        {"metric": "cost_usd", "unit": "relative", "challenger_mean": 9.0, "reference_mean": 10.0,
         "reference": "champion", "scenario": None, "traces": 9, "better_by": BOUNDS},
    ],
}  # fmt: skip
CONFIG = WatchConfig(
    reference_days=7,
    problems={
        "functions": ProblemWatch(
            sla="sla_rate", cost="cost_usd_hour", features={"requests": "requests_rate"}, load="requests"
        )
    },
)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    import shutil

    if not (shutil.which("prometheus") and shutil.which("promtool")):
        pytest.skip("prometheus and promtool are not installed (scripts/install-test-tools.sh)")
    folder, rng, lines = tmp_path_factory.mktemp("watch"), np.random.default_rng(3), {}
    times = np.arange(LIVE_S - 7 * drift.DAY_S, LIVE_S + 2 * drift.DAY_S, 300)
    shifted = times >= SHIFT_S
    for name in range(6):
        level = (
            (1 + name) * (1 + 0.5 * np.sin(2 * np.pi * times / drift.DAY_S)) * np.exp(rng.normal(0, 0.1, len(times)))
        )
        lines[f'requests_rate{{function="f{name}"}}'] = level * np.where(shifted, 2.0, 1.0)
    lines["sla_rate"] = np.where(shifted, 0.04, 0.01) + rng.normal(0, 0.001, len(times))
    lines["cost_usd_hour"] = np.where(times < LIVE_S, 100.0, 90.0) * np.where(shifted, 1.5, 1.0)
    lines['loadmaster_decisions_total{problem="functions"}'] = np.arange(len(times)) * 100.0
    fallbacks = np.cumsum(np.where(shifted, 30.0, 0.5))
    lines['loadmaster_fallback_decisions_total{problem="functions",reason="deadline"}'] = fallbacks
    with (folder / "text").open("w") as file:
        for name, values in lines.items():
            file.writelines(f"{name} {value:.6f} {at:.0f}\n" for at, value in zip(times, values, strict=True))
        file.write("# EOF\n")
    with running_prometheus(folder, folder / "text") as address:
        yield Client(Server(name="watch", url=address), Patience(attempts=2))


@pytest.fixture
def live():
    return PromotionRecord(
        sequence=1, problem="functions", state="live", digest="sha256:1", previous_digest=None, counter=1, run_id="r",
        git_commit="c", dvc_lock_sha256="s", data_range=("", ""), gate=GATE, approver=None, decided_at="", reason="",
        previous_record_sha256=None,
    )  # fmt: skip


def watch(client, live, state, now_s, decisions):
    since = datetime.fromtimestamp(LIVE_S, UTC).isoformat()
    return look("functions", live, since, state, client=client, config=CONFIG, now_s=now_s, decisions=decisions)


def test_a_calm_day_raises_nothing_and_a_shift_is_seen_within_the_hour(client, live, tmp_path):
    state = State()
    for quarter in range(4, 48, 4):
        seen = watch(client, live, state, LIVE_S + drift.DAY_S + quarter * 900.0, tmp_path / "none")
        assert (seen.rollback, seen.retrain) == ("", ""), seen
    minutes = {}
    for quarter in range(1, 8):
        seen = watch(client, live, state, SHIFT_S + quarter * 900.0, tmp_path / "none")
        for kind in ("retrain", "rollback"):
            if getattr(seen, kind):
                minutes.setdefault(kind, quarter * 15)
    assert minutes["retrain"] <= 45
    assert minutes["rollback"] <= 60
    assert "requests: PSI" in seen.retrain
    assert state.in_a_row["load of requests"] == 0, "the hour before has the new load too by now"
    for word in ("SLA violations", "cost USD/h", "fallback rate"):
        assert word in seen.rollback
    page.write(tmp_path, [seen])
    assert "asked to roll back" in (tmp_path / page.PAGE).read_text()
    assert 'loadmaster_watch_alarm{problem="functions",kind="retrain"} 1' in (tmp_path / page.METRICS).read_text()


def test_an_early_training_is_for_the_load_of_now_while_that_is_what_changed(client, live, tmp_path):
    state = State()
    seen = [watch(client, live, state, SHIFT_S + quarter * 900.0, tmp_path / "none") for quarter in range(1, 10)]
    started = [one.density for one in seen if one.density is not None]
    assert started, "twice the load was never sure"
    assert started == pytest.approx([2.0] * len(started), rel=0.1)
    assert all(one.density is None for one in seen if not one.retrain)
    assert seen[-1].retrain
    assert seen[-1].density is None, "by the index alone nobody can say how dense arrivals are"
    page.write(tmp_path, [next(one for one in seen if one.density is not None)])
    assert "trains early, for 2" in (tmp_path / page.PAGE).read_text()


def test_a_load_that_is_no_feature_is_refused(tmp_path, monkeypatch):
    (tmp_path / "watch.yaml").write_text("problems: {vm: {load: arrivals, features: {cpu: up}}}\n")
    monkeypatch.setenv("LOADMASTER_WATCH_FILE", str(tmp_path / "watch.yaml"))
    with pytest.raises(ConfigError, match="load is 'arrivals', expected one of the features: cpu"):
        config.load()


def test_a_look_seconds_after_another_is_no_second_one(client, live, tmp_path):
    state, first_s = State(), SHIFT_S + 1800.0
    for later_s in (0, 10, 300, 449):
        seen = watch(client, live, state, first_s + later_s, tmp_path / "none")
        assert (seen.rollback, seen.retrain) == ("", ""), later_s
    assert state.in_a_row["fallback rate"] == 1, "it is beyond its limit, and was seen once"
    seen = watch(client, live, state, first_s + 900, tmp_path / "none")
    assert "fallback rate" in seen.rollback


def test_a_look_within_its_limit_ends_the_row_whenever_it_comes():
    state = State()
    for at_s, is_beyond in ((0.0, True), (10.0, False), (20.0, True), (920.0, True)):
        count(state, "sla", is_beyond=is_beyond, now_s=at_s, config=CONFIG)
    assert state.in_a_row["sla"] == 2
    count(state, "sla", is_beyond=False, now_s=925.0, config=CONFIG)
    assert state.in_a_row["sla"] == 0


def test_promises_are_those_of_the_gate(client, live, tmp_path):
    seen = watch(client, live, State(), LIVE_S + drift.DAY_S, tmp_path / "none")
    figures = {figure.name: figure for figure in seen.figures}
    assert figures["SLA violations"].promised == 0.01
    assert figures["cost USD/h"].promised == pytest.approx(90.0, rel=1e-3), "what was usual, less the promised tenth"


def test_days_that_prometheus_no_longer_has_are_said_and_not_guessed(client, live, tmp_path):
    since = datetime.fromtimestamp(LIVE_S - 30 * drift.DAY_S, UTC).isoformat()
    seen = look("functions", live, since, State(), client=client, config=CONFIG, now_s=LIVE_S, decisions=tmp_path / "n")
    assert "fewer than three days" in seen.notes[0]
    assert seen.drift == {}


def test_what_was_chosen_is_watched_from_the_decision_log(client, live, tmp_path):
    rng, log = np.random.default_rng(1), tmp_path / "decisions.jsonl"
    now_s = LIVE_S + 5 * drift.DAY_S
    with log.open("w") as file:
        for at in np.arange(LIVE_S, now_s, 300):
            calm = at < now_s - drift.SLOT_S
            for node in rng.permutation([f"n{k}" for k in range(6)])[: 5 if calm else 1]:
                for _ in range(1 if calm else 12):
                    line = {"at": datetime.fromtimestamp(at, UTC).isoformat(), "problem": "functions",
                            "digest": "sha256:1", "counter": 1, "request": "r", "features": "f", "candidates": 6,
                            "feasible": 6, "chosen": str(node), "runner_up": None, "top": [], "propensity": 1.0,
                            "fallback": None, "reason": ""}  # fmt: skip
                    file.write(json.dumps(line) + "\n")
        file.write('{"at": "half a li')
    seen = watch(client, live, State(), now_s, log)
    assert seen.drift["actions"].beyond, "everything goes to one node now"


def test_an_unknown_key_of_the_settings_is_named(tmp_path, monkeypatch):
    path = tmp_path / "watch.yaml"
    path.write_text("problems: {vm: {slo: x}}\n")
    monkeypatch.setenv("LOADMASTER_WATCH_FILE", str(path))
    with pytest.raises(ConfigError, match="slo"):
        config.load()
