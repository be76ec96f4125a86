"""``loadmaster view``: the page as a file, what it refuses, and what a browser makes of it."""

import re
import subprocess
import sys
import time

import msgspec
import pytest

from sched_env.view.command import main
from wire.contracts.decision import DecisionLine
from wire.errors import ConfigError, ContractError, TraceError


def page_of(tmp_path, *runs):
    out = tmp_path / "page.html"
    assert main([*map(str, runs), "--html", str(out)]) == 0
    return out


def test_one_file_that_asks_nobody_for_anything(recorded, tmp_path, capsys):
    text = page_of(tmp_path, recorded("best"), recorded("first")).read_text()
    assert "600 decisions" in capsys.readouterr().out
    assert "default-src 'none'" in text
    markup = re.sub(r"<script type=.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"https?://|//[a-z]+\.|<link|src=|@import|url\(", markup)
    assert "innerHTML" not in markup


def test_names_from_a_trace_cannot_break_out_of_the_page(tmp_path):
    log = decision_log(tmp_path, request="</script><script>alert(1)</script>")
    assert "</script><script>alert" not in page_of(tmp_path, log).read_text()


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda folder: ["absent.parquet"], ConfigError, "there is no file absent.parquet"),
        (lambda folder: [write(folder / "x.parquet", b"nothing")], ContractError, "cannot be read"),
        (lambda folder: [write(folder / "x.jsonl", b'{"at": 1}\n')], ContractError, "line 1"),
        (lambda folder: [write(folder / "x.jsonl", b"")], ContractError, "no decision"),
        (lambda folder: ["a", "b", "c"], ConfigError, "one, or two"),
    ],
)
def test_what_is_no_run_is_refused_and_nothing_is_written(tmp_path, make, error, says):
    out = tmp_path / "page.html"
    with pytest.raises(error, match=says):
        main([*map(str, make(tmp_path)), "--html", str(out)])
    assert not out.exists()


def write(path, data):
    path.write_bytes(data)
    return path


def decision_log(folder, request="pod-1", count=12):
    line = DecisionLine(
        at="2026-11-16T08:19:16.954Z", problem="functions", digest="sha256:" + "a" * 64, counter=3, request=request,
        features="0" * 16, candidates=3, feasible=3, chosen="node-b", runner_up="node-a",
        top=[("node-b", 0.9), ("node-a", 0.4)], propensity=1.0, fallback=None, reason="the policy's best of 3",
    )  # fmt: skip
    path = folder / "decisions.jsonl"
    half = b'{"at": "2026'  # the service is writing
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for _ in range(count)) + half)
    return path


def opened(browser, page, **how):
    tab = browser.new_page(**how)
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: complaints.append(request.url) if not request.url.startswith("file:") else None)
    tab.goto(page.as_uri())
    tab.locator("body[data-ready=yes]").wait_for()
    return tab, complaints


@pytest.mark.browser
def test_two_runs_play_step_and_find_their_differences(browser, recorded, tmp_path):
    tab, complaints = opened(browser, page_of(tmp_path, recorded("best"), recorded("first")))
    where = tab.locator("#where")
    assert where.inner_text() == "1 / 300"
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Shift+ArrowRight")
    assert where.inner_text() == "102 / 300"
    tab.keyboard.press("e")
    assert where.inner_text() == "151 / 300"
    tab.keyboard.press("Home")
    tab.keyboard.press("d")
    chosen = [tab.locator(".pane").nth(k).locator(".who").inner_text() for k in (0, 1)]
    assert chosen[0] != chosen[1]
    tab.select_option("#speed", "30")
    tab.click("#play")
    deadline = time.monotonic() + 60
    begun = tab.evaluate("player.frame")
    while tab.evaluate("player.frame") <= begun + 10:
        assert time.monotonic() < deadline
        tab.wait_for_timeout(50)
    tab.click("#play")
    stopped = where.inner_text()
    tab.wait_for_timeout(100)
    assert where.inner_text() == stopped
    tab.keyboard.press("End")
    assert "joined" in tab.locator(".pane").first.inner_text()
    tab.locator(".scrolled canvas").first.hover(position={"x": 12, "y": 12})
    assert "server 0 half 0" in tab.locator("#tip").inner_text()
    assert "cpu" in tab.locator("#tip").inner_text()
    assert complaints == []
    tab.close()


