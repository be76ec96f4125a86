"""A candidate in the shadow of what is live: the same calls, its own choices, on the approver's page."""

import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest

from pipeline import paths, shadow
from pipeline.contracts.shadow import Shadowed
from sched_env import problems
from wire import policy, sample_bundle
from wire.contracts.place import PlacementRequest
from wire.contracts.sample import FILE_NAME, SampledLine

NOW_S = datetime(2026, 11, 18, 2, 30, tzinfo=UTC).timestamp()
CONFIG = shadow.ShadowConfig(windows=12, calls=100)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Two policies that do not agree: one is live, one is the candidate."""
    folders = {}
    for name, seed in (("live", 1), ("candidate", 2)):
        folders[name] = tmp_path_factory.mktemp(name)
        for file, data in sample_bundle.build(problems.spec("functions"), seed=seed, hidden=8).items():
            (folders[name] / file).write_bytes(data)
    return folders


def a_call(rng, at_s, decide, **changes):
    """A call as the service would have kept it, decided by a policy."""
    names = [f"n{k}" for k in range(8)]
    fields = problems.get("functions").state_fields
    columns = {name: rng.uniform(0, 1, 8) for name in fields}
    columns |= {
        "cpu_capacity": np.full(8, 16.0),
        "mem_capacity": np.full(8, 64.0),
        "cpu_deployed": rng.uniform(0, 8, 8),
    }
    seen = problems.get("functions").build(columns, {"cpu": 1.0, "mem": 1.0})
    scores = decide(seen.candidates[None], seen.request[None], seen.mask[None])[0]
    chosen = names[int(np.where(seen.mask, scores, -np.inf).argmax())]
    line = SampledLine(
        at=datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds"), problem="functions",
        digest="sha256:live", request=PlacementRequest("r", {"cpu": 1.0, "mem": 1.0}), names=names,
        columns={name: column.tolist() for name, column in columns.items()}, chosen=chosen, fallback=None,
    )  # fmt: skip
    return msgspec.structs.replace(line, **changes)


@pytest.fixture
def calls(bundles):
    rng, live = np.random.default_rng(4), policy.load(bundles["live"])
    return [a_call(rng, NOW_S - 3000 + 30 * number, live) for number in range(60)]


def test_what_is_live_agrees_with_itself_in_every_call(bundles, calls):
    seen = shadow.shadow("functions", bundles["live"], calls, CONFIG)
    assert (seen.calls, seen.agreed, seen.close, seen.skipped) == (60, 60, 60, 0)
    assert (seen.fields, seen.examples, seen.ahead) == ([], [], None)
    assert "otherwise in 0.0 % of 60 calls" in shadow.headline(seen)


def test_what_another_would_have_done_is_counted_and_told_field_by_field(bundles, calls):
    seen = shadow.shadow("functions", bundles["candidate"], calls, CONFIG)
    candidate = policy.load(bundles["candidate"])
    otherwise = 0
    for line in calls:
        columns = {name: np.array(values) for name, values in line.columns.items()}
        one = problems.get("functions").build(columns, line.request.fields)
        scores = candidate(one.candidates[None], one.request[None], one.mask[None])[0]
        otherwise += line.names[int(np.where(one.mask, scores, -np.inf).argmax())] != line.chosen
    assert 0 < otherwise < 60
    assert seen.calls - seen.agreed == otherwise
    assert seen.answered_by == {"sha256:live": 60}
    assert len(seen.examples) == shadow.EXAMPLES
    assert all(one.rank > 1 and one.live != one.candidate for one in seen.examples)
    assert all(one.score > one.score_live for one in seen.examples)
    assert seen.ahead > 0
    assert 0 < len(seen.fields) <= shadow.SHOWN_FIELDS
    page = shadow.markdown(seen, {"cpu_deployed": "cores"})
    assert f"otherwise in {100 * otherwise / 60:.1f} % of 60 calls" in page
    assert "sha256:live" in page


def test_only_calls_of_the_last_windows_and_of_this_problem_count_whatever_else_lies_there(tmp_path, bundles, calls):
    live = policy.load(bundles["live"])
    old = a_call(np.random.default_rng(1), NOW_S - 12 * 300 - 1, live)
    other = msgspec.structs.replace(calls[0], problem="vm")
    lines = [msgspec.json.encode(one) for one in (old, other, *calls)]
    (tmp_path / f"{FILE_NAME}.2").write_bytes(b"\n".join(lines[:20]) + b'\n{"at": "half a li')
    (tmp_path / f"{FILE_NAME}.1").write_bytes(b"\n".join(lines[20:]) + b"\n[]\n")
    found = list(shadow.sampled(tmp_path, "functions", NOW_S - 12 * 300))
    assert [one.at for one in found] == [one.at for one in calls], "oldest first"
    assert list(shadow.sampled(tmp_path / "nowhere", "functions", 0.0)) == []


def test_of_very_many_calls_some_are_compared_spread_evenly(bundles, calls):
    seen = shadow.shadow("functions", bundles["live"], calls, shadow.ShadowConfig(windows=12, calls=7))
    assert (seen.calls, seen.recorded) == (7, 60)
    assert (seen.first, seen.last) == (calls[0].at, calls[-1].at)


def test_a_call_that_cannot_be_compared_is_counted_and_not_guessed(bundles, calls):
    gone = msgspec.structs.replace(calls[0], chosen="a node that was not asked about")
    full = {**calls[1].columns, "cpu_capacity": [0.0] * 8}
    nowhere = msgspec.structs.replace(calls[1], columns=full)
    seen = shadow.shadow("functions", bundles["live"], [gone, nowhere, *calls[2:]], CONFIG)
    assert (seen.calls, seen.skipped) == (58, 2)
    assert "2 calls could not be compared" in shadow.markdown(seen, {})


def test_heuristics_answers_are_told_apart(bundles, calls):
    by_rule = [msgspec.structs.replace(one, fallback="deadline") for one in calls[:10]]
    seen = shadow.shadow("functions", bundles["live"], [*by_rule, *calls[10:]], CONFIG)
    assert seen.answered_by == {"heuristic": 10, "sha256:live": 50}
    assert "the heuristic 10" in shadow.markdown(seen, {})


def test_names_from_the_network_are_plain_words_on_the_page(bundles, calls):
    hostile = [
        msgspec.structs.replace(
            one,
            request=PlacementRequest("[click](https://evil) | <img>", one.request.fields),
            names=[f"`x`|**{name}**" for name in one.names],
            chosen=f"`x`|**{one.chosen}**",
        )
        for one in calls
    ]
    page = shadow.markdown(shadow.shadow("functions", bundles["candidate"], hostile, CONFIG), {})
    assert "](https://evil)" not in page
    assert "<img>" not in page
    assert all(row.replace("\\|", "").count("|") == 7 for row in page.splitlines() if "evil" in row)


@pytest.fixture
def workspace(tmp_path, monkeypatch, bundles):
    """What the gate leaves: a bundle and a report."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("shadow: {windows: 12}\n")
    paths.BUNDLES.mkdir(parents=True)
    (paths.BUNDLES / "functions").symlink_to(bundles["candidate"])
    (paths.GATE / "functions").mkdir(parents=True)
    (paths.GATE / "functions" / paths.REPORT_JSON).write_text("{}")
    return tmp_path


