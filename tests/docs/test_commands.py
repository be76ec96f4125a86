"""Every command of the documentation is one that works: run where that is cheap, parsed in full where it is not.

What a reader would type stands in blocks marked ``sh``. A command that is not run is named in ``NOT_RUN`` with the
reason; its flags are held to its parser all the same, so that a renamed one is found.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.servers import free_port, wait_for
from wire import cli
from wire.command import Parser, Verb

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.parent.name not in ("reference", "results")]  # made by programs; what was run

NOT_RUN = {
    r"make (run|test|quick|setup|lint)\b": "the suite itself, or a whole night; make -n knows the target",
    r"dvc (repro|exp)\b": "trains; tests/test_thread.py runs every stage",
    r"dvc (metrics|params) ": "compares with a run that is there",
    r"loadmaster (train|tune)\b": "trains; tests/pipeline/policies",
    r"loadmaster (ingest|clean|validate)\b": "a day of windows; tests/pipeline/test_every_problem.py",
    r"(loadmaster|python -m pipeline\.)\s?gate explain": "needs an evaluation; tests/pipeline/gate",
    r"loadmaster serve|python -m placement\b": "a server; started here for the curl commands",
    r"loadmaster jobs\b": "needs a job controller; tests/placement/cpn",
    r"loadmaster doctor\b": "needs a Prometheus; tests/pipeline/test_doctor.py",
    r"loadmaster verify\b": "needs what was promoted; tests/pipeline/registry",
    r"loadmaster registry (rollback|restore)\b": "needs what was promoted; tests/pipeline/registry",
    r"loadmaster mode\b": "needs a token of a service with policies; tests/placement",
    r"python -m pipeline\.(promote|push|verify_live|runtime_model)\b": "needs a run, or profiles; tests/pipeline",
    r"python -m pipeline\.registry (record-run|rollback|show|diff|lineage)\b": "needs a run; tests/pipeline/registry",
    r"python -m pipeline\.registry\.keys (trust|retire|revoke)\b": "needs the id of a key; tests/pipeline/registry",
    r"python -m pytest\b": "the suite runs them",
    r"loadmaster rollout --scenario (shelves/small|pods/deploy)": "the reader's own problem, or cluster",
    r"loadmaster view var/log": "the decision log of a service that has decided; tests/sched_env/view",
    r"loadmaster view best.parquet$": "opens a browser; the page is written below",
    r"curl -s http://127.0.0.1:8100/v1/clusters": "needs a watched cluster; tests/placement/kube",
    r"softhsm2-util|pkcs11-tool|export LOADMASTER_SIGNING_KEY": "needs a token; tests/pipeline/registry/test_token.py",
    r"git clone|sed -i|\. \.venv": "of the reader's own remote or file",
    r"python - <<": "reads the public price table",
}
"""Pattern -> why it is not run here, and where it is."""

PLACEHOLDERS = re.compile(r"…|<[a-z][^>]*>|\bOUT\b|\bKEY\b")


@cache
def commands():
    """Page and command, in order: lines of a block joined where a quote or a backslash goes on, comments cut."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE):
            waiting = ""
            for line in block.splitlines():
                waiting = f"{waiting}\n{line}" if waiting else line.strip()
                try:
                    words = shlex.split(waiting.removesuffix("\\"), comments=True)
                except ValueError:  # a quote is open
                    continue
                if waiting.endswith("\\") or ("<<'EOF'" in waiting and not waiting.rstrip().endswith("\nEOF")):
                    continue
                if words:
                    found.append((str(page.relative_to(ROOT)), waiting, words))
                waiting = ""
            assert not waiting, f"{page}: {waiting} does not end"
    assert len(found) > 60
    return found


def reason(command):
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, command)), None)


