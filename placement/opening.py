"""From the bytes of a store, or of a push, to a policy that is loaded here: nothing that is not good today gets in."""

from __future__ import annotations

import logging
from pathlib import Path

from placement import intake
from placement.errors import PushRefusedError, StoreError
from placement.policy import Policy
from placement.settings import Settings
from placement.store import PolicyStore
from wire.contracts.feature_spec import ProblemName
from wire.contracts.record import PromotionRecord
from wire.errors import BundleError

log = logging.getLogger(__name__)


class Opener:
    """Opens policies; the store lends it a folder to verify signatures in."""

    def __init__(self, store: PolicyStore, settings: Settings) -> None:
        self._store, self._settings = store, settings

    def unpack(self, problem: ProblemName, archive: Path) -> tuple[dict[str, bytes], PromotionRecord]:
        """Take a bundle out of a push, and the record that a trusted key signed."""
        try:
            files, proof = intake.unpack(archive)
        except BundleError as error:
            raise PushRefusedError.because("archive", error) from error
        return files, proof.check(problem, self._settings)

    def admit(self, problem: ProblemName, files: dict[str, bytes], record: PromotionRecord) -> Policy:
        """Take a pushed bundle through every check."""
        return intake.admit(files, problem, self._store, self._settings, record)

    def open(self, problem: ProblemName, digest: str) -> Policy:
        """Load what the store holds, verified anew."""
        policy = intake.admit(self._store.bundle(problem, digest), problem, self._store, self._settings)
        if policy.digest != digest:
            raise StoreError(f"store holds {policy.digest} in the place of {digest}", "bundles by digest")
        return policy

    def try_open(self, problem: ProblemName, digest: str | None) -> Policy | None:
        """Load what stands by, or is tried; what answers does not depend on it."""
        if digest is None:
            return None
        try:
            return self.open(problem, digest)
        except Exception as error:  # noqa: BLE001  (whatever a damaged store makes a library raise: it is not there)
            log.warning("policy %s of %s cannot be loaded: %s", digest, problem, error)
            return None

    def refuse_distrusted(self, policy: Policy | None) -> None:
        """Refuse a policy whose key would not be taken now."""
        reason = self.distrust(policy)
        if reason is not None:
            raise PushRefusedError("signature", 422, reason, "a key that is trusted now", "sign it anew, then push it")

    def distrust(self, policy: Policy | None) -> str | None:
        """Say why the key of a policy would not be taken now; None when it would."""
        if policy is None:
            return None
        try:
            intake.check_key(policy.key, self._settings)
        except (BundleError, OSError) as error:
            return f"{policy.digest}: {error}"
        return None
