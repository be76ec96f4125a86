"""Is the simulator true? Writes docs/results/fidelity.{json,md}.

    python benchmarks/fidelity.py [--parts queueing sample traces azure] [--seeds 11 12] [--data ../shared/data]

Four parts; a part that is not asked for stays as it is in the JSON file. ``sample``: every problem replayed as recorded
on the embedded sample. ``traces``, ``azure``: public traces (``fidelity_traces.py``). ``queueing``: a queueing model
that imports nothing of Loadmaster (``benchmarks/queueing.py``) plays a day under each of three schedulers and writes
what a kube-prometheus-stack would have scraped of it. A real Prometheus serves it; ingest, clean and calibrate are the
pipeline's own. Then the test windows are replayed, as recorded and under the other schedulers, beside what the queueing
model makes of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent))
import fidelity_page
import fidelity_problems
import fidelity_traces
from queueing import PRICES, QueueingStack

from pipeline import datasets, fidelity, windows
from pipeline.calibrate.functions import calibrate
from pipeline.clean.command import clean
from pipeline.clean.config import CleanConfig
from pipeline.contracts.evaluation import Promise
from pipeline.datasets.functions import load as load_trace
from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.prices import format_prices
from pipeline.replay import replay
from pipeline.sources.prometheus import PrometheusConfig
from pipeline.sources.prometheus_server import Server
from sched_env.recorded import AsRecorded
from wire.contracts.window import WINDOW_SECONDS
from wire.errors import run_cli

DAY = date(2026, 1, 5)
START = datetime(2026, 1, 5, tzinfo=UTC)
RULES = {"spread": "least_allocated", "pack": "most_allocated", "random": "random_feasible"}
"""The queueing model's schedulers, and the heuristics of ``functions`` that do the same."""
PARTS = ("queueing", "sample", "traces", "azure")
SPLITS = windows.SplitConfig(train=0.5, validation=0.12)


@contextlib.contextmanager
def prometheus(folder: Path, text: Path) -> Iterator[str]:
    """Serve OpenMetrics text from a real Prometheus."""
    data = folder / "tsdb"
    # The text is read once a block: few long ones.
    command = ["promtool", "tsdb", "create-blocks-from", "--max-block-duration=72h", "openmetrics", "--quiet"]
    command += [str(text), str(data)]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "prometheus.yml").write_text("")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "prometheus.log").open("w") as log:
        server = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={data}",
             f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=100y"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=1):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def windows_of(stack: QueueingStack, folder: Path) -> Path:
    """Take a stack's series through Prometheus, ingest and clean."""
    stack.write(folder / "stack.om")
    (folder / "prices.csv").write_bytes(format_prices(PRICES))
    days = Range(DAY, DAY + timedelta(days=max(round(stack.length_s / 86_400) - 1, 0)))
    with prometheus(folder, folder / "stack.om") as address:
        config = PrometheusConfig([Server("prod", address)])
        ingest(IngestConfig("prometheus", prices=str(folder / "prices.csv"), prometheus=config), days, folder / "raw")
    clean(folder / "raw", folder / "windows", CleanConfig())
    for part in ("tsdb", "raw"):
        shutil.rmtree(folder / part)
    (folder / "stack.om").unlink()
    return folder / "windows"


def judged(figures: list[Promise], allowed: float) -> list[dict[str, Any]]:
    """Say of each figure whether it is within the allowed error (rates: or half a point)."""
    return [fidelity_page.judged(msgspec.to_builtins(one), allowed) for one in figures]


