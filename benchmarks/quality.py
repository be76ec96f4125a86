"""What training is worth: every problem's policies against its best rule on held-out traces.

    python benchmarks/quality.py --data ../shared/data --out docs/results
    python benchmarks/quality.py --only jobs vm --out docs/results

A section is what is measured on its own; those not asked for stay as they are. Splits, seeds and settings are in
``quality_cases.py``, what each section does in the module it is of. Trainings are kept under ``var/scratch/quality`` by
the code and settings they depend on, so that a second call trains only what is missing; everything is judged anew.
Intervals: 95 %, paired, whole blocks of episodes drawn (``pipeline.statistics``). The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import quality_notes
import quality_pods
import quality_students
import quality_vm
import quality_workflow
from quality_cases import SEEDS
from quality_parts import Shown, say, table

from wire.errors import run_cli

Found = dict[str, Any]


class Section(NamedTuple):
    """How a section is measured and shown."""

    measure: Callable[[str, Path, int], Found]
    """(section, folder of the traces, seeds) -> what is kept in ``quality.json``."""
    shown: Callable[[str, Found], list[Shown]]
    page: Callable[[str, Found], list[str]]
    title: str = ""
    """Of a page of its own; none: it is on ``quality.md``."""


students = quality_students
SECTIONS = {
    "functions": Section(students.measure, students.shown, students.page),
    "front": Section(students.front, students.front_shown, students.front_page),
    "jobs": Section(students.measure, students.shown, students.page),
    "jobs_philly": Section(students.measure, students.shown, students.page),
    "pods": Section(quality_pods.measure, quality_pods.shown, quality_pods.page, "Pods: moves judged by what comes"),
    "vm": Section(quality_vm.measure, quality_vm.shown, quality_vm.page, "VMs: waiting, server hours, the rest"),
    "workflow": Section(
        quality_workflow.measure, quality_workflow.shown, quality_workflow.page, "Workflows: makespan and cost"
    ),
}
MADE = "Made by `python benchmarks/quality.py --data ../shared/data --out docs/results"


def pages(results: dict[str, Found]) -> dict[str, str]:
    """Lay the results out for people: name of a page -> its text."""
    lines, own = [], {}
    targets: list[Shown] = []
    for name, section in SECTIONS.items():
        if name not in results:
            continue
        text = [*section.page(name, results[name]), "", *quality_notes.NOTES.get(name, [])]
        targets += section.shown(name, results[name])
        if section.title:
            own[f"quality_{name}.md"] = _joined(
                [
                    f"# {section.title}",
                    "",
                    f"{MADE} --only {name}`; splits and seeds: `benchmarks/quality_cases.py`.",
                    "",
                    *text,
                ]
            )
        else:
            lines += text
    links = ", ".join(f"[{name}](quality_{name}.md)" for name, section in SECTIONS.items() if section.title)
    head = [
        "# What training is worth",
        "",
        f"{MADE}`; splits and seeds: `benchmarks/quality_cases.py`. Gains are against the best rule of all, chosen on "
        "validation, positive when better, over the mean of the rule; intervals 95 %, paired, whole blocks of episodes "
        f"drawn; figures are means over all training seeds. Pages of their own: {links}.",
        "",
        "## Every target",
        *table(["", "asked", "found", ""], targets),
    ]
    return {"quality.md": _joined([*head, *lines]), **own}


def _joined(lines: list[str]) -> str:
    """Join lines, never more than one empty one between two."""
    kept = [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]
    return "\n".join(kept).rstrip("\n") + "\n"


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(SECTIONS), choices=tuple(SECTIONS), metavar="SECTION",
                        help=f"of {', '.join(SECTIONS)}; nothing: pages anew from quality.json")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=SEEDS, help="trainings of each kind, but those of the front")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the public traces")
    parser.add_argument("--out", type=Path, help="folder for quality.json and the pages; other sections are kept")
    options = parser.parse_args()
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)  # now, not after an hour
    file = options.out / "quality.json" if options.out else None
    results: dict[str, Found] = json.loads(file.read_text()) if file and file.exists() else {}
    for name in options.only or [""]:
        if name:
            results[name] = SECTIONS[name].measure(name, options.data, options.seeds)
        if file:
            file.write_text(json.dumps(results, indent=1) + "\n")
            for page, text in pages(results).items():
                (file.parent / page).write_text(text)
    found = [row for name in SECTIONS if name in results for row in SECTIONS[name].shown(name, results[name])]
    say(json.dumps({row.what: f"{row.found}: {row.verdict}" for row in found}))
    return 0


if __name__ == "__main__":
    run_cli(main)