@pytest.mark.browser
def test_jumping_and_stepping_show_the_same_state(browser, recorded, tmp_path):
    tab, complaints = opened(browser, page_of(tmp_path, recorded("functions")))
    same = tab.evaluate(
        """() => {
          const run = player.runs[0], seen = [];
          for (let f = 0; f < run.frames; f++) { run.seek(f); seen.push(run.use.slice()); }
          const same = (f) => { run.seek(f); return run.use.every((value, i) => value === seen[f][i]); };
          return [250, 3, 299, 0, 151, 149].every(same);
        }"""
    )
    assert same
    assert complaints == []
    tab.close()


@pytest.mark.browser
@pytest.mark.parametrize("name", ["pods", "workflow", "jobs"])
def test_every_problem_is_drawn_in_dark_and_on_a_phone(browser, recorded, tmp_path, name):
    tab, complaints = opened(
        browser, page_of(tmp_path, recorded(name)), viewport={"width": 360, "height": 740}, color_scheme="dark"
    )
    tab.keyboard.press("End")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    painted = tab.evaluate(
        """() => [...document.querySelectorAll('canvas')].filter((canvas) => !canvas.hidden).map((canvas) => {
          const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
          return new Set(new Uint32Array(data.buffer)).size;
        })"""
    )
    assert len(painted) == 3
    assert min(painted) > 3
    assert complaints == []
    tab.close()


@pytest.mark.browser
def test_live_decisions_and_old_files_open_in_the_same_page(browser, recorded, older, tmp_path):
    tab, complaints = opened(browser, page_of(tmp_path, decision_log(tmp_path)))
    assert tab.locator("#where").inner_text() == "1 / 12"
    assert "the policy's best of 3" in tab.locator(".note").inner_text()
    assert "node-b" in tab.locator(".score.chosen").inner_text()
    tab.close()
    tab, more = opened(browser, page_of(tmp_path, older(recorded("best"), tmp_path / "old.parquet", 1)))
    tab.keyboard.press("End")
    assert "server" in tab.locator(".who").inner_text()
    assert complaints == more == []
    tab.close()


def test_it_serves_the_page_on_this_machine_alone(recorded):
    import urllib.error
    import urllib.request

    command = [sys.executable, "-m", "sched_env.view", str(recorded("best")), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[0]
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(address, timeout=10) as answer:
                assert b"Loadmaster replay" in answer.read()
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(address + "elsewhere", timeout=10)
        finally:
            process.terminate()


def snapshot_of(folder, **changes):
    """A cluster of two nodes as the service answers it: one pod measured three times, one not at all."""
    node = {"cpu_cores": 4.0, "mem_gib": 8.0, "price_usd_per_hour": 1.0, "active": True}
    pod = {"workload": "web", "cpu_cores": 2.0, "mem_gib": 2.0, "movable": True}
    document = {
        "cluster": "east",
        "taken_at": "2026-11-16T02:00:00Z",
        "step_s": 60,
        "nodes": [{"name": name, **node} for name in ("node-a", "node-b")],
        "pods": [
            {"name": "shop/web-1", "node": "node-b", "cpu_used": [1.0, 3.0, 2.0], "mem_used": [1.0, 1.0, 4.0], **pod},
            {"name": "shop/web-2", "node": "node-a", "cpu_used": [], "mem_used": [], **pod},
        ],
        "schema": 1,
    } | changes
    path = folder / "east.json"
    path.write_bytes(msgspec.json.encode(document))
    return path


@pytest.mark.browser
def test_a_snapshot_of_a_watched_cluster_opens_in_the_same_page(browser, tmp_path):
    tab, complaints = opened(browser, page_of(tmp_path, snapshot_of(tmp_path)))
    assert tab.locator("#where").inner_text() == "1 / 3"
    assert "2 pods on 2 of 2 nodes, 2 movable; of 1 it is not known what they used" in tab.locator(".note").inner_text()
    tab.keyboard.press("ArrowRight")
    # cpu and memory asked for, then used, of both nodes at the second sample
    assert tab.evaluate("[...player.runs[0].use]") == [0.5, 0.25, 0, 0, 0.5, 0.25, 0.75, 0.125]
    tab.locator(".scrolled canvas").focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    tip = tab.locator("#tip").inner_text()
    assert "node-b" in tip
    assert "cpu used 75.0 %" in tip
    assert "shop/web-1" in tip
    assert complaints == []
    tab.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes": []}, "no node with cpu"),
        ({"taken_at": "yesterday"}, "RFC 3339"),
        ({"schema": 9}, "snapshot answered"),
    ],
)
def test_a_snapshot_that_is_none_is_refused(tmp_path, changes, words):
    with pytest.raises(TraceError, match=words):
        main([str(snapshot_of(tmp_path, **changes)), "--html", str(tmp_path / "page.html")])
    assert not (tmp_path / "page.html").exists()
