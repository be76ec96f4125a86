"""The lifetime model from lives to bundle: fitted, exported, judged, and shipped only where lives are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import windows
from pipeline.datasets import lifetimes
from pipeline.lifetime_model import command, gate, model, seen
from pipeline.lifetime_model.figures import figures, pinball, rows
from sched_env import problems
from sched_env.vm.lives import MEDIAN, QUANTILES, ROWS, SPEC, asked
from wire import bundle, sample_bundle
from wire.contracts.bundle import POLICY_FILE, model_file, model_golden_file
from wire.errors import LoadmasterError

SHORT, LONG, DAYS = 600.0, 36_000.0, 4.0


def lives(count: int = 4000, seed: int = 0, *, known: bool = True, days: float = 4.0) -> seen.Lives:
    """Return lives of two common flavours and a rare one; known by flavour and hour, or not at all."""
    rng = np.random.default_rng(seed)
    created = np.sort(rng.uniform(0.0, days * 86_400.0, count))
    cpu = rng.choice([1.0, 2.0, 16.0], count, p=[0.6, 0.39, 0.01])
    typical = np.where(cpu == 1.0, SHORT, LONG) * np.where(created % 86_400.0 < 21_600.0, 4.0, 1.0)
    life = (typical if known else 5_000.0) * np.exp(rng.normal(0.0, 0.1 if known else 1.5, count))
    left = days * 86_400.0 - created
    return seen.Lives(cpu, 2.0 * cpu, created, np.minimum(life, left), life <= left, left)


def test_quantiles_are_by_flavour_and_hour() -> None:
    fitted = model.fit(lives())
    hours = np.array([1.0, 13.0]) * 3600.0
    told = fitted.predict(asked(np.array([1.0, 1.0]), np.array([2.0, 2.0]), hours))
    assert told[:, MEDIAN] == pytest.approx([4.0 * SHORT, SHORT], rel=0.05)
    assert (np.diff(told, axis=1) > 0).all()
    assert told[1, -1] / told[1, 0] == pytest.approx(np.exp(2 * 1.2816 * 0.1), rel=0.1)


def test_who_is_rare_or_unknown_is_expected_to_live_like_all() -> None:
    fitted = model.fit(lives())
    assert fitted.flavours.tolist() == [[1.0, 2.0], [2.0, 4.0]]
    rare, unknown = fitted.predict(asked(np.array([16.0, 77.0]), np.array([32.0, 1.0]), np.zeros(2)))
    np.testing.assert_array_equal(rare, unknown)
    np.testing.assert_array_equal(unknown, fitted.tables[-1, 0, 0])


def test_a_quarter_of_the_day_with_few_lives_takes_those_of_the_flavour() -> None:
    some = lives()
    night = (some.created_s % 86_400.0 < 21_600.0) & (some.cpu == 1.0)
    fitted = model.fit(some.only(~night))
    tables = fitted.tables[0]
    assert tables[0, 0, MEDIAN] == pytest.approx(SHORT, rel=0.05)


def test_lives_that_have_not_ended_are_known_to_be_longer() -> None:
    rng = np.random.default_rng(0)
    life, left = rng.exponential(1000.0, 20_000), np.full(20_000, 1500.0)
    ones = np.ones(20_000)
    some = seen.Lives(ones, ones, 0 * ones, np.minimum(life, left), life <= left, left)
    found = model.remaining(some, np.zeros((model.AGES_S.size, len(QUANTILES))))
    assert found[0, MEDIAN] == pytest.approx(1000.0 * np.log(2.0), rel=0.03)
    # What is left of such a life is the same at every age, as long as anybody was seen.
    assert found[2, 1] == pytest.approx(-1000.0 * np.log(0.75), rel=0.06)


def test_what_is_left_is_less_as_a_vm_lives_on() -> None:
    fitted = model.fit(lives())
    noon = np.full(2, 13.0 * 3600.0)
    row = asked(np.full(2, 2.0), np.full(2, 4.0), noon)
    row[1, 3] = 1000.0
    young, older = fitted.predict(row)[:, MEDIAN]
    assert older == pytest.approx(young - 1000.0, rel=0.02)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``fit`` writes of a file of lives."""
    out = tmp_path_factory.mktemp("model")
    some = lives()
    table = np.stack([some.cpu, some.mem, some.created_s, some.life_s, some.ended], axis=1)
    np.savetxt(out / "lives.csv", table, delimiter=",", header=",".join(seen.COLUMNS), comments="")
    assert command.main(["fit", "--lives", str(out / "lives.csv"), "--out", str(out / "lifetime")]) == 0
    return out / "lifetime"


