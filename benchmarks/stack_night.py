"""A night on days of a whole cluster, with nothing set but the address. Writes docs/results/stack_night.{json,md}.

    python benchmarks/stack_night.py [--days 3] [--scrape 30] [--seed 11] [--keep FOLDER]

The cluster is ``benchmarks/queueing_cluster.py``, which imports nothing of Loadmaster; a real Prometheus serves what
its exporters would have said. In a clone of this repository ``params.yaml`` gets the address and the days, and ``dvc
repro`` does the rest, ingest to gate. Then every problem is calibrated on the same windows and replayed as recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))
import fidelity_page
import fidelity_problems
from fidelity import DAY, START, prometheus
from queueing_cluster import QueueingCluster

from pipeline import paths
from pipeline.contracts.calibration import CALIBRATION_FILE
from sched_env import problems
from wire.errors import run_cli

ROOT = Path(__file__).resolve().parents[1]
PROBLEM = "functions"


def night(clone: Path, address: str, days: int) -> float:
    """Run ingest to gate in a clone; returns its seconds."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    params = yaml.safe_load((clone / "params.yaml").read_text())
    params["ingest"] = {"source": "prometheus", "prometheus": {"clusters": [{"name": "prod", "url": address}]}}
    params["data"] = {"from": f"{DAY}", "to": f"{DAY + timedelta(days=days - 1)}"}
    (clone / "params.yaml").write_text(yaml.safe_dump(params))
    environment = {**os.environ, "LOADMASTER_VAR": str(clone / "var"), "PYTHONPATH": str(clone)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    began = time.monotonic()
    with (clone.parent / "night.log").open("w") as log:
        done = subprocess.run(["dvc", "repro"], cwd=clone, env=environment, stdout=log, stderr=log, check=False)
    if done.returncode:
        raise SystemExit(f"dvc repro ended with {done.returncode}: {(clone.parent / 'night.log').read_text()[-3000:]}")
    return time.monotonic() - began


def read(file: Path) -> Any:
    return json.loads(file.read_text())


def truth(stack: QueueingCluster, clone: Path, recorded: dict[str, Any]) -> dict[str, float]:
    """What the queue knows of the replayed stretch, call by call."""
    fitted = read(clone / paths.CALIBRATION / PROBLEM / CALIBRATION_FILE)
    standards = {name: value["standard_s"] for name, value in fitted["functions"].items()}
    since = START.timestamp()
    begin, end = (datetime.fromisoformat(recorded[key]).timestamp() - since
                  for key in ("windows_start", "windows_end"))  # fmt: skip
    return stack.truth(stack.played, begin, end, standards)


def replayed(work: Path, clone: Path) -> dict[str, Any]:
    """Every problem on the night's windows, kept one by one."""
    folder = work / "problems"
    found: dict[str, Any] = {}
    (folder / "data").mkdir(parents=True, exist_ok=True)
    if not (folder / paths.WINDOWS).exists():
        (folder / paths.WINDOWS).symlink_to((clone / paths.WINDOWS).resolve())
    for problem in problems.names():
        kept = work / f"{problem}.json"
        if not kept.exists():
            kept.write_text(json.dumps(fidelity_problems.replayed(folder, [problem])))
        found |= read(kept)
    return found


def measure(work: Path, days: int, scrape_s: int, seed: int) -> dict[str, Any]:
    """Make the cluster, run the night, replay every problem."""
    stack = QueueingCluster(int(START.timestamp()), days * 24.0, scrape_s, seed)
    clone = work / "clone"
    if not (clone / paths.GATE / PROBLEM / "report.json").exists():
        made = work / "samples.json"
        if not made.exists():
            made.write_text(json.dumps(stack.write(work / "stack.om")))
        with prometheus(work, work / "stack.om") as address:
            seconds = night(clone, address, days)
        (work / "night.json").write_text(json.dumps({"samples": read(made), "seconds": round(seconds)}))
        (work / "stack.om").unlink()
    evaluation = clone / paths.EVALUATION / PROBLEM
    recorded, report = read(evaluation / "fidelity.json"), read(clone / paths.GATE / PROBLEM / "report.json")
    return {
        "days": days, "scrape_s": scrape_s, "seed": seed, "cores": os.cpu_count(), **read(work / "night.json"),
        "pods": len(stack.pods), "machines": len(stack.machines),
        "calls": sum(done.size for done in stack.played.done_s.values()),
        "outcome": report["outcome"], "reason": report["reason"],
        "rules": [{key: rule[key] for key in ("name", "outcome", "found")} for rule in report["rules"]],
        "truth": truth(stack, clone, recorded), "night": recorded,
        "problems": replayed(work, clone),
    }  # fmt: skip


def page(found: dict[str, Any]) -> str:
    """Lay the night out."""
    figures = [fidelity_page.judged(one, fidelity_page.OWN) for one in found["night"]["figures"]]
    lines = [
        "# A night on a whole cluster",
        "",
        f"Made by `python benchmarks/stack_night.py --days {found['days']} --scrape {found['scrape_s']} --seed "
        f"{found['seed']}`: {found['days']} days of a kube-prometheus-stack ({found['machines']} machines, "
        f"{found['pods']:,} pods, {found['calls']:,} calls, {found['samples']:,} samples) in a real Prometheus; in a "
        "clone of the repository only the address and the days were set, and `dvc repro` ran ingest to gate in "
        f"{found['seconds'] / 60:.0f} min on {found['cores']} cores that others used too. Response times come from a "
        "queue (`benchmarks/queueing_cluster.py`) that imports nothing of Loadmaster: every call is played on the "
        "machine on which its pod sits, beside daemons, a database, CronJobs and workflows.",
        "",
        f"**The gate says {found['outcome']}**: {found['reason']}",
        "",
        *([found["note"], ""] if found["note"] else []),
        "## The recorded placements, replayed",
        "",
        "What the simulator says of the test windows, calibrated on the train windows; *true* is counted call by call "
        "in the queue. Allowed are 10 % (rates: or half a point).",
        "",
        "| figure | predicted | measured | true | off by | |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in figures:
        true = found["truth"].get(row["metric"])
        cells = [row["metric"], f"{row['predicted']:.4g}", f"{row['measured']:.4g}",
                 "–" if true is None else f"{true:.4g}", f"{row['error']:.1%}",
                 "" if row["within"] else "**misses**"]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## The gate's rules", "", "| rule | outcome | found |", "| --- | --- | --- |"]
    lines += [f"| {rule['name']} | {rule['outcome']} | {rule['found']} |" for rule in found["rules"]]
    lines += [
        "",
        "## Every problem on the same windows",
        "",
        "| problem | figure | predicted | measured | off by | |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for problem, one in found["problems"].items():
        for row in (fidelity_page.judged(figure, fidelity_page.OWN) for figure in one["figures"]):
            mark = "" if row["within"] else "**misses**"
            numbers = f"{row['predicted']:.4g} | {row['measured']:.4g} | {row['error']:.1%} | {mark}"
            lines.append(f"| `{problem}` | {row['metric']} | {numbers} |")
        if one["skipped"]:
            lines.append(f"| `{problem}` | not compared: {one['skipped']} | | | | |")
    return "\n".join(lines + fidelity_page.origins(found["problems"], "this cluster")) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=3)
    parser.add_argument("--scrape", type=int, default=30, help="seconds")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--note", default="", help="what else is to be said of this run")
    parser.add_argument("--keep", type=Path, help="work here, and take the night that is here")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    out = options.out.resolve()
    with tempfile.TemporaryDirectory(prefix="stack-night-") as name:
        work = (options.keep or Path(name)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        os.environ["LOADMASTER_VAR"] = str(work / "var")
        found = {**measure(work, options.days, options.scrape, options.seed), "note": options.note}
    (out / "stack_night.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / "stack_night.md").write_text(page(found))
    missed = [one["metric"] for one in found["night"]["figures"] if not fidelity_page.judged(one, 0.1)["within"]]
    print(json.dumps({"outcome": found["outcome"], "missed": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    run_cli(main)
