"""Runs to look at, and a browser."""

import shutil

import pyarrow.parquet as pq
import pytest

from sched_env import rollout

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """Replay files by name, written when first asked for."""
    folder = tmp_path_factory.mktemp("runs")
    wanted = {
        "best": ("vm/expanding", "best_fit", {"servers": 2, "max_servers": 6, "horizon": 150}),
        "first": ("vm/expanding", "first_fit", {"servers": 2, "max_servers": 6, "horizon": 150}),
        "pods": ("pods/deploy", "hottest_to_coolest", {"episode_windows": 6}),
        "functions": ("functions/serverless", "best_fit", {"num_nodes": 5, "horizon": 150}),
        "workflow": ("workflow/dag", "heft", {}),
        "jobs": ("jobs/cpn", "min_completion_time", {"episode_jobs": 30}),
    }

    def run(name):
        path = folder / f"{name}.parquet"
        if not path.exists():
            scenario, policy, keys = wanted[name]
            starts = [5, 9] if scenario.startswith("pods") else [5, 90]
            rollout.run_episodes(scenario, policy, starts, record=path, **keys)
        return path

    return run


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium; closed with the file: two of Playwright's loops in one process are one too many."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no chromium on this machine")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def older():
    """Rewrites a file as an older version had it."""

    kept = ["episode", "step", "time_s", "request", "action", "feasible", "reward"]
    kept += ["touched", "touched_features", "top_candidates", "top_scores"]

    def rewrite(path, new, version):
        table = pq.read_table(path)
        since = (b"layout", b"use", b"episodes")
        metadata = {key: value for key, value in table.schema.metadata.items() if key not in since}
        metadata[b"loadmaster.replay"] = str(version).encode()
        pq.write_table(table.select(kept).replace_schema_metadata(metadata), new)
        return new

    return rewrite