def play(seed: int, first: str, load: float, hours: float, keep: Path | None = None) -> dict[str, Any]:
    """Calibrate on what one scheduler made, and predict what it and the others make of the test windows."""
    stack = QueueingStack(int(START.timestamp()), hours, 60, seed, load, first)
    with tempfile.TemporaryDirectory(prefix="fidelity-") as name, _var(Path(name)):
        folder = (keep or Path(name)) / f"{seed}-{load}-{first}-{hours}"
        if not (folder / "windows").exists():
            folder.mkdir(parents=True, exist_ok=True)
            windows_of(stack, folder)
        folder /= "windows"
        config = datasets.WorkloadConfig(scenario="functions/serverless", horizon=128)
        days = windows.span(folder)
        parts = windows.splits(days.start, days.end, SPLITS)
        found = calibrate(folder, parts.train, config.load)
        test = parts.test
        trace = datasets.apply(load_trace(folder, test.start, test.end), "functions", found)
        data = datasets.Workload(
            "functions", config.load(found.overrides), trace, test.start.isoformat(), test.end.isoformat()
        )
        policy = AsRecorded()
        recorded, _ = fidelity.check(data, folder, policy, "as_recorded")
        standards = {name: value.standard_s for name, value in found.functions.items()}
        # The replay leaves out the window in which its first instance arrives.
        begin, end = (datetime.fromisoformat(at) - START for at in (recorded.windows_start, recorded.windows_end))
        span = begin.total_seconds(), end.total_seconds()
        truth = stack.truth(stack.played, *span, standards)
        own = [Promise.of(one.metric, one.predicted, truth[one.metric]) for one in recorded.figures]
        others = {}
        for then, rule in RULES.items():
            played = stack.play(first, then, (test.start - START).total_seconds())
            says = fidelity.figures_of(replay(data.scenario, trace, rule, WINDOW_SECONDS), trace[0])
            really = stack.truth(played, *span, standards)
            others[then] = judged([Promise.of(key, says[key], really[key]) for key in says], 0.15)
        values = {value.name: value.value for value in found.values}
    return {
        "seed": seed, "load": load, "calibrated_on": first, "followed": policy.followed / policy.decided,
        "overrides": {**values, **found.overrides},
        "as_recorded": judged(recorded.figures, 0.10), "as_recorded_truth": judged(own, 0.10), "other": others,
    }  # fmt: skip


@contextlib.contextmanager
def _var(folder: Path) -> Iterator[None]:
    before = os.environ.get("LOADMASTER_VAR")
    os.environ["LOADMASTER_VAR"] = str(folder / "var")
    try:
        yield
    finally:
        os.environ.pop("LOADMASTER_VAR")
        if before is not None:
            os.environ["LOADMASTER_VAR"] = before


def show(result: dict[str, Any]) -> str:
    """Put one result into a few lines."""
    named = ("seed", "load", "calibrated_on", "followed")
    lines = [", ".join(f"{name} {result[name]}" for name in named)]
    for title, rows in (
        ("as recorded", result["as_recorded"]),
        ("as recorded, truth", result["as_recorded_truth"]),
        *((f"then {name}", rows) for name, rows in result["other"].items()),
    ):
        cells = [
            f"{r['metric']} {r['predicted']:.4g}/{r['measured']:.4g} {r['error']:.1%}{'' if r['within'] else '!'}"
            for r in rows
        ]
        lines.append(f"  {title}: " + ", ".join(cells))
    return "\n".join(lines)


def part(name: str, options: argparse.Namespace, before: dict[str, Any]) -> Any:
    """Measure one part."""
    if name == "queueing":
        results = [
            play(seed, first, load, options.hours, options.keep)
            for seed in options.seeds
            for load in options.loads
            for first in options.first
        ]
        print("\n".join(map(show, results)), flush=True)
        return results
    if name == "azure":
        return fidelity_traces.azure_functions(options.data)
    with tempfile.TemporaryDirectory(prefix="fidelity-") as folder, _var(Path(folder)):
        if name == "sample":
            work = (options.keep or Path(folder)).resolve() / "sample"
            work.mkdir(parents=True, exist_ok=True)
            fidelity_problems.sample(work, options.days, options.scrape)
            return {**before.get(name, {}), **fidelity_problems.replayed(work, options.problems)}
        found = {}
        for trace in (fidelity_traces.colocations, fidelity_traces.bitbrains, fidelity_traces.genai):
            figures, note = trace(options.data)
            found[trace.__name__] = {"figures": [msgspec.to_builtins(one) for one in figures], "note": note}
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12])
    parser.add_argument("--loads", type=float, nargs="+", default=[1.0])
    parser.add_argument("--first", nargs="+", default=list(RULES))
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--days", type=int, default=4, help="of the embedded sample")
    parser.add_argument("--scrape", type=float, default=60.0, help="seconds between two scrapes of the sample")
    parser.add_argument("--problems", nargs="*", default=[], help="of the sample; left out: all")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--keep", type=Path, help="keep windows here, and take those that are here")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    options.data = options.data.resolve()
    file = options.out / "fidelity.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name in options.parts:
        results[name] = part(name, options, results)
        file.write_text(json.dumps(results, indent=1) + "\n")
    (options.out / "fidelity.md").write_text(fidelity_page.page(results))
    missed = fidelity_page.missed(results)
    print(json.dumps({"missed": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    run_cli(main)
