"""Three hundred malformed or hostile requests and bundles: each is refused with a reason, none is an error of ours."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx

AUTHORISED = {"Authorization": "Bearer a-token-for-tests-of-32-characters"}
WANTED = 300

VALUES: list[Any] = [
    None, True, -1, -0.5, 1e308, -1e308, 1e400, 2**70, "", "x", "NaN", "∞", "\u0000", "a" * 400, [], [1], {}, {"a": 1},
    [[[[[]]]]], "../../etc/passwd", "<script>", "'; drop table", "\ud800", 0,
]  # fmt: skip


def wrong_value(draw: random.Random, document: Any) -> Any:
    """Put something else in the place of one value, somewhere."""
    if isinstance(document, dict) and document and draw.random() < 0.8:
        key = draw.choice(list(document))
        return {**document, key: wrong_value(draw, document[key])}
    if isinstance(document, list) and document and draw.random() < 0.8:
        place = draw.randrange(len(document))
        return [wrong_value(draw, one) if index == place else one for index, one in enumerate(document)]
    return draw.choice(VALUES)


def malformed(draw: random.Random, sent: dict[str, Any]) -> bytes:
    """Return a body that is probably wrong: a value, a key, its bytes, its end."""
    kind = draw.randrange(7)
    if kind <= 2:
        return json.dumps(wrong_value(draw, sent)).encode()
    if kind == 3:
        return json.dumps(sent | {draw.choice(["Problem", "extra", "candidate", "\u0000"]): 1}).encode()
    data = bytearray(json.dumps(sent).encode())
    if kind == 4:
        return bytes(data[: draw.randrange(len(data))])
    if kind == 5:
        for _ in range(draw.randrange(1, 6)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        return bytes(data)
    return draw.choice(
        [b"", b"null", b"[" * 5000, b'{"a":' * 3000, b"\xff\xfe", b"\x1f\x8b" + bytes(data), b"PK\x03\x04"]
    )


def hostile_push(draw: random.Random, files: dict[str, bytes], kit: Any) -> bytes:
    """Return an archive that is wrong: a file cut, changed, missing, strange, or no archive at all."""
    changed = dict(files)
    name = draw.choice(sorted(changed))
    kind = draw.randrange(7)
    if kind == 0:
        changed[name] = changed[name][: draw.randrange(len(changed[name]))]
    elif kind == 1:
        changed[name] = kit.flip_byte(changed[name], draw.random() * 0.99)
    elif kind == 2:
        del changed[name]
    elif kind == 3:
        changed[draw.choice(["../evil", "/etc/passwd", "policy.onnx/x", "model-x.onnx", "a" * 90])] = b"x"
    elif kind == 4:
        changed[name] = draw.randbytes(draw.randrange(1, 3000))
    elif kind == 5:
        return kit.tar(changed)[: draw.randrange(1, 20_000)]
    else:
        return draw.choice([b"", b"\x1f\x8b", b"PK\x03\x04", draw.randbytes(2048), b"\0" * 10_240])
    return kit.tar(changed)


def refused(answer: httpx.Response) -> bool:
    """Hold an answer to the promise; false for one that was no mistake after all."""
    if answer.status_code == 200:
        return False
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text[:500])
    reason = answer.json()["error"]
    assert 0 < len(reason) <= 600
    assert "\n" not in reason
    assert "Traceback" not in reason
    return True


def test_three_hundred_malformed_requests_and_bundles_are_refused_with_a_reason(
    live_client: Any, workshop: Any, kit: Any
) -> None:
    draw = random.Random(16)
    live = kit.digest_of(workshop.sample(1))
    before = live_client.get("/v1/policies").json()
    count = 0
    while count < 180:
        body = malformed(draw, kit.body(3, requests=2))
        count += refused(live_client.post("/v1/place", content=body))
    promoted = workshop.promoted(workshop.sample(2), counter=2, live=live)
    for number in range(80):
        where = ("", "/canary", "/shadow")[number % 3]
        sent = AUTHORISED | {"If-Match": f'"{live}"', "X-Loadmaster-Share": "0.1"}
        answer = live_client.put(
            f"/v1/policies/functions{where}", content=hostile_push(draw, promoted, kit), headers=sent
        )
        assert refused(answer), "a damaged bundle went live"
        count += 1
    strange = [
        ("POST", "/v1/policies/functions/rollback", {"X-Loadmaster-Counter": value})
        for value in ("-1", "1e9", "x", "9" * 400, "١٢")
    ]
    strange += [("PUT", "/v1/policies/functions", {"If-Match": value}) for value in ('"', "W/", "*", "x" * 3000)]
    strange += [
        ("PUT", "/v1/policies/functions/canary", {"If-Match": f'"{live}"', "X-Loadmaster-Share": value})
        for value in ("2", "-0.1", "nan", "inf", "1e-400", "0x1")
    ]
    strange += [
        (method, f"/v1/policies/{name}", {}) for method in ("GET", "PUT", "DELETE") for name in ("x", "%00", "..")
    ]
    strange += [(method, "/v1/place", {}) for method in ("GET", "PUT", "DELETE", "PATCH")]
    strange += [
        ("POST", path, {}) for path in ("/v1/place/", "/v1//place", "/extender/filter", "/v2/place", "/" + "a" * 5000)
    ]
    strange += [("GET", f"/v1/policies/functions?x={'y' * size}", {}) for size in ()]
    while len(strange) < 45:
        strange.append(
            ("POST", f"/v1/policies/functions/canary/{draw.choice(['advance', 'back', ''])}", {"If-Match": '"x"'})
        )
    for method, path, headers in strange:
        encoded = {name: value.encode() for name, value in headers.items()}
        answer = live_client.request(method, path, headers=AUTHORISED | encoded, content=b"\0" * 600)  # type: ignore[dict-item]
        assert refused(answer), (method, path, headers)
        count += 1
    assert count >= WANTED
    assert live_client.get("/v1/policies").json() == before, "nothing changed"
    assert kit.place(live_client).json()["digest"] == live
