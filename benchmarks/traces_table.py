"""Every public trace through ingest, clean and validate; writes docs/results/traces.{json,md}.

    python benchmarks/traces_table.py --data ../shared/data [--only helios]

Each stage is the pipeline's own command, as a user would call it. What is not there is left out, and said so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from wire.errors import run_cli


class Case(NamedTuple):
    """One trace."""

    title: str
    format: str
    paths: tuple[str, ...]
    """Below the data folder."""
    span: tuple[str, ...] = ()
    """``--from`` and ``--to`` of ingest; empty: everything."""


GENAI, GPU, VM = "alibaba-genai-pods", "alibaba-gpu-k8s", "azure-vm-arrivals-2017"
PROFILES = ("cpn-gpu-profiles/colocation_profiles.csv",)
CASES = [
    Case("Bitbrains, August (100 VMs, 5 min)", "bitbrains", ("bitbrains-vm-5min/rnd-2013-8/*.csv.gz",)),
    Case("Bitbrains, July (the five dirtiest VMs)", "bitbrains", ("bitbrains-vm-5min/rnd-2013-7/*.csv.gz",)),
    Case("Alibaba GenAI pods (57 s)", "alibaba_genai", (f"{GENAI}/*_anon.csv.gz", f"{GENAI}/qps.csv.gz")),
    Case("Alibaba GenAI requests", "alibaba_genai", (f"{GENAI}/lora_request_trace.csv.gz",)),
    Case("Helios (11 clusters, 1 min)", "helios", ("helios-vc-minutes/*.csv.gz",)),
    Case("Azure Functions 2019 (8 h)", "azure_functions", ("azure-functions-2019/*.csv.gz",)),
    Case("Alibaba GPU pods", "alibaba_gpu", (f"{GPU}/openb_*.csv.gz",)),
    Case("Alibaba DLRM instances", "alibaba_gpu", (f"{GPU}/dlrm_instances_2025.csv.gz",)),
    Case("Alibaba spot GPU nodes", "alibaba_gpu", (f"{GPU}/spot_gpu_node_info_2026.csv.gz",)),
    Case("Huawei-East-1", "huawei", ("huawei-east-1/events.csv.gz",)),
    Case("Azure VM arrivals (days 0–20, no lifetimes)", "azure_vm", (f"{VM}/arrivals_days_00_20_no_durations.csv.gz",)),
    Case("Azure VM arrivals (days 20–24)", "azure_vm", (f"{VM}/arrivals_days_20_24.csv.gz",)),
    Case("Philly jobs", "philly", ("gpu-jobs/philly_jobs.csv.gz",)),
    Case("WfInstances", "wfinstances", ("wfinstances/**/*.json.gz",)),
    Case("CPN job queues", "cpn", ("cpn-job-queues/*.json",)),
    Case("CPN co-location profiles, two days missing", "cpn", PROFILES),
    Case("CPN profiles, first days", "cpn", PROFILES, ("2025-01-02", "2025-01-04")),
    Case("CPN profiles, last days", "cpn", PROFILES, ("2025-01-07", "2025-01-08")),
]


def stage(name: str, folder: Path, *arguments: str) -> tuple[int, str, float]:
    """Run a stage of the pipeline in a folder; returns its exit code, what it said and how long it took."""
    began = time.perf_counter()
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "LOADMASTER_VAR": str(folder / "var"), "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", f"pipeline.{name}", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stderr.strip(), round(time.perf_counter() - began, 1)


def run(case: Case, data: Path, folder: Path) -> dict[str, Any]:
    """Take one trace through the three stages."""
    # On the command line, not in params.yaml: a night's days must be fresh to their end, a trace's need not.
    span = ("--from", case.span[0], "--to", case.span[1]) if case.span else ()
    traces = {"format": case.format, "paths": [str(data.resolve() / path) for path in case.paths]}
    params = {"data": {"from": None, "to": None}, "ingest": {"source": "traces", "traces": traces}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params | {"clean": {}, "validate": {}}))
    row: dict[str, Any] = {"trace": case.title, "seconds": {}}
    for name in ("ingest", "clean", "validate"):
        code, said, row["seconds"][name] = stage(name, folder, *(span if name == "ingest" else ()))
        if code and name != "validate":
            raise SystemExit(f"{case.title}: {name} ended with {code}: {said}")
    counts = json.loads((folder / "data/metrics/clean.json").read_text())
    verdict = json.loads((folder / "data/validation/verdict.json").read_text())
    found: dict[str, Counter[str]] = {"error": Counter(), "warning": Counter()}
    for one in verdict["findings"]:
        found[one["severity"]][f"{one['table']} {one['rule']}"] += 1
    rows = {name: account for name, account in counts["rows"].items() if account["rows_in"]}
    return row | {"days": len(counts["days"]), "rows": rows, "passed": verdict["passed"], "found": found}


def page(results: list[dict[str, Any]]) -> str:
    """Lay the results out as a table."""
    lines = [
        "# Public traces through ingest, clean and validate",
        "",
        "Made by `python benchmarks/traces_table.py --data ../shared/data`, with the pipeline's own commands. Every "
        "raw row is in one of the columns: in = out + merged + quarantined. *Validation*: findings by table and rule, "
        "each counted once a day.",
        "",
        "| trace | days | raw table | in | out | merged | quarantined by rule | repaired | validation | s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        errors, warnings = (_listed(result["found"][severity]) for severity in ("error", "warning"))
        said = "passes" if result["passed"] else f"**stops**: {errors}"
        said += f"; warns: {warnings}" if warnings else ""
        for number, (name, rows) in enumerate(result["rows"].items()):
            once = number == 0
            cells = [result["trace"], str(result["days"])] if once else ["", ""]
            cells += [name, *(f"{rows[key]:,}" for key in ("rows_in", "rows_out", "merged"))]
            cells += [_listed(rows["quarantined"]) or "–", _listed(rows["repaired"]) or "–"]
            cells += [said, f"{sum(result['seconds'].values()):.0f}"] if once else ["", ""]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"`{name}` {count:,}" for name, count in sorted(counts.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the public traces")
    parser.add_argument("--only", default="", help="the traces whose title contains this, without writing files")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    results = []
    for case in CASES:
        if options.only not in case.title:
            continue
        if not any(any(options.data.glob(path)) for path in case.paths):
            print(f"{case.title}: not below {options.data}, left out", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="trace-") as folder:
            results.append(run(case, options.data, Path(folder)))
        print(json.dumps(results[-1]), flush=True)
    if not options.only:
        (options.out / "traces.json").write_text(json.dumps(results, indent=1) + "\n")
        (options.out / "traces.md").write_text(page(results))
    return 0


if __name__ == "__main__":
    run_cli(main)
