"""``loadmaster``: the one door to every verb.

    loadmaster train --problem vm --algorithm maskable_ppo --seed 0
    loadmaster registry list
    loadmaster serve --port 8100
    loadmaster completion bash > ~/.local/share/bash-completion/completions/loadmaster

The table below is all that is loaded before a verb is chosen: help is instant, and an image that holds the service
alone still has a working ``loadmaster serve``. Nothing imports this module: what verbs share is in ``wire.command``,
so that a word changed here is no change of a stage's code. How a verb is written is said there too; why it is argparse,
in docs/decisions/0016-one-door.md.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from types import ModuleType
from typing import Any

from wire.command import Parser, Verb
from wire.errors import ConfigError, legal, run_cli

Table = dict[str, dict[str, tuple[str, str]]]

VERBS: Table = {
    "stages of a night, in order": {
        "ingest": ("pipeline.ingest:main", "fetch raw tables from Prometheus, files, traces or the sample"),
        "clean": ("pipeline.clean.command:main", "raw samples to five-minute windows"),
        "validate": ("pipeline.validate.command:main", "hold the windows to their expectations"),
        "calibrate": ("pipeline.calibrate.command:main", "fit the simulator to the cluster's own windows"),
        "runtime-model": ("pipeline.runtime_model.command:main", "fit or evaluate the run times of GPU jobs"),
        "lifetime-model": ("pipeline.lifetime_model.command:main", "fit or evaluate how much longer VMs live"),
        "forecast": ("pipeline.forecast.command:main", "fit or evaluate what pods will use soon and in an hour"),
        "train": ("pipeline.train:main", "train one policy from one seed"),
        "export": ("pipeline.export:main", "write the best training as an ONNX bundle"),
        "evaluate": ("pipeline.evaluate:main", "run the bundle on windows it has never seen"),
        "gate": ("pipeline.gate.command:main", "decide whether it may be asked for; explain says why"),
    },
    "from approved to live": {
        "promote": ("pipeline.promote:main", "sign and record a promotion, or a rejection"),
        "push": ("pipeline.push:main", "send the approved bundle to the service"),
        "go-live": ("pipeline.rollout:main", "let it answer 1, 5, 25, then 100 % of the calls"),
        "verify": ("pipeline.verify_live:main", "ask the service what is live and record it"),
        "registry": ("pipeline.registry.command:main", "list, show, verify, restore: records and bundles"),
        "runs": ("pipeline.registry.nights:main", "what became of each night: verdict, SLA, cost, who answered"),
        "watch": ("pipeline.watch.command:main", "what is live beside what was promised and what is usual"),
        "keys": ("pipeline.registry.keys:main", "list, rotate, retire, revoke: the keys that sign"),
        "serve": ("placement.__main__:main", "run the placement service"),
        "migrate": (
            "placement.migrate:main",
            "move pods as the pods policy says; dry by default",
        ),
        "check-config": ("placement.check_config:main", "check the service's settings without starting it"),
        "canary": ("placement.canary:main", "what is tried beside the live policies: show, advance, end"),
        "jobs": ("placement.cpn.command:main", "submit, list, logs, cancel, report: GPU jobs of the network"),
        "mode": ("placement.mode:main", "break-glass: heuristics answer, or the policies again"),
    },
    "to try and to check": {
        "run": ("pipeline.local.__main__:main", "the whole night on this machine, with Airflow and the service"),
        "doctor": ("pipeline.doctor:main", "a first look at a Prometheus: what is there, what is missing"),
        "compile": ("sched_env.compiling:main", "compile the simulators now; their first step need not wait then"),
        "rollout": ("sched_env.rollout:main", "run a policy or a heuristic on a scenario"),
        "view": ("sched_env.view.command:main", "look at recorded runs, or live decisions, in a browser"),
        "tune": ("pipeline.tune:main", "search an algorithm's settings, stopping bad trials early"),
        "bundle": ("wire.bundle:main", "check a policy bundle"),
        "backtest": ("pipeline.backtest:main", "compare what was promised with what was measured"),
        "reward-bounds": ("sched_env.functions.calibration:main", "measure the reward bounds of a functions scenario"),
        "error-rates": ("pipeline.gate.error_rates:main", "simulate how often the gate is wrong"),
    },
    "used by the DAGs and by make": {
        "pods": ("pipeline.pods.command:main", "stages as pods: begin, run, check, list, merge, end"),
        "workspace": ("pipeline.workspace:main", "prepare a run's clone and say what it maps over"),
        "question": ("pipeline.approval:main", "print what a person is asked before a policy goes live"),
        "shadow": ("pipeline.shadow:main", "what a candidate would have done with the calls that were really made"),
        "rollback": ("pipeline.rollback:main", "versions to go back to, the question and its answer"),
        "note": ("pipeline.airflow_notes:main", "write what became of a night into its note in Airflow"),
        "notify": ("pipeline.notify:main", "tell people by mail or webhook"),
        "contracts": ("pipeline.contracts.__main__:main", "rewrite docs/contracts after a deliberate change"),
        "stages": ("pipeline.stages:main", "hold dvc.yaml to the code that its stages run"),
        "mend-lock": ("pipeline.dvc_lock:main", "put a dvc.lock that a kill cut short together again"),
    },
    "your shell": {
        "completion": ("wire.cli:completion", "print the completion script for bash, zsh or fish"),
    },
}
"""Heading -> verb -> (``module:name``, what it does). In one place, in full, so that it can be read and searched."""

SHELLS = ("bash", "zsh", "fish")


def verbs() -> dict[str, tuple[str, str]]:
    """Every verb, whatever its heading."""
    return {name: entry for section in VERBS.values() for name, entry in section.items()}


def load(name: str) -> Callable[..., int]:
    """Import a verb."""
    module, _, attribute = verbs()[name][0].partition(":")
    try:
        found: Callable[..., int] = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        fix = "install the extra that holds it: pip install 'loadmaster[all]'"
        raise ConfigError(f"loadmaster {name} needs {error.name}", fix=fix) from error
    return found


def help_of(called: str) -> str | None:
    """Return the help of a verb, or of a command below it, without importing what it runs; None: ask the verb itself.

    A verb's module imports what it works with, torch in the worst case, and nobody who asks for help shall wait for it.
    ``scripts/reference.py`` writes the file, and a test holds it to the parsers.
    """
    try:
        helps: dict[str, str] = json.loads(resources.files("wire").joinpath("helps.json").read_text())
    except (OSError, ValueError):
        return None
    return helps.get(called)


def dispatch(argv: Sequence[str]) -> int:
    """Run the verb that ``argv`` names."""
    parser = _top()
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    name, *rest = argv
    if name.startswith("-"):
        if parser.parse_args(argv).version:  # --help leaves here, and anything else is an error
            import importlib.metadata

            sys.stdout.write(f"loadmaster {importlib.metadata.version('loadmaster')}\n")
        return 0
    if name not in verbs():
        near = difflib.get_close_matches(name, verbs(), n=1)
        fix = f"did you mean {near[0]!r}?" if near else "see loadmaster --help"
        raise ConfigError(f"there is no verb {name!r}", legal(verbs()), fix)
    if rest and rest[-1] in ("-h", "--help") and (said := help_of(" ".join([name, *rest[:-1]]))):
        sys.stdout.write(said + "\n")
        return 0
    main, prog = load(name), f"loadmaster {name}"
    if isinstance(main, Verb):
        return main(rest, prog=prog)
    with _called(prog, rest):
        return main() or 0


def _top() -> Parser:
    width = max(map(len, verbs()))
    lines = ["The nightly loop that retrains, proves and serves placement policies."]
    for heading, section in VERBS.items():
        lines += ["", f"{heading}:", *(f"  {name:<{width}}  {text}" for name, (_, text) in section.items())]
    parser = Parser(
        prog="loadmaster",
        usage="loadmaster VERB [flags]",
        description="\n".join(lines),
        epilog="loadmaster VERB --help says what a verb takes.",
    )
    parser.add_argument("--version", action="store_true", help="say which release this is")
    return parser


@contextmanager
def _called(prog: str, argv: Sequence[str]) -> Iterator[None]:
    """Call a ``main`` that is no :class:`Verb` yet, which builds its own parser and reads ``sys.argv``, under our name.

    To be deleted with the last of them (``test_cli`` lists those left).
    """
    from unittest import mock

    build = argparse.ArgumentParser.__init__

    def named(self: argparse.ArgumentParser, *given: Any, **words: Any) -> None:
        if str(words.get("prog", "")).startswith(("python -m", "make")):
            words["prog"] = prog
        build(self, *given, **words)

    with mock.patch.object(sys, "argv", [prog, *argv]), mock.patch.object(argparse.ArgumentParser, "__init__", named):
        yield


def _completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def _print_completion(options: argparse.Namespace) -> int:
    """Import every verb once and write its flags into a script, so that the shell itself needs no Python on a TAB."""
    try:
        shtab: ModuleType = importlib.import_module("shtab")
    except ModuleNotFoundError as error:
        raise ConfigError("completion needs shtab", fix="pip install shtab") from error
    parser = _top()
    below = parser.add_subparsers(metavar="VERB")
    for name, (_, text) in verbs().items():
        one = below.add_parser(name, help=text, description=text)
        try:
            main = load(name)
        except ConfigError:
            continue  # not installed here: its name completes, its flags do not
        if isinstance(main, Verb):
            main.arguments(one)
    sys.stdout.write(shtab.complete(parser, shell=options.shell))
    return 0


completion = Verb("loadmaster completion", "Print the completion script.", _completion_arguments, _print_completion)


def main() -> None:
    """Run ``loadmaster``."""
    run_cli(lambda: dispatch(sys.argv[1:]))


if __name__ == "__main__":
    main()
