"""How long the service takes to recover from each fault, as the tests on real parts record it.

    LOADMASTER_RECOVERY_FILE=/tmp/recovery.jsonl python -m pytest -n 0 tests/placement/kube/test_faults.py \
        tests/placement/kube/test_migrator.py
    python benchmarks/faults_table.py /tmp/recovery.jsonl --out docs/results

Of several runs of a fault the last counts. Writes faults.json and faults.md; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

ELSEWHERE = {
    "Prometheus lies (NaN, negative, far future, impossible, wrong labels)": (
        "samples are counted and left out, the rest is believed",
        "tests/placement/kube/test_usage.py::test_lies_are_counted_and_left_out",
    ),
    "clock jumps a day back, a month ahead": (
        "nothing becomes old or new; ages of pods are by the API server's clock",
        "tests/placement/kube/test_usage.py::test_a_clock_that_jumps_makes_nothing_old_or_new",
    ),
    "two leaders": (
        "who was silent stops before another may begin, whatever their clocks say",
        "tests/placement/kube/test_gates.py::test_one_replica_leads_and_another_takes_over_only_after_the_lease_has_run_out",
    ),
    "node gone between filter and bind": (
        "no pod is put there",
        "tests/placement/kube/test_faults.py::test_a_node_that_goes_between_filter_and_bind_gets_no_pod",
    ),
}
"""Faults without a time of their own: what holds, and the test that shows it."""


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    rows = {}
    for line in options.file.read_text().splitlines():
        row = json.loads(line)
        rows[row["fault"]] = row
    load = round(os.getloadavg()[0], 1)
    lines = [
        "# Faults, on real parts",
        "",
        "etcd, kube-apiserver and kube-scheduler 1.36, an S3 server and the service, on loopback; 2 cores, shared with",
        f"other work (load average about {load:g} while this was written). The tests are in `tests/placement/kube`",
        "(`benchmarks/faults_table.py` says how to run them anew). While a fault lasts, the last state answers on.",
        "",
        "| fault | until | seconds |",
        "| --- | --- | --- |",
        *(f"| {row['fault']} | {row['until']} | {row['seconds']:g} |" for row in rows.values()),
        "",
        "Without a time of their own:",
        "",
        "| fault | what holds | test |",
        "| --- | --- | --- |",
        *(f"| {fault} | {holds} | `{test.rpartition('::')[2]}` |" for fault, (holds, test) in ELSEWHERE.items()),
        "",
    ]
    (options.out / "faults.md").write_text("\n".join(lines))
    found = {"benchmark": "faults", "load_average": load, "recovery": list(rows.values())}
    (options.out / "faults.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
