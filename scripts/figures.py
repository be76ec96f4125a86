"""Renew the pictures of the documentation, as a real browser shows them.

python scripts/figures.py                 all of them
python scripts/figures.py replay          docs/images/replay.png: ``loadmaster view`` of two rules on the same requests
python scripts/figures.py approval        docs/images/approval.png: the question of a real night (SIZE=demo)

The night works on the last commit, in a place of its own; nothing of ``var/`` is touched.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
START, DECISION = 2013, 5200
PATIENCE_MS = 180_000
NIGHT_S = 3600.0


@contextmanager
def chromium() -> Iterator[Browser]:
    """Open the browser of this machine."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        sys.exit("no chromium on this machine: scripts/install-test-tools.sh")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


def replay() -> None:
    """Record two runs, open them, photograph."""
    from sched_env.rollout import run_episodes
    from sched_env.view.command import main as view

    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        runs = []
        for rule in ("best_fit", "first_fit"):
            runs.append(str(Path(folder) / f"{rule}.parquet"))
            run_episodes("vm/recovering", rule, [START], record=Path(runs[-1]), servers=20)
        page = Path(folder) / "page.html"
        view([*runs, "--html", str(page)])
        tab = browser.new_page(viewport={"width": 1440, "height": 1010})
        tab.goto(f"{page.as_uri()}#frame={DECISION}")
        tab.locator("body[data-ready=yes]").wait_for()
        tab.screenshot(path=IMAGES / "replay.png")


def approval() -> None:
    """Run a night up to its question and photograph that; nobody answers."""
    from pipeline.local import servers
    from pipeline.local.__main__ import DAG
    from pipeline.local.airflow_api import ENDED, AirflowApi
    from pipeline.workspace import repository

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        settings = servers.LocalSettings.from_environment(repository(), Path(folder))
        os.environ |= {
            name: value
            for name, value in servers.airflow_environment(settings).items()
            if name.startswith("LOADMASTER")
        }
        stack.enter_context(servers.placement_service(settings))
        stack.enter_context(servers.airflow(settings))
        password = servers.credentials(settings)[servers.APPROVER]
        api = AirflowApi(settings.airflow_url, servers.APPROVER, password)
        api.wait_for_dag(DAG)
        run = api.start(DAG, {"size": "demo", "problem": "functions"})
        deadline = time.monotonic() + NIGHT_S
        while not any(task["state"] in ("awaiting_input", "deferred") for task in api.tasks(DAG, run)):
            if time.monotonic() > deadline or api.run_state(DAG, run) in ENDED:
                sys.exit(f"{run} put no question: see its tasks with make run SIZE=demo")
            time.sleep(2)
        photograph(stack.enter_context(chromium()), settings.airflow_url, run, servers.APPROVER, password)


def photograph(browser: Browser, url: str, run: str, user: str, password: str) -> None:
    """Log in and take the picture of a question that waits."""
    tab = browser.new_page(viewport={"width": 1440, "height": 1010})
    tab.set_default_timeout(PATIENCE_MS)
    tab.goto(f"{url}/dags/nightly_retrain/runs/{quote(run, safe='')}/tasks/approve/required_actions")
    tab.locator("input[name=username]").fill(user)
    tab.locator("input[name=password]").fill(password)
    tab.locator("button[type=submit]").click()
    tab.get_by_role("link", name="Look before you answer").wait_for()
    tab.wait_for_timeout(1500)  # its tables are laid out
    tab.screenshot(path=IMAGES / "approval.png")


PICTURES = {"replay": replay, "approval": approval}


def main() -> int:
    """Renew what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help=" or ".join(PICTURES), default=[])
    for name in parser.parse_args().pictures or PICTURES:
        if name not in PICTURES:
            parser.error(f"there is no picture {name!r}; those are {', '.join(PICTURES)}")
        PICTURES[name]()
        sys.stdout.write(f"{IMAGES / name}.png\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