def test_without_live_traffic_it_says_so_at_once(workspace, capsys):
    assert shadow.main(["--log", str(workspace / "none")]) == 0
    assert "functions: no live traffic was seen in the last 12 windows" in capsys.readouterr().out
    assert "No live traffic was seen" in (paths.SHADOW / "functions" / paths.SHADOW_MARKDOWN).read_text()
    kept = msgspec.json.decode((paths.SHADOW / "functions" / paths.SHADOW_JSON).read_bytes(), type=Shadowed)
    assert (kept.calls, kept.first) == (0, None)


def test_a_task_that_is_run_again_changes_nothing_that_was_recorded(workspace, calls, bundles):
    log = workspace / "log"
    log.mkdir()
    first = shadow.write("functions", CONFIG, log, NOW_S)
    (log / FILE_NAME).write_bytes(b"\n".join(msgspec.json.encode(one) for one in calls))
    assert shadow.write("functions", CONFIG, log, NOW_S) == first
    (paths.BUNDLES / "functions").unlink()
    (paths.BUNDLES / "functions").symlink_to(bundles["live"])
    assert shadow.write("functions", CONFIG, log, NOW_S).calls == 60, "another bundle is another shadow"


def test_a_folder_without_a_verdict_is_named(tmp_path, monkeypatch, capsys):
    from wire.errors import ConfigError

    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("problems: [functions]\n")  # as before there were shadows
    with pytest.raises(ConfigError, match="holds no report"):
        shadow.main([])
    Path("params.yaml").write_text("shadow: {window: 3}\n")
    with pytest.raises(ConfigError, match="window"):
        shadow.main([])


def test_the_page_of_the_approval_says_it_at_the_top():
    from pipeline import brief

    seen = Shadowed("functions", "sha256:1", 288, 200, 200, 0, "a", "b", 150, 190, 0.5, {}, [], [])
    files = {f"reports/gate/functions/{paths.SHADOW_JSON}": json.dumps(msgspec.to_builtins(seen)).encode()}
    live = brief.live_traffic(files, "reports/gate/functions")
    top = brief.body("functions", {"reason": "better", "reference": "champion"}, (), live)
    assert "- Live traffic: it would have chosen otherwise in 25.0 % of 200 calls" in top
    assert "not shadowed" in brief.live_traffic({}, "reports/gate/functions")
    assert "cannot be read" in brief.live_traffic(dict.fromkeys(files, b"{"), "reports/gate/functions")
