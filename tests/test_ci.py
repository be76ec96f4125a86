"""The workflows parse, are careful with what they may do, and run what the Makefile has."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def jobs(path: Path) -> dict:
    return yaml.safe_load(path.read_text())["jobs"]


def test_the_four_workflows_are_there():
    assert {path.stem for path in WORKFLOWS} == {"quick", "full", "docs", "images"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_careful(path):
    text, workflow = path.read_text(), yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["cancel-in-progress"] is True
    assert "secrets." not in text
    assert "pull_request_target" not in text
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 180
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"actions/[a-z-]+@(v\d+|[0-9a-f]{40})", step["uses"])
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
            # What others wrote (titles, branch names) never becomes part of a shell line.
            assert "${{" not in step.get("run", "")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_is_there(path):
    for job in jobs(path).values():
        for step in job["steps"]:
            for target in re.findall(r"\bmake ([a-z]+)", step.get("run", "")):
                assert target in TARGETS
            for script in re.findall(r"\bscripts/\S+", step.get("run", "")):
                assert (ROOT / script).is_file()


def test_every_supported_python_is_tried():
    supported = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert supported is not None
    first, after = map(int, supported.groups())
    tried = jobs(ROOT / ".github" / "workflows" / "quick.yml")["quick"]["strategy"]["matrix"]["python"]
    assert tried == [f"3.{minor}" for minor in range(first, after)]


def test_dependabot_watches_everything_we_pin():
    watched = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    assert {each["package-ecosystem"] for each in watched} == {"pip", "github-actions", "docker"}
    for each in watched:
        assert (ROOT / each["directory"].lstrip("/")).is_dir()
