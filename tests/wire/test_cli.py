"""The one door: every verb behind it, nothing loaded before one is chosen, the same flags and exit codes."""

import argparse
import ast
import importlib.util
import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from wire import cli
from wire.command import Verb, json_option, params_option, problem_option, seed_option
from wire.errors import ConfigError, run_cli

ROOT = Path(__file__).resolve().parents[2]

BY_HAND = {"ingest", "clean", "validate"}
"""Verbs whose ``main`` is not a ``Verb`` yet; with the last of them ``cli._called`` goes too."""

NOT_A_VERB = {"placement.trial", "placement.decision_files", "wire.cli"}
"""Child processes of the service, and the door itself."""


def source(module: str) -> Path:
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)


def assigned(path: Path) -> dict[str, ast.stmt]:
    """Top-level names of a module, without importing it."""
    names: dict[str, ast.stmt] = {}
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.FunctionDef):
            names[statement.name] = statement
        if isinstance(statement, ast.Assign):
            names |= {target.id: statement for target in statement.targets if isinstance(target, ast.Name)}
    return names


def test_help_loads_nothing_heavy():
    heavy = ["numpy", "torch", "pandas", "airflow", "onnx", "numba", "gymnasium", "yaml", "msgspec", "shtab"]
    code = (
        "import sys; from wire import cli\n"
        "try: cli.dispatch(['--help'])\n"
        f"except SystemExit: pass\nsys.stderr.write(','.join(sorted(set(sys.modules) & set({heavy}))))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stderr == ""
    for name, (_, text) in cli.verbs().items():
        assert name in run.stdout
        assert text in run.stdout


@pytest.mark.parametrize("name", cli.verbs())
def test_every_verb_names_something_that_exists(name):
    module, _, attribute = cli.verbs()[name][0].partition(":")
    found = assigned(source(module))
    assert attribute in found
    is_verb = isinstance(found[attribute], ast.Assign) and "Verb(" in ast.unparse(found[attribute])
    assert is_verb or name in BY_HAND


def test_no_command_line_is_left_out():
    behind_the_door = {entry[0].partition(":")[0] for entry in cli.verbs().values()}
    for package in ("wire", "sched_env", "pipeline", "placement"):
        for path in (ROOT / package).rglob("*.py"):
            if '\nif __name__ == "__main__"' in path.read_text():
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                assert module in behind_the_door | NOT_A_VERB


def test_nothing_imports_the_door():
    # Otherwise a word changed in the table would be a change of every stage's code.
    importing = re.compile(r"^\s*(from wire\.cli import|import wire\.cli|from wire import .*\bcli\b)", re.MULTILINE)
    for package in ("wire", "sched_env", "pipeline", "placement", "dags"):
        for path in (ROOT / package).rglob("*.py"):
            assert importing.search(path.read_text()) is None, path


def leave(*argv: str) -> int:
    with pytest.raises(SystemExit) as left:
        run_cli(lambda: cli.dispatch(argv))
    code = left.value.code
    assert isinstance(code, int)
    return code


def test_both_doors_give_the_same(capsys):
    from sched_env import rollout

    flags = ["--scenario", "vm/fading", "--policy", "first_fit", "--episodes", "2", "--set", "servers=2", "--json"]
    assert cli.dispatch(["rollout", *flags]) == 0
    through = capsys.readouterr().out
    assert rollout.main(flags) == 0

    def timeless(text: str) -> list[dict]:
        rows = [json.loads(line) for line in text.splitlines()]
        for row in rows:
            (row.get("summary") or row).pop("decision_us")
        return rows

    assert timeless(through) == timeless(capsys.readouterr().out)


def test_a_main_written_by_hand_gets_our_name_and_its_flags(monkeypatch, capsys):
    def by_hand() -> int:
        parser = argparse.ArgumentParser(prog="python -m pipeline.push")
        parser.add_argument("--steps", type=int)
        return parser.parse_args().steps - 1

    monkeypatch.setattr(cli, "load", lambda _: by_hand)
    assert leave("push", "--steps", "1") == 0
    assert leave("push", "--help") == 0
    assert capsys.readouterr().out.startswith("usage: loadmaster push ")
    assert leave("push", "--steps", "many") == 2
    assert "loadmaster push: error: argument --steps" in capsys.readouterr().err


def test_a_mistake_is_one_line_and_exit_code_2(capsys):
    for argv in (["rollout", "--seed", "x"], ["rollout", "--scenario", "vm/fading"], ["--what"]):
        assert leave(*argv) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert said.endswith("--help\n")
        assert said.count("\n") == 1


def test_an_unknown_verb_is_told_the_nearest(capsys):
    assert leave("evalute") == 2
    assert "did you mean 'evaluate'" in capsys.readouterr().err


def test_no_verb_shows_help_and_is_a_mistake(capsys):
    assert leave() == 2
    assert "stages of a night" in capsys.readouterr().err


def test_flags_are_never_abbreviated(capsys):
    assert leave("rollout", "--scen", "vm/fading") == 2
    assert "--scen" in capsys.readouterr().err


def test_interrupted_is_130_and_findings_are_1(monkeypatch, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load", lambda _: Verb("", "", lambda _: None, interrupt))
    assert leave("gate") == 130
    assert capsys.readouterr().err == "interrupted\n"
    monkeypatch.setattr(cli, "load", lambda _: Verb("", "", lambda _: None, lambda _: 1))
    assert leave("gate") == 1


def test_a_verb_whose_packages_are_absent_says_what_to_install(monkeypatch):
    monkeypatch.setattr(cli, "verbs", lambda: {"fly": ("no_such_package.fly:main", "")})
    with pytest.raises(ConfigError, match=r"loadmaster fly needs no_such_package; pip install|install the extra"):
        cli.dispatch(["fly"])


def test_shared_flags_read_alike_everywhere():
    seen = {}

    def arguments(parser):
        problem_option(parser, ("vm", "pods"))
        params_option(parser, Path("params.yaml"))
        seed_option(parser, "the training", default=None)
        json_option(parser, "what was found")

    verb = Verb("try", None, arguments, lambda options: seen.update(vars(options)))
    assert verb(["--problem", "vm", "--seed", "3", "--json"]) == 0
    assert seen == {"problem": "vm", "params": Path("params.yaml"), "seed": 3, "json": True}
    with pytest.raises(SystemExit):
        verb(["--problem", "vm"])  # a training without a seed has no name
    with pytest.raises(SystemExit):
        verb(["--problem", "trucks", "--seed", "3"])


@pytest.fixture
def few_verbs(monkeypatch):
    """Without torch and the rest: what completion does with a verb is the same for all."""
    whole = cli.verbs()
    few = {name: whole[name] for name in ("rollout", "bundle", "completion")}
    monkeypatch.setattr(cli, "verbs", lambda: few | {"fly": ("no_such_package.fly:main", "not installed")})


def test_bash_completes_verbs_and_flags(few_verbs, capsys, tmp_path):
    assert cli.dispatch(["completion", "bash"]) == 0
    script = tmp_path / "loadmaster.bash"
    script.write_text(capsys.readouterr().out)

    def complete(*words: str) -> list[str]:
        ask = (
            f"source {script}; COMP_WORDS=(loadmaster {' '.join(words[:-1])} '{words[-1]}'); COMP_CWORD={len(words)}; "
            f"_shtab_loadmaster loadmaster '{words[-1]}'; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        return subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.split()

    assert complete("ro") == ["rollout"]
    assert complete("f") == ["fly"]  # not installed here, but a verb
    assert complete("rollout", "--be") == ["--best-heuristic"]
    assert sorted(complete("completion", "")) == ["bash", "fish", "zsh"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_with_the_flags(few_verbs, capsys, shell):
    assert cli.dispatch(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "best-heuristic" in script
    assert "rollout" in script


def test_every_help_is_there_within_a_second_of_work():
    """CPU time, so that a busy machine does not matter; nothing heavy is imported to say it."""
    code = """
import contextlib, io, json, sys, time
from wire import cli
spent = {}
for name in cli.verbs():
    began = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert cli.dispatch([name, "--help"]) == 0
    assert said.getvalue().startswith(f"usage: loadmaster {name}"), name
    spent[name] = time.process_time() - began
assert not {"torch", "numba", "pandas", "starlette"} & set(sys.modules)
print(json.dumps(spent))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    spent = json.loads(done.stdout)
    assert len(spent) == len(cli.verbs())
    assert max(spent.values()) < 1.0, spent


@pytest.mark.parametrize("name", sorted(cli.verbs()))
def test_wrong_usage_of_any_verb_is_no_traceback(name, capsys):
    with pytest.raises(SystemExit) as left:
        run_cli(lambda: cli.dispatch([name, "--no-such-flag"]))
    said = capsys.readouterr()
    assert left.value.code == 2
    assert "error: " in said.err.splitlines()[-1]  # those written out by hand say their usage before it
    assert "Traceback" not in said.err


def modules_with_help():
    """Every ``python -m`` that has a help of its own, and what it must not wait for."""
    helps = json.loads((Path(cli.__file__).with_name("helps.json")).read_text())
    return sorted({called.split()[2] for called in helps if called.startswith("python -m ")})


def test_every_module_that_is_a_verb_has_its_help_written_down():
    mains = {name: entry[0] for name, entry in cli.verbs().items()}
    progs = {main.prog for name in mains if isinstance(main := cli.load(name), Verb)}
    progs |= {f"python -m {mains[name].partition(':')[0].removesuffix('.command')}" for name in BY_HAND}
    wanted = {prog.split()[2] for prog in progs if prog.startswith(("python -m pipeline.", "python -m placement"))}
    assert len(wanted) > 25
    assert set(modules_with_help()) == wanted


def test_python_m_says_its_help_within_a_second_and_imports_nothing_heavy():
    """CPU time of the whole process, so that a busy machine does not matter."""
    spent = {}
    for module in modules_with_help():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True, cwd=ROOT
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.stdout.startswith(f"usage: python -m {module}"), module
        spent[module] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert max(spent.values()) < 1.0, spent


def test_help_of_a_command_below_a_verb_is_quick_too_and_what_is_unknown_is_asked_of_the_verb():
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.registry", "show", "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("usage: python -m pipeline.registry show")
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.push", "nothing", "--help"], capture_output=True, text=True, check=False
    )
    assert "usage: python -m pipeline.push" in done.stdout + done.stderr