def environment_of(words):
    """Split leading VAR=value from the command."""
    at = next(at for at, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
    return dict(word.split("=", 1) for word in words[:at]), words[at:]


def test_every_reason_is_needed():
    lines = [environment_of(words)[1] for _, _, words in commands()]
    unused = [pattern for pattern in NOT_RUN if not any(re.match(pattern, shlex.join(words)) for words in lines)]
    unused = [pattern for pattern in unused if not any(re.match(pattern, command) for _, command, _ in commands())]
    assert unused == []


def parsed(words):
    """Hold the words of a verb to its parser; None where it has none."""
    if words[0] == "loadmaster":
        name, rest = words[1], words[2:]
    else:
        module = words[2]
        names = {
            entry[0].partition(":")[0].removesuffix(".command").removesuffix(".__main__"): name
            for name, entry in cli.verbs().items()
        }
        name, rest = names.get(module, ""), words[3:]
    assert name in cli.verbs(), f"there is no verb {' '.join(words[:3])}"
    main = cli.load(name)
    if isinstance(main, Verb):
        parser = Parser(prog=name)
        main.arguments(parser)
        parser.parse_args(rest)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        pytest.param(page, environment_of(words)[1], id=f"{page}:{' '.join(words)[:60]}")
        for page, _, words in commands()
        if environment_of(words)[1][0] == "loadmaster"
        or (
            environment_of(words)[1][:2] == ["python", "-m"]
            and environment_of(words)[1][2].startswith(("pipeline", "placement", "sched_env", "wire"))
        )
    ],
)
def test_flags_and_values_are_those_that_the_verb_takes(page, words):
    if any(PLACEHOLDERS.search(word) or word.startswith("[") for word in words):
        words = [word for word in words if not word.startswith("[") and not word.endswith("]")]
    parsed(words)


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=" ".join(words)) for _, _, words in commands() if words[0] == "make"]
)
def test_make_knows_its_targets_and_variables(words):
    target = words[: words.index("&&")] if "&&" in words else words
    done = subprocess.run(["make", "-n", *target[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in target[2:]:
        assert f"{word.partition('=')[0]} ?=" in (ROOT / "Makefile").read_text(), word


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=" ".join(words)) for _, _, words in commands() if words[0] == "dvc"]
)
def test_dvc_takes_them_and_knows_the_stages(words):
    from dvc.cli import parse_args

    options = parse_args(words[1:])
    import yaml

    stages = set(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]) | {"gate@shelves"}
    for target in getattr(options, "targets", None) or []:
        assert target.partition("@")[0] in {stage.partition("@")[0] for stage in stages}, target


def test_what_is_cheap_runs_one_after_another_in_an_empty_folder(tmp_path):
    """As a reader who has installed Loadmaster and has no night yet; a registry is made by the first that needs one."""
    from pipeline.registry.chain import sync

    var = tmp_path / "var"
    environ = {**os.environ, "LOADMASTER_VAR": str(var), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOADMASTER_VAR", str(var))
        sync()
    ran = []
    for page, command, words in commands():
        if reason(shlex.join(environment_of(words)[1])) or reason(command) or words[0] == "curl":
            continue
        typed = command.replace("[--problem functions]", "")
        done = subprocess.run(
            ["bash", "-c", typed], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, f"{page}: {command}\n{done.stdout}{done.stderr}"
        assert done.stdout.strip(), f"{page}: {command} says nothing"
        ran.append(command)
    assert len(ran) >= 8, ran
    assert (tmp_path / "comparison.html").stat().st_size > 10_000


def test_the_service_answers_every_curl(tmp_path):
    asked = [(page, command) for page, command, words in commands() if words[0] == "curl" and not reason(command)]
    assert len(asked) >= 3
    port = free_port()
    environ = {**os.environ, "LOADMASTER_VAR": str(tmp_path)}
    service = subprocess.Popen(
        [sys.executable, "-m", "placement", "--host", "127.0.0.1", "--port", str(port)],
        env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(port, service, 400)
        for page, command in asked:
            here = command.replace("localhost:8100", f"127.0.0.1:{port}")
            here = here.replace("curl -s", "curl -s --fail-with-body --noproxy '*'")
            done = subprocess.run(["bash", "-c", here], capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 0, f"{page}: {command}\n{done.stdout}{done.stderr}"
            answer = json.loads(done.stdout)
            assert answer.keys() & {"policies", "placements"}, answer
    finally:
        service.terminate()
        service.wait(20)
