"""Renew the pictures of the documentation: ``python scripts/figures.py``.

docs/images/replay.png is ``loadmaster view`` of two rules on the same requests, as a browser shows it. The picture of
the approval comes from a night (docs/images/approval.png; ``make run`` and a person's own browser).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from sched_env.rollout import run_episodes
from sched_env.view.command import main as view

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
START, DECISION = 2013, 5200


def main() -> int:
    """Record, open, photograph."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no chromium on this machine: scripts/install-test-tools.sh")
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for rule in ("best_fit", "first_fit"):
            runs.append(str(Path(folder) / f"{rule}.parquet"))
            run_episodes("vm/recovering", rule, [START], record=Path(runs[-1]), servers=20)
        page = Path(folder) / "page.html"
        view([*runs, "--html", str(page)])
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            tab = browser.new_page(viewport={"width": 1440, "height": 1010})
            tab.goto(f"{page.as_uri()}#frame={DECISION}")
            tab.locator("body[data-ready=yes]").wait_for()
            tab.screenshot(path=IMAGES / "replay.png")
            browser.close()
    sys.stdout.write(f"{IMAGES / 'replay.png'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
