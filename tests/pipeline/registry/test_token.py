"""The signing key in a PKCS#11 token: it signs bundles and records, and never lies in a file of the worker."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import promote
from pipeline.errors import RegistryError
from pipeline.registry import places, signing
from pipeline.registry.chain import Chain
from pipeline.registry.verify import verify
from wire import records, signatures
from wire.errors import BundleError

MODULES = (Path("/usr/lib/softhsm/libsofthsm2.so"), Path("/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so"))

pytest.importorskip("PyKCS11", reason="pip install 'loadmaster[pkcs11]'")
MODULE = next((path for path in MODULES if path.exists()), None)
pytestmark = [
    pytest.mark.usefixtures("dvc_in_process"),
    pytest.mark.skipif(
        MODULE is None or not shutil.which("softhsm2-util") or not shutil.which("pkcs11-tool"),
        reason="needs Debian's softhsm2 and opensc",
    ),
]


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A software token with one key; returns its URI."""
    folder = tmp_path_factory.mktemp("token")
    (folder / "tokens").mkdir()
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder / 'tokens'}\n")
    (folder / "pin").write_text("8642")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("SOFTHSM2_CONF", str(folder / "softhsm2.conf"))
        for command in (
            ["softhsm2-util", "--init-token", "--free", "--label", "lm", "--so-pin", "97531", "--pin", "8642"],
            ["pkcs11-tool", "--module", str(MODULE), "--login", "--pin", "8642", "--token-label", "lm", "--keypairgen",
             "--key-type", "EC:prime256v1", "--label", "signkey", "--id", "01"],
        ):  # fmt: skip
            subprocess.run(command, check=True, capture_output=True)
        yield f"pkcs11:token=lm;object=signkey?module-path={MODULE}&pin-source=file:{folder / 'pin'}"


def test_a_promotion_signed_in_a_token_is_whole_and_no_private_key_lies_anywhere(nights, token, monkeypatch) -> None:
    monkeypatch.setenv(signing.KEY_ENV, token)
    record = promote.promote("functions", run_id="one", approver="ada", reason="")
    key = signing.current_key_id()
    bundle = places.bundle(record.digest)
    assert signatures.verify(bundle, signing.trusted_folder(), signing.revoked_file()) == key
    assert verify()[1] == []
    assert not (signing.folder() / "signing.pem").exists()
    for path in nights.parent.rglob("*"):
        assert path.is_dir() or b"PRIVATE KEY" not in path.read_bytes(), path
    (bundle / "golden.npz").write_bytes(b"changed")
    with pytest.raises(BundleError, match="does not match"):
        signatures.verify(bundle, signing.trusted_folder(), signing.revoked_file())


def test_documents_signed_in_a_token_verify_with_its_public_half_alone(home, token, monkeypatch) -> None:
    monkeypatch.setenv(signing.KEY_ENV, token)
    signature = signing.sign_bytes(b"document")
    assert records.verify(b"document", signature, signing.public_keys(), source="") == signing.current_key_id()
    with pytest.raises(RegistryError, match="put a new key there the way this one came"):
        signing.rotate()


def test_a_token_that_cannot_be_used_is_told_without_its_pin(home, token, monkeypatch) -> None:
    wrong = token.replace("object=signkey", "object=other").replace("pin-source=file:", "pin-value=1111&ignored=")
    monkeypatch.setenv(signing.KEY_ENV, wrong)
    with pytest.raises(RegistryError) as caught:
        signing.sign_bytes(b"x")
    assert "pkcs11:token=lm;object=other" in str(caught.value)
    assert "1111" not in str(caught.value)


def test_training_code_is_told_neither_token_nor_pin(token, monkeypatch, tmp_path) -> None:
    from dags import calls as stages

    monkeypatch.setenv(signing.KEY_ENV, token)
    (tmp_path / "shows.py").write_text(f"import os; print(os.environ.get({signing.KEY_ENV!r}))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(stages, "PYTHON", sys.executable)
    assert stages.call("shows") == "None"
    assert stages.signed_call("shows") == token


def test_the_chain_goes_on_from_a_file_to_a_token(nights, token, monkeypatch) -> None:
    promote.reject("functions", run_id="one", approver="ada", reason="not yet")
    before = signing.current_key_id()
    monkeypatch.setenv(signing.KEY_ENV, token)
    promote.promote("functions", run_id="two", approver="ada", reason="")
    assert signing.current_key_id() != before
    assert [record.state for record in Chain.open().records] == ["rejected", "approved"]
    assert verify()[1] == []
