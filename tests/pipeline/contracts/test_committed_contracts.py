import msgspec
import pytest

from pipeline.contracts import __main__ as committed
from wire.contracts import decode, encode
from wire.contracts.bundle import content_digest
from wire.contracts.feature_spec import Feature, FeatureSpec
from wire.contracts.place import PlaceRequest
from wire.errors import ContractError

SPEC = FeatureSpec("functions", 1, (Feature("cpu", "cores", 4.0, "nodes.cpu", 0.0),), ())


@pytest.mark.parametrize("name", list(committed.contracts()))
def test_code_and_committed_contract_agree(name):
    path = committed.FOLDER / f"{name}.json"
    assert path.read_bytes() == committed.render(committed.contracts()[name]), (
        f"{path.name} is not what the code says; if the change is meant, run make contracts and commit it"
    )


def test_no_committed_contract_is_left_over():
    assert {path.stem for path in committed.FOLDER.glob("*.json")} == set(committed.contracts())


def test_equal_documents_have_equal_bytes_and_come_back():
    assert encode(SPEC) == encode(msgspec.convert(msgspec.to_builtins(SPEC), FeatureSpec))
    assert decode(encode(SPEC), FeatureSpec, source="test") == SPEC


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "truncated"),
        (b'{"problem": "Big Ships", "requests": []}', "$.problem"),
        (b'{"problem": "vm", "requests": []}', "$.requests"),
        (b'{"problem": "vm", "requests": [{"id": "a", "fields": {"cpu": "two"}}]}', "$.requests[0].fields"),
        (b'{"problem": "vm", "requests": [{"id": "a", "fields": {}}], "colour": 1}', "colour"),
        (b'{"problem": "vm", "requests": [{"id": "", "fields": {}}]}', "length"),
    ],
)
def test_a_wrong_document_is_refused_with_the_place_and_the_reason(body, words):
    with pytest.raises(ContractError) as caught:
        decode(body, PlaceRequest, source="POST /v1/place")
    assert words in str(caught.value)
    assert "POST /v1/place" in str(caught.value)


def test_the_digest_names_what_decides_and_nothing_else():
    files = {"policy.onnx": "a", "golden.npz": "b"}
    digest = content_digest("functions", SPEC, files)
    assert digest == content_digest("functions", SPEC, dict(reversed(files.items())))
    assert digest != content_digest("functions", SPEC, {**files, "policy.onnx": "c"})
    assert digest != content_digest("vm", SPEC, files)
    assert digest != content_digest("functions", msgspec.structs.replace(SPEC, version=2), files)
