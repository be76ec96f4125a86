"""Write docs/reference from the code: ``make reference``; a test holds the pages to it.

Commands come from their parsers, parameters from the typed settings (the reason stands under each field), the API from
its described routes, metrics from their registry, tables from their schemas. Nothing of it is written by hand.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import io
import json
import os
import sys
import textwrap
import types
from collections.abc import Iterable, Iterator
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
HELPS = FOLDER.parents[1] / "wire" / "helps.json"
EARLY = ("python -m pipeline.", "python -m placement")
"""What ``wire.early_help`` answers for: the packages that ask it."""
MADE = "<!-- Made by scripts/reference.py from the code: change the code, then `make reference`. -->\n\n"


def main() -> int:
    """Write every page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
        sys.stdout.write(f"docs/reference/{name}\n")
    HELPS.write_text(json.dumps(helps(), indent=0, ensure_ascii=False) + "\n")
    sys.stdout.write("wire/helps.json\n")
    return 0


def pages() -> dict[str, str]:
    """Return the pages by file name."""
    found = {"cli.md": cli(), "params.md": params(), "api.md": api(), "metrics.md": metrics(), "windows.md": windows()}
    return {name: MADE + text for name, text in found.items()}


def cli() -> str:
    """Every verb with its help."""
    from wire import cli as door

    lines = [
        "# Commands",
        "",
        "`loadmaster VERB --help` prints the same. Exit codes: 0 done; 1 where a verb says that it found something;",
        "2 a mistake in input or settings, in one line; 130 interrupted.",
        "",
    ]
    said = helps()
    for heading, section in door.VERBS.items():
        lines += [f"## {heading[0].upper()}{heading[1:]}", ""]
        for name, (_, text) in section.items():
            lines += [f"### {name}", "", f"{text[0].upper()}{text[1:]}.", "", "```text"]
            lines += ["\n\n".join(one for called, one in said.items() if called.split()[0] == name), "```", ""]
    return "\n".join(lines)


@cache
def helps() -> dict[str, str]:
    """The help of every verb, and of the commands below it, by how it is called."""
    from wire import cli as door
    from wire.command import Parser, Verb

    os.environ["COLUMNS"] = "100"
    found: dict[str, str] = {}
    for name in door.verbs():
        main = door.load(name)
        if isinstance(main, Verb):
            for prog, called in ((f"loadmaster {name}", name), (main.prog, main.prog)):
                if called == name or prog.startswith(EARLY):
                    parser = Parser(prog=prog, description=(main.description or "").strip())
                    main.arguments(parser)
                    found |= _helps(called, parser)
        else:  # a main written out by hand: what it prints
            module = door.verbs()[name][0].partition(":")[0].removesuffix(".command")
            for prog, called in ((f"loadmaster {name}", name), (f"python -m {module}", f"python -m {module}")):
                asked = door._called(prog, ["--help"])
                with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit), asked:
                    main()
                found[called] = "\n".join(_relative(said.getvalue()))
    return found


def _helps(called: str, parser: argparse.ArgumentParser) -> dict[str, str]:
    found = {called: "\n".join(_relative(parser.format_help()))}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                found |= _helps(f"{called} {name}", below)
    return found


def _relative(text: str) -> list[str]:
    """Lines of a help, without the place where this clone lies."""
    return text.replace(str(FOLDER.parents[1]) + "/", "").rstrip().splitlines()


def params() -> str:
    """Every section of params.yaml."""
    from pipeline import backtest, datasets, evaluate, ingest, train, workspace
    from pipeline import windows as cut
    from pipeline.clean.config import CleanConfig
    from pipeline.gate.config import Config as GateConfig
    from pipeline.policies.settings import Settings
    from pipeline.validate.config import ValidateConfig

    sections: dict[str, type[msgspec.Struct]] = {
        "data": ingest.Range,
        "nightly": workspace.NightlyConfig,
        "ingest": ingest.IngestConfig,
        "clean": CleanConfig,
        "validate": ValidateConfig,
        "splits": cut.SplitConfig,
        "workload.<problem>": datasets.WorkloadConfig,
        "train.<problem>": train.TrainConfig,
        "train.<problem>.<algorithm>": Settings,
        "evaluate.<problem>": evaluate.EvaluateConfig,
        "backtest": backtest.Config,
        "gate": GateConfig,
    }
    lines = [
        "# Parameters",
        "",
        "The sections of `params.yaml`; an unknown key is an error. `problems` is the list of what a night trains, "
        "`seeds` that of its trainings of each.",
        "A setting of an algorithm has its value in `pipeline/policies/<algorithm>.yaml`.",
        "",
    ]
    for name, kind in sections.items():
        lines += _struct(name, kind, level=2)
    return "\n".join(lines)


def _struct(name: str, kind: type[msgspec.Struct], level: int) -> list[str]:
    lines = [f"{'#' * level} {name}", "", _words(inspect.getdoc(kind) or ""), ""]
    lines += ["| key | type | default | |", "| --- | --- | --- | --- |"]
    reasons, hints, inner = _reasons(kind), get_type_hints(kind), []
    for field in msgspec.structs.fields(kind):
        hint = hints[field.name]
        inner += [(field.encode_name, found) for found in _structs(hint)]
        row = (
            f"`{field.encode_name}`",
            f"`{_type(hint)}`".replace("|", "\\|"),
            _default(field),
            _words(reasons.get(field.name, "")),
        )
        lines.append("| " + " | ".join(row) + " |")
    lines.append("")
    for below, found in inner:
        lines += _struct(f"{name}.{below}", found, min(level + 1, 5))
    return lines


