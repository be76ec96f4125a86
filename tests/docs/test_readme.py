"""README promises what is there: its transcript is what the code prints, in both languages the same commands."""

import re
from pathlib import Path

import yaml

from pipeline.local.__main__ import Progress

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
CHINESE = (ROOT / "README.zh.md").read_text()


def stages():
    """Names of the stages of a night on the sample, as Airflow shows them, in order."""
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    found = []
    for name, stage in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].items():
        matrix = stage.get("matrix", {})
        problems = params["problems"] if "problem" in matrix else [""]
        for problem in problems:
            found.append((name, problem))
    return found


def test_the_transcript_is_what_a_night_prints(capsys):
    shown = [line for line in README.splitlines() if line.startswith("  ✔ ")]
    names = [line.split()[1] for line in shown]
    states = [
        {"task_id": name, "map_index": -1, "state": "success", "end_date": str(k).zfill(3)}
        for k, name in enumerate(names)
    ]
    Progress().show(states)
    assert capsys.readouterr().out.splitlines() == shown
    assert names[0] == "workspace"
    assert names[-2:] == ["shadow", "record"]
    said = [name.partition("@") for name in names[1:-2]]
    in_order = list(dict.fromkeys((stage, rest.split("-")[0]) for stage, _, rest in said))
    assert in_order == stages()


def test_the_figures_of_the_readme_are_those_of_the_results():
    for figure, page in (
        ("+15.8 % (13.3 to 19.7)", "thread.md"),
        ("8 min", "thread.md"),
        ("+4.46 % [3.9, 5.1]", "quality.md"),
        ("+6.77 % [6.6, 6.9]", "quality.md"),
        ("+7.16 % [6.7, 7.6]", "quality.md"),
        ("+7.6 % [4.9, 11.0]", "quality.md"),
    ):
        assert figure in README
        assert figure in (ROOT / "docs" / "results" / page).read_text()


def test_both_languages_name_the_same_commands_and_pictures():
    def commands(text):
        blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        return {line.partition("#")[0].strip() for block in blocks for line in block.splitlines()}

    assert commands(CHINESE) <= commands(README)
    assert "docs/images/replay.png" in CHINESE
