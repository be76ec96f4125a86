"""The runtime model from profiles to bundle: fitted, exported, gated, and honest about what it has not seen."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.runtime_model import command, facts, gate, model, profiles, store, unseen
from pipeline.runtime_model.forest import quantile
from sched_env import problems
from sched_env.jobs import finished
from sched_env.jobs.catalogue import Demand
from sched_env.jobs.predictor import ROWS, SPEC, RuntimePredictor, rows
from wire import bundle, graph, sample_bundle
from wire.contracts.bundle import POLICY_FILE, model_file, model_golden_file
from wire.errors import LoadmasterError

CARDS = {"slow": 2.0, "fast": 1.0}
MODELS = {"resnet50": 0.02, "yolov8m": 0.05, "llama3": 20.0, "vgg": 0.01, "bert": 0.1}
PRESSURE = {"resnet50": 0.1, "yolov8m": 0.3, "llama3": 0.6, "vgg": 0.2, "bert": 0.0}


def ended(seed: int = 0, start_s: float = 1.7e9, slower: float = 1.0) -> list[finished.Ended]:
    """Return every set of up to three models on two cards; pressures add up, and there is one per cent of noise."""
    noise = np.random.default_rng(seed)
    made = []
    for card, factor in CARDS.items():
        for size in (1, 2, 3):
            for names in itertools.combinations_with_replacement(sorted(MODELS), size):
                pressed = [sum(PRESSURE[other] for other in names) - PRESSURE[name] for name in names]
                seconds = tuple(
                    MODELS[name] * factor * slower * (1.0 + each) * float(np.exp(noise.normal(0.0, 0.01)))
                    for name, each in zip(names, pressed, strict=True)
                )
                cpu, gpu = 0.1 * size, min(1.0, 0.1 + sum(pressed) / size)
                made.append(finished.Ended(start_s + 60 * len(made), card, names, seconds, cpu, gpu, 1.0 * size))
    return made


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profiles") / "sets.csv"
    path.write_text(finished.write_profiles(ended()))
    return path


@pytest.fixture(scope="module")
def folder(measured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "runtime"
    assert command.main(["fit", "--profiles", str(measured), "--out", str(out)]) == 0
    return out


def test_what_finished_jobs_wrote_is_what_the_fit_reads(measured: Path) -> None:
    read = profiles.read([measured])
    assert read.asked() == [(one.card_type, one.models) for one in ended()]
    assert np.exp(read.logs()) == pytest.approx([time for one in ended() for time in one.seconds], rel=1e-6)
    assert read.cpu == pytest.approx([one.cpu for one in ended()])


def test_sets_of_the_same_models_are_never_in_two_folds(measured: Path) -> None:
    read = profiles.read([measured])
    fold = read.folds(5, seed=0)
    by_models: dict[tuple[str, ...], set[int]] = {}
    for (_, models), number in zip(read.sets, fold, strict=True):
        by_models.setdefault(models, set()).add(int(number))
    assert all(len(numbers) == 1 for numbers in by_models.values())
    assert {*fold.tolist()} == {0, 1, 2, 3, 4}


def test_undisturbed_times_and_the_order_of_pressures_are_found(measured: Path) -> None:
    known = facts.catalogue(profiles.read([measured]))
    for name, seconds in MODELS.items():
        # What all sets have in common, company, is partly taken for the time alone: nearly every set has some.
        assert known.demands[name]["slow"].seconds == pytest.approx(2.0 * seconds, rel=0.2), name
        assert known.demands[name]["fast"].seconds == pytest.approx(seconds, rel=0.2), name
    felt = {name: known.demands[name]["fast"].pressure or 0.0 for name in MODELS}
    assert sorted(felt, key=felt.__getitem__) == sorted(PRESSURE, key=PRESSURE.__getitem__)
    assert known.cards["fast"].fingerprint_s["resnet50"] == known.demands["resnet50"]["fast"].seconds


def test_facts_of_held_out_sets_do_not_reach_the_fit(measured: Path) -> None:
    read = profiles.read([measured])
    train = read.folds(5, seed=0) != 0
    before = model.fit(read.only(train))
    changed = profiles.read([measured])
    for at in np.flatnonzero(~train):
        changed.seconds[at] = changed.seconds[at] * 100.0
    after = model.fit(changed.only(train))
    asked = rows(before.catalogue, read.only(~train).asked())
    assert (before.predict(asked) == after.predict(rows(after.catalogue, read.only(~train).asked()))).all()


def test_the_graph_is_the_forest_and_passes_the_services_checks(folder: Path, measured: Path) -> None:
    assert (folder / model_file("runtime")).stat().st_size < 8_000_000
    files = {name: (folder / name).read_bytes() for name in (model_file("runtime"), model_golden_file("runtime"))}
    policy = sample_bundle.build(problems.spec("jobs"), hidden=8)[POLICY_FILE]
    parts = (SPEC, files[model_file("runtime")], files[model_golden_file("runtime")])
    assembled = sample_bundle.assemble(problems.spec("jobs"), policy, models={"runtime": parts})
    assert [one.name for one in bundle.check(assembled, problems.spec).models] == ["runtime"]
    read = profiles.read([measured])
    fitted, _, _ = store.made(read)
    asked = rows(fitted.catalogue, read.asked())
    found = graph.open_session(files[model_file("runtime")]).run(None, {ROWS: asked})[0]
    assert found == pytest.approx(np.exp(fitted.predict(asked)), rel=1e-4)


def test_unseen_sets_are_predicted_well_and_intervals_hold_them(folder: Path, tmp_path: Path) -> None:
    test = tmp_path / "test.csv"
    test.write_text(finished.write_profiles(ended(seed=1)))
    found = command.evaluate(folder, profiles.read([test]))
    assert found["mape"] < 4.0
    assert found["coverage90"] > 80.0
    assert found["unknown_sets"] == 0


def test_a_model_that_was_left_out_lies_within_the_wider_interval(measured: Path) -> None:
    read = profiles.read([measured])
    train, test, alone = unseen.without_model(read, "vgg")
    assert not any("vgg" in names for _, names in train.sets)
    fitted, figures, _ = store.made(train)
    predictor = RuntimePredictor(lambda asked: np.exp(fitted.predict(asked)), fitted.catalogue, figures)
    for card, seconds in alone.items():
        predictor.learn(card, "vgg", Demand(seconds))
    inside, narrow = [], []
    for (card, names), times in zip(test.sets, test.seconds, strict=True):
        (told,) = predictor.predict([(card, names)])
        plain = np.exp(fitted.predict(rows(predictor.catalogue, [(card, names)])))
        at = names.index("vgg")
        inside.append(told.lower_s[at] <= times[at] <= told.upper_s[at])
        narrow.append(plain[at, 1] <= times[at] <= plain[at, 2])
    assert np.mean(inside) > 0.85 > np.mean(narrow)


def test_what_cannot_be_left_out_has_no_figure(measured: Path) -> None:
    read = profiles.read([measured])
    assert len(read) > model.FEWEST_SETS
    few = unseen.margins(read.only(np.arange(len(read)) < model.FEWEST_SETS))
    assert few == {}


def test_the_last_line_of_evaluate_is_json(folder: Path, measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["evaluate", "--model", str(folder), "--profiles", str(measured), "--json"]) == 0
    last = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert {"mape", "median_ape", "coverage90"} <= last.keys()


def test_sets_with_a_model_that_was_never_seen_are_counted_apart(folder: Path, tmp_path: Path) -> None:
    some = [finished.Ended(1.8e9, "fast", ("new", "vgg"), (1.0, 2.0)), *ended()[:3]]
    test = tmp_path / "test.csv"
    test.write_text(finished.write_profiles(some))
    assert command.evaluate(folder, profiles.read([test]))["unknown_sets"] == 1


def champion(tmp_path: Path, folder: Path) -> Path:
    parts = tuple((folder / name).read_bytes() for name in (model_file("runtime"), model_golden_file("runtime")))
    policy = sample_bundle.build(problems.spec("jobs"), hidden=8)[POLICY_FILE]
    files = sample_bundle.assemble(problems.spec("jobs"), policy, models={"runtime": (SPEC, *parts)})
    (tmp_path / "bundle").mkdir()
    for name, data in files.items():
        (tmp_path / "bundle" / name).write_bytes(data)
    return tmp_path


def test_a_model_worse_than_the_live_one_is_not_shipped(folder: Path, measured: Path, tmp_path: Path) -> None:
    live = champion(tmp_path, folder)
    read = profiles.read([measured])
    kept = gate.judge(read, {"mape": 50.0}, live)
    assert kept.keep is not None
    assert kept.keep[model_file("runtime")] == (folder / model_file("runtime")).read_bytes()
    assert "stays" in kept.why
    assert gate.judge(read, {"mape": 0.1}, live).keep is None
    assert gate.judge(read, {"mape": 50.0}, tmp_path / "nothing").keep is None


def test_on_newer_jobs_the_live_model_is_judged_by_what_it_says_of_them(folder: Path, tmp_path: Path) -> None:
    live = champion(tmp_path, folder)
    newer = tmp_path / "newer.csv"
    newer.write_text(finished.write_profiles(ended(seed=2, start_s=1.8e9, slower=2.0)))
    verdict = gate.judge(profiles.read([newer]), {"mape": 50.0}, live)
    assert verdict.keep is None, "the cards have become slower: the live model is far off"
    assert "measured since" in verdict.why


def test_the_night_ships_nothing_without_profiles_and_a_model_with_them(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.night() == {"shipped": "none"}
    assert (tmp_path / "data/models/jobs/runtime/none.json").exists()
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "sets.csv").write_bytes(measured.read_bytes())
    assert command.night()["shipped"] == "challenger"
    assert store.load(tmp_path / "data/models/jobs/runtime").measured["mape"] < 5.0
    assert not (tmp_path / "data/models/jobs/runtime/none.json").exists()


def test_bad_input_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(LoadmasterError, match="a folder that `runtime_model fit` wrote"):
        store.load(tmp_path)
    few = tmp_path / "few.csv"
    few.write_text(finished.write_profiles(ended()[:5]))
    with pytest.raises(LoadmasterError, match="at least 50"):
        model.fit(profiles.read([few]))
    empty = tmp_path / "empty.csv"
    empty.write_text(finished.write_profiles([]))
    with pytest.raises(LoadmasterError):
        profiles.read([empty])


def test_the_relative_median_makes_the_relative_error_smallest() -> None:
    logs = np.log(np.array([[10.0, 10.0, 10.0, 21.0, 20.0, 22.0, 20.0]], np.float32))
    assert np.exp(quantile(logs, 0.5)) == pytest.approx([20.0])
    assert np.exp(quantile(logs, 0.5, relative=True)) == pytest.approx([10.0])
