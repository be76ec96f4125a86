"""Break-glass works with a token and the service alone; a freeze holds pushes off and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest

from placement import mode
from placement.settings import load
from wire.errors import ConfigError, LoadmasterError


@pytest.fixture
def glass(monkeypatch: pytest.MonkeyPatch, settings: Any, kit: Any, workshop: Any, capsys: Any) -> Any:
    """The service with a policy on a socket; runs ``loadmaster mode`` against it and returns what it says."""
    monkeypatch.setenv("LOADMASTER_PUSH_TOKEN_FILE", str(settings.push_token_file))
    with kit.listening(settings) as url, httpx.Client(base_url=url, timeout=60) as client:
        assert kit.push(client, workshop.sample(1), counter=1).status_code == 200

        def said(*arguments: str) -> tuple[int, str]:
            code = mode.main([*arguments, "--url", url])
            return code, capsys.readouterr().out

        said.client = client  # type: ignore[attr-defined]
        yield said


def test_heuristics_answer_and_the_policy_comes_back(glass: Any, kit: Any, workshop: Any, settings: Any) -> None:
    digest = kit.digest_of(workshop.sample(1))
    assert glass("heuristic") == (0, "functions: worst_fit answers, counter 2\n")
    assert kit.place(glass.client).json()["placements"][0]["fallback"]
    assert glass("heuristic", "--problem", "functions") == (0, "functions: worst_fit answers already\n")
    assert glass("policy") == (0, f"functions: {digest} answers, counter 3\n")
    assert not kit.place(glass.client).json()["placements"][0]["fallback"]
    assert glass("policy", "--problem", "vm") == (0, "vm: no policy was ever pushed\n")
    audited = [msgspec.json.decode(line) for line in (settings.log_dir / "audit.jsonl").read_bytes().splitlines()]
    assert [line["action"] for line in audited] == ["push", "switch_off", "rollback"]


def test_a_wrong_token_changes_nothing_and_is_said(glass: Any, settings: Any, monkeypatch: Any, tmp_path: Any) -> None:
    other = tmp_path / "other-token"
    other.write_text("x" * 40)
    other.chmod(0o600)
    monkeypatch.setenv("LOADMASTER_PUSH_TOKEN_FILE", str(other))
    code, said = glass("heuristic")
    assert (code, "not changed" in said) == (1, True)


def test_no_service_is_said() -> None:
    with pytest.raises(LoadmasterError, match="does not answer"):
        mode.main(["heuristic", "--url", "http://127.0.0.1:9"])


def test_a_freeze_holds_off_pushes_until_it_ends_and_not_the_way_back(settings: Any, kit: Any, workshop: Any) -> None:
    now = datetime.now(UTC)
    over = f"{(now - timedelta(days=2)).isoformat()}/{(now - timedelta(days=1)).isoformat()}"
    with kit.running(msgspec.structs.replace(settings, freeze=over)) as client:
        assert kit.push(client, workshop.sample(1), counter=1).status_code == 200
    until = (now + timedelta(hours=1)).isoformat()
    frozen = msgspec.structs.replace(settings, freeze=f"{over}, {now.isoformat()}/{until}")
    with kit.running(frozen) as client:
        live = kit.digest_of(workshop.sample(1))
        answer = kit.push(client, workshop.sample(2), counter=2, live=live)
        assert (answer.status_code, until in answer.json()["error"]) == (423, True)
        off = client.delete("/v1/policies/functions", headers={"Authorization": f"Bearer {kit.TOKEN}"})
        assert off.status_code == 200


@pytest.mark.parametrize("text", ["tomorrow", "2026-01-01/2026-01-02", "2026-01-02T00:00Z/2026-01-01T00:00Z", "a/b"])
def test_a_freeze_that_cannot_be_read_stops_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match="LOADMASTER_FREEZE"):
        load({"LOADMASTER_FREEZE": text})
