"""Runs the long tests, file by file, and keeps their last result in docs/results/system.md: ``make system`` calls this.

python scripts/system_tests.py                every file of the list below
python scripts/system_tests.py tests/a.py …   those alone; the lines of the others stay as they are
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "docs" / "results" / "system.md"
FILES = {
    "tests/test_thread.py": "three nights on a real Airflow and service: rejected, approved and live, unchanged",
    "tests/test_roles.py": "the approval against one account of each role, and forged answers",
    "tests/test_approval_in_browser.py": "the approval in a real Chromium: read, look, answer, see it live",
    "tests/test_postgres.py": "the approval with Airflow's metadata in PostgreSQL; scheduler and worker killed",
    "tests/dags/test_a_night_of_pods.py": "a night of pods on Kubernetes and S3: killed, evicted, node lost",
    "tests/dags/test_two_nights_at_once.py": "two nights at the same time, one killed half-way and cleared",
    "tests/deploy/test_images.py": "the images built on a stand-in base; one training inside, same bytes",
    "tests/test_shift_in_airflow.py": "a load that doubles: seen by watch_live, trained on at once, judged, live",
    "tests/dags/test_backfill_runs.py": "a backfill on a real Airflow, killed in the middle",
    "tests/pipeline/registry/test_rollback_in_airflow.py": "rollback, asked and answered in a real Airflow",
    "tests/pipeline/local/test_interrupted.py": "make run after Ctrl-C, and after the machine went down",
    "tests/pipeline/local/test_robust.py": "make run twice at once, without git, on a full disk",
    "tests/placement/kube": "the service on Kubernetes: extender, migrator, gates, faults",
    "tests/placement/cpn": "the job controller on Kubernetes, with crashes",
    "tests/sched_env/view": "replays in a browser",
}
TITLE = "# System tests\n\n`make system`, the last result of each file, on 2 cores; load says what ran beside.\n"
HEADER = "| file | what | result | minutes | load | commit | at |\n| --- | --- | --- | --- | --- | --- | --- |"
WORDS = re.compile(r"(\d+ (?:passed|failed|skipped|errors?))")


def main() -> int:
    """Run, and write the table after each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=list(FILES), help="files or folders of tests")
    chosen = parser.parse_args().files
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    worst = 0
    for name in chosen:
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "soak or not soak", name]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        sys.stdout.write(done.stdout)
        result = (
            ", ".join(WORDS.findall(done.stdout.splitlines()[-1] if done.stdout else "")) or f"exit {done.returncode}"
        )
        load = Path("/proc/loadavg").read_text().split()[1] if Path("/proc/loadavg").exists() else "-"
        at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
        minutes = (time.monotonic() - began) / 60
        what = FILES.get(name, "")
        # Read now, not before: others may have written their lines while this one ran.
        written = RESULT.read_text().splitlines() if RESULT.exists() else []
        lines = {line.split("`")[1]: line for line in written if line.startswith("| `")}
        last = max((at for at, line in enumerate(written) if line.startswith("|")), default=len(written))
        lines[name] = f"| `{name}` | {what} | {result} | {minutes:.1f} | {load} | {commit.stdout.strip()} | {at} |"
        body = [lines[one] for one in (*FILES, *(set(lines) - set(FILES))) if one in lines]
        # What somebody wrote below the table stays there.
        RESULT.write_text(TITLE + "\n" + "\n".join([HEADER, *body, *written[last + 1 :]]) + "\n")
        worst = max(worst, done.returncode)
    return worst


if __name__ == "__main__":
    raise SystemExit(main())
