"""What make run says before it starts anything: no git, no history, no room, somebody else at work."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.local import __main__ as local
from pipeline.local import servers
from wire.errors import ConfigError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def settings(tmp_path):
    return servers.LocalSettings(repository=tmp_path / "code", var=tmp_path / "var")


def test_a_zip_without_history_and_a_machine_without_git_are_told_so(settings, monkeypatch):
    settings.repository.mkdir()
    with pytest.raises(ConfigError, match=r"no git repository with a commit \(a ZIP has none\)"):
        local.require_repository(settings)
    assert not settings.var.exists(), "nothing half done"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="no git on this machine"):
        local.require_repository(settings)


def test_a_full_disk_is_told_before_anything_starts(settings, monkeypatch):
    subprocess.run(["git", "init", "-q", str(settings.repository)], check=True)
    who = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", "-C", settings.repository, *who, "commit", "-qm", "x", "--allow-empty"], check=True)
    local.require_repository(settings)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**29))
    with pytest.raises(ConfigError, match=r"0\.5 GiB are free"):
        local.require_repository(settings)


def test_two_at_once_are_refused_and_a_killed_one_leaves_no_lock(settings):
    program = (
        "import sys, time; from pathlib import Path\n"
        "from pipeline.local import __main__ as local, servers\n"
        "with local.alone(servers.LocalSettings(repository=Path('.'), var=Path(sys.argv[1]))):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", program, settings.var], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert other.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=rf"another make run works in .*process {other.pid}"), local.alone(settings):
        pass
    other.kill()
    other.wait()
    with local.alone(settings):
        assert (settings.var / "run.lock").read_text() == str(os.getpid())


def test_make_clean_asks_before_it_deletes_a_registry(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path / "Makefile")
    (tmp_path / "var" / "keys").mkdir(parents=True)

    def clean(answer, *more):
        return subprocess.run(
            ["make", "clean", *more], cwd=tmp_path, input=answer, capture_output=True, text=True, check=False
        )

    refused = clean("no\n")
    assert refused.returncode != 0
    assert "nothing was deleted" in refused.stdout
    assert clean("").returncode != 0, "nobody there to answer is no yes"
    assert (tmp_path / "var" / "keys").exists()
    assert clean("yes\n").returncode == 0
    assert not (tmp_path / "var").exists()
    (tmp_path / "var" / "keys").mkdir(parents=True)
    assert clean("", "SURE=yes").returncode == 0
    assert not (tmp_path / "var").exists()


def test_the_demo_is_laid_over_settings_that_exist(tmp_path):
    import yaml

    from pipeline.gate.config import Config
    from pipeline.ingest import IngestConfig
    from pipeline.settings import load
    from pipeline.workspace import laid_over

    below, above = (yaml.safe_load((ROOT / name).read_text()) for name in ("params.yaml", "sizes/demo.yaml"))
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(laid_over(below, above)))
    assert load("ingest", IngestConfig, path)
    assert load("gate", Config, path).guardrails["sla_violation_rate"].absolute == 0.02
    training = load("train", dict, path)["functions"]["expert"]
    assert (training["segments"], training["decisions"]) == (1, 20), "the rest stays"
