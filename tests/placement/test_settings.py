"""Settings come from the environment, typed, with errors that name what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from placement.service import check_fallbacks
from placement.settings import Settings, load
from sched_env import problems
from wire.errors import ConfigError


def test_without_a_variable_the_defaults_hold() -> None:
    assert load({}) == Settings()
    assert load({}).fallback("functions") == problems.get("functions").fallback


def test_var_moves_every_folder_and_single_variables_win() -> None:
    found = load({"LOADMASTER_VAR": "/srv/lm", "LOADMASTER_STORE_DIR": "/data/store"})
    assert found.store_dir == Path("/data/store")
    assert found.push_token_file == Path("/srv/lm/keys/push-token")
    assert found.log_dir == Path("/srv/lm/log/decisions")


def test_values_are_converted() -> None:
    found = load(
        {
            "LOADMASTER_DEADLINE_MS": "12.5",
            "LOADMASTER_DECISION_LOG": "false",
            "LOADMASTER_SCORING_THREADS": "3",
            "LOADMASTER_FALLBACK_FUNCTIONS": "first_fit",
            "LOADMASTER_RUNNER": "kubernetes",  # somebody else's
        }
    )
    assert (found.deadline_ms, found.decision_log, found.scoring_threads) == (12.5, False, 3)
    assert found.fallback("functions") == "first_fit"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DEADLINE_MS", "soon"),
        ("DEADLINE_MS", "0"),
        ("SCORING_THREADS", "0"),
        ("DECISION_LOG", "maybe"),
        ("STORE_DIR", ""),
    ],
)
def test_nonsense_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name.lower()):
        load({f"LOADMASTER_{name}": value})


def test_a_fallback_that_does_not_exist_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="no heuristic 'guess'"):
        check_fallbacks(msgspec.structs.replace(Settings(), fallbacks={"functions": "guess"}))


def test_a_taken_port_gets_a_clear_message(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        answer = subprocess.run(
            [sys.executable, "-m", "placement", "--port", port],
            env={"PATH": "", "LOADMASTER_VAR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert answer.returncode == 2
    assert re.fullmatch(
        r"error: cannot listen on 127\.0\.0\.1:\d+: .*in use.*choose another with --port\n", answer.stderr
    )


def test_every_setting_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    for name in set(Settings.__struct_fields__) - {"fallbacks"} | {"fallback_<problem>"}:
        assert f"`LOADMASTER_{name.upper()}`" in text
