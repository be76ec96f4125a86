"""How fast the replay page opens and steps with 100,000 decisions on 5,000 servers, in a real Chromium.

Records the run (worst_fit on vm/fading, so that every server is used: two episodes until they are full), unless
``--run`` names one that is there, writes the page, opens it from disk, and plays it. Opening is from navigation to the
first drawn decision; stepping is JavaScript and canvas time for each decision, drawn one after another, and the frames
that the browser really showed while playing at 120 decisions a second. Targets: under 3 s, 30 frames a second. Beside
each time that passed stands the CPU time of all of Chromium's processes, which other work on the machine changes less.

Writes docs/results/view_speed.json; the last line of the output is the same as one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from sched_env.rollout import run_episodes
from sched_env.view.command import main as view

SERVERS, REQUESTS = 5000, 110_000
OPEN_TARGET_S, FRAMES_TARGET = 3.0, 30.0
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
STEP = """() => {
  const times = [];
  for (let k = 0; k < 300; k++) {
    const began = performance.now();
    go(player.frame + 1);
    times.push(performance.now() - began);
  }
  times.sort((a, b) => a - b);
  return { median_ms: times[150], p95_ms: times[285] };
}"""
JUMP = """() => {
  const times = [];
  for (let k = 0; k < 60; k++) {
    const frame = Math.floor((k * 7919 * 13) % player.runs[0].frames), began = performance.now();
    go(frame);
    times.push(performance.now() - began);
  }
  times.sort((a, b) => a - b);
  return { median_ms: times[30], p95_ms: times[57] };
}"""


def record(path: Path) -> None:
    """Record the run."""
    keys: dict[str, Any] = {"servers": SERVERS, "synthetic_vms": REQUESTS, "start_min": 0, "start_max": 2}
    run_episodes("vm/fading", "worst_fit", [0, 1], record=path, **keys)


def chromium_cpu_s() -> float:
    """CPU seconds of all processes of the browser so far."""
    spent = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            spent += times.user + times.system
    return spent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="a replay file that is there already")
    parser.add_argument("--note", default="", help="what that file is, for the result")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        sys.exit("no chromium on this machine: scripts/install-test-tools.sh")
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or Path(folder) / "run.parquet"
        if options.run is None:
            record(run)
        page = Path(folder) / "page.html"
        began = time.process_time()
        view([str(run), "--html", str(page)])
        packed_s = time.process_time() - began
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
            opened, opened_cpu = [], []
            for _ in range(3):
                tab = browser.new_page(viewport={"width": 1440, "height": 900})
                began, cpu = time.perf_counter(), chromium_cpu_s()
                tab.goto(page.as_uri())
                tab.locator("body[data-ready=yes]").wait_for(timeout=120_000)
                opened.append(time.perf_counter() - began)
                opened_cpu.append(chromium_cpu_s() - cpu)
                if len(opened) < 3:
                    tab.close()
            size = tab.evaluate("[player.runs[0].frames, player.runs[0].P]")
            tab.evaluate("go(50000)")
            step, jump = tab.evaluate(STEP), tab.evaluate(JUMP)
            tab.wait_for_timeout(1000)
            tab.select_option("#speed", "120")
            before = tab.evaluate("(go(50000), player.drawn)")
            tab.evaluate("play(true)")
            began, cpu = time.perf_counter(), chromium_cpu_s()
            tab.wait_for_timeout(6000)
            frames = tab.evaluate("player.drawn") - before
            shown, frame_cpu_ms = frames / (time.perf_counter() - began), 1e3 * (chromium_cpu_s() - cpu) / frames
            browser.close()
        report = {
            "benchmark": "view_speed",
            "command": "python benchmarks/view_speed.py",
            "machine": f"{platform.machine()}, CPython {platform.python_version()}, {os.cpu_count()} CPUs",
            "load_average": [round(value, 1) for value in os.getloadavg()],
            "run": options.note or "recorded by this command",
            "decisions": size[0],
            "places": size[1],
            "page_mb": round(page.stat().st_size / 1e6, 1),
            "pack_cpu_s": round(packed_s, 1),
            "open_s": [round(value, 2) for value in opened],
            "open_cpu_s": [round(value, 2) for value in opened_cpu],
            "step_ms": {name: round(value, 2) for name, value in step.items()},
            "jump_ms": {name: round(value, 2) for name, value in jump.items()},
            "shown_frames_per_s": round(shown, 1),
            "shown_frame_cpu_ms": round(frame_cpu_ms, 1),
            "targets": {"open_s": OPEN_TARGET_S, "frames_per_s": FRAMES_TARGET},
            "met": statistics.median(opened) <= OPEN_TARGET_S and shown >= FRAMES_TARGET,
        }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "view_speed.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    return 0 if report["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
