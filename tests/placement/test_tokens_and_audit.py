"""Who may change what is live, and what is written down about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from wire import secret_files
from wire.errors import ConfigError

PUSHER, KEEPER = "p" * 40, "k" * 40


def use(settings: Any, text: str, mode: int = 0o600) -> None:
    settings.push_token_file.write_text(text)
    settings.push_token_file.chmod(mode)


def lines(settings: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (settings.log_dir / "audit.jsonl").read_text().splitlines()]


def change(client: Any, method: str, path: str, token: str) -> httpx.Response:
    answer: httpx.Response = client.request(method, path, headers={"Authorization": f"Bearer {token}"})
    return answer


def test_each_token_does_what_its_role_says(client: Any, settings: Any, workshop: Any, kit: Any) -> None:
    use(settings, f"# two people\nairflow push {PUSHER}\n\nada rollback {KEEPER}\n")
    one, two = workshop.sample(1), workshop.sample(2)
    refused = kit.push(client, one, counter=1, token=KEEPER)
    assert (refused.status_code, "ada has not the role push" in refused.json()["error"]) == (403, True)
    assert kit.push(client, one, counter=1, token=PUSHER).is_success
    assert kit.push(client, two, counter=2, live=kit.digest_of(one), token=PUSHER).is_success
    for method, path in (("POST", "/v1/policies/functions/rollback"), ("DELETE", "/v1/policies/functions")):
        assert change(client, method, path, PUSHER).status_code == 403
        assert change(client, method, path, "x" * 40).status_code == 403
        assert change(client, method, path, KEEPER).status_code == 200


def test_the_heuristic_can_be_put_back_in_charge_and_the_policy_too(
    live_client: Any, settings: Any, workshop: Any, kit: Any
) -> None:
    one, two = workshop.sample(1), workshop.sample(2)
    off = change(live_client, "DELETE", "/v1/policies/functions", kit.TOKEN)
    assert (off.status_code, off.json()["digest"], off.json()["counter"]) == (200, None, 2)
    assert kit.place(live_client).json()["placements"][0]["fallback"]
    entry = live_client.get("/v1/policies").json()["policies"]["functions"]
    assert (entry["digest"], entry["previous_digest"], entry["degraded"]) == (None, kit.digest_of(one), None)
    assert change(live_client, "DELETE", "/v1/policies/functions", kit.TOKEN).status_code == 412
    live_client.app.state.service.store.close()
    with kit.running(settings) as again:
        assert kit.place(again).json()["placements"][0]["fallback"], "a restart does not undo it"
        assert again.get("/readyz").json()["degraded"] == {}
        back = change(again, "POST", "/v1/policies/functions/rollback", kit.TOKEN)
        assert (back.json()["digest"], back.json()["counter"]) == (kit.digest_of(one), 3)
        assert change(again, "DELETE", "/v1/policies/functions", kit.TOKEN).status_code == 200
        # The registry was not told: the policy that was switched off is what it believes to be live.
        assert kit.push(again, two, counter=5, live=kit.digest_of(one)).is_success
        entry = again.get("/v1/policies").json()["policies"]["functions"]
        assert (entry["digest"], entry["previous_digest"]) == (kit.digest_of(two), kit.digest_of(one))


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("short", 0o600, "5 characters"),
        ("", 0o600, "unknown token"),
        (f"ada push {'x' * 31}", 0o600, "31 characters"),
        (f"ada admin {PUSHER}", 0o600, "roles one of push, rollback"),
        (f"ada push {PUSHER} more", 0o600, "line 1"),
        (f"ada {PUSHER}", 0o600, "line 1"),
        (PUSHER, 0o644, "mode 644"),
        (PUSHER, 0o660, "mode 660"),
        (PUSHER, 0o604, "mode 604"),
    ],
)
def test_a_token_file_that_is_not_safe_lets_nobody_in(
    client: Any, settings: Any, workshop: Any, kit: Any, text: str, mode: int, said: str
) -> None:
    use(settings, text, mode)
    answer = kit.push(client, workshop.sample(1), counter=1, token=PUSHER)
    assert (answer.status_code, said in answer.json()["error"]) == (403, True), answer.text
    assert PUSHER not in answer.text


def test_a_mounted_secret_may_be_read_by_its_group(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"ada rollback {KEEPER}\nairflow push {PUSHER}\n")
    path.chmod(0o440)
    assert secret_files.push_token(path) == PUSHER
    path.chmod(0o600)
    path.write_text(f"ada rollback {KEEPER}\n")
    with pytest.raises(ConfigError, match="no token of role push"):
        secret_files.push_token(path)


def test_who_pushed_from_where_is_written_down(live_client: Any, settings: Any, workshop: Any, kit: Any) -> None:
    one, two = workshop.sample(1), workshop.sample(2)
    assert kit.push(live_client, two, counter=1, live=kit.digest_of(one)).status_code == 412
    assert kit.push(live_client, two, counter=2, live=kit.digest_of(one), **{"X-Forwarded-For": "8.8.8.8"}).is_success
    assert change(live_client, "POST", "/v1/policies/functions/rollback", kit.TOKEN).is_success
    first, refused, second, back = lines(settings)
    assert (first["action"], first["outcome"], first["digest"], first["counter"]) == (
        "push", "done", kit.digest_of(one), 1,
    )  # fmt: skip
    assert (refused["outcome"], refused["digest"], "already seen" in refused["reason"]) == (
        "refused", kit.digest_of(one), True,
    )  # fmt: skip
    assert (second["record"], second["approver"], second["token"]) == (2, "nobody", "default")
    assert (back["action"], back["counter"], back["approver"]) == ("rollback", 3, None)
    assert {line["peer"] for line in (first, refused, second, back)} == {"testclient"}
    assert kit.TOKEN not in (settings.log_dir / "audit.jsonl").read_text()


def test_strangers_cannot_fill_the_audit_log(live_client: Any, settings: Any, workshop: Any, kit: Any) -> None:
    for _ in range(50):
        assert change(live_client, "POST", "/v1/policies/functions/rollback", "wrong" * 10).status_code == 403
        assert live_client.put("/v1/policies/functions", content=b"").status_code == 401
    assert len(lines(settings)) == 1
    assert 'refused_pushes_total{reason="token"} 100.0' in live_client.get("/metrics").text
