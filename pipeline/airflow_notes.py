"""Writes what became of a night into the note of its Airflow run, so that nights differ in the grid.

    python -m pipeline.airflow_notes --dag nightly_retrain --run-id X

The words come from the registry (:mod:`pipeline.registry.nights`): a note can be overwritten by anybody with the role
``user`` and decides nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from urllib.parse import quote

from pipeline.airflow_answers import call, token
from pipeline.registry import nights
from pipeline.registry.chain import Chain
from wire.command import Verb
from wire.errors import run_cli


def write(dag: str, run_id: str, text: str) -> None:
    """Replace the note of a run."""
    path = f"/api/v2/dags/{quote(dag, safe='')}/dagRuns/{quote(run_id, safe='')}?update_mask=note"
    call(path, token(), json.dumps({"note": text}).encode(), method="PATCH")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--dag", required=True)
    parser.add_argument("--run-id", required=True)


def run(options: argparse.Namespace) -> int:
    """Write the note, and say it."""
    text = nights.note(nights.of_run(Chain.open(), options.run_id))
    write(options.dag, options.run_id, text)
    sys.stdout.write(text + "\n")
    return 0


main = Verb("python -m pipeline.airflow_notes", __doc__, arguments, run)

if __name__ == "__main__":
    run_cli(main)
