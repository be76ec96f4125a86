"""Compile every problem's simulator now, so that nobody's first step has to wait for it.

Machine code is kept beside the source, for this machine and these versions; what is compiled already takes no time.
``make setup`` ends with it.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from sched_env import problems
from wire.command import Verb
from wire.errors import run_cli

VIEWS: dict[str, tuple[dict[str, Any], ...]] = {"jobs": ({"choice": "card"}, {"choice": "pair"})}
"""Problem -> settings that have kernels of their own; of the others what one scenario compiles is good for all."""


def first_step(problem: str) -> float:
    """Make the first step of a problem, in each of its views; return the seconds it took."""
    from sched_env.vector import make_vec  # not for --help

    scenario = min((problems.folder(problem) / "scenarios").glob("*.yaml")).stem
    began = time.perf_counter()
    for view in VIEWS.get(problem, ({},)):
        env = make_vec(f"{problem}/{scenario}", 1, 0, **view)
        env.reset(seed=0)
        env.step(env.buffers.mask.argmax(axis=1))
    return time.perf_counter() - began


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is compiled."""
    parser.add_argument("--problem", action="append", choices=problems.names(), help="only this one; may be repeated")


def run(options: argparse.Namespace) -> int:
    """Compile as many at a time as there are cores."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        begun = {pool.submit(first_step, problem): problem for problem in options.problem or problems.names()}
        for done in as_completed(begun):
            sys.stderr.write(f"sched_env: first step of {begun[done]} after {done.result():.0f} s\n")
    return 0


main = Verb("python -m sched_env.compiling", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