def _structs(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for one in get_args(hint):
        yield from _structs(one)


def _type(hint: Any) -> str:
    """A type in words that every Python version says alike."""
    given, base = get_args(hint), get_origin(hint)
    if base is Literal:
        return " | ".join(repr(one) for one in given)
    if base in (Union, types.UnionType):
        return " | ".join(_type(one) for one in given)
    if hint is type(None):
        return "null"
    if given:
        return f"{_type(base)}[{', '.join('…' if one is Ellipsis else _type(one) for one in given)}]"
    return str(getattr(hint, "__name__", hint))


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "**needed**"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, msgspec.Struct):
        return "see below"
    if isinstance(value, dict) and any(isinstance(one, msgspec.Struct) for one in value.values()):
        value = {key: msgspec.to_builtins(one) for key, one in value.items()}
    if isinstance(value, Path | date):
        value = str(value)
    return f"`{value!r}`".replace("|", "\\|") if value is not None else "none"


def _reasons(kind: type) -> dict[str, str]:
    """The string under each field of a class, its bases' too."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith(("pipeline", "wire", "sched_env", "placement")):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)  # noqa: S101
        for here, after in zip(body.body, body.body[1:], strict=False):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(here, ast.AnnAssign) and isinstance(here.target, ast.Name) and isinstance(text, ast.Constant):
                found[here.target.id] = str(text.value)
    return found


def _words(text: str) -> str:
    """One line of Markdown from a docstring."""
    return " ".join(text.replace("``", "`").replace(":class:", "").split()).replace("|", "\\|").replace("<", "&lt;")


def api() -> str:
    """Every route of the service."""
    from placement.app import DESCRIBED

    lines = [
        "# API of the service",
        "",
        "`/openapi.json` is the same for programs, `/docs` on the service for people. Every refusal is",
        '`{"error": "what was found; expected what; what to do"}`.',
        "",
    ]
    for route in DESCRIBED:
        role = " Needs a token with the role." if route.secured else ""
        lines += [
            f"## {route.method.upper()} {route.path.replace('{', '&#123;').replace('}', '&#125;')}",
            "",
            f"{route.summary}.{role}",
            "",
        ]
        lines += [_words(inspect.getdoc(route.endpoint) or ""), ""]
        if route.headers:
            lines += [
                "| header | |",
                "| --- | --- |",
                *(f"| `{name}` | {_words(text)} |" for name, (text, _) in route.headers.items()),
                "",
            ]
        if route.takes:
            lines += [f"Takes {_kind(route.takes)}.", ""]
        lines += [
            f"Gives {_kind(route.gives)}"
            + (f"; refuses with {', '.join(map(str, route.refuses))}." if route.refuses else "."),
            "",
        ]
    return "\n".join(lines)


def _kind(kind: Any) -> str:
    return f"`{kind}`" if isinstance(kind, str) else f"`{_type(kind)}`"


def metrics() -> str:
    """Every instrument of the service, and of the job controller."""
    from prometheus_client import CollectorRegistry

    from placement.cpn.metrics import CpnMetrics
    from placement.metrics import Metrics

    jobs = CollectorRegistry()
    CpnMetrics(jobs)
    lines = [
        "# Metrics",
        "",
        "At `/metrics` of the service. What to be woken for: [the service](../service.md#metrics);",
        "`deploy/prometheus` has the rules.",
        "",
    ]
    for heading, registry in (("Service", Metrics().registry), ("Job controller", jobs)):
        lines += [
            f"## {heading}",
            "",
            "| name | kind | labels | |",
            "| --- | --- | --- | --- |",
            *_instruments(registry),
            "",
        ]
    return "\n".join(lines)


def _instruments(registry: Any) -> Iterable[str]:
    rows = []
    for collector in registry._collector_to_names:
        for family in collector.describe() if hasattr(collector, "describe") else ():
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = ", ".join(getattr(collector, "_labelnames", ()))
            rows.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return sorted(set(rows))


def windows() -> str:
    """Every window table and raw table."""
    from pipeline.contracts import raw
    from pipeline.contracts import windows as cut

    lines = [
        "# Tables",
        "",
        "Parquet, `date=YYYY-MM-DD` folders. Units are in the names. What becomes of a sample on its way:",
        f"[windows](../windows.md). Version {cut.SCHEMA_VERSION} of the window tables.",
        "",
    ]
    for heading, tables in (("Window tables", cut.TABLES), ("Raw tables", raw.TABLES)):
        lines += [f"## {heading}", ""]
        for name, schema in tables.items():
            lines += [f"### {name}", "", "| column | type | may be null |", "| --- | --- | --- |"]
            lines += [f"| `{field.name}` | `{field.type}` | {'yes' if field.nullable else 'no'} |" for field in schema]
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