def test_the_graph_is_the_model_to_the_bit(folder: Path) -> None:
    fitted, opened = model.fit(lives()), lifetimes.opened(folder)
    assert opened is not None
    rng = np.random.default_rng(1)
    asked_rows = np.stack(
        [rng.choice([1.0, 2.0, 16.0, 3.0], 5000), rng.choice([2.0, 4.0, 32.0], 5000), rng.uniform(0.0, 24.0, 5000),
         rng.choice([0.0, 59.9, 60.0, 1e4, 1e7], 5000)],
        axis=1,
    ).astype(np.float32)  # fmt: skip
    np.testing.assert_array_equal(opened({ROWS: asked_rows}), fitted.predict(asked_rows), strict=True)


def test_the_folder_goes_into_a_bundle_as_it_is(folder: Path) -> None:
    spec = problems.spec("vm")
    policy = sample_bundle.build(spec, hidden=8)[POLICY_FILE]
    files = (folder / model_file("lifetime")).read_bytes(), (folder / model_golden_file("lifetime")).read_bytes()
    checked = bundle.check(sample_bundle.assemble(spec, policy, models={"lifetime": (SPEC, *files)}))
    assert [one.name for one in checked.models] == ["lifetime"]


def test_evaluate_says_how_far_off_the_graph_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = command.main(["evaluate", "--model", str(folder), "--lives", str(folder.parent / "lives.csv"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (said, found["lives"]) == (0, 4000.0)
    assert found["log_rmse"] < 0.35
    assert found["between_10_and_90"] == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"cpu,mem\n1,2\n", "line 1: column 'created_s' is missing"),
        (b"", "line 1: column 'cpu' is missing"),
        (b"cpu,mem,created_s,life_s,ended\n", "no usable rows"),
        (b"cpu,mem,created_s,life_s,ended\n1,2,0,5,1\n1,2,0,-5,1\n", "line 3: life_s is below 0"),
        (b"cpu,mem,created_s,life_s,ended\n1,2,0,5,yes\n", "line 2: could not convert"),
        (b"cpu,mem,created_s,life_s,ended\n1,2,nan,5,1\n", "line 2: created_s is not finite"),
        (b"cpu,mem,created_s,life_s,ended\n1,2,0,5,2\n", "line 2: ended is neither 1 nor 0"),
        (b"\x1f\x8b\xb8\x00", "cannot be read"),
        (None, "does not exist"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, data: bytes | None, said: str) -> None:
    if data is not None:
        (tmp_path / "lives.csv").write_bytes(data)
    with pytest.raises(LoadmasterError, match=said):
        seen.read(tmp_path / "lives.csv")


def test_a_folder_without_a_model_and_too_few_lives_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadmasterError, match="a folder that `lifetime_model fit` wrote"):
        command.evaluate(tmp_path, lives(200))
    with pytest.raises(LoadmasterError, match="at least 100"):
        model.fit(lives(99))


def test_the_loss_is_of_what_could_be_seen() -> None:
    ones = np.ones(2)
    some = seen.Lives(ones, ones, 0 * ones, np.array([50.0, 100.0]), np.array([True, False]), np.full(2, 100.0))
    told = np.tile(np.array([10.0, 20.0, 50.0, 1e5, 1e6], np.float32), (2, 1))
    loss = pinball(some, told)
    farther = told.copy()
    farther[:, 3:] *= 10.0  # beyond what could be seen: no difference
    np.testing.assert_array_equal(pinball(some, farther), loss)
    found = figures(some, told)
    assert found["between_10_and_90"] == 1.0
    assert found["log_mae"] == pytest.approx(np.log(101 / 51) / 2)


def losses(known: bool) -> tuple[seen.Lives, np.ndarray, np.ndarray]:
    train, judged = lives(known=known), lives(2000, seed=1, known=known, days=1.0)
    answers = (each.predict(rows(judged)) for each in (model.fit(train), model.plain(train)))
    return judged, *(pinball(judged, answer) for answer in answers)  # type: ignore[return-value]


def test_a_model_ships_where_lives_are_known_and_nowhere_else() -> None:
    known, unknown = (gate.judge(*losses(each)) for each in (True, False))
    assert known.ships
    assert known.measured["upper"] < -gate.WORTH
    assert not unknown.ships
    assert "not known well enough" in unknown.why


def test_better_than_nothing_is_not_enough() -> None:
    judged, _, plain = losses(known=True)
    verdict = gate.judge(judged, 0.9 * plain, plain)
    assert verdict.measured["upper"] < 0.0
    assert not verdict.ships


def test_of_a_few_lives_nothing_is_concluded() -> None:
    judged, ours, plain = losses(known=True)
    verdict = gate.judge(judged.only(np.arange(len(ours)) < 50), ours[:50], plain[:50])
    assert not verdict.ships
    assert "are needed to conclude anything" in verdict.why


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any, event: Any, at: Any) -> Any:
    """Make the windows of some days in which VMs come and go, and go to their folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))

    def make(known: bool = True, problems: str = "[vm]", count: int = 2500) -> Path:
        some = lives(count, known=known, days=DAYS)
        rows = []
        for number in range(count):
            size = {"cpu_cores": some.cpu[number], "mem_gib": some.mem[number]}
            begin, end = some.created_s[number], some.created_s[number] + some.life_s[number]
            rows.append(event(f"vm-{number}", begin, "create", None, "vm", **size))
            if some.ended[number]:
                rows.append(event(f"vm-{number}", end, "delete", None, "vm", **size))
        for day in range(int(DAYS)):
            date = at(day * 86_400.0)
            today = [row for row in rows if row["time"].date() == date.date()]
            write(tmp_path / "data" / "windows", "events", today, date)
        (tmp_path / "params.yaml").write_text(f"problems: {problems}\nsplits: {{}}\n")
        return tmp_path

    return make


def test_a_night_ships_a_model_of_lives_that_are_known(cluster: Any) -> None:
    root = cluster()
    assert command.main(["night"]) == 0
    found = lifetimes.opened(root / "data/models/vm/lifetime")
    assert found is not None
    assert json.loads(found.metadata["measured"])["against_plain"] < -gate.WORTH
    metrics = json.loads((root / "data/metrics/lifetime_model.json").read_text())
    assert metrics["pinball"] < metrics["plain_pinball"]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({"known": False}, "not known well enough"),
        ({"problems": "[functions]"}, "this run is not about vm"),
        ({"count": 40}, "lives in the train windows"),
    ],
)
def test_a_night_ships_none_and_says_why(cluster: Any, made: dict[str, Any], why: str) -> None:
    root = cluster(**made)
    assert command.main(["night"]) == 0
    out = root / "data/models/vm/lifetime"
    assert [path.name for path in out.iterdir()] == ["none.json"]
    assert why in json.loads((out / "none.json").read_text())["why"]
    assert lifetimes.opened(out) is None
    assert (root / "data/metrics/lifetime_model.json").exists()


def test_nothing_of_the_test_windows_is_looked_at(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster()
    asked_for = []
    of_span = seen.of_span
    monkeypatch.setattr(seen, "of_span", lambda folder, span: (asked_for.append(span), of_span(folder, span))[1])
    command.night()
    train, validation = asked_for
    assert train.end <= validation.start
    some = of_span(Path("data/windows"), validation)
    assert (some.life_s <= some.left_s).all()
    assert validation.end < windows.covered(Path("data/windows")).end
