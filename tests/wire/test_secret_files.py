"""Secrets: mode 600 from the first byte, whole or not at all, and the first of two writers wins."""

from __future__ import annotations

import multiprocessing
import stat
from pathlib import Path

import pytest

from wire import secret_files
from wire.errors import ConfigError


def test_a_secret_is_its_owners_alone_and_leaves_no_scratch(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "secret"
    secret_files.create(path, b"one", exclusive=True)
    secret_files.create(path, b"two", exclusive=True)
    assert path.read_bytes() == b"one"
    secret_files.create(path, b"three", exclusive=False)
    assert path.read_bytes() == b"three"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]


def test_pipeline_and_service_starting_at_once_share_one_token(tmp_path: Path) -> None:
    path = tmp_path / "push-token"
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=secret_files.make_push_token, args=(path,)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    token = secret_files.push_token(path)
    assert len(token) > 30
    secret_files.make_push_token(path)
    assert secret_files.push_token(path) == token


def test_a_place_where_no_token_can_be_made_is_named_with_its_variable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="LOADMASTER_PUSH_TOKEN_FILE"):
        secret_files.make_push_token(tmp_path / "file" / "push-token")
