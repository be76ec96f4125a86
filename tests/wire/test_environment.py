"""Names and places that the pipeline and the service must agree on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.registry import places, signing
from placement.settings import load
from wire import environment


def test_a_place_is_what_its_variable_says_else_below_var() -> None:
    assert environment.place("store_dir", {}) == Path("var/store")
    assert environment.place("store_dir", {"LOADMASTER_VAR": "/v"}) == Path("/v/store")
    assert environment.place("store_dir", {"LOADMASTER_VAR": "/v", "LOADMASTER_STORE_DIR": "/s"}) == Path("/s")
    assert environment.var({"LOADMASTER_VAR": ""}) == Path("var")


def test_both_sides_look_in_the_same_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment.BELOW_VAR:
        monkeypatch.delenv(environment.variable(name), raising=False)
    monkeypatch.setenv(environment.VAR, str(tmp_path))
    settings = load()
    assert settings.store_dir == places.store()
    assert settings.trusted_keys_dir == signing.trusted_folder()
    assert settings.revoked_keys_file == signing.revoked_file()
    assert settings.push_token_file == environment.place("push_token_file")
    assert settings.push_token_file.parent == signing.folder()
